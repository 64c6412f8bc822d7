//! A stderr that cannot be written delays neither a loss, nor a signal, nor the end.

mod support;

use nix::sys::signal::Signal;
use std::time::{Duration, Instant};
use std::{
    io::PipeReader,
    process::{Command, Stdio},
};
use support::{DEADLINE, Place, Running, eventually, evict_holder, full_pipe, is_alive};

/// Starts a script under the lock `a` whose stderr is a full pipe.
fn start(place: &Place, flags: &[&str], script: &str) -> (Running, PipeReader) {
    let (reader, writer) = full_pipe();
    let arguments = [&["run"], flags, &["a", "--", "sh", "-c", script]].concat();
    let mut command = place.lockkeeper(&arguments);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(writer);
    (Running::spawn(&mut command), reader)
}

const QUICK: [&str; 4] = ["--ttl", "1s", "--kill-after", "0.5"];

#[test]
fn a_loss_ends_the_command_although_stderr_is_full() {
    for flags in [&[][..], &["--json"], &["-v"], &["-vv", "--json"]] {
        let place = Place::new();
        let flags = [&QUICK, flags].concat();
        let (mut holder, _reader) = start(&place, &flags, "echo $$; read _ || :");
        let command = holder.pid_line();
        evict_holder(&place, "a");
        eventually(|| !is_alive(command));
        assert_eq!(holder.code(), 79, "{flags:?}");
    }
}

#[test]
fn a_removed_store_ends_the_command_although_stderr_is_full() {
    let place = Place::new();
    let (mut holder, _reader) = start(&place, &QUICK, "echo $$; read _ || :");
    let command = holder.pid_line();
    std::fs::remove_file(place.path("locks.db")).unwrap();
    eventually(|| !is_alive(command));
    assert_eq!(holder.code(), 79);
}

#[test]
fn signals_and_exit_codes_pass_although_stderr_is_full() {
    let place = Place::new();
    for flags in [&["-vv"][..], &["--json"]] {
        let (mut run, _reader) = start(&place, flags, "echo $$; read _ || :");
        run.pid_line();
        run.signal(Signal::SIGTERM);
        assert_eq!(run.code(), 143, "{flags:?}");
        let (mut run, _reader) = start(&place, flags, "exit 7");
        assert_eq!(run.code(), 7, "{flags:?}");
    }
}

#[test]
fn locks_are_renewed_although_stderr_is_full() {
    let place = Place::new();
    // Every renewal is logged.
    let flags = ["-vv", "--ttl", "1s", "--kill-after", "0.5"];
    let (mut holder, _reader) = start(&place, &flags, "echo $$; read _ || :");
    holder.pid_line();
    // Longer than the TTL and the lock-delay.
    place.assert(&["run", "-w", "4", "a", "--", "true"]).code(75);
    assert!(holder.end().success());
}

#[test]
fn every_failure_ends_although_stderr_is_full() {
    let place = Place::new();
    for (arguments, code) in [
        (&["run", "--tll", "1s", "a", "true"][..], 64),
        (&["--store", "mongo://x", "run", "a", "true"], 78),
        (&["run", "a", "--", "no-such-command"], 127),
        (&["ls"], 0),
    ] {
        let (_reader, writer) = full_pipe();
        let mut command = place.lockkeeper(arguments);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(writer);
        assert_eq!(Running::spawn(&mut command).code(), code, "{arguments:?}");
    }
}

#[test]
fn a_stopped_terminal_does_not_keep_the_command_alive() {
    let place = Place::new();
    let line = "\"$LK\" run --ttl 1s --kill-after 0.5 a -- sh -c 'echo $$ > pid; sleep 1000; :'";
    let mut script = Command::new("script");
    script.args(["-qfec", line, "/dev/null"]).current_dir(place.path(""));
    script.env("LK", env!("CARGO_BIN_EXE_lockkeeper")).env("LOCKKEEPER_STORE", place.url());
    let mut terminal = Running::start(&mut script);
    let pid = || std::fs::read_to_string(place.path("pid")).unwrap_or_default();
    eventually(|| pid().ends_with('\n'));
    let command = nix::unistd::Pid::from_raw(pid().trim().parse().unwrap());
    // Ctrl-S.
    terminal.write("\u{13}");
    evict_holder(&place, "a");
    eventually(|| !is_alive(command));
    // Ctrl-Q, so that the terminal can end.
    terminal.write("\u{11}");
    assert_eq!(terminal.code(), 79);
}

#[test]
fn a_stderr_that_is_closed_changes_nothing() {
    let place = Place::new();
    let script =
        "\"$LK\" run --json a -- sh -c 'exit 7' 2>&-; echo $?; \"$LK\" run -vv a -- true 2>&-";
    let mut shell = Command::new("sh");
    shell.args(["-c", script]).env("LK", env!("CARGO_BIN_EXE_lockkeeper"));
    let mut shell = Running::start(shell.env("LOCKKEEPER_STORE", place.url()));
    assert_eq!(shell.line(), "7");
    assert!(shell.wait().success());
    // Nobody reads: every message is an error, and none of them matters.
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let mut run = place.lockkeeper(&["run", "--json", "a", "--", "sh", "-c", "exit 7"]);
    run.stdout(Stdio::piped()).stderr(writer);
    assert_eq!(Running::spawn(&mut run).code(), 7);
}

#[test]
fn a_full_stdout_belongs_to_the_command_alone() {
    let place = Place::new();
    let (_reader, writer) = full_pipe();
    let flags = ["run", "--json", "--ttl", "1s", "--kill-after", "0.5", "a", "--"];
    // The command cannot write, and is ended all the same.
    let mut run = place.lockkeeper(&[&flags[..], &["sh", "-c", "echo $$ >&2; echo x"]].concat());
    let mut run = run.stdout(writer).spawn().unwrap();
    eventually(|| place.count("a", "holders") == 1);
    evict_holder(&place, "a");
    let began = Instant::now();
    while run.try_wait().unwrap().is_none() {
        assert!(began.elapsed() < DEADLINE, "blocked by a full stdout");
        std::thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(run.wait().unwrap().code(), Some(79));
}

#[test]
fn a_lock_lost_before_the_command_was_started_is_asked_for_again() {
    let place = Place::new();
    // A full stderr holds up the start of the command for a moment, in which we can stop lockkeeper.
    for _ in 0..50 {
        let (mut run, reader) =
            start(&place, &["-vv", "--ttl", "1s", "--kill-after", "0.5"], "echo $$");
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let keeper = lockkeeper::Keeper::connect(&place.url()).await.unwrap();
            while keeper.get("a").await.unwrap().is_none_or(|l| l.holders().next().is_none()) {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        });
        run.signal(Signal::SIGSTOP);
        // Has the lock been lost to the next before the command was started?
        let next = place.assert(&["run", "a", "--", "true"]);
        next.success();
        let started = std::fs::read_dir("/proc").unwrap().flatten().any(|process| {
            let stat = std::fs::read_to_string(process.path().join("stat")).unwrap_or_default();
            let parent =
                stat.rsplit_once(") ").and_then(|(_, rest)| rest.split(' ').nth(1)?.parse().ok());
            // The supervisor starts while the store is asked.
            let line = std::fs::read_to_string(process.path().join("cmdline")).unwrap_or_default();
            parent == Some(run.pid().as_raw()) && !line.contains("__supervisor")
        });
        drop(reader);
        run.signal(Signal::SIGCONT);
        if started {
            run.code();
            continue;
        }
        run.pid_line();
        assert_eq!(run.code(), 0);
        return;
    }
    panic!("lockkeeper could not be stopped in time");
}
