//! `lockkeeper check`: is a grant still held?

use crate::{
    answer,
    cli::Common,
    event::HolderView,
    failure::Failure,
    grant::{self, Over, Why},
    run::End,
    signature::{Given, SignedView},
};
use clap::{Args, ValueHint};
use lockkeeper::{Sequencer, SignedError};
use serde::Serialize;
use std::path::PathBuf;

const HELP: &str = "\
Examples:
  lockkeeper check \"$TOKEN\" && accept              accept a request only from the holder
  lockkeeper check                                 inside run: do we still hold the lock?
  echo \"$TOKEN\" | lockkeeper check -q -            only the exit code
  lockkeeper check --keys keys \"$TOKEN\"           only if the service has signed it
  lockkeeper check --keys keys --offline \"$TOKEN\" the signature alone; no store is asked

Exit codes:
  0    the grant is held; with --offline, one of the keys has signed it
  1    it is not; the answer says why: lost, newer_fence, never, other_store, and with --keys also unsigned,
       unknown_key, forged
  64   usage: no sequencer, or a text that is none
  69   the store is unavailable
  78   the keys cannot be read, or all users of the machine may read them

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

    /// Accept only what a key of this file has signed; the service signs with the same file (--signing-keys)
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    keys: Option<PathBuf>,

    /// Verify the signature alone: that the service made this grant, not that it is still held
    #[arg(long, requires = "keys")]
    offline: bool,
}

#[derive(Debug, Serialize)]
struct CheckView<'a> {
    /// None if the signature is wrong: then all that the text says can be forged.
    name: Option<&'a str>,
    /// None with `--offline`.
    held: Option<bool>,
    /// None while it is held.
    why: Option<Why>,
    /// The number of the grant; none where the store has none.
    fence: Option<u64>,
    /// The number of the grant that holds the lock now, if one does.
    current_fence: Option<u64>,
    /// Who holds the lock now, if that is known.
    holder: Option<HolderView>,
    /// When and with which key it was signed; none without `--keys`.
    signed: Option<SignedView<'a>>,
}

/// Asks, and answers with the exit code.
pub(crate) async fn check(args: &Check, common: &Common) -> Result<End, Failure> {
    let given = Given::read(args.sequencer.as_deref(), args.keys.as_deref())?;
    let sequencer = match &given {
        Given::Plain(sequencer) => sequencer,
        Given::Signed(signed) if args.offline => {
            let view = view(&signed.sequencer, given.view());
            let words = format!("{} was signed", grant::words(&signed.sequencer));
            return answer::give(common, view, &words, 0);
        }
        Given::Signed(signed) => &signed.sequencer,
        Given::Refused(refused) => return refuse(common, *refused),
    };
    let keeper = answer::connect(common).await?;
    let held = keeper.check(sequencer).await?;
    let over = if held { None } else { Some(Over::of(&keeper, sequencer).await?) };
    let plain = view(sequencer, given.view());
    let view = CheckView {
        held: Some(held),
        why: over.as_ref().map(|over| over.why),
        current_fence: over.as_ref().map_or(plain.fence, Over::current_fence),
        holder: over.as_ref().and_then(Over::holder),
        ..plain
    };
    let words = match &over {
        None => format!("{} is held", grant::words(sequencer)),
        Some(over) => over.words(sequencer),
    };
    answer::give(common, view, &words, answer::code(held))
}

/// What the text itself says.
fn view<'a>(sequencer: &'a Sequencer, signed: Option<SignedView<'a>>) -> CheckView<'a> {
    let name = Some(sequencer.name().as_str());
    let fence = Some(sequencer.fence()).filter(|fence| *fence != 0);
    CheckView { name, held: None, why: None, fence, current_fence: None, holder: None, signed }
}

/// The answer about a text that no key has signed.
fn refuse(common: &Common, refused: SignedError) -> Result<End, Failure> {
    let why = match refused {
        SignedError::Unsigned => Why::Unsigned,
        SignedError::UnknownKey => Why::UnknownKey,
        _ => Why::Forged,
    };
    let view = CheckView {
        name: None,
        held: None,
        why: Some(why),
        fence: None,
        current_fence: None,
        holder: None,
        signed: None,
    };
    answer::give(common, view, &refused.to_string(), answer::code(false))
}
