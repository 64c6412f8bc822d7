//! The supervisor: a small process that ends the command's process group when lockkeeper is killed.
//!
//! The kernel kills the command with lockkeeper (see [`shim::start`]), but not the processes that the
//! command has started. The supervisor reads a pipe whose only writer is lockkeeper, so it sees the
//! end of the pipe when lockkeeper is gone, however it died. It then ends the group as lockkeeper
//! does: SIGTERM, and SIGKILL after kill-after. The lock outlives lockkeeper by its TTL and the
//! lock-delay, which is longer than kill-after, so the group is gone before the next holder starts.
//!
//! The number of the group can belong to other processes only after the group has become empty. The
//! supervisor checks that the group still has a live process before each signal, and ends once it is empty.

use crate::{orphans, procfs, shim};
use lockkeeper::store::clock::{Clock, Moment};
use nix::{
    sys::{
        prctl,
        signal::{SigSet, Signal, killpg},
    },
    unistd::Pid,
};
use std::{
    io::{self, BufRead, PipeWriter, Write as _},
    os::fd::OwnedFd,
    process::{self, ExitCode, Stdio},
    thread,
    time::Duration,
};
use tokio::task::JoinHandle;

/// What stands before the number of the group to end, on a line of its own.
pub(crate) const WATCH: &str = "watch ";

/// What stands before the milliseconds that the group has if lockkeeper is killed.
const GIVES: &str = "gives ";

/// What stands before the milliseconds within which lockkeeper is ending the group itself.
const GRACE: &str = "grace ";

/// From one look at the group to the next.
const LOOK: Duration = Duration::from_millis(20);

/// The supervisor, as lockkeeper knows it. Dropped without [`dismiss`](Self::dismiss), it sees the
/// end of the pipe and ends the group.
#[derive(Debug)]
pub(crate) struct Supervisor {
    process: process::Child,
    orders: PipeWriter,
}

impl Supervisor {
    /// Starts the process. It has a process group of its own, which no terminal sends signals to,
    /// and keeps neither a stream nor a folder of ours open. Until it is told of a group it does nothing.
    pub(crate) fn start() -> io::Result<Self> {
        let (reader, orders) = io::pipe()?;
        let mut start = shim::supervisor();
        start.stdin(reader).stdout(Stdio::null()).stderr(Stdio::null());
        let process = start.spawn()?;
        orphans::keep(process.id());
        Ok(Self { process, orders })
    }

    /// The supervisor that was started early, if there is one that runs, or else another.
    pub(crate) async fn early_or_new(
        early: Option<JoinHandle<io::Result<Self>>>,
    ) -> io::Result<Self> {
        if let Some(early) = early
            && let Ok(Ok(mut early)) = early.await
        {
            if !early.has_ended() {
                return Ok(early);
            }
            // It is not killed: its number may be another process's by now.
            drop(Dismissed(early.process));
        }
        Self::start()
    }

    /// Says how long the group has if lockkeeper is killed. Must be said before the group is named.
    pub(crate) fn gives(&self, kill_after: Duration) {
        self.order(&format!("{GIVES}{}", kill_after.as_millis()));
    }

    /// Where the command writes [`WATCH`] and the number of its group, which is the group to end.
    pub(crate) fn orders(&self) -> io::Result<OwnedFd> {
        Ok(self.orders.try_clone()?.into())
    }

    /// Says that lockkeeper is ending the group itself, within this time. If lockkeeper is killed
    /// meanwhile, the group gets no more time than that.
    pub(crate) fn ends_within(&self, grace: Duration) {
        self.order(&format!("{GRACE}{}", grace.as_millis()));
    }

    /// Has the process ended before it was to? An error says so too: the first process of a PID namespace may have
    /// reaped it as an orphan, before it was [kept](orphans::keep).
    pub(crate) fn has_ended(&mut self) -> bool {
        !matches!(self.process.try_wait(), Ok(None))
    }

    /// Ends the supervisor, because the command has ended: what that has left running is left alone.
    pub(crate) fn dismiss(mut self) -> Dismissed {
        let _ = self.process.kill();
        Dismissed(self.process)
    }

    fn order(&self, order: &str) {
        // It is so short that the pipe always has room. Without a supervisor there is no reader.
        let _ = (&self.orders).write_all(format!("{order}\n").as_bytes());
    }
}

/// A supervisor that was killed. It is reaped when this is dropped, because in a container there may be no other
/// process that does; until then the kernel has had time to take it down.
#[derive(Debug)]
pub(crate) struct Dismissed(process::Child);

impl Drop for Dismissed {
    fn drop(&mut self) {
        let _ = self.0.wait();
        orphans::let_go(self.0.id());
    }
}

/// The supervisor's work: waits for the end of the pipe, then ends the group.
pub(crate) fn supervise() -> ExitCode {
    // Service managers send SIGTERM to every process; the supervisor must survive it.
    let _ = SigSet::all().thread_block();
    // Not `exe`, which the kernel would call it. Not `lockkeeper` either: a `pkill -9 lockkeeper` must
    // leave the supervisor alive to end the group.
    let _ = prctl::set_name(c"lk-supervisor");
    if let Orders { group: Some(group), gives, until } = Orders::read(io::stdin().lock()) {
        end(group, until.min(Clock::system().now() + gives));
    }
    ExitCode::SUCCESS
}

/// What lockkeeper has said before it was gone.
#[derive(Debug, PartialEq)]
struct Orders {
    group: Option<Pid>,
    /// How long the group has if lockkeeper says nothing more.
    gives: Duration,
    /// When the group has to be gone at the latest.
    until: Moment,
}

impl Orders {
    /// Reads up to the end of the pipe.
    fn read(pipe: impl BufRead) -> Self {
        let mut orders = Self { group: None, gives: Duration::ZERO, until: Moment::NEVER };
        let ms = |text: &str| Duration::from_millis(text.parse().unwrap_or(0));
        for line in pipe.lines() {
            let Ok(line) = line else { break };
            if let Some(group) = line.strip_prefix(WATCH) {
                orders.group = group.parse().ok().map(Pid::from_raw);
            } else if let Some(gives) = line.strip_prefix(GIVES) {
                orders.gives = ms(gives);
            } else if let Some(grace) = line.strip_prefix(GRACE) {
                // A later word gives no more time: an outer lockkeeper counts from the first.
                orders.until = orders.until.min(Clock::system().now() + ms(grace));
            }
        }
        orders
    }
}

fn end(group: Pid, until: Moment) {
    let clock = Clock::system();
    let signal = |signal| {
        if procfs::is_alive(group) {
            let _ = killpg(group, signal);
        }
    };
    if clock.now() < until {
        signal(Signal::SIGTERM);
        // A stopped process gets the signal only when it is continued.
        signal(Signal::SIGCONT);
    }
    while clock.now() < until && procfs::is_alive(group) {
        thread::sleep(LOOK);
    }
    signal(Signal::SIGKILL);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shortest_time_that_was_said_counts() {
        let read = |text: &str| Orders::read(text.as_bytes());
        let group = Some(Pid::from_raw(42));
        let (gives, until) = (Duration::from_secs(5), Moment::NEVER);
        assert_eq!(read("gives 5000\nwatch 42\n"), Orders { group, gives, until });
        let late = read("gives 5000\nwatch 42\ngrace 0\ngrace 90000\n");
        assert!(late.group == group && late.until <= Clock::system().now());
        assert_eq!(read(""), Orders { group: None, gives: Duration::ZERO, until });
    }
}
