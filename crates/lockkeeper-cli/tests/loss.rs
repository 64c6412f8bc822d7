//! What becomes of the command when the lock is lost, or lockkeeper itself.

mod support;

use nix::sys::signal::Signal;
use std::time::{Duration, Instant};
use support::{Place, Running, evict_holder, is_alive};

/// A lock that is lost quickly, and a command that has little time to end.
const QUICK: [&str; 4] = ["--ttl", "1s", "--kill-after", "0.5"];

#[test]
fn a_killed_holder_takes_its_command_along_and_makes_room_in_time() {
    let place = Place::new();
    let script = "echo $$; echo $LOCKKEEPER_FENCE; read _ || :";
    let mut holder = place.start_script(&["--ttl", "2s"], "a", script);
    let (command, first) = (holder.pid_line(), holder.line());
    let mut successor = place.start_script(&[], "a", "echo $LOCKKEEPER_FENCE");
    place.await_waiters("a", 1);
    let killed = Instant::now();
    holder.signal(Signal::SIGKILL);
    let second = successor.line();
    assert!(!is_alive(command));
    assert!(second.parse::<u64>().unwrap() > first.parse().unwrap());
    // 2 s TTL, 6 s lock-delay, and much time for a slow machine.
    assert!(killed.elapsed() < Duration::from_secs(8 + 20), "{:?}", killed.elapsed());
    assert!(successor.wait().success());
}

#[test]
fn who_was_stopped_past_its_lease_ends_its_command_at_once() {
    let place = Place::new();
    let script = "trap '' TERM; echo $$; echo $LOCKKEEPER_FENCE; read _ || :";
    let mut holder = place.start_script(&QUICK, "a", script);
    let (command, first) = (holder.pid_line(), holder.line());
    holder.signal(Signal::SIGSTOP);
    let (mut successor, second) = place.hold(&[], "a");
    assert!(second > first.parse().unwrap());
    assert!(is_alive(command), "while lockkeeper is stopped, only the fence keeps it out");
    holder.signal(Signal::SIGCONT);
    assert_eq!(holder.code(), 79);
    assert!(!is_alive(command));
    assert!(holder.stderr().contains("lost `a`: "));
    assert!(successor.end().success());
}

fn lose(place: &Place, flags: &[&str], script: &str) -> (Running, nix::unistd::Pid) {
    let mut holder = place.start_script(&[&QUICK, flags].concat(), "a", script);
    let command = holder.pid_line();
    evict_holder(place, "a");
    (holder, command)
}

#[test]
fn a_lost_lock_ends_the_command() {
    let place = Place::new();
    let (mut holder, command) = lose(&place, &[], "echo $$; read _ || :");
    assert_eq!(holder.code(), 79);
    assert!(!is_alive(command));
    let said = holder.stderr();
    assert_eq!(
        said,
        "lockkeeper: lost `a`: the ticket was evicted, or the store has forgotten it; ending the command\n"
    );
}

#[test]
fn a_command_that_ignores_the_request_is_killed() {
    let place = Place::new();
    let began = Instant::now();
    let (mut holder, command) = lose(&place, &["-q"], "trap '' TERM; echo $$; read _ || :");
    assert_eq!(holder.code(), 79);
    assert!(!is_alive(command));
    assert!(began.elapsed() >= Duration::from_millis(500));
    assert!(holder.stderr().contains("lost `a`"), "errors are told to the quiet, too");
    let (mut holder, _) = lose(&place, &["--json"], "echo $$; read _ || :");
    assert_eq!(holder.code(), 79);
    let said = holder.stderr();
    let lost: serde_json::Value = serde_json::from_str(said.lines().last().unwrap()).unwrap();
    assert_eq!((&lost["event"], &lost["why"]), (&"lost".into(), &"evicted".into()));
}

#[test]
fn a_command_that_is_asked_can_put_things_in_order() {
    let place = Place::new();
    let script = "trap 'echo tidy; exit 0' TERM; echo $$; while :; do sleep 0.05; done";
    let (mut holder, _) = lose(&place, &["--kill-after", "30s"], script);
    assert_eq!(holder.line(), "tidy");
    assert_eq!(holder.code(), 79);
}

#[test]
fn a_stopped_command_is_ended_too() {
    let place = Place::new();
    let (mut holder, command) = lose(&place, &[], "echo $$; kill -STOP $$");
    assert_eq!(holder.code(), 79);
    assert!(!is_alive(command));
}

#[test]
fn grandchildren_in_the_group_end_with_the_command() {
    let place = Place::new();
    // The shell ends when it is asked; the one it has started does not.
    let script = "(trap '' TERM; exec sleep 1000) & echo $!; wait";
    let (mut holder, grandchild) = lose(&place, &[], script);
    assert_eq!(holder.code(), 79);
    assert!(!is_alive(grandchild));
}

#[test]
fn a_loss_can_be_ignored() {
    let place = Place::new();
    let (mut holder, _) = lose(&place, &["--on-lost", "ignore"], "echo $$; read _; exit 7");
    let (mut successor, _) = place.hold(&[], "a");
    // The successor was let in at once; the loss is found out with the next renewal.
    let mut warned = String::new();
    let mut stderr = std::io::BufReader::new(holder.take_stderr());
    std::io::BufRead::read_line(&mut stderr, &mut warned).unwrap();
    assert!(warned.contains("the command goes on without it"), "{warned}");
    holder.write("\n");
    assert_eq!(holder.code(), 7);
    assert!(successor.end().success());
}

#[test]
fn a_command_that_ends_after_the_loss_did_not_end_well() {
    let place = Place::new();
    // With this TTL the next renewal, which would tell us, is minutes away.
    let mut holder = place.start_script(&["--ttl", "1h"], "a", "echo $$; read _ || :");
    holder.pid_line();
    evict_holder(&place, "a");
    assert_eq!(holder.end().code(), Some(79));
    assert!(holder.stderr().contains("lost `a`"));
    let mut careless =
        place.start_script(&["--ttl", "1h", "--on-lost", "ignore"], "a", "echo $$; read _ || :");
    careless.pid_line();
    evict_holder(&place, "a");
    assert!(careless.end().success());
}

#[test]
fn a_command_may_hold_the_lock_only_so_long() {
    let place = Place::new();
    let script = "trap '' TERM; echo $$; read _ || :";
    let flags = ["--max-hold", "0.2", "--kill-after", "1s"];
    let mut holder = place.start_script(&flags, "a", script);
    let command = holder.pid_line();
    let mut successor = place.start_script(&[], "a", "echo in");
    assert_eq!(successor.line(), "in");
    assert!(!is_alive(command), "the lock is not given away before the command is gone");
    assert_eq!(holder.code(), 79);
    assert!(successor.wait().success());
}
