//! What lockkeeper starts: the command, and itself in other roles.
//!
//! The command must die with lockkeeper, also when lockkeeper is killed and can do nothing more.
//! The kernel offers that to a process about itself (the parent-death signal), to be asked for
//! between fork and exec, where only unsafe code could run: `lockkeeper_spawn` has it. (The kernel drops the wish
//! when the command is a set-user-id program.)
//!
//! The [supervisor](crate::supervisor) is lockkeeper itself, and stays for as long as the command runs.

use crate::{exit_code, failure::Failure, output, stderr, supervisor, suspend, terminal};
use lockkeeper_spawn::Start;
use nix::sys::signal::{Signal, raise};
use std::{
    ffi::{OsStr, OsString},
    io,
    os::{fd::OwnedFd, unix::process::CommandExt as _},
    process::{Child, Command, ExitCode},
    str::FromStr,
};

const SUPERVISOR: &str = "__supervisor";
const DIE: &str = "__die";
pub(crate) const ARGUMENTS: &str = "__arguments";

/// This program, whatever has become of its file: a running program can be replaced by an upgrade.
fn ourselves() -> Command {
    let mut command = Command::new("/proc/self/exe");
    command.arg0("lockkeeper");
    command
}

/// Starts the command in a process group of its own, which gets this terminal. The supervisor reads its number from
/// `orders` before the command has done anything. Must be called on the main thread: the command dies with the *thread*
/// that started it.
pub(crate) fn start(
    command: &[OsString],
    environment: Vec<(&'static str, Option<String>)>,
    terminal: Option<OwnedFd>,
    orders: OwnedFd,
) -> Result<Child, Failure> {
    let (mut start, program) = command_of(command, environment)?;
    start.process_group(0);
    let unblock = suspend::mask() | terminal::touching();
    let steps = Start { terminal, announce: Some((orders, supervisor::WATCH)), unblock };
    lockkeeper_spawn::spawn(start, steps).map_err(|e| cannot_run(program, &e))
}

/// What starts the [supervisor](crate::supervisor), in a process group of its own and in no folder
/// of ours.
pub(crate) fn supervisor() -> Command {
    let mut start = ourselves();
    start.arg0("lockkeeper-supervisor").arg(SUPERVISOR);
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

/// Does what we were started for, if it was one of the two above.
pub(crate) fn work(mut arguments: impl Iterator<Item = OsString>) -> Option<ExitCode> {
    match arguments.nth(1)?.to_str()? {
        SUPERVISOR => Some(supervisor::supervise()),
        DIE => Some(die(arguments)),
        _ => None,
    }
}

fn number<T: FromStr>(argument: Option<OsString>) -> Option<T> {
    argument?.to_str()?.parse().ok()
}

/// Becomes the command, which stays in our process group. Returns, with the code to end with, only if that
/// fails.
pub(crate) fn become_command_of(
    command: &[OsString],
    environment: Vec<(&'static str, Option<String>)>,
) -> u8 {
    let failure = match command_of(command, environment) {
        Ok((mut start, program)) => {
            suspend::let_through();
            cannot_run(program, &start.exec())
        }
        Err(failure) => failure,
    };
    failure.report(stderr::speaks_json())
}

/// The command and its program. A variable without a value is none for the command, also if we have inherited one.
fn command_of<'c>(
    command: &'c [OsString],
    environment: Vec<(&'static str, Option<String>)>,
) -> Result<(Command, &'c OsStr), Failure> {
    let Some((program, arguments)) = command.split_first() else {
        return Err(Failure::usage("there is no command".to_owned()));
    };
    let mut start = Command::new(program);
    start.args(arguments);
    for (name, value) in environment {
        match value {
            Some(value) => start.env(name, value),
            None => start.env_remove(name),
        };
    }
    Ok((start, program))
}

fn cannot_run(command: &OsStr, error: &io::Error) -> Failure {
    let name = output::printable(&command.to_string_lossy());
    let (code, why) = match error.kind() {
        io::ErrorKind::NotFound => (exit_code::NOT_FOUND, "not found".to_owned()),
        _ => (exit_code::CANNOT_EXECUTE, error.to_string()),
    };
    Failure::new(code, anyhow::anyhow!("cannot run `{name}`: {why}"))
}

fn die(mut arguments: impl Iterator<Item = OsString>) -> ExitCode {
    let signal: i32 = number(arguments.next()).unwrap_or_default();
    if let Ok(signal) = Signal::try_from(signal) {
        let _ = raise(signal);
    }
    ExitCode::from(exit_code::of_signal(signal))
}
