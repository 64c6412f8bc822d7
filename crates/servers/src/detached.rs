//! Servers that outlive the program that started them.

use std::fmt::Write;
use std::path::Path;
use std::{fs, io};

use anyhow::{Context, Result, ensure};
use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};

use crate::node::{STOP_WITHIN, raw};
use crate::poll::poll;
use crate::procfs;

/// The file in a server's folder that tells a later program what runs there.
const STATE_FILE: &str = "state";

/// A server that was left running, as its state file tells.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Detached {
    /// The URL that reaches it.
    pub url: String,
    /// Its ports on 127.0.0.1.
    pub ports: Vec<u16>,
    /// Its processes.
    pub processes: Vec<Mark>,
}

/// What makes sure that a process is still the one that was started.
///
/// Process ids come round again, so the id alone is no licence to send a signal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mark {
    /// The name of its program, without the folder.
    pub program: String,
    /// Its process id.
    pub pid: u32,
    /// When it was started, in clock ticks since boot.
    pub started: u64,
}

impl Mark {
    /// Whether the process is there and is the same one.
    #[must_use]
    pub fn is_up(&self) -> bool {
        procfs::program(self.pid).as_ref() == Some(&self.program)
            && procfs::started(self.pid) == Some(self.started)
    }

    fn stop(&self, signal: Signal) -> Result<()> {
        for signal in [signal, Signal::SIGKILL] {
            if !self.is_up() {
                return Ok(());
            }
            self.send(signal)?;
            poll(STOP_WITHIN, || (!self.is_up()).then_some(()));
        }
        ensure!(!self.is_up(), "{} (pid {}) cannot be ended", self.program, self.pid);
        Ok(())
    }

    fn send(&self, signal: Signal) -> Result<()> {
        match kill(raw(self.pid), signal) {
            // It ended between the look and the signal.
            Err(Errno::ESRCH) | Ok(()) => Ok(()),
            Err(error) => {
                Err(error).with_context(|| format!("cannot send {signal} to {}", self.program))
            }
        }
    }
}

impl Detached {
    /// Reads what was started in `folder`; `None` if nothing was.
    ///
    /// # Errors
    ///
    /// If the state file cannot be read or understood.
    pub fn load(folder: &Path) -> Result<Option<Self>> {
        let file = folder.join(STATE_FILE);
        match fs::read_to_string(&file) {
            Ok(text) => Self::parse(&text)
                .map(Some)
                .with_context(|| format!("{} is not a state file", file.display())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error).with_context(|| format!("cannot read {}", file.display())),
        }
    }

    pub(crate) fn save(&self, folder: &Path) -> Result<()> {
        let file = folder.join(STATE_FILE);
        fs::write(&file, self.to_text()).with_context(|| format!("cannot write {}", file.display()))
    }

    /// Whether any of its processes is up.
    #[must_use]
    pub fn is_up(&self) -> bool {
        self.processes.iter().any(Mark::is_up)
    }

    /// Ends those processes that are still the ones that were started, first with `signal`.
    ///
    /// # Errors
    ///
    /// If a signal cannot be sent, or a process outlives all of them.
    pub fn stop(&self, signal: Signal) -> Result<()> {
        self.processes.iter().try_for_each(|process| process.stop(signal))
    }

    fn to_text(&self) -> String {
        let mut text = format!("url {}\n", self.url);
        for port in &self.ports {
            let _ = writeln!(text, "port {port}");
        }
        for Mark { program, pid, started } in &self.processes {
            let _ = writeln!(text, "process {pid} {started} {program}");
        }
        text
    }

    fn parse(text: &str) -> Option<Self> {
        let mut state = Self { url: String::new(), ports: Vec::new(), processes: Vec::new() };
        for line in text.lines() {
            match line.split_once(' ')? {
                ("url", url) => url.clone_into(&mut state.url),
                ("port", port) => state.ports.push(port.parse().ok()?),
                ("process", mark) => state.processes.push(parse_mark(mark)?),
                _ => return None,
            }
        }
        Some(state)
    }
}

fn parse_mark(text: &str) -> Option<Mark> {
    let mut words = text.splitn(3, ' ');
    let pid = words.next()?.parse().ok()?;
    let started = words.next()?.parse().ok()?;
    Some(Mark { program: words.next()?.to_owned(), pid, started })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn example() -> Detached {
        Detached {
            url: "redis://127.0.0.1:7001".to_owned(),
            ports: vec![7001, 7002],
            processes: vec![Mark { program: "redis-server".to_owned(), pid: 12, started: 34 }],
        }
    }

    #[test]
    fn a_state_file_is_read_as_it_was_written() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(Detached::load(folder.path()).unwrap(), None);
        example().save(folder.path()).unwrap();
        assert_eq!(Detached::load(folder.path()).unwrap(), Some(example()));
    }

    #[test]
    fn a_damaged_state_file_is_an_error_and_not_an_empty_state() {
        for text in ["port x", "process 1 2", "process", "wrong 1"] {
            assert_eq!(Detached::parse(text), None, "{text}");
        }
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn a_stranger_with_the_same_process_id_is_not_ours() {
        let pid = std::process::id();
        let ours = Mark {
            program: procfs::program(pid).unwrap(),
            pid,
            started: procfs::started(pid).unwrap(),
        };
        assert!(ours.is_up());
        let earlier = Mark { started: ours.started - 1, ..ours.clone() };
        let other = Mark { program: "redis-server".to_owned(), ..ours };
        assert!(!earlier.is_up() && !other.is_up());
        // Would end this very test if it took the id's word for it.
        earlier.stop(Signal::SIGKILL).unwrap();
        other.stop(Signal::SIGKILL).unwrap();
    }
}
