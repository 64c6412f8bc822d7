//! Starts a program that the kernel kills when the thread that started it ends.
//!
//! A process asks for that itself (the parent-death signal), and exec keeps the wish while fork forgets it. So it
//! has to be asked for between fork and exec. Only async-signal-safe code may run there: another thread may have held any
//! lock, the allocator's included, at the moment of the fork. The standard library therefore makes it `unsafe`, and the rest of the
//! workspace forbids `unsafe`. This crate holds all of it. [`spawn`] runs no code of its callers between fork and exec; they
//! choose among the steps of [`Start`], each of which is a system call.
//!
//! The kernel drops the wish when the program is set-user-id.

#[cfg(not(target_os = "linux"))]
compile_error!("only Linux has the parent-death signal");

use nix::{
    errno::Errno,
    sys::{
        prctl::set_pdeathsig,
        signal::{SigHandler, SigSet, SigmaskHow, Signal, signal},
    },
    unistd::{Pid, getpgrp, getpid, getppid, tcsetpgrp, write},
};
use std::{
    io::{self, Cursor, Write as _},
    os::{fd::OwnedFd, unix::process::CommandExt as _},
    process::{Child, Command},
};

/// The longest announcement: a short word and a process id.
const ANNOUNCEMENT_MAX: usize = 64;

/// What the new process does before it becomes the program.
#[derive(Debug)]
pub struct Start {
    /// The terminal that it gives to its process group. SIGTTOU must be blocked in the calling thread.
    pub terminal: Option<OwnedFd>,
    /// Where it writes this word, its process id and a line feed. What reads that knows of the process before
    /// the program has done anything, even if the caller is killed at that moment. A pipe that no process reads any
    /// more does not keep the program from its start.
    pub announce: Option<(OwnedFd, &'static str)>,
    /// Signals that the calling thread blocks and the program must not inherit as blocked.
    pub unblock: SigSet,
}

/// Starts the program. It is killed (SIGKILL) when the calling *thread* ends.
///
/// As always with exec, the program inherits which signals are ignored and, but for [`Start::unblock`], which are
/// blocked. A signal that the calling process catches is never lost to its handler in the new process: it stays
/// pending until the program, which has the default action, can get it.
///
/// # Errors
/// The system's, from fork, from a step or from exec. [`io::ErrorKind::NotFound`] is about the program.
pub fn spawn(mut command: Command, start: Start) -> io::Result<Child> {
    let parent = getpid();
    // Handlers are inherited up to the exec, and would take signals that are meant for the program.
    let blocked = SigSet::all().thread_swap_mask(SigmaskHow::SIG_SETMASK)?;
    let mut inherited = blocked;
    for unblocked in &start.unblock {
        inherited.remove(unblocked);
    }
    let steps = move || before_exec(parent, &start, inherited).map_err(io::Error::from);
    #[expect(unsafe_code, reason = "the parent-death signal can be asked for nowhere else")]
    // SAFETY: `before_exec` makes system calls and formats a number on its stack. It does not allocate, takes no lock,
    // and an `io::Error` from an `Errno` is a number.
    unsafe {
        command.pre_exec(steps);
    }
    let spawned = command.spawn();
    // Fails only for masks that do not exist.
    let _ = blocked.thread_set_mask();
    spawned
}

/// Runs in the new process. Everything in it must be async-signal-safe.
fn before_exec(parent: Pid, start: &Start, inherited: SigSet) -> Result<(), Errno> {
    set_pdeathsig(Signal::SIGKILL)?;
    // If the parent has died before its death could be felt, no process would end us.
    if getppid() != parent {
        return Err(Errno::ESRCH);
    }
    if let Some((to, word)) = &start.announce {
        let mut text = Cursor::new([0; ANNOUNCEMENT_MAX]);
        writeln!(text, "{word}{}", getpid()).map_err(|_| Errno::EMSGSIZE)?;
        let length = usize::try_from(text.position()).unwrap_or(0);
        match write(to, &text.get_ref()[..length]) {
            Err(Errno::EPIPE) => discard(Signal::SIGPIPE)?,
            written => drop(written?),
        }
    }
    if let Some(terminal) = &start.terminal {
        // Fails when the terminal has just gone; the program notices that by itself.
        let _ = tcsetpgrp(terminal, getpgrp());
    }
    Signal::iterator().for_each(forget_handler);
    inherited.thread_set_mask()
}

/// Forgets a blocked signal that is pending, as the kernel does when it becomes an ignored one.
#[expect(unsafe_code, reason = "`signal` is unsafe because it can install a handler")]
fn discard(pending: Signal) -> Result<(), Errno> {
    // SAFETY: this is no handler.
    let before = unsafe { signal(pending, SigHandler::SigIgn) }?;
    // SAFETY: this was the action before, and the signal is blocked.
    unsafe { signal(pending, before) }.map(drop)
}

/// Does what exec would do: a caught signal gets its default action, an ignored one stays ignored.
#[expect(unsafe_code, reason = "`signal` is unsafe because it can install a handler")]
fn forget_handler(of: Signal) {
    // SAFETY: this is no handler, and all signals are blocked.
    let before = unsafe { signal(of, SigHandler::SigDfl) };
    if matches!(before, Ok(SigHandler::SigIgn)) {
        // SAFETY: neither is this.
        let _ = unsafe { signal(of, SigHandler::SigIgn) };
    }
}
