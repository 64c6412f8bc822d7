//! One process of a running server.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};
use nix::errno::Errno;
use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::Pid;

use crate::clock::Clock;
use crate::detached::Mark;
use crate::poll::poll;
use crate::procfs;
use crate::recipe::{Process, Recipe, Sandbox};
use crate::spawn::{Lifetime, command, spawn};

/// How long a server may take to end in good order before it is killed.
pub(crate) const STOP_WITHIN: Duration = Duration::from_secs(10);

/// How long the threads of a process may take to notice that it has been stopped.
const FREEZE_WITHIN: Duration = Duration::from_secs(10);

/// How much of a log an error shows.
const LOG_TAIL_LINES: usize = 20;

/// One process of a [`Running`](crate::Running) server, which may be up or down.
#[derive(Debug)]
pub struct Node {
    process: Process,
    program: PathBuf,
    sandbox: Sandbox,
    stop: Signal,
    ready_within: Duration,
    lifetime: Lifetime,
    clock: Option<Clock>,
    child: Option<Child>,
}

impl Node {
    pub(crate) fn new(
        recipe: &Recipe,
        sandbox: &Sandbox,
        process: Process,
        lifetime: Lifetime,
    ) -> Result<Self> {
        let program = sandbox.find(process.program, recipe.folders)?;
        Ok(Self {
            process,
            program,
            sandbox: sandbox.clone(),
            stop: recipe.stop,
            ready_within: recipe.ready_within,
            lifetime,
            clock: None,
            child: None,
        })
    }

    /// Gives it a clock that can be moved, from its next start on.
    pub(crate) fn go_by_a_clock(&mut self, library: &Path) -> Result<()> {
        let clock =
            Clock::new(library, self.sandbox.folder.join(format!("{}.clock", self.process.name)))?;
        self.process.env.extend(clock.environment());
        self.clock = Some(clock);
        Ok(())
    }

    /// Gives it more arguments, from its next start on.
    pub(crate) fn add_args(&mut self, args: &[&str]) {
        self.process.args.extend(args.iter().map(Into::into));
    }

