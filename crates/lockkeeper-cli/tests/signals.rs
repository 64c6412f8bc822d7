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
        let flags = ["--kill-after", "0.5"];
        let mut run = place.start_script(&flags, "a", "sleep 1000 & echo $!; wait");
        let sleeper = run.pid_line();
        run.signal(signal);
        assert_eq!(run.code(), code, "{signal}");
        eventually(|| !is_alive(sleeper));
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
fn a_command_that_ignores_a_signal_goes_on_under_the_lock() {
    let place = Place::new();
    let script = "trap '' TERM HUP INT; echo $$; read _; echo end; exit 5";
    let flags = ["--ttl", "1s", "--kill-after", "0.2"];
    let mut run = place.start_script(&flags, "a", script);
    let command = run.pid_line();
    for signal in [Signal::SIGTERM, Signal::SIGHUP, Signal::SIGINT] {
        run.signal(signal);
    }
    // Longer than the TTL, the lock-delay and kill-after: the lock is renewed all the while.
    place.assert(&["run", "-w", "4", "a", "--", "true"]).code(75);
    assert!(is_alive(command));
    run.write("\n");
    assert_eq!(run.line(), "end");
    assert_eq!(run.code(), 5);
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

#[test]
fn a_lock_is_released_when_all_that_got_the_signal_has_ended() {
    let place = Place::new();
    // The shell dies of the signal at once, and what it has started takes its time.
    let worker = "trap 'sleep 1; echo done >tidy; exit' TERM; echo ready; \
                  while :; do sleep 0.05; done";
    let script = format!("sh -c \"{worker}\"; :");
    let mut run = place.start_script(&["--kill-after", "30s"], "a", &script);
    assert_eq!(run.line(), "ready");
    let mut successor = place.start_script(&[], "a", "cat tidy");
    place.await_waiters("a", 1);
    run.signal(Signal::SIGTERM);
    assert_eq!(successor.line(), "done");
    assert!(successor.wait().success());
    assert_eq!(run.code(), 143);
}

#[test]
fn what_ignores_the_signal_that_ends_the_command_is_killed_before_the_release() {
    let place = Place::new();
    let script =
        "(trap '' TERM HUP; echo $(exec sh -c 'echo $PPID'); while :; do sleep 0.05; done); :";
    for signal in [Signal::SIGTERM, Signal::SIGHUP] {
        let mut run = place.start_script(&["--kill-after", "0.5"], "a", script);
        let worker = run.pid_line();
        run.signal(signal);
        place.assert(&["run", "a", "--", "true"]).success();
        assert!(!is_alive(worker), "{signal}");
        assert_eq!(run.code(), 128 + signal as i32);
    }
}

#[test]
fn a_lock_that_is_lost_while_the_rest_of_the_command_ends_is_told_as_lost() {
    let place = Place::new();
    let worker = "trap 'echo asked' TERM; echo ready; while :; do sleep 0.05; done";
    let script = format!("sh -c \"{worker}\"; :");
    let flags = ["--ttl", "1s", "--kill-after", "2s"];
    let mut run = place.start_script(&flags, "a", &script);
    assert_eq!(run.line(), "ready");
    run.signal(Signal::SIGTERM);
    assert_eq!(run.line(), "asked");
    support::evict_holder(&place, "a");
    assert_eq!(run.code(), 79);
    assert!(run.stderr().contains("lost `a`"));
}

#[test]
fn a_command_that_lives_on_after_a_hangup_ends_by_itself() {
    let place = Place::new();
    let script = "(trap '' HUP; echo >deaf; exec sleep 1000 >/dev/null 2>&1 </dev/null) & \
                  until [ -s deaf ]; do sleep 0.01; done; echo $!; \
                  trap 'echo reloaded; sleep 1; exit 0' HUP; echo ready; \
                  while :; do sleep 0.05; done";
    let mut run = place.start_script(&["--kill-after", "0.2"], "a", script);
    let left_behind = run.pid_line();
    assert_eq!(run.line(), "ready");
    run.signal(Signal::SIGHUP);
    assert_eq!(run.line(), "reloaded");
    assert!(run.wait().success());
    assert!(is_alive(left_behind));
    kill(left_behind, Signal::SIGKILL).unwrap();
}
