//! On every store: when a lock is lost, nothing of its command is left before the store grants the lock to
//! another.
//!
//! The command is a shell with a process that it has started. Both ignore SIGTERM, and write the time to a file
//! again and again. The next holder's first act is to note the time and to look for the two.

mod support;

use anyhow::{Context as _, Result, anyhow, ensure};
use nix::sys::signal::Signal;
use servers::{ETCD, MARIADB, MYSQL, POSTGRES, REDIS, REDLOCK, Running as Server, ZOOKEEPER};
use std::{
    fs::{self, File},
    path::Path,
    process::{Command, ExitCode, Stdio},
};
use support::{
    Place, Running, full_pipe, is_alive,
    proxied::{Proxied, start},
};
use testkit::trials;

macro_rules! tests {
    ($($recipe:ident $options:literal),* $(,)?) => {
        vec![$(trials::trial($recipe, concat!("the_group_is_gone_before_the_next_grant::", stringify!($recipe)),
            |server: Server| the_group_is_gone(&OnServer(Proxied::of(server, $options)?)))),*]
    };
}

fn main() -> ExitCode {
    let sqlite = "the_group_is_gone_before_the_next_grant::SQLITE";
    trials::main([
        vec![trials::trial((), sqlite, |()| the_group_is_gone(&OnFile(Place::new())))],
        // A server that has just started has no vote for `max_ttl`.
        tests![POSTGRES "", MARIADB "", MYSQL "", REDIS "", REDLOCK "?max_ttl=6s", ETCD "", ZOOKEEPER ""],
    ])
}

/// A store that can fall silent for the holder.
trait Site {
    fn place(&self) -> &Place;
    /// The holder's URL.
    fn holders(&self) -> String;
    /// The URL of the runs that come after it.
    fn others(&self) -> String;
    /// From now on the holder gets no answers.
    fn silence(&self) -> Result<Silence>;
    /// The holder gets answers again, at the latest when the silence is dropped.
    fn end(&self, silence: Silence);
}

/// What keeps the store silent.
type Silence = Option<File>;

struct OnServer(Proxied);

impl Site for OnServer {
    fn place(&self) -> &Place {
        &self.0.place
    }
    fn holders(&self) -> String {
        self.0.through()
    }
    fn others(&self) -> String {
        self.0.direct()
    }
    fn silence(&self) -> Result<Silence> {
        self.0.silence();
        Ok(None)
    }
    fn end(&self, _: Silence) {
        self.0.open();
    }
}

struct OnFile(Place);

impl Site for OnFile {
    fn place(&self) -> &Place {
        &self.0
    }
    fn holders(&self) -> String {
        self.0.url()
    }
    fn others(&self) -> String {
        self.0.url()
    }
    /// The others wait, too.
    fn silence(&self) -> Result<Silence> {
        Ok(Some(self.0.lock_file()))
    }
    fn end(&self, silence: Silence) {
        drop(silence);
    }
}

/// How the lock is lost.
#[derive(Clone, Copy, Debug)]
enum Way {
    /// The store falls silent.
    Silence,
    /// The store falls silent, and stderr of the holder takes no words.
    SilenceWithFullStderr,
    /// lockkeeper is killed.
    Kill,
}

const FLAGS: [&str; 4] = ["--ttl", "2s", "--kill-after", "1s"];

/// Says the numbers of the two processes and the fence, and later that it was asked to end.
const HOLDER: &str = "
    exec 2>/dev/null
    (trap '' TERM; while :; do date +%s%N >>started; sleep 0.02; done) &
    trap 'echo asked' TERM
    echo $$ $! $LOCKKEEPER_FENCE
    while :; do date +%s%N >>command; sleep 0.02; done";

/// Says the time and the fence, and which of the processes before it still live.
const NEXT: &str = "
    echo $(date +%s%N) $LOCKKEEPER_FENCE
    for process in $0 $1; do
        grep -s '^State:' /proc/$process/status | grep -qv Z && echo $process
    done
    echo end";

fn the_group_is_gone(site: &impl Site) -> Result<()> {
    for way in [Way::Silence, Way::SilenceWithFullStderr, Way::Kill] {
        lose(site, way).map_err(|e| anyhow!("{way:?}: {e:#}"))?;
    }
    Ok(())
}

fn lockkeeper(site: &impl Site, url: &str, name: &str, script: &[&str]) -> Command {
    let arguments = [&["run"], &FLAGS[..], &[name, "--", "sh", "-c"], script].concat();
    let mut command = site.place().lockkeeper(&arguments);
    command.env("LOCKKEEPER_STORE", url);
    command
}

fn lose(site: &impl Site, way: Way) -> Result<()> {
    let name = format!("{way:?}");
    for file in ["command", "started"] {
        let _ = fs::remove_file(site.place().path(file));
    }
    let mut command = lockkeeper(site, &site.holders(), &name, &[HOLDER]);
    let (_reader, writer) = full_pipe();
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    match way {
        Way::SilenceWithFullStderr => command.stderr(writer),
        _ => command.stderr(Stdio::null()),
    };
    let mut holder = Running::spawn(&mut command);
    let line = holder.line();
    let words: Vec<&str> = line.split(' ').collect();
    let [command, started, fence] = words[..] else { anyhow::bail!("no holder: {line:?}") };
    let next = [NEXT, command, started];
    let (mut next, said) = start(&mut lockkeeper(site, &site.others(), &name, &next));
    said.find("waiting for `");

    if let Way::Kill = way {
        holder.signal(Signal::SIGKILL);
    } else {
        let silence = site.silence()?;
        let asked = holder.line();
        ensure!(asked == "asked", "{asked:?}");
        // The store is back while the command still runs: too early for the next holder.
        site.end(silence);
    }
    let line = next.line();
    for process in [command, started] {
        let number = nix::unistd::Pid::from_raw(process.parse()?);
        ensure!(!is_alive(number), "{process} lives on");
    }
    let (at, second) = line.split_once(' ').with_context(|| format!("no holder: {line:?}"))?;
    let left = next.line();
    ensure!(left == "end", "{left} was there when the next holder started");
    let (at, fence, second): (u128, u64, u64) = (at.parse()?, fence.parse()?, second.parse()?);
    ensure!(second > fence, "fence {second} after {fence}");
    let last = ["command", "started"].map(|file| last_beat(&site.place().path(file)));
    let [command, started] = last;
    let last = command?.max(started?);
    ensure!(last < at, "a beat at {last}, and the next holder started at {at}");
    let gap = (at - last) / 1_000_000;
    eprintln!(
        "{way:?}: the last beat {gap} ms before the next holder, fence {fence}, then {second}"
    );
    let code = holder.code();
    let expected = if let Way::Kill = way { 128 + 9 } else { 79 };
    ensure!(code == expected, "the holder ended with {code}");
    ensure!(next.code() == 0);
    Ok(())
}

/// The last whole line of a file with times.
fn last_beat(file: &Path) -> Result<u128> {
    let text = fs::read_to_string(file)?;
    let mut lines = text.lines().rev().filter_map(|line| line.parse().ok());
    lines.next().with_context(|| format!("no beat in {}", file.display()))
}
