//! `lockkeeper renew`: the lock of a ticket file for another TTL.

use crate::{
    cli::Common,
    duration, exit_code,
    failure::Failure,
    output,
    run::End,
    ticket::{self, Held, Reached},
    ticket_file::TicketFile,
};
use anyhow::anyhow;
use clap::Args;
use lockkeeper::{Guard, Loss};
use nix::unistd::getppid;
use std::{path::PathBuf, time::Duration};
use tokio::time::sleep;

/// How often `--keep` looks whether it is still wanted.
const LOOK: Duration = Duration::from_secs(1);

pub(crate) const HELP: &str = "\
Examples:
  lockkeeper renew \"$ticket\" || exit       before a step that needs the lock
  lockkeeper renew --keep \"$ticket\" &      renews it until the script releases it, or ends

Prints LOCKKEEPER_RENEW_BY for eval: until when the lock is held now, as date +%s has it (with
--json an object).

Exit codes:
  66  there is no such ticket file, or it cannot be read
  69  the store is unavailable; until LOCKKEEPER_RENEW_BY the lock is held all the same
  77  the store refused, or the file belongs to another user
  78  configuration; the ticket is for another store
  79  the lock was lost, or its release has begun: stop what needs it";

/// The flags of `renew`.
#[derive(Args, Debug)]
pub(crate) struct Renew {
    /// The ticket file
    #[arg(value_hint = clap::ValueHint::FilePath)]
    path: PathBuf,

    /// Go on renewing until the file is gone or the process that started this one has ended
    #[arg(long)]
    keep: bool,

    /// Wait at most so long for a store that does not answer [default: 30s]
    #[arg(short, long, value_name = "TIME")]
    #[arg(value_parser = duration::parse, allow_hyphen_values = true)]
    wait: Option<Duration>,
}

/// Renews the lock and says until when it is held.
pub(crate) async fn renew(args: &Renew, common: &Common) -> Result<End, Failure> {
    let parent = getppid();
    let Some(file) = TicketFile::open(&args.path)? else {
        let path = output::printable(&args.path.display().to_string());
        let what =
            anyhow!("there is no ticket file {path}: its lock was released, or never acquired");
        return Err(Failure::new(exit_code::NO_TICKET, what));
    };
    if file.is_releasing {
        let name = output::printable(&file.contents.name);
        let what = anyhow!("the release of `{name}` has begun");
        let failure = Failure::new(exit_code::LOCK_LOST, what);
        return Err(failure.hint("lockkeeper release PATH brings it to its end"));
    }
    let (keeper, guard) = match ticket::reach(&file, common, args.wait).await? {
        Reached::Held(keeper, guard) => (keeper, guard),
        Reached::Lost(why) => return Err(ticket::lost(&file, why)),
    };
    let held = Held::of(&guard);
    let text = match common.json {
        true => {
            let answer = ticket::held_json(&file.contents.detached()?, &held);
            output::json_answer(answer).map_err(Failure::bug)?
        }
        false => format!("LOCKKEEPER_RENEW_BY={}\n", held.renew_by().as_second()),
    };
    let code = output::answer(&text);
    if args.keep {
        let is_wanted = || file.is_in_use() && getppid() == parent;
        if let Some(why) = keep(&guard, is_wanted).await {
            ticket::close(&keeper).await;
            return Err(ticket::lost(&file, why));
        }
    }
    // The lock stays held, without this process.
    match guard.detach().await {
        Ok(_) | Err(lockkeeper::Error::Lost { why: Loss::SessionGone, .. }) => {}
        Err(e) if file.is_in_use() => return Err(e.into()),
        Err(_) => {}
    }
    ticket::close(&keeper).await;
    Ok(End::Code(code))
}

/// Leaves the renewing to the library for as long as it is wanted. Says why the lock was lost, if it was and
/// was not released.
async fn keep(guard: &Guard, is_wanted: impl Fn() -> bool) -> Option<Loss> {
    while is_wanted() {
        tokio::select! {
            why = guard.lost() => return is_wanted().then_some(why),
            () = sleep(LOOK) => {}
        }
    }
    None
}
