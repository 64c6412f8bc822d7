//! The command while it runs: its process group, its stops and its end.
//!
//! Its leader is not reaped before all is over. As long as it is a zombie its number cannot
//! be given to somebody else, so a signal to the group never hits a stranger.

use crate::{
    exit_code,
    failure::Failure,
    orphans, procfs, shim,
    supervisor::{Dismissed, Supervisor},
    terminal::Terminal,
};
use lockkeeper::store::clock::{Clock, Moment};
use nix::{
    errno::Errno,
    sys::{
        signal::{Signal, killpg},
        wait::{Id, WaitPidFlag, WaitStatus, waitid},
    },
    unistd::Pid,
};
use std::{
    ffi::OsString,
    io,
    process::{self, ExitStatus},
    time::Duration,
};
use tokio::signal::unix::{self, SignalKind};

/// For how long those who were killed may take to be gone. Longer only who is stuck in the kernel.
const GONE_MAX: Duration = Duration::from_secs(1);

/// From one look at a group that is being ended to the next. Nobody tells us about processes that
/// are not our children.
const LOOK: Duration = Duration::from_millis(20);

/// What has become of the command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    /// It was stopped by this signal.
    Stopped(Signal),
    /// The supervisor has ended, and the command goes on. Told once.
    Unsupervised,
    /// It has ended. How is told by [`Child::reap`].
    Ended,
}

/// The command, running. Dropped before its end, it is killed with its whole group: if we fail, it
/// must not run on without anybody to watch the lock.
#[derive(Debug)]
pub(crate) struct Child {
    process: process::Child,
    group: Pid,
    changes: unix::Signal,
    supervisor: Supervisor,
    supervised: bool,
    unreaped: Unreaped,
}

impl Child {
    /// Starts the command, with a supervisor that ends its group within `kill_after` if we are killed. The command's group gets the terminal, if there is one. A variable without a value is
    /// none for the command, also if we have inherited one. Must be called on the main thread: the command
    /// dies with the *thread* that started it.
    pub(crate) fn start(
        command: &[OsString],
        environment: Vec<(&'static str, Option<String>)>,
        terminal: Option<&Terminal>,
        supervisor: Supervisor,
        kill_after: Duration,
    ) -> Result<Self, Failure> {
        // Before the start, so that no change is missed.
        let changes = unix::signal(SignalKind::child()).map_err(cannot_start)?;
        let terminal = terminal.map(Terminal::share).transpose().map_err(cannot_start)?;
        let orders = supervisor.orders().map_err(cannot_start)?;
        supervisor.gives(kill_after);
        let process = match shim::start(command, environment, terminal, orders) {
            Ok(process) => process,
            Err(failure) => {
                drop(supervisor.dismiss());
                return Err(failure);
            }
        };
        orphans::keep(process.id());
        let group = i32::try_from(process.id()).map_err(Failure::bug)?;
        let group = Pid::from_raw(group);
        let unreaped = Unreaped(Some(group));
        Ok(Self { process, group, changes, supervisor, supervised: true, unreaped })
    }

    /// The command's process group.
    pub(crate) fn group(&self) -> Pid {
        self.group
    }

    /// Waits for the next stop, or the end.
    ///
    /// # Cancel safety
    /// No change is lost when the future is dropped.
    pub(crate) async fn changed(&mut self) -> Change {
        loop {
            if self.has_ended() {
                return Change::Ended;
            }
            if let Some(signal) = self.stopped() {
                return Change::Stopped(signal);
            }
            if self.supervised && self.supervisor.has_ended() {
                self.supervised = false;
                return Change::Unsupervised;
            }
            self.changes.recv().await;
        }
    }

    fn has_ended(&self) -> bool {
        let flags = WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT;
        match waitid(Id::Pid(self.group), flags) {
            Ok(WaitStatus::StillAlive) => false,
            // Still there, and the call was interrupted.
            Err(Errno::EINTR) => false,
            // An end, also by a real-time signal, for which `Signal` has no name (EINVAL).
            _ => true,
        }
    }

    fn stopped(&self) -> Option<Signal> {
        match waitid(Id::Pid(self.group), WaitPidFlag::WSTOPPED | WaitPidFlag::WNOHANG) {
            Ok(WaitStatus::Stopped(_, signal)) => Some(signal),
            _ => None,
        }
    }

    /// Sends a signal to the command's group.
    pub(crate) fn signal(&self, signal: Signal) {
        // Fails when nobody is left to get it.
        let _ = killpg(self.group, signal);
    }

    /// Sends the whole group the first signal of its end, and returns at once.
    pub(crate) fn ask_to_end(&self, grace: Duration) {
        self.supervisor.ends_within(grace);
        if grace.is_zero() {
            self.signal(Signal::SIGKILL);
        } else {
            self.signal(Signal::SIGTERM);
            // Who is stopped learns of it only when continued.
            self.signal(Signal::SIGCONT);
        }
    }

    /// Ends the whole group: asks it to, and after `grace` does not ask any more. Returns when
    /// the command is dead, however long that takes: nothing short of it would be the truth.
    pub(crate) async fn end(&mut self, grace: Duration) {
        self.ask_to_end(grace);
        self.finish(grace).await;
    }

    /// Passes on SIGTERM. The supervisor is told, so that a lockkeeper which is killed afterwards (by
    /// an outer lockkeeper, or by a service manager) leaves the group only the rest of this time.
    pub(crate) fn pass_on_sigterm(&self, grace: Duration) {
        self.supervisor.ends_within(grace);
        self.signal(Signal::SIGTERM);
    }

    /// Goes on after [`ask_to_end`](Self::ask_to_end).
    pub(crate) async fn finish(&mut self, grace: Duration) {
        self.gone_within(grace).await;
        self.signal(Signal::SIGKILL);
        while self.changed().await != Change::Ended {}
        self.gone_within(GONE_MAX).await;
    }

    /// Waits until no process lives in the group, but not longer than this.
    async fn gone_within(&mut self, time: Duration) {
        self.gone_by(Clock::system().now() + time).await;
    }

    /// Waits until no process lives in the group, but not longer than until then.
    ///
    /// # Cancel safety
    /// Nothing is lost when the future is dropped.
    pub(crate) async fn gone_by(&mut self, until: Moment) {
        let clock = Clock::system();
        let gone = async {
            while self.changed().await != Change::Ended {}
            while procfs::is_alive(self.group) {
                clock.sleep(LOOK).await;
            }
        };
        tokio::select! { () = gone => {} () = clock.sleep_until(until) => {} }
    }

    /// Takes the command out of the table of processes. After this its group belongs to no process of ours.
    pub(crate) fn reap(self) -> io::Result<(ExitStatus, Dismissed)> {
        let Self { mut process, supervisor, unreaped, .. } = self;
        unreaped.disarm();
        let dismissed = supervisor.dismiss();
        let ended = process.wait();
        orphans::let_go(process.id());
        Ok((ended?, dismissed))
    }
}

/// No process can be started.
pub(crate) fn cannot_start(error: io::Error) -> Failure {
    let error = anyhow::Error::from(error).context("cannot start a process");
    Failure::new(exit_code::CANNOT_EXECUTE, error)
}

/// Kills the group when it is dropped.
#[derive(Debug)]
struct Unreaped(Option<Pid>);

impl Unreaped {
    fn disarm(mut self) {
        self.0 = None;
    }
}

impl Drop for Unreaped {
    fn drop(&mut self) {
        if let Some(group) = self.0 {
            let _ = killpg(group, Signal::SIGKILL);
        }
    }
}
