//! The `taker` program, seen from outside: a process that takes locks and does as it is told.

pub use crate::taker_program::serve;

use crate::world::{World, soon};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use std::{
    future::poll_fn,
    path::Path,
    process::{ExitStatus, Stdio},
    task::Poll,
    time::Duration,
};
use tokio::{
    io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines},
    process::{Child, ChildStdin, ChildStdout, Command},
};

/// How long a look takes at what a taker has said.
const GLANCE: Duration = Duration::from_millis(20);

/// Processes with so many waiters each, all for one lock.
pub async fn crowd(
    program: &Path,
    url: &str,
    name: &str,
    processes: usize,
    each: usize,
) -> Vec<Taker> {
    let mut crowd = Vec::new();
    for _ in 0..processes {
        let mut taker = Taker::at(program, url, Duration::from_secs(60), Duration::ZERO).await;
        taker.tell(&format!("crowd {name} {each}")).await;
        crowd.push(taker);
    }
    crowd
}

/// Waits until a lock is granted in any of these processes; says in which.
pub async fn granted_in(crowd: &mut [Taker]) -> usize {
    loop {
        let mut lines: Vec<_> = crowd.iter_mut().map(|taker| Box::pin(taker.line())).collect();
        let line = poll_fn(|cx| {
            for (at, line) in lines.iter_mut().enumerate() {
                if let Poll::Ready(line) = line.as_mut().poll(cx) {
                    return Poll::Ready((at, line));
                }
            }
            Poll::Pending
        });
        match line.await {
            (at, line) if line.starts_with("granted") => return at,
            (_, line) => assert_eq!(line, "released"),
        }
    }
}

/// A running taker. Dropping it kills it.
#[derive(Debug)]
pub struct Taker {
    child: Child,
    to: ChildStdin,
    from: Lines<BufReader<ChildStdout>>,
}

impl Taker {
    /// Starts a taker that is connected to the world's data, with these times for its locks.
    pub async fn start(w: &World, ttl: Duration, lock_delay: Duration) -> Self {
        Self::at(w.taker(), w.url(), ttl, lock_delay).await
    }

    /// Starts this taker program, connected to this URL.
    pub async fn at(program: &Path, url: &str, ttl: Duration, lock_delay: Duration) -> Self {
        let mut command = Command::new(program);
        command.arg(url).args([ttl, lock_delay].map(|time| time.as_millis().to_string()));
        Self::spawn(command).await
    }

    /// Starts any program that says `ready` and then does as it is told, line by line.
    pub async fn spawn(mut command: Command) -> Self {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .expect("the taker starts");
        let to = child.stdin.take().expect("its input is a pipe");
        let from = child.stdout.take().expect("its output is a pipe");
        let mut taker = Self { child, to, from: BufReader::new(from).lines() };
        taker.expect("ready").await;
        taker
    }

    /// Tells it to do something.
    pub async fn tell(&mut self, command: &str) {
        let line = format!("{command}\n");
        self.to.write_all(line.as_bytes()).await.expect("it listens");
    }

    /// Its next line must begin with this word; says what follows.
    pub async fn expect(&mut self, word: &str) -> String {
        let line = soon(&format!("{word:?} from the taker"), self.from.next_line()).await;
        let line = line.expect("a line").unwrap_or_else(|| "its end".to_owned());
        let (first, rest) = line.split_once(' ').unwrap_or((&line, ""));
        assert_eq!(first, word, "the taker said: {line}");
        rest.to_owned()
    }

    /// Waits for its next line, whatever it is.
    ///
    /// # Cancel safety
    /// Nothing is lost.
    pub async fn line(&mut self) -> String {
        self.from.next_line().await.expect("a line").unwrap_or_else(|| "its end".to_owned())
    }

    /// Has it said nothing? A word that is only just on its way is missed.
    pub async fn is_silent(&mut self) -> bool {
        tokio::time::timeout(GLANCE, self.line()).await.is_err()
    }

    /// Waits in line, and returns the fence of the grant.
    pub async fn take(&mut self, name: &str) -> u64 {
        self.tell(&format!("take {name}")).await;
        self.granted().await
    }

    /// It must be granted now; returns the fence.
    pub async fn granted(&mut self) -> u64 {
        self.expect("granted").await.parse().expect("a fence")
    }

    /// Releases.
    pub async fn release(&mut self) {
        self.tell("release").await;
        self.expect("released").await;
    }

    /// Writes to a ledger with the fence it has, or had; says whether that was accepted.
    pub async fn append(&mut self, path: &Path, value: &str) -> bool {
        self.tell(&format!("append {} {value}", path.display())).await;
        self.expect("appended").await == "true"
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: Signal) {
        let pid = self.child.id().expect("it still runs");
        let pid = Pid::from_raw(pid.try_into().expect("a process id"));
        kill(pid, signal).expect("the signal is sent");
    }

    /// Closes its input, and waits until it has gone.
    pub async fn end(mut self) -> ExitStatus {
        drop(self.to);
        soon("the end of the taker", self.child.wait()).await.expect("its status")
    }

    /// Waits until a killed taker has gone.
    pub async fn gone(&mut self) {
        soon("the end of the taker", self.child.wait()).await.expect("its status");
    }
}
