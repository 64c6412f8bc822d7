//! What a program that was started by [`spawn`] can rely on.

use lockkeeper_spawn::{Start, spawn};
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, SigmaskHow, Signal, raise};
use std::{
    io::{self, ErrorKind, Read as _},
    os::{fd::OwnedFd, unix::process::ExitStatusExt as _},
    process::{Child, Command, Stdio},
    thread,
};

fn plainly() -> Start {
    Start { terminal: None, announce: None, unblock: SigSet::empty() }
}

fn shell(script: &str) -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", script]).stdin(Stdio::piped()).stdout(Stdio::piped());
    command
}

fn says(mut child: Child) -> String {
    let mut text = String::new();
    child.stdout.take().unwrap().read_to_string(&mut text).unwrap();
    assert!(child.wait().unwrap().success());
    text
}

#[test]
fn a_program_is_killed_when_the_thread_that_started_it_ends() {
    // Its stdin stays open, so nothing else ends it.
    let start = || spawn(shell("read _"), plainly()).unwrap();
    let mut child = thread::spawn(start).join().unwrap();
    assert_eq!(child.wait().unwrap().signal(), Some(9));
}

#[test]
fn what_reads_the_announcement_knows_the_process_before_it_does_anything() {
    let (mut reader, writer) = io::pipe().unwrap();
    let announce = Some((OwnedFd::from(writer), "watch "));
    let child = spawn(shell("echo $$"), Start { announce, ..plainly() }).unwrap();
    let announced = format!("watch {}\n", child.id());
    let mut read = vec![0; announced.len()];
    reader.read_exact(&mut read).unwrap();
    assert_eq!(String::from_utf8(read).unwrap(), announced);
    assert_eq!(says(child), announced["watch ".len()..]);
    assert_eq!(reader.read(&mut [0]).unwrap(), 0, "the program has inherited the pipe");
}

#[test]
fn an_announcement_that_no_process_reads_does_not_keep_the_program_from_its_start() {
    let (reader, writer) = io::pipe().unwrap();
    drop(reader);
    let announce = Some((OwnedFd::from(writer), "watch "));
    let child = spawn(shell("echo started"), Start { announce, ..plainly() }).unwrap();
    assert_eq!(says(child), "started\n");
}

#[test]
fn a_program_that_cannot_be_executed_is_an_error() {
    let error = |program| spawn(Command::new(program), plainly()).unwrap_err().kind();
    assert_eq!(error("no-such-program"), ErrorKind::NotFound);
    assert_eq!(error("/dev/null"), ErrorKind::PermissionDenied);
}

#[expect(unsafe_code, reason = "only so can a handler be installed")]
fn set(signal: Signal, handler: SigHandler) {
    let action = SigAction::new(handler, SaFlags::empty(), SigSet::empty());
    // SAFETY: the one handler that is installed does nothing.
    unsafe { nix::sys::signal::sigaction(signal, &action) }.unwrap();
}

/// One test, because signals are the process's.
#[test]
fn a_program_inherits_what_is_ignored_and_blocked_but_no_handler() {
    extern "C" fn nothing(_: i32) {}
    set(Signal::SIGUSR1, SigHandler::Handler(nothing));
    set(Signal::SIGUSR2, SigHandler::SigIgn);
    let mut ours = SigSet::empty();
    ours.add(Signal::SIGTTOU);
    ours.add(Signal::SIGWINCH);
    let before = ours.thread_swap_mask(SigmaskHow::SIG_SETMASK).unwrap();
    let mut unblock = SigSet::empty();
    unblock.add(Signal::SIGTTOU);
    let status = || {
        let mut cat = Command::new("cat");
        cat.arg("/proc/self/status").stdout(Stdio::piped());
        cat
    };
    let text = says(spawn(status(), Start { unblock, ..plainly() }).unwrap());
    let mask = |field: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(field)).unwrap();
        u64::from_str_radix(line.trim(), 16).unwrap()
    };
    let bit = |signal: Signal| 1 << (signal as u32 - 1);
    assert_eq!(mask("SigBlk:"), bit(Signal::SIGWINCH));
    assert_eq!(mask("SigIgn:") & bit(Signal::SIGUSR2), bit(Signal::SIGUSR2));
    assert_eq!(mask("SigCgt:"), 0);
    // Our own mask and handlers are as they were.
    assert_eq!(SigSet::thread_get_mask().unwrap(), ours);
    raise(Signal::SIGUSR1).unwrap();
    before.thread_set_mask().unwrap();
}
