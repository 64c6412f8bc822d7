//! Reaping processes that lockkeeper has not started, as the first process of a PID namespace has to.
//!
//! In a container lockkeeper may be PID 1. A process whose parent has ended becomes a child of PID 1 there, and
//! stays a zombie until PID 1 reaps it. The command and the supervisor are not reaped here: the command's
//! zombie keeps its exit code and the number of its process group.

use nix::{
    sys::wait::{Id, WaitPidFlag, WaitStatus, waitid, waitpid},
    unistd::{Pid, getpid},
};
use std::{
    io,
    sync::{Mutex, MutexGuard, PoisonError},
};
use tokio::signal::unix::{SignalKind, signal};

/// The processes whose end other code waits for.
static KEPT: Mutex<Vec<Pid>> = Mutex::new(Vec::new());

fn kept() -> MutexGuard<'static, Vec<Pid>> {
    KEPT.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Leaves the end of this process, which was just started, to other code. Must be called before the next
/// await, so that the reaper does not run in between.
pub(crate) fn keep(process: u32) {
    if let Ok(process) = i32::try_from(process) {
        kept().push(Pid::from_raw(process));
    }
}

/// This process was reaped, so that its number may become an orphan's.
pub(crate) fn let_go(process: u32) {
    kept().retain(|kept| u32::try_from(kept.as_raw()) != Ok(process));
    if getpid().as_raw() == 1 {
        // Those that ended behind it were not seen.
        reap();
    }
}

/// Reaps orphans from now on, if that is for us to do. Must be called in a runtime of one thread.
pub(crate) fn adopt() -> io::Result<()> {
    if getpid().as_raw() == 1 {
        let mut ends = signal(SignalKind::child())?;
        tokio::spawn(async move {
            loop {
                reap();
                ends.recv().await;
            }
        });
    }
    Ok(())
}

/// Reaps all orphans that have ended. One SIGCHLD may stand for several of them.
fn reap() {
    let ended = WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT;
    // The kernel shows the oldest child first. An error is the end of it too: there is no child, or its
    // signal has no name in `nix`.
    while let Ok(status @ (WaitStatus::Exited(..) | WaitStatus::Signaled(..))) =
        waitid(Id::All, ended)
    {
        let orphan = status.pid().filter(|pid| !kept().contains(pid));
        if orphan.is_none_or(|orphan| waitpid(orphan, Some(WaitPidFlag::WNOHANG)).is_err()) {
            return;
        }
    }
}
