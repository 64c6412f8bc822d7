//! `lockkeeper evict`: takes tickets out of a line by force.

use crate::{
    answer::{self, quoted},
    cli::{self, Common},
    exit_code,
    failure::Failure,
    listing::{TicketView, known_fence},
    ls,
    output::{note, printable},
    run::End,
    stderr,
};
use clap::Args;
use lockkeeper::{Name, Ticket, TicketId};
use serde::Serialize;
use std::{
    io::{self, IsTerminal as _},
    str::FromStr as _,
};

const HELP: &str = "\
Examples:
  lockkeeper show deploy                           who holds it, with the tickets
  lockkeeper evict deploy                          its holders; asks first
  lockkeeper evict --yes deploy 5f0c…              one ticket, from a script

Exit codes:
  0    all that was meant is evicted; the answer says who
  1    there was nothing to evict, or the answer to the question was no
  64   usage: not on a terminal, and without --yes
  69   the store is unavailable
  77   the store refused

An evicted holder hears of it with its next renewal at the latest; until then it may go on as if it held the
lock, beside the next holder. A command under run is ended then. Evicting has no lock-delay.";

/// Take the lock from its holders, or one ticket out of the line
#[derive(Args, Debug)]
#[command(after_long_help = HELP)]
pub(crate) struct Evict {
    /// The lock
    #[arg(value_parser = cli::name)]
    name: Name,

    /// One ticket, of a holder or a waiter, as show has it [default: all holders]
    #[arg(value_parser = TicketId::from_str)]
    ticket: Option<TicketId>,

    /// Do not ask first
    #[arg(short, long)]
    yes: bool,
}

#[derive(Debug, Serialize)]
struct EvictView<'a> {
    name: &'a str,
    evicted: Vec<TicketView>,
}

/// Evicts, and says who was.
pub(crate) async fn evict(args: &Evict, common: &Common) -> Result<End, Failure> {
    let name = &args.name;
    if !args.yes && !can_ask() {
        let what = format!("evicting from {} must be confirmed", quoted(name.as_str()));
        return Err(Failure::new(exit_code::USAGE, anyhow::Error::msg(what))
            .hint("say --yes, since there is no terminal to ask on"));
    }
    let keeper = answer::connect(common).await?;
    let line = keeper.get(name).await?;
    let tickets = line.map(|line| line.tickets).unwrap_or_default();
    let meant: Vec<Ticket> = tickets.into_iter().filter(|ticket| args.means(ticket)).collect();
    if !meant.is_empty() && !args.yes && !confirm(name, &meant)? {
        return Ok(End::Code(exit_code::NO));
    }
    let mut evicted = Vec::new();
    for ticket in &meant {
        // One that has left meanwhile was not evicted.
        match keeper.evict(name, ticket.id).await {
            Ok(true) => evicted.push(ticket),
            Ok(false) => {}
            Err(e) => {
                for ticket in evicted {
                    note(&format!("evicted {}", who(name, ticket)));
                }
                return Err(e.into());
            }
        }
    }
    let code = answer::code(!evicted.is_empty());
    let words = match (evicted.is_empty(), args.ticket) {
        (false, _) => {
            let lines = evicted.iter().map(|ticket| format!("evicted {}", who(name, ticket)));
            lines.collect::<Vec<_>>().join("\n")
        }
        (_, Some(ticket)) => format!("{} has no ticket {ticket}", quoted(name.as_str())),
        (_, None) => format!("no client holds {}", quoted(name.as_str())),
    };
    let evicted = evicted.into_iter().map(Into::into).collect();
    answer::give(common, EvictView { name: name.as_str(), evicted }, &words, code)
}

impl Evict {
    fn means(&self, ticket: &Ticket) -> bool {
        self.ticket.map_or(ticket.fence.is_some(), |id| id == ticket.id)
    }
}

/// "ci-7 (pid 4121) from `deploy` (fence 17)"
fn who(name: &Name, ticket: &Ticket) -> String {
    let owner = ticket.owner.as_ref().map(|owner| printable(&owner.to_string()));
    let place = match (ticket.fence, known_fence(ticket)) {
        (None, _) => "waiting".to_owned(),
        (_, Some(fence)) => format!("fence {fence}"),
        (_, None) => ticket.mode.to_string(),
    };
    format!("{} from {} ({place})", owner.unwrap_or_else(ls::kept), quoted(name.as_str()))
}

fn can_ask() -> bool {
    io::stdin().is_terminal() && io::stderr().is_terminal()
}

fn confirm(name: &Name, tickets: &[Ticket]) -> Result<bool, Failure> {
    for ticket in tickets {
        stderr::say(format!("lockkeeper: evict {}\n", who(name, ticket)));
    }
    stderr::say("lockkeeper: really? [y/N] ");
    stderr::flush(stderr::EXIT_MAX);
    let mut line = String::new();
    io::stdin().read_line(&mut line).map_err(Failure::bug)?;
    Ok(matches!(line.trim().to_lowercase().as_str(), "y" | "yes"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use lockkeeper::{Mode, Owner};

    #[test]
    fn the_evicted_are_named_with_owner_and_fence() {
        let name = Name::new("deploy").unwrap();
        let mut ticket = Ticket::new(TicketId::random(), Mode::Exclusive);
        ticket.owner = Some(Owner::new("ci\u{1b}", 4121, "sh"));
        assert_eq!(who(&name, &ticket), "ci\\u{1b} (pid 4121) from `deploy` (waiting)");
        ticket.fence = Some(17);
        assert_eq!(who(&name, &ticket), "ci\\u{1b} (pid 4121) from `deploy` (fence 17)");
        (ticket.fence, ticket.owner) = (Some(0), None);
        assert_eq!(who(&name, &ticket), "kept closed from `deploy` (exclusive)");
    }
}
