//! `lockkeeper held`: is a lock held?

use crate::{
    answer::{self, quoted},
    cli::{self, Common},
    failure::Failure,
    listing::TicketView,
    run::End,
};
use clap::Args;
use lockkeeper::{Name, Ticket};
use serde::Serialize;

const HELP: &str = "\
Examples:
  if lockkeeper held -q deploy; then echo later; fi
  lockkeeper held deploy                           says by whom

Exit codes:
  0    the lock is held: by a client, or kept closed after its release (--at-least)
  1    it is free
  69   the store is unavailable (and the other codes of errors: no code but 1 means free)

A lock that is free now can be held when the next command runs: to run something only while it is free, use
lockkeeper run -n.";

/// Say by the exit code whether a lock is held
#[derive(Args, Debug)]
#[command(after_long_help = HELP)]
pub(crate) struct Held {
    /// The lock
    #[arg(value_parser = cli::name)]
    name: Name,
}

#[derive(Debug, Serialize)]
struct HeldView<'a> {
    name: &'a str,
    held: bool,
    holders: Vec<TicketView>,
    /// How many tickets wait in line.
    waiters: usize,
}

/// Looks, and answers with the exit code.
pub(crate) async fn held(args: &Held, common: &Common) -> Result<End, Failure> {
    let name = &args.name;
    let line = answer::connect(common).await?.get(name).await?;
    let holders: Vec<&Ticket> = line.iter().flat_map(|line| line.holders()).collect();
    let held = !holders.is_empty();
    let words = match answer::holders_words(holders.iter().copied()) {
        Some(held) => format!("{} is {held}", quoted(name.as_str())),
        None => format!("{} is free", quoted(name.as_str())),
    };
    let view = HeldView {
        name: name.as_str(),
        held,
        holders: holders.into_iter().map(Into::into).collect(),
        waiters: line.as_ref().map_or(0, |line| line.waiters().count()),
    };
    answer::give(common, view, &words, answer::code(held))
}
