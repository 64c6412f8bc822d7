//! Processes that this program starts from itself, each with a role.
//!
//! A child says one JSON value per line; the first one means that it is ready. It works between
//! two moments that it is told, so it also ends when its parent is gone.

use crate::{
    benches::{hammer::Hammer, handover::Runner, held::Holder, idle::Idler, service_load::Crowd},
    floor::{redis_messages::Subscriber, wake::Wake},
    machine::now,
    service::Server,
};
use anyhow::{Context, Result, ensure};
use lockkeeper::store::clock::Moment;
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use std::{
    io::{BufRead as _, BufReader, Write as _},
    process::{ChildStdin, ChildStdout, Command, Stdio},
    time::Duration,
};

/// How long before the beginning children are told of it.
const NOTICE: Duration = Duration::from_millis(20);

/// What a child does.
#[derive(Serialize, Deserialize)]
pub(crate) enum Role {
    /// Takes one lock again and again, in turn with others.
    Runner(Runner),
    /// Waits for a bare datagram.
    Wake(Wake),
    /// Takes messages from a server.
    Subscriber(Subscriber),
    /// Waits for a lock that is never released.
    Idler(Idler),
    /// Holds many locks.
    Holder(Holder),
    /// Takes and releases as fast as it can.
    Hammer(Hammer),
    /// Serves over HTTP.
    Server(Server),
    /// Is many clients of the service.
    Crowd(Crowd),
}

impl Role {
    pub(crate) fn parse(text: &str) -> Self {
        serde_json::from_str(text).expect("a role comes from this very program")
    }

    /// This very program, in this role.
    fn command(&self) -> Result<Command> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["child", &serde_json::to_string(self)?]);
        Ok(command)
    }

    pub(crate) fn play(self) -> Result<()> {
        match self {
            Self::Runner(role) => role.play(),
            Self::Wake(role) => role.play(),
            Self::Subscriber(role) => role.play(),
            Self::Idler(role) => role.play(),
            Self::Holder(role) => role.play(),
            Self::Hammer(role) => role.play(),
            Self::Server(role) => role.play(),
            Self::Crowd(role) => role.play(),
        }
    }
}

/// A child that was started. Ended when dropped.
pub(crate) struct Child {
    process: std::process::Child,
    ears: ChildStdin,
    mouth: BufReader<ChildStdout>,
}

impl Child {
    /// Starts a child; returns when it is ready.
    pub(crate) fn start(role: &Role) -> Result<Self> {
        let mut child = Self::launch(role.command()?)?;
        child.hear::<()>()?;
        Ok(child)
    }

    /// Starts several at once.
    pub(crate) fn start_all(roles: &[Role]) -> Result<Vec<Self>> {
        Self::start_programs(roles.iter().map(Role::command).collect::<Result<_>>()?)
    }

    /// Starts several other programs at once that behave as children of this one do.
    pub(crate) fn start_programs(programs: Vec<Command>) -> Result<Vec<Self>> {
        let launched = programs.into_iter().map(Self::launch);
        let mut children = launched.collect::<Result<Vec<_>>>()?;
        children.iter_mut().try_for_each(Self::hear)?;
        Ok(children)
    }

    fn launch(mut program: Command) -> Result<Self> {
        let mut process = program
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("cannot start a child")?;
        let ears = process.stdin.take().context("a child without ears")?;
        let mouth = BufReader::new(process.stdout.take().context("a child without a mouth")?);
        Ok(Self { process, ears, mouth })
    }

    pub(crate) fn pid(&self) -> u32 {
        self.process.id()
    }

    /// Waits for the next value that the child says.
    pub(crate) fn hear<T: DeserializeOwned>(&mut self) -> Result<T> {
        let mut line = String::new();
        self.mouth.read_line(&mut line)?;
        ensure!(!line.is_empty(), "a child ended before it had said what it should");
        Ok(serde_json::from_str(&line)?)
    }

    /// Tells the child when to work.
    pub(crate) fn tell(&mut self, shift: Shift) -> Result<()> {
        writeln!(self.ears, "{}", serde_json::to_string(&shift)?)?;
        Ok(self.ears.flush()?)
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// When to work: nanoseconds on the clock that all processes share.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Shift {
    begin: u64,
    end: u64,
}

impl Shift {
    /// So long, from a little later on.
    pub(crate) fn of(length: Duration) -> Self {
        let begin = now() + NOTICE;
        Self { begin: begin.as_nanos(), end: (begin + length).as_nanos() }
    }

    pub(crate) fn end(self) -> Moment {
        Moment::from_nanos(self.end)
    }

    pub(crate) fn is_over(self) -> bool {
        now() >= self.end()
    }

    pub(crate) fn length(self) -> Duration {
        self.end().saturating_since(Moment::from_nanos(self.begin))
    }

    /// Waits for the beginning.
    pub(crate) async fn begin(self) {
        let left = Moment::from_nanos(self.begin).saturating_since(now());
        tokio::time::sleep(left).await;
    }
}

/// The child's side: says a value.
pub(crate) fn say<T: Serialize>(value: &T) -> Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{}", serde_json::to_string(value)?)?;
    Ok(out.flush()?)
}

/// The child's side: is ready, and hears when to work.
pub(crate) fn ready() -> Result<Shift> {
    say(&())?;
    let mut line = String::new();
    std::io::stdin().lock().read_line(&mut line)?;
    Ok(serde_json::from_str(&line)?)
}

/// Has these children work side by side for so long, and returns what each of them says.
pub(crate) fn work<T: DeserializeOwned>(
    children: &mut [Child],
    length: Duration,
) -> Result<Vec<T>> {
    let shift = Shift::of(length);
    children.iter_mut().try_for_each(|child| child.tell(shift))?;
    children.iter_mut().map(Child::hear).collect()
}
