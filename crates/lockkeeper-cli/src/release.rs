//! `lockkeeper release`: the end of the lock of a ticket file.

use crate::{
    cli::Common,
    duration, exit_code,
    failure::Failure,
    output,
    run::End,
    ticket::{self, RELEASE_MAX, Reached},
    ticket_file::TicketFile,
};
use anyhow::anyhow;
use clap::Args;
use lockkeeper::{Error, Loss};
use serde_json::json;
use std::{path::PathBuf, time::Duration};
use tokio::time::timeout;

pub(crate) const HELP: &str = "\
Examples:
  lockkeeper release \"$ticket\"
  trap 'lockkeeper release \"$ticket\"' EXIT

Removes the ticket file with the lock. A second release does no harm: there is no file any more,
which is said on stderr, with code 0.

Exit codes:
  66  the ticket file cannot be read or makes no sense
  69  the store is unavailable: whether the lock was released is not known. The file stays: run
      it again, or the lock ends with its TTL
  77  the store refused, or the file belongs to another user
  78  configuration; the ticket is for another store
  79  the lock was lost before: not all that was done was done under it. The file is removed";

/// The flags of `release`.
#[derive(Args, Debug)]
pub(crate) struct Release {
    /// The ticket file
    #[arg(value_hint = clap::ValueHint::FilePath)]
    path: PathBuf,

    /// Wait at most so long for a store that does not answer [default: 30s]
    #[arg(short, long, value_name = "TIME")]
    #[arg(value_parser = duration::parse, allow_hyphen_values = true)]
    wait: Option<Duration>,
}

/// Releases the lock and removes the file.
pub(crate) async fn release(args: &Release, common: &Common) -> Result<End, Failure> {
    let path = output::printable(&args.path.display().to_string());
    let Some(mut file) = TicketFile::open(&args.path)? else {
        let why =
            format!("there is no ticket file {path}: its lock was released, or never acquired");
        return nothing(common, &why);
    };
    if !file.lock(args.wait.unwrap_or(ticket::CONNECT_MAX)).await? {
        return nothing(common, &format!("another process has just released {path}"));
    }
    // Another process may have begun it and been killed while we waited for that.
    let begun_before = file.is_releasing || !file.is_in_use();
    let (name, shown) = (file.contents.name.clone(), output::printable(&file.contents.name));
    let (keeper, guard) = match ticket::reach(&file, common, args.wait).await {
        Ok(Reached::Held(keeper, guard)) => (keeper, guard),
        Ok(Reached::Lost(why)) => return over(&file, common, begun_before, why),
        Err(failure) if failure.code() == exit_code::UNAVAILABLE => return Err(failure.hint(AGAIN)),
        Err(failure) => return Err(failure),
    };
    // Only from here on can the outcome be unknown.
    file.set_releasing();
    let released = timeout(RELEASE_MAX, guard.release()).await;
    ticket::close(&keeper).await;
    match released {
        Ok(Ok(())) => {
            file.remove();
            answer(common, &name, true)
        }
        Ok(Err(Error::Lost { why, .. })) => over(&file, common, begun_before, why),
        unknown => {
            let why = match unknown {
                Ok(Err(e)) => anyhow!(e),
                _ => anyhow!("no answer within {RELEASE_MAX:?}"),
            };
            let what = why.context(format!("it is not known whether `{shown}` was released"));
            Err(Failure::new(exit_code::UNAVAILABLE, what).hint(AGAIN))
        }
    }
}

const AGAIN: &str = "the ticket file was kept: run it again, or the lock ends with its TTL";

/// The store has the lock no more: an earlier release has been carried out after all, or it was lost.
fn over(file: &TicketFile, common: &Common, begun_before: bool, why: Loss) -> Result<End, Failure> {
    file.remove();
    if !begun_before {
        let hint = "what was done since is not protected; the ticket file was removed";
        return Err(ticket::lost(file, why).hint(hint));
    }
    if !common.quiet && !common.json {
        let name = output::printable(&file.contents.name);
        output::note(&format!("`{name}` is held no more: its release was begun before"));
    }
    answer(common, &file.contents.name, true)
}

/// There is nothing to release.
fn nothing(common: &Common, why: &str) -> Result<End, Failure> {
    if !common.json {
        if !common.quiet {
            output::note(why);
        }
        return Ok(End::Code(0));
    }
    let text = output::json_answer(json!({ "released": false, "message": why }));
    Ok(End::Code(output::answer(&text.map_err(Failure::bug)?)))
}

fn answer(common: &Common, name: &str, released: bool) -> Result<End, Failure> {
    if !common.json {
        return Ok(End::Code(0));
    }
    let text = output::json_answer(json!({ "name": name, "released": released }));
    Ok(End::Code(output::answer(&text.map_err(Failure::bug)?)))
}
