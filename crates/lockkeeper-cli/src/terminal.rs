//! The terminal, and who may read from it.
//!
//! The command runs in our session, but in a process group of its own: only so can it be ended as a
//! whole when the lock is lost. A terminal has one group in its foreground. Who reads from it (or
//! changes its modes) from another one is stopped (SIGTTIN, SIGTTOU), and Ctrl-C goes to the
//! foreground only. So the command's group is given the terminal:
//!
//! - **at once** when we are a shell's job of one process that talks to the terminal: we lead our
//!   group, have it in the foreground, and neither input nor output is a pipe. All is as if the
//!   command had been started by the shell itself.
//! - **when it asks for it** otherwise, that is when it has been stopped for touching it while our
//!   group is in the foreground. In a pipeline (`lockkeeper run … | less`) our group has other
//!   members who may need the terminal, and in a script it has the shell, which must hear Ctrl-C.
//!   They keep it for as long as the command does not ask; what the terminal sends us is passed on.
//!
//! It is taken back when the command ends or stops, if the command still has it.

use crate::procfs;
use nix::{
    sys::signal::{SigSet, Signal, killpg},
    unistd::{Pid, getpgid, getpgrp, getpid, getppid, getsid, tcgetpgrp, tcsetpgrp},
};
use std::{
    fs::{File, OpenOptions},
    io::{self, IsTerminal as _},
    os::{
        fd::{AsFd, OwnedFd},
        unix::fs::FileTypeExt as _,
    },
};

/// The terminal that controls our session.
#[derive(Debug)]
pub(crate) struct Terminal {
    tty: File,
}

impl Terminal {
    /// The terminal, if the session has one.
    pub(crate) fn open() -> Option<Self> {
        let tty = OpenOptions::new().read(true).write(true).open("/dev/tty").ok()?;
        Some(Self { tty })
    }

    /// The terminal, for a process that is about to be started.
    pub(crate) fn share(&self) -> io::Result<OwnedFd> {
        self.tty.as_fd().try_clone_to_owned()
    }

    /// The group that has the terminal now.
    fn holder(&self) -> Option<Pid> {
        tcgetpgrp(&self.tty).ok()
    }

    /// Do we have it?
    pub(crate) fn is_ours(&self) -> bool {
        self.holder() == Some(getpgrp())
    }

    /// Does this group have it?
    pub(crate) fn is_with(&self, group: Pid) -> bool {
        self.holder() == Some(group)
    }

    /// Is the command to have it from the beginning?
    pub(crate) fn is_for_the_command(&self) -> bool {
        let alone = getpid() == getpgrp() && !is_pipe(io::stdout()) && !is_pipe(io::stderr());
        alone && io::stdin().is_terminal() && self.is_ours()
    }

    /// Gives it to a group. Needs [`stay_awake`].
    pub(crate) fn give(&self, group: Pid) {
        // Fails when the group has just ended: then nobody needs it.
        let _ = tcsetpgrp(&self.tty, group);
    }

    /// Takes it back from a group that still has it, and says whether it had. Needs [`stay_awake`].
    pub(crate) fn take_back(&self, group: Pid) -> bool {
        let had = self.is_with(group);
        if had {
            self.give(getpgrp());
        }
        had
    }
}

/// Passes on what ended the command while it had the terminal, if the terminal can have sent it:
/// Ctrl-C and Ctrl-\ are meant for all of a job, and the rest of our group has heard nothing.
pub(crate) fn pass_on(signal: i32) {
    if [Signal::SIGINT, Signal::SIGQUIT].iter().any(|sent| *sent as i32 == signal) {
        let _ = killpg(getpgrp(), Signal::try_from(signal).ok());
    }
}

/// Keeps this process from being stopped for what it does with the terminal from the background:
/// taking it back, or, where `stty tostop` is set, a message on stderr.
pub(crate) fn stay_awake() {
    // Fails only for signals that do not exist.
    let _ = touching().thread_block();
}

/// What [`stay_awake`] holds back. The command must not inherit that.
pub(crate) fn touching() -> SigSet {
    let mut signals = SigSet::empty();
    signals.add(Signal::SIGTTOU);
    signals
}

/// Is there a shell that would continue us if we stopped? That is somebody who has started our
/// group from outside of it, but within the session; the kernel calls a group without one orphaned.
pub(crate) fn has_shell() -> bool {
    let (group, session) = (getpgrp(), getsid(None).ok());
    let mut above = Some(getppid());
    while let Some(parent) = above.filter(|parent| parent.as_raw() > 1) {
        if getsid(Some(parent)).ok() != session {
            return false;
        }
        if getpgid(Some(parent)).ok() != Some(group) {
            return true;
        }
        above = procfs::stat(parent).map(|stat| stat.parent);
    }
    false
}

/// May we draw on this stream: is it a terminal that our group has in the foreground?
pub(crate) fn is_foreground(stream: impl AsFd) -> bool {
    tcgetpgrp(stream).is_ok_and(|group| group == getpgrp())
}

fn is_pipe(stream: impl AsFd) -> bool {
    let copy = stream.as_fd().try_clone_to_owned().map(File::from);
    copy.and_then(|file| file.metadata()).is_ok_and(|meta| meta.file_type().is_fifo())
}
