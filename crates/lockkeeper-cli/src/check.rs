//! `lockkeeper check`: is a grant still held?

use crate::{
    answer,
    cli::Common,
    event::HolderView,
    failure::Failure,
    grant::{self, Over, Why},
    run::End,
};
use clap::Args;
use serde::Serialize;

const HELP: &str = "\
Examples:
  lockkeeper check \"$TOKEN\" && accept              accept a request only from the holder
  lockkeeper check                                 inside run: do we still hold the lock?
  echo \"$TOKEN\" | lockkeeper check -q -            only the exit code

Exit codes:
  0    the grant is held
  1    it is not; the answer says why: lost, newer_fence, never, other_store
  64   usage: no sequencer, or a text that is none
  69   the store is unavailable

The answer is as old as its way to you. What must not be written by a holder that was overtaken has to compare
fences itself, where it is written.";

/// Ask the store whether a grant is still held
///
/// The grant is named by its sequencer, the text that a command under run finds in LOCKKEEPER_SEQUENCER
/// and sends along with what it asks for.
#[derive(Args, Debug)]
#[command(after_long_help = HELP)]
pub(crate) struct Check {
    /// The sequencer; - reads it from stdin
    #[arg(env = grant::VARIABLE, hide_env_values = true)]
    sequencer: Option<String>,
}

#[derive(Debug, Serialize)]
struct CheckView<'a> {
    name: &'a str,
    held: bool,
    /// None while it is held.
    why: Option<Why>,
    /// The number of the grant; none where the store has none.
    fence: Option<u64>,
    /// The number of the grant that holds the lock now, if one does.
    current_fence: Option<u64>,
    /// Who holds the lock now, if that is known.
    holder: Option<HolderView>,
}

/// Asks, and answers with the exit code.
pub(crate) async fn check(args: &Check, common: &Common) -> Result<End, Failure> {
    let sequencer = grant::sequencer(args.sequencer.as_deref())?;
    let keeper = answer::connect(common).await?;
    let held = keeper.check(&sequencer).await?;
    let over = if held { None } else { Some(Over::of(&keeper, &sequencer).await?) };
    let fence = Some(sequencer.fence()).filter(|fence| *fence != 0);
    let view = CheckView {
        name: sequencer.name().as_str(),
        held,
        why: over.as_ref().map(|over| over.why),
        fence,
        current_fence: over.as_ref().map_or(fence, Over::current_fence),
        holder: over.as_ref().and_then(Over::holder),
    };
    let words = match &over {
        None => format!("{} is held", grant::words(&sequencer)),
        Some(over) => over.words(&sequencer),
    };
    answer::give(common, view, &words, answer::code(held))
}
