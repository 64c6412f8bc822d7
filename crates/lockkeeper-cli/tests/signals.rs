//! Signals, on the way to the lock and under it.

mod support;

use nix::sys::signal::{Signal, kill};
use std::{os::unix::process::ExitStatusExt as _, process::Command};
use support::{Place, Running, eventually, is_alive};

#[test]
fn a_signal_reaches_the_command_and_everybody_in_its_group() {
    let place = Place::new();
    for (signal, code) in [
        (Signal::SIGTERM, 143),
        (Signal::SIGHUP, 129),
        (Signal::SIGUSR1, 138),
        (Signal::SIGUSR2, 140),
        (Signal::SIGINT, 130),
        (Signal::SIGQUIT, 131),
    ] {
        let mut run = place.start_script(&[], "a", "sleep 1000 & echo $!; wait");
        let sleeper = run.pid_line();
        run.signal(signal);
        assert_eq!(run.code(), code, "{signal}");
        // A shell starts what is in the background with these two ignored.
        if !matches!(signal, Signal::SIGINT | Signal::SIGQUIT) {
            eventually(|| !is_alive(sleeper));
        }
        let _ = kill(sleeper, Signal::SIGKILL);
    }
}

#[test]
fn a_command_that_handles_a_signal_decides_its_own_end() {
    let place = Place::new();
    let script = "trap 'echo caught; exit 5' TERM; echo ready; while :; do sleep 0.05; done";
    let mut run = place.start_script(&[], "a", script);
    assert_eq!(run.line(), "ready");
    run.signal(Signal::SIGTERM);
    assert_eq!(run.line(), "caught");
    assert_eq!(run.code(), 5);
    place.assert(&["run", "-n", "a", "--", "true"]).success();
}

#[test]
fn a_signal_ends_the_wait_and_leaves_the_line() {
    let place = Place::new();
    let (mut holder, _) = place.hold(&[], "a");
    for (signal, code) in [(Signal::SIGTERM, 143), (Signal::SIGHUP, 129), (Signal::SIGINT, 130)] {
        let mut waiter = place.start(&["run", "a", "--", "echo", "ran"]);
        place.await_waiters("a", 1);
        waiter.signal(signal);
        assert_eq!(waiter.code(), code);
        assert_eq!(place.count("a", "waiters"), 0, "{signal}");
        assert_eq!(waiter.line(), "");
    }
    assert!(holder.end().success());
}

#[test]
fn an_interrupt_ends_us_by_the_signal_itself() {
    let place = Place::new();
    let (mut holder, _) = place.hold(&[], "a");
    let mut waiter = place.start(&["run", "a", "--", "true"]);
    place.await_waiters("a", 1);
    waiter.signal(Signal::SIGINT);
    assert_eq!(waiter.wait().signal(), Some(2));
    holder.signal(Signal::SIGINT);
    assert_eq!(holder.wait().signal(), Some(2));
    assert_eq!(place.show("a"), serde_json::Value::Null);
}

#[test]
fn what_was_ignored_when_we_started_stays_ignored() {
    let place = Place::new();
    let lockkeeper = env!("CARGO_BIN_EXE_lockkeeper");
    let script =
        format!("trap '' HUP; exec {lockkeeper} run a -- sh -c 'echo $$; read _; echo end'");
    let mut shell = Command::new("sh");
    let mut run = Running::start(shell.args(["-c", &script]).env("LOCKKEEPER_STORE", place.url()));
    let command = run.pid_line();
    run.signal(Signal::SIGHUP);
    kill(command, Signal::SIGHUP).unwrap();
    run.write("\n");
    assert_eq!(run.line(), "end");
    assert!(run.wait().success());
}

#[test]
fn a_command_stopped_by_hand_keeps_its_lock() {
    let place = Place::new();
    let flags = ["--ttl", "1s", "--kill-after", "0.5"];
    let mut run = place.start_script(&flags, "a", "echo $$; read _; echo end");
    let command = run.pid_line();
    kill(command, Signal::SIGSTOP).unwrap();
    // Longer than the TTL and the lock-delay: the lock is renewed all the while.
    place.assert(&["run", "-w", "4", "a", "--", "true"]).code(75);
    run.signal(Signal::SIGCONT);
    run.write("\n");
    assert_eq!(run.line(), "end");
    assert!(run.wait().success());
}
