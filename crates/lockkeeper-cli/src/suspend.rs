//! Stopping with the job (Ctrl-Z), and never without the command.
//!
//! If we stopped at once when asked to, the command would run on while no process watches the lock. So
//! SIGTSTP is blocked: it stays pending while the command is stopped first, and is let through
//! then. The kernel forgets a pending SIGTSTP when SIGCONT comes, so the user who continues the job in
//! between finds it running, and never a process that stops too late for it.

use crate::terminal;
use nix::{
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::{
        signal::{SigSet, Signal, killpg},
        signalfd::{SfdFlags, SignalFd},
    },
    unistd::getpgrp,
};
use std::{io, os::fd::AsFd as _};
use tokio::net::unix::pipe;

/// The wish of others that we stop, held back.
#[derive(Debug)]
pub(crate) struct Suspend {
    /// Readable while SIGTSTP is pending. The runtime has no type for a bare descriptor that can be
    /// used without unsafe code; to it, this is the end of a pipe.
    pending: pipe::Receiver,
    asked: bool,
}

impl Suspend {
    /// Holds SIGTSTP back from now on, on this thread and those that it starts.
    pub(crate) fn hold_back() -> io::Result<Self> {
        let mask = mask();
        mask.thread_block()?;
        let flags = SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC;
        let pending = SignalFd::with_flags(&mask, flags)?.as_fd().try_clone_to_owned()?;
        Ok(Self { pending: pipe::Receiver::from_owned_fd_unchecked(pending)?, asked: false })
    }

    /// Waits until a user or a program wants us to stop. The signal is not read, and so stays pending.
    ///
    /// # Cancel safety
    /// No wish is lost when the future is dropped.
    pub(crate) async fn asked(&mut self) {
        loop {
            if self.pending.readable().await.is_err() {
                // Without the runtime there is no task left to ask.
                std::future::pending().await
            }
            // The next signal is news again.
            let _ = self.pending.try_io(|| io::Result::<()>::Err(io::ErrorKind::WouldBlock.into()));
            // The news may be old: who was continued since must not stop the command any more.
            if self.is_pending() {
                self.asked = true;
                return;
            }
        }
    }

    fn is_pending(&self) -> bool {
        let mut pending = [PollFd::new(self.pending.as_fd(), PollFlags::POLLIN)];
        poll(&mut pending, PollTimeout::ZERO).is_ok_and(|ready| ready > 0)
    }

    /// Stops, with all of our process group, and returns when continued: SIGCONT has come then.
    /// Returns at once when the group has been continued since it was asked to stop. Where nobody
    /// would ever continue us, does nothing and says so.
    pub(crate) fn stop(&mut self) -> bool {
        let asked = std::mem::take(&mut self.asked);
        let shell = terminal::has_shell();
        if shell && !asked {
            // The others, in a pipeline or a script, have heard nothing yet.
            let _ = killpg(getpgrp(), Signal::SIGTSTP);
        }
        let_through();
        let _ = mask().thread_block();
        shell
    }

    /// Forgets the wish, as the kernel has: the group goes on.
    pub(crate) fn continued(&mut self) {
        self.asked = false;
    }
}

/// What is [held back](Suspend::hold_back). The command must not inherit that.
pub(crate) fn mask() -> SigSet {
    let mut mask = SigSet::empty();
    mask.add(Signal::SIGTSTP);
    mask
}

/// Lets SIGTSTP through again.
pub(crate) fn let_through() {
    let _ = mask().thread_unblock();
}
