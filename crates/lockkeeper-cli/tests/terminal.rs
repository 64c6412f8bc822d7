//! On a terminal: who may read from it, what Ctrl-C and Ctrl-Z do, how the wait is shown.
//!
//! `script` provides the terminal: what is written to its stdin is typed.

mod support;

use nix::{sys::stat::Mode, unistd::mkfifo};
use std::{
    fs::{self, File},
    io::Write as _,
    process::Command,
};
use support::{Place, Running};

const CTRL_C: &str = "\u{3}";
const CTRL_D: &str = "\u{4}";
const CTRL_Z: &str = "\u{1a}";

/// Says that it is there, and what it reads from the terminal.
const READER: &str = "echo here; while read x; do echo \"read [$x]\"; done";

/// Says that it is there, and works, without the terminal, until something comes out of a pipe.
const WORKER: &str = "echo here; read _ < gate; echo worked";

/// A terminal in which this command runs. It finds lockkeeper under `$LK`.
fn terminal(place: &Place, command: &str) -> Running {
    fs::write(place.path("reader"), READER).unwrap();
    fs::write(place.path("worker"), WORKER).unwrap();
    let gate = place.path("gate");
    if !gate.exists() {
        mkfifo(&gate, Mode::S_IRWXU).unwrap();
    }
    let mut script = Command::new("script");
    script.args(["-qfec", command, "/dev/null"]).current_dir(place.path(""));
    script.env("LK", env!("CARGO_BIN_EXE_lockkeeper")).env("LOCKKEEPER_STORE", place.url());
    script.env("TERM", "xterm").env_remove("NO_COLOR");
    Running::start(&mut script)
}

/// A terminal with an interactive shell in it.
fn shell(place: &Place) -> Running {
    let mut shell = terminal(place, "env PS1='ready> ' bash --norc --noprofile --noediting -i");
    shell.up_to("ready> ");
    shell
}

/// What appears up to this text, which has to come.
fn expect(terminal: &mut Running, text: &str) -> String {
    let seen = terminal.up_to(text);
    assert!(seen.ends_with(text), "no {text:?} in {seen:?}");
    seen
}

/// Types a line at the prompt, and looks at what follows it.
fn enter(shell: &mut Running, line: &str) {
    shell.write(&format!("{line}\n"));
    expect(shell, "\n");
}

#[test]
fn a_command_reads_from_the_terminal() {
    let place = Place::new();
    let mut terminal = terminal(&place, "$LK run a -- sh reader");
    expect(&mut terminal, "here");
    terminal.write("typed\n");
    expect(&mut terminal, "read [typed]");
    terminal.write(CTRL_D);
    assert!(terminal.wait().success());
}

#[test]
fn ctrl_c_ends_the_command_and_the_script_around_it() {
    let place = Place::new();
    for job in ["reader", "worker"] {
        let run = format!("$LK run a -- sh {job}");
        fs::write(place.path("loop"), format!("for i in 1 2; do {run}; done; echo on")).unwrap();
        for command in [run.as_str(), "bash loop"] {
            let mut terminal = terminal(&place, command);
            expect(&mut terminal, "here");
            terminal.write(CTRL_C);
            assert_eq!(terminal.code(), 130, "{command} with {job}");
            let rest = terminal.up_to("never");
            assert!(!rest.contains("here") && !rest.contains("on"), "{rest:?}");
        }
    }
    assert_eq!(place.show("a"), serde_json::Value::Null);
}

/// Runs its arguments as a job that has the terminal, as a shell does, but does not take the terminal back.
const JOB: &str = "
import os, signal, sys
tty = os.open('/dev/tty', os.O_RDWR)
signal.signal(signal.SIGTTOU, signal.SIG_IGN)
job = os.fork()
if job == 0:
    os.setpgid(0, 0)
    os.tcsetpgrp(tty, os.getpid())
    signal.signal(signal.SIGTTOU, signal.SIG_DFL)
    os.execv(sys.argv[1], sys.argv[1:])
code = os.waitstatus_to_exitcode(os.waitpid(job, 0)[1])
print('code', code, 'kept' if os.tcgetpgrp(tty) == job else 'gone')
";

#[test]
fn lockkeeper_keeps_the_terminal_when_the_command_cannot_be_started() {
    let place = Place::new();
    fs::write(place.path("job"), JOB).unwrap();
    let mut terminal = terminal(&place, "python3 job $LK run a -- ./no-such-command");
    expect(&mut terminal, "code 127 kept");
    assert!(terminal.wait().success());
}