    /// The process's name within its recipe.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.process.name
    }

    /// The process id while it is up.
    ///
    /// As long as this answers, the id cannot have passed to a stranger: a child keeps its id
    /// until we have waited for it, and this is the place that does.
    pub fn pid(&mut self) -> Option<u32> {
        let child = self.child.as_mut()?;
        match child.try_wait() {
            Ok(None) => Some(child.id()),
            Ok(Some(_)) | Err(_) => {
                self.child = None;
                None
            }
        }
    }

    /// Stops it where it stands: its connections stay open and nothing answers.
    ///
    /// # Errors
    ///
    /// If it is not up, or does not come to a halt.
    pub fn freeze(&mut self) -> Result<()> {
        let pid = self.signal_group(Signal::SIGSTOP)?;
        self.wait_stopped(pid)?;
        // Only now can it start no more of them.
        for child in procfs::descendants(pid) {
            send(child, Signal::SIGSTOP)?;
            self.wait_stopped(child)?;
        }
        Ok(())
    }

    /// Lets it go on after [`freeze`](Self::freeze).
    ///
    /// # Errors
    ///
    /// If it is not up.
    pub fn thaw(&mut self) -> Result<()> {
        let pid = self.signal_group(Signal::SIGCONT)?;
        procfs::descendants(pid).into_iter().try_for_each(|child| send(child, Signal::SIGCONT))
    }

    /// Sets its wall clock to so many seconds more than the right time, at once and across restarts.
    ///
    /// # Errors
    ///
    /// If it was not started by [`Recipe::start_with_clocks`].
    pub fn set_clock(&self, seconds: i64) -> Result<()> {
        let clock = self.clock.as_ref();
        clock.with_context(|| format!("the clock of {} is fixed", self.process.name))?.set(seconds)
    }

    /// Ends it as a power cut would. Nothing happens if it is down already.
    ///
    /// # Errors
    ///
    /// If the signal cannot be sent.
    pub fn kill(&mut self) -> Result<()> {
        let Some(pid) = self.pid() else { return Ok(()) };
        let children: Vec<(u32, Option<u64>)> = procfs::descendants(pid)
            .into_iter()
            .map(|child| (child, procfs::started(child)))
            .collect();
        killpg(raw(pid), Signal::SIGKILL)?;
        if let Some(mut child) = self.child.take() {
            child.wait()?;
        }
        for (child, started) in children {
            let is_up = || started.is_some() && procfs::started(child) == started;
            if is_up() {
                send(child, Signal::SIGKILL)?;
            }
            poll(STOP_WITHIN, || (!is_up()).then_some(()));
        }
        Ok(())
    }

    /// Ends it in good order, and kills it if that takes too long. Works on a frozen one too;
    /// nothing happens if it is down already.
    ///
    /// # Errors
    ///
    /// If a signal cannot be sent.
    pub fn stop(&mut self) -> Result<()> {
        let Some(pid) = self.pid() else { return Ok(()) };
        kill(raw(pid), self.stop)?;
        // A frozen one hears the first signal only after this.
        self.thaw()?;
        if poll(STOP_WITHIN, || self.pid().is_none().then_some(())).is_none() {
            self.kill()?;
        }
        Ok(())
    }

    /// Starts it again where it was, with the same ports and data, and waits until it is ready.
    ///
    /// Ready is the process by itself: until the others have taken it in again more time may pass.
    /// [`Running::restart`](crate::Running::restart) waits for that too.
    ///
    /// # Errors
    ///
    /// If it is up, cannot be started, or is not ready in time.
    pub fn restart(&mut self) -> Result<()> {
        self.start()?;
        self.wait_ready()
    }

    /// Starts it without waiting.
    pub(crate) fn start(&mut self) -> Result<()> {
        ensure!(self.pid().is_none(), "{} is up already", self.process.name);
        let log = File::options().create(true).append(true).open(self.log())?;
        let mut command = command(&self.sandbox, &self.program, self.lifetime, self.process.user);
        command
            .args(&self.process.args)
            .envs(self.process.env.iter().map(|(name, value)| (name, value)))
            .current_dir(&self.sandbox.folder)
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            // Keeps a Ctrl-C meant for the tests away from the servers, and lets us reach the
            // children of a server together with it.
            .process_group(0);
        let child =
            spawn(command).with_context(|| format!("cannot start {}", self.program.display()))?;
        self.child = Some(child);
        Ok(())
    }

    /// Waits until the probe agrees; an error shows the end of the log.
    pub(crate) fn wait_ready(&mut self) -> Result<()> {
        let within = self.ready_within;
        let mut obstacle = String::new();
        let outcome = poll(within, || {
            let probed = (self.process.ready)();
            // In this order, because a process that took our port may answer in our server's place.
            let up = self.pid().is_some();
            match probed {
                Ok(()) => Some(up),
                Err(error) => {
                    obstacle = format!("{error:#}");
                    (!up).then_some(false)
                }
            }
        });
        match outcome {
            Some(true) => Ok(()),
            Some(false) => Err(self.failure("ended before it was ready")),
            None => Err(self.failure(&format!("is not ready after {within:?}: {obstacle}"))),
        }
    }

    pub(crate) fn mark(&mut self) -> Option<Mark> {
        let pid = self.pid()?;
        let program = self.program.file_name().map(OsStr::to_string_lossy)?.into_owned();
        Some(Mark { program, pid, started: procfs::started(pid)? })
    }

    fn signal_group(&mut self, signal: Signal) -> Result<u32> {
        let pid = self.pid().with_context(|| format!("{} is not up", self.process.name))?;
        killpg(raw(pid), signal)
            .with_context(|| format!("cannot send {signal} to {}", self.process.name))?;
        Ok(pid)
    }

    fn wait_stopped(&self, pid: u32) -> Result<()> {
        poll(FREEZE_WITHIN, || procfs::is_stopped(pid).unwrap_or(true).then_some(()))
            .with_context(|| format!("{} goes on after SIGSTOP", self.process.name))
    }

    fn failure(&self, what: &str) -> anyhow::Error {
        anyhow!("{} {what}\n{}", self.process.name, self.log_end())
    }

    /// The end of its log, with a line above that says so.
    pub(crate) fn log_end(&self) -> String {
        format!("the end of the log of {}:\n{}", self.process.name, tail(&self.log()))
    }

    fn log(&self) -> PathBuf {
        self.sandbox.folder.join(format!("{}.log", self.process.name))
    }
}

/// Signals a process that may just have ended.
fn send(pid: u32, signal: Signal) -> Result<()> {
    match kill(raw(pid), signal) {
        Ok(()) | Err(Errno::ESRCH) => Ok(()),
        Err(error) => Err(error).with_context(|| format!("cannot send {signal} to {pid}")),
    }
}

pub(crate) fn raw(pid: u32) -> Pid {
    Pid::from_raw(pid.cast_signed())
}

fn tail(log: &Path) -> String {
    let bytes = fs::read(log).unwrap_or_default();
    let text = String::from_utf8_lossy(&bytes);
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(LOG_TAIL_LINES)..].join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_is_shown_from_its_end() {
        let folder = tempfile::tempdir().unwrap();
        let log = folder.path().join("a.log");
        assert_eq!(tail(&log), "");
        let lines: Vec<String> = (1..=100).map(|line| format!("line {line}")).collect();
        fs::write(&log, lines.join("\n")).unwrap();
        let shown = tail(&log);
        assert!(shown.starts_with("line 81\n") && shown.ends_with("\nline 100"), "{shown}");
    }
}
