//! What runs between our fork and the command: lockkeeper itself, for the blink of an eye.
//!
//! The command must die with lockkeeper, also when lockkeeper is killed and can do nothing more.
//! The kernel offers that to a process about itself (the parent-death signal), to be asked for
//! between fork and exec, where only unsafe code could run. So lockkeeper starts itself, asks for
//! it in safe code, and becomes the command by exec, which keeps the wish. That costs about a
//! millisecond. (The kernel drops the wish when the command is a set-user-id program.)
//!
//! The [supervisor](crate::supervisor) is lockkeeper itself, too, and stays for as long as the
//! command runs.

use crate::{exit_code, failure::Failure, output, stderr, supervisor, suspend, terminal};
use nix::{
    sys::{
        prctl::set_pdeathsig,
        signal::{Signal, raise},
    },
    unistd::{Pid, getpgrp, getppid},
};
use std::{
    ffi::{OsStr, OsString},
    io,
    os::unix::process::CommandExt as _,
    process::{Command, ExitCode},
    str::FromStr,
    time::Duration,
};

const CHILD: &str = "__child";
const SUPERVISOR: &str = "__supervisor";
const DIE: &str = "__die";
pub(crate) const ARGUMENTS: &str = "__arguments";

/// This program, whatever has become of its file: a running program can be replaced by an upgrade.
fn ourselves() -> Command {
    let mut command = Command::new("/proc/self/exe");
    command.arg0("lockkeeper");
    command
}

/// What starts the command in a process group of its own; `front` if that shall have the terminal.
pub(crate) fn start(command: &[OsString], front: bool) -> Command {
    let mut start = ourselves();
    start.arg(CHILD).arg(Pid::this().to_string()).arg(if front { "front" } else { "back" });
    start.arg(if stderr::speaks_json() { "json" } else { "words" });
    start.args(command).process_group(0);
    start
}

/// What starts the [supervisor](crate::supervisor), in a process group of its own and in no folder
/// of ours.
pub(crate) fn supervisor(kill_after: Duration) -> Command {
    let mut start = ourselves();
    start.arg0("lockkeeper-supervisor").arg(SUPERVISOR).arg(kill_after.as_millis().to_string());
    start.process_group(0).current_dir("/");
    start
}

/// Ends this process by the signal, so that whoever waits for us sees it: a shell ends a script
/// only if the program that Ctrl-C interrupted was really ended by it. Signals that were caught get
/// their old meaning back by exec.
pub(crate) fn die_of(signal: Signal) {
    // Returns only if it fails; then we end with a code.
    let _ = ourselves().arg(DIE).arg((signal as i32).to_string()).exec();
}

/// Becomes lockkeeper again, with other words in its command line. Returns only if that fails.
pub(crate) fn start_again(words: &[OsString]) -> io::Error {
    let (name, rest) = words.split_first().map_or((None, words), |(name, rest)| (Some(name), rest));
    ourselves().arg0(name.map_or(OsStr::new("lockkeeper"), OsString::as_os_str)).args(rest).exec()
}

/// Does what we were started for, if it was one of the three above.
pub(crate) fn work(mut arguments: impl Iterator<Item = OsString>) -> Option<ExitCode> {
    match arguments.nth(1)?.to_str()? {
        CHILD => Some(become_command(arguments)),
        SUPERVISOR => Some(supervise(arguments)),
        DIE => Some(die(arguments)),
        _ => None,
    }
}

fn supervise(mut arguments: impl Iterator<Item = OsString>) -> ExitCode {
    let kill_after = Duration::from_millis(number(arguments.next()).unwrap_or_default());
    supervisor::supervise(kill_after)
}

fn number<T: FromStr>(argument: Option<OsString>) -> Option<T> {
    argument?.to_str()?.parse().ok()
}

fn become_command(mut arguments: impl Iterator<Item = OsString>) -> ExitCode {
    let parent = number(arguments.next()).map(Pid::from_raw);
    let front = arguments.next().is_some_and(|word| word == "front");
    if arguments.next().is_some_and(|word| word == "json") {
        stderr::speak_json();
    }
    let Some(command) = arguments.next() else { return ExitCode::from(exit_code::USAGE) };
    if let Err(e) = set_pdeathsig(Signal::SIGKILL) {
        return cannot_run(&command, &io::Error::from(e)).into();
    }
    // If the parent has died before it could be tied to us, nobody watches the lock.
    if parent != Some(getppid()) {
        return ExitCode::from(exit_code::of_signal(Signal::SIGKILL as i32));
    }
    if front && let Some(terminal) = terminal::Terminal::open() {
        terminal.give(getpgrp());
    }
    terminal::sleep_again();
    suspend::let_through();
    let error = Command::new(&command).args(arguments).exec();
    cannot_run(&command, &error).into()
}

/// Becomes the command, which stays in our process group. Returns, with the code to end with, only if that
/// fails.
pub(crate) fn become_command_of(
    command: &[OsString],
    environment: Vec<(&'static str, Option<String>)>,
) -> u8 {
    let Some((program, arguments)) = command.split_first() else { return exit_code::USAGE };
    let mut start = Command::new(program);
    start.args(arguments);
    for (name, value) in environment {
        match value {
            Some(value) => start.env(name, value),
            None => start.env_remove(name),
        };
    }
    suspend::let_through();
    cannot_run(program, &start.exec())
}

fn cannot_run(command: &OsStr, error: &io::Error) -> u8 {
    let name = output::printable(&command.to_string_lossy());
    let (code, why) = match error.kind() {
        io::ErrorKind::NotFound => (exit_code::NOT_FOUND, "not found".to_owned()),
        _ => (exit_code::CANNOT_EXECUTE, error.to_string()),
    };
    Failure::new(code, anyhow::anyhow!("cannot run `{name}`: {why}")).report(stderr::speaks_json())
}

fn die(mut arguments: impl Iterator<Item = OsString>) -> ExitCode {
    let signal: i32 = number(arguments.next()).unwrap_or_default();
    if let Ok(signal) = Signal::try_from(signal) {
        let _ = raise(signal);
    }
    ExitCode::from(exit_code::of_signal(signal))
}
