//! The signals that lockkeeper takes, and what becomes of them.
//!
//! While it waits for the lock, a signal ends the wait. While the command runs, signals are passed
//! on to the command's process group. Nothing is delivered twice: the command has a group of its
//! own, so what the terminal sends (Ctrl-C, Ctrl-\, a new window size) reaches either that group,
//! when it has the terminal, or ours, and then we pass it on.

use nix::sys::signal::Signal;
use std::{fs, future::poll_fn, io, task::Poll};
use tokio::signal::unix::{self, SignalKind};

/// What a signal means for us.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Meaning {
    /// Ends a process that does not expect it, so it ends the wait; passed on to the command.
    Ends,
    /// Means nothing to us; passed on to the command.
    Passes,
}

/// SIGTSTP is not among them: it is not caught, but [held back](crate::suspend).
const TABLE: [(Signal, Meaning); 8] = [
    (Signal::SIGHUP, Meaning::Ends),
    (Signal::SIGINT, Meaning::Ends),
    (Signal::SIGQUIT, Meaning::Ends),
    (Signal::SIGTERM, Meaning::Ends),
    (Signal::SIGUSR1, Meaning::Ends),
    (Signal::SIGUSR2, Meaning::Ends),
    (Signal::SIGWINCH, Meaning::Passes),
    (Signal::SIGCONT, Meaning::Passes),
];

/// The signals that are caught.
#[derive(Debug)]
pub(crate) struct Signals {
    caught: Vec<(Signal, Meaning, unix::Signal)>,
}

impl Signals {
    /// Catches them all, except those that were ignored when we were started. They stay so, for us
    /// and for the command: that is how `nohup`, and a shell that starts something in the
    /// background, protect what they start.
    pub(crate) fn catch() -> io::Result<Self> {
        let ignored = ignored();
        let heeded = TABLE.iter().filter(|(signal, _)| ignored & bit(*signal) == 0);
        let caught = heeded.map(|(signal, meaning)| {
            let stream = unix::signal(SignalKind::from_raw(*signal as i32))?;
            Ok((*signal, *meaning, stream))
        });
        Ok(Self { caught: caught.collect::<io::Result<_>>()? })
    }

    /// The next signal of any kind.
    ///
    /// # Cancel safety
    /// No signal is lost when the future is dropped.
    pub(crate) async fn next(&mut self) -> Signal {
        self.next_where(|_| true).await
    }

    /// The next signal that ends a process which does not expect it.
    pub(crate) async fn next_end(&mut self) -> Signal {
        self.next_where(|meaning| meaning == Meaning::Ends).await
    }

    async fn next_where(&mut self, wanted: fn(Meaning) -> bool) -> Signal {
        poll_fn(|cx| {
            for (signal, meaning, stream) in &mut self.caught {
                if wanted(*meaning) && stream.poll_recv(cx) == Poll::Ready(Some(())) {
                    return Poll::Ready(*signal);
                }
            }
            Poll::Pending
        })
        .await
    }
}

fn bit(signal: Signal) -> u64 {
    1 << (signal as u32 - 1)
}

/// The signals that were ignored when this process was started. Where that cannot be read, none.
fn ignored() -> u64 {
    fs::read_to_string("/proc/self/status").map_or(0, |status| parse_ignored(&status))
}

fn parse_ignored(status: &str) -> u64 {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ignored_signals_are_read_from_the_mask() {
        let mask = parse_ignored("Name:\tx\nSigIgn:\t0000000000001001\nSigCgt:\t0\n");
        assert_ne!(mask & bit(Signal::SIGHUP), 0);
        assert_eq!(mask & bit(Signal::SIGTERM), 0);
        assert_eq!(parse_ignored("nothing"), 0);
    }
}