/// Runs a job in a shell: alone, in a pipeline, in a script, and under two locks.
fn in_every_way(place: &Place, job: &str, check: impl Fn(&mut Running)) {
    let run = format!("$LK run a -- sh {job}");
    fs::write(place.path("outer"), format!("{run}\n")).unwrap();
    let (pipeline, nested) = (format!("{run} | cat"), format!("$LK run b -- {run}"));
    let mut shell = shell(place);
    for line in [run.as_str(), &pipeline, "sh outer", &nested] {
        enter(&mut shell, line);
        expect(&mut shell, "here");
        check(&mut shell);
        expect(&mut shell, "ready> ");
    }
    enter(&mut shell, "exit 3");
    assert_eq!(shell.code(), 3);
}

#[test]
fn a_job_that_reads_stops_and_goes_on() {
    let place = Place::new();
    in_every_way(&place, "reader", |shell| {
        // Once it has read something, it certainly has the terminal.
        shell.write("one\n");
        expect(shell, "read [one]");
        shell.write(CTRL_Z);
        expect(shell, "Stopped");
        expect(shell, "ready> ");
        enter(shell, "fg");
        shell.write("two\n");
        expect(shell, "read [two]");
        shell.write(CTRL_D);
    });
}

#[test]
fn a_job_that_works_stops_and_goes_on() {
    let place = Place::new();
    in_every_way(&place, "worker", |shell| {
        shell.write(CTRL_Z);
        expect(shell, "Stopped");
        expect(shell, "ready> ");
        enter(shell, "fg");
        // Opened in both directions, so that nobody has to be there yet.
        let gate = File::options().read(true).write(true).open(place.path("gate"));
        let mut gate = gate.unwrap();
        gate.write_all(b"open\n").unwrap();
        expect(shell, "worked");
    });
}

#[test]
fn a_job_that_rested_for_too_long_has_lost_its_lock() {
    let place = Place::new();
    let mut shell = shell(&place);
    enter(&mut shell, "$LK run --ttl 1s --kill-after 0.5 a -- sh worker");
    expect(&mut shell, "here");
    shell.write(CTRL_Z);
    expect(&mut shell, "ready> ");
    place.assert(&["run", "a", "--", "true"]).success();
    enter(&mut shell, "fg");
    expect(&mut shell, "lost `a`: ");
    expect(&mut shell, "ready> ");
    enter(&mut shell, "exit $?");
    assert_eq!(shell.code(), 79);
}

#[test]
fn a_wait_can_be_stopped_and_interrupted() {
    let place = Place::new();
    let (mut holder, _) = place.hold(&[], "a");
    let mut shell = shell(&place);
    enter(&mut shell, "$LK run a -- echo done");
    expect(&mut shell, "waiting for `a`");
    shell.write(CTRL_Z);
    expect(&mut shell, "Stopped");
    expect(&mut shell, "ready> ");
    enter(&mut shell, "fg");
    expect(&mut shell, "waiting for `a`");
    shell.write(CTRL_C);
    expect(&mut shell, "ready> ");
    assert_eq!(place.count("a", "waiters"), 0);
    enter(&mut shell, "exit $?");
    assert_eq!(shell.code(), 130);
    assert!(holder.end().success());
}

#[test]
fn others_in_a_pipeline_keep_the_terminal() {
    let place = Place::new();
    let mut shell = shell(&place);
    enter(&mut shell, "$LK run a -- echo one | (cat; read x < /dev/tty; echo \"tail [$x]\")");
    expect(&mut shell, "one");
    shell.write("typed\n");
    expect(&mut shell, "tail [typed]");
    expect(&mut shell, "ready> ");
}

#[test]
fn a_command_may_read_from_the_terminal_beside_its_stdin() {
    let place = Place::new();
    let mut shell = shell(&place);
    enter(&mut shell, "echo piped | $LK run a -- sh -c 'cat; sh reader < /dev/tty'");
    expect(&mut shell, "here");
    shell.write("typed\n");
    expect(&mut shell, "read [typed]");
    shell.write(CTRL_D);
    expect(&mut shell, "ready> ");
}

#[test]
fn the_wait_is_one_line_that_changes_and_goes_away() {
    let place = Place::new();
    let (mut holder, _) = place.hold(&["--label", "nightly"], "a");
    let mut terminal = terminal(&place, "$LK run a -- echo done");
    expect(&mut terminal, "\r\u{1b}[2Kwaiting for `a` · 1st in line · held by ");
    let holds = format!("(pid {}), nightly, for ", holder.pid());
    expect(&mut terminal, &holds);
    let seen = expect(&mut terminal, "\u{1b}[2K");
    assert!(!seen.contains('\n'), "{seen:?}");
    assert!(holder.end().success());
    let seen = expect(&mut terminal, "done");
    assert!(seen.ends_with("\r\u{1b}[2Kdone"), "{seen:?}");
    assert!(terminal.wait().success());
}
