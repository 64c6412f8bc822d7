//! What becomes of the command when the lock is lost, or lockkeeper itself.

mod support;

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    process::Command,
    time::{Duration, Instant},
};
use support::{Place, Running, eventually, evict_holder, is_alive};

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

/// Takes a lease on a file, so that the kernel lets no process execute it. Says when one tries, and gives the
/// lease up when it reads a line.
const LEASE: &str = "
import fcntl, os, signal, sys
file = os.open(sys.argv[1], os.O_RDONLY)
signal.signal(signal.SIGIO, lambda *_: print('asked', flush=True))
fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_WRLCK)
print('leased', flush=True)
sys.stdin.readline()
fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_UNLCK)
";

#[test]
fn a_command_whose_start_outlasts_its_lock_gets_no_time_of_its_own() {
    let place = Place::new();
    let program = place.path("slow");
    fs::write(&program, "#!/bin/sh\nread _\n").unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    let mut lease = Running::start(Command::new("python3").args(["-c", LEASE]).arg(&program));
    assert_eq!(lease.line(), "leased", "{}", lease.stderr());
    // What lockkeeper is told to ignore its command ignores too: only SIGKILL ends it.
    let mut ignoring = Command::new("sh");
    ignoring.args(["-c", "trap '' TERM; exec \"$0\" \"$@\"", env!("CARGO_BIN_EXE_lockkeeper")]);
    ignoring.args(["run", "--ttl", "1s", "--kill-after", "5s", "a", "--"]).arg(&program);
    ignoring.env("LOCKKEEPER_STORE", place.url());
    let mut holder = Running::start(&mut ignoring);
    assert_eq!(lease.line(), "asked");
    let (mut successor, _) = place.hold(&[], "a");
    let started = Instant::now();
    lease.write("\n");
    assert_eq!(holder.code(), 79);
    assert!(started.elapsed() < Duration::from_secs(5), "{:?}", started.elapsed());
    assert!(holder.stderr().contains("lost `a`: "));
    assert!(successor.end().success() && lease.wait().success());
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

/// The supervisor that lockkeeper has started.
fn supervisor(of: Pid) -> Option<Pid> {
    let processes = fs::read_dir("/proc").unwrap().flatten();
    let mut numbers = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    numbers.find_map(|number| {
        let read = |file: &str| fs::read_to_string(format!("/proc/{number}/{file}")).ok();
        let stat = read("stat")?;
        let parent = stat.rsplit_once(") ")?.1.split(' ').nth(1)?.parse::<i32>().ok()?;
        let is_it = parent == of.as_raw() && read("cmdline")?.contains("__supervisor");
        is_it.then(|| Pid::from_raw(number))
    })
}

#[test]
fn what_the_command_has_started_ends_before_the_next_holder_starts() {
    let place = Place::new();
    // The shell dies with lockkeeper. What it has started does not end when asked to.
    let script = "(trap '' TERM; echo $(exec sh -c 'echo $PPID'); while :; do sleep 0.05; done); :";
    let mut holder = place.start_script(&["--ttl", "2s", "--kill-after", "1s"], "a", script);
    let grandchild = holder.pid_line();
    let mut successor = place.start_script(&[], "a", "echo in");
    place.await_waiters("a", 1);
    holder.signal(Signal::SIGKILL);
    assert_eq!(successor.line(), "in");
    assert!(!is_alive(grandchild));
    assert!(successor.wait().success());
}

#[test]
fn a_grandchild_that_is_asked_can_put_things_in_order() {
    let place = Place::new();
    let inner = "trap 'echo tidy; exit' TERM; echo $$; while :; do sleep 0.05; done";
    let script = format!("sh -c \"{}\"; :", inner.replace('$', "\\$"));
    let mut holder = place.start_script(&["--kill-after", "30s"], "a", &script);
    let grandchild = holder.pid_line();
    holder.signal(Signal::SIGKILL);
    assert_eq!(holder.line(), "tidy");
    eventually(|| !is_alive(grandchild));
}

#[test]
fn lockkeeper_killed_while_it_ends_the_command_leaves_no_more_time_than_there_was() {
    let place = Place::new();
    killed_while_it_ends(&place, |_| evict_holder(&place, "a"));
}

#[test]
fn lockkeeper_killed_after_it_has_passed_sigterm_on_leaves_no_more_time_than_there_was() {
    killed_while_it_ends(&Place::new(), |holder| holder.signal(Signal::SIGTERM));
}

fn killed_while_it_ends(place: &Place, ask: impl Fn(&Running)) {
    let script = "trap : TERM; (trap 'echo asked' TERM; echo $(exec sh -c 'echo $PPID'); \
                  while :; do sleep 0.05; done) & wait; wait";
    let mut holder = place.start_script(&["--kill-after", "3s"], "a", script);
    let grandchild = holder.pid_line();
    let began = Instant::now();
    ask(&holder);
    assert_eq!(holder.line(), "asked");
    let asked = Instant::now();
    std::thread::sleep(Duration::from_millis(1500));
    holder.signal(Signal::SIGKILL);
    eventually(|| !is_alive(grandchild));
    // With all of kill-after from the kill on, it would be 4.5 s.
    assert!(began.elapsed() >= Duration::from_secs(3), "{:?}", began.elapsed());
    assert!(asked.elapsed() < Duration::from_millis(4400), "{:?}", asked.elapsed());
}

#[test]
fn a_supervisor_outlives_what_is_sent_to_all_and_ends_with_lockkeeper() {
    let place = Place::new();
    let script = "sleep 1000 >/dev/null 2>&1 </dev/null & echo $!; read _ || :";
    let mut holder = place.start_script(&[], "a", script);
    let left_behind = holder.pid_line();
    let supervisor = supervisor(holder.pid()).expect("a supervisor");
    for signal in [Signal::SIGTERM, Signal::SIGHUP, Signal::SIGINT] {
        kill(supervisor, signal).unwrap();
    }
    assert!(is_alive(supervisor));
    assert!(holder.end().success());
    eventually(|| !is_alive(supervisor));
    // What the command leaves running when it ends by itself is left alone.
    assert!(is_alive(left_behind));
    kill(left_behind, Signal::SIGKILL).unwrap();
}

#[test]
fn the_longest_time_is_named_when_it_is_over() {
    let place = Place::new();
    let flags = ["--max-hold", "0.2", "--kill-after", "1s"];
    let mut holder = place.start_script(&flags, "a", "read _ || :");
    assert_eq!(holder.code(), 79);
    let said = holder.stderr();
    assert_eq!(said, "lockkeeper: lost `a`: --max-hold 200ms is over; ending the command\n");
}

#[test]
fn a_nested_lockkeeper_ends_all_of_its_command_before_the_outer_lock_is_released() {
    let place = Place::new();
    let inner = "(trap '' TERM; echo $(exec sh -c 'echo $PPID'); while :; do sleep 0.05; done); :";
    let lockkeeper = env!("CARGO_BIN_EXE_lockkeeper");
    let outer = ["run", "--kill-after", "30s", "outer", "--"];
    let nested = [lockkeeper, "run", "--kill-after", "0.5", "inner", "--", "sh", "-c", inner];
    let mut holder = place.start(&[&outer[..], &nested].concat());
    let worker = holder.pid_line();
    evict_holder(&place, "outer");
    assert_eq!(holder.code(), 79);
    assert!(!is_alive(worker));
}

#[test]
fn a_supervisor_is_recognised_and_its_end_is_told_once() {
    let place = Place::new();
    let mut holder = place.start_script(&[], "a", "echo $$; read _ || :");
    holder.pid_line();
    let supervisor = supervisor(holder.pid()).expect("a supervisor");
    let read = |file: &str| fs::read_to_string(format!("/proc/{supervisor}/{file}")).unwrap();
    assert!(read("cmdline").starts_with("lockkeeper-supervisor\0"));
    eventually(|| read("comm") == "lk-supervisor\n");
    kill(supervisor, Signal::SIGKILL).unwrap();
    let mut said = std::io::BufReader::new(holder.take_stderr());
    let mut warned = String::new();
    std::io::BufRead::read_line(&mut said, &mut warned).unwrap();
    assert!(warned.contains("the supervisor has ended"), "{warned}");
    assert!(holder.end().success());
    let mut rest = String::new();
    std::io::Read::read_to_string(&mut said, &mut rest).unwrap();
    assert_eq!(rest, "");
}
