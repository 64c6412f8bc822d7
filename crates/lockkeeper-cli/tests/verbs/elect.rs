//! `lockkeeper elect`.

use crate::{
    AWAY, answer, json, says_that_the_store_is_away,
    support::{Place, Running, eventually, evict_holder, is_alive},
};
use nix::sys::signal::Signal;
use serde_json::Value;

/// Says its process and its fence, and runs until its stdin ends.
const SERVE: &str = "echo $$; echo $LOCKKEEPER_FENCE; read _ || :";

/// A candidate whose command says its process and its fence.
fn candidate(place: &Place, flags: &[&str], script: &str) -> Running {
    let tail = ["scheduler", "--", "sh", "-c", script];
    place.start(&[&["elect", "--ttl", "1s", "--kill-after", "0.5"], flags, &tail].concat())
}

fn fence(candidate: &mut Running) -> u64 {
    candidate.line().parse().expect("a fence")
}

#[test]
fn a_command_runs_only_while_its_candidate_leads() {
    let place = Place::new();
    let mut one = candidate(&place, &[], SERVE);
    let (command, first) = (one.pid_line(), fence(&mut one));
    let mut two = candidate(&place, &[], SERVE);
    place.await_waiters("scheduler", 1);
    evict_holder(&place, "scheduler");
    let (_, second) = (two.pid_line(), fence(&mut two));
    assert!(second > first);
    eventually(|| !is_alive(command));
    // The first one stands again, behind the second.
    place.await_waiters("scheduler", 1);
    assert!(!one.has_ended());
    assert!(two.end().success());
    let (again, third) = (one.pid_line(), fence(&mut one));
    assert!(third > second && again != command);
    assert!(one.end().success(), "it ends with its command");
    let said = one.stderr();
    assert!(said.contains("lost `scheduler`: ") && said.contains("ending the command"), "{said}");
}

#[test]
fn the_code_of_a_command_that_ends_by_itself_is_that_of_elect() {
    let place = Place::new();
    assert_eq!(candidate(&place, &[], "exit 7").code(), 7);
    assert_eq!(candidate(&place, &[], "kill -KILL $$").code(), 128 + 9);
    place.assert(&["elect", "a", "--", "no-such-command"]).code(127);
    place.assert(&["elect", "a"]).code(64);
    place.assert(&["elect", "a", "--print", "--", "true"]).code(64);
}

#[test]
fn a_candidate_that_stands_once_ends_with_the_loss() {
    let place = Place::new();
    let mut one = candidate(&place, &["--once"], SERVE);
    let command = one.pid_line();
    evict_holder(&place, "scheduler");
    assert_eq!(one.code(), 79);
    assert!(!is_alive(command));
}

#[test]
fn a_signal_ends_the_candidacy() {
    let place = Place::new();
    let mut leader = candidate(&place, &[], SERVE);
    let command = leader.pid_line();
    let mut waiter = candidate(&place, &[], SERVE);
    place.await_waiters("scheduler", 1);
    waiter.signal(Signal::SIGTERM);
    assert_eq!(waiter.code(), 128 + 15);
    leader.signal(Signal::SIGTERM);
    assert_eq!(leader.code(), 128 + 15, "as the command ends, which was told");
    assert!(!is_alive(command));
    assert_eq!(place.show("scheduler"), Value::Null);
}

#[test]
fn a_candidate_that_was_told_to_end_does_not_stand_again() {
    let place = Place::new();
    let script = "trap 'echo told' TERM; echo $$; while :; do read _ || sleep 9; done";
    let mut leader = place.start(&[
        "elect",
        "--ttl",
        "1s",
        "--kill-after",
        "2s",
        "scheduler",
        "--",
        "sh",
        "-c",
        script,
    ]);
    let command = leader.pid_line();
    leader.signal(Signal::SIGTERM);
    assert_eq!(leader.line(), "told");
    evict_holder(&place, "scheduler");
    assert_eq!(leader.code(), 79);
    assert!(!is_alive(command));
}

#[test]
fn a_killed_candidate_takes_its_command_along() {
    let place = Place::new();
    let mut leader = candidate(&place, &[], SERVE);
    let command = leader.pid_line();
    leader.signal(Signal::SIGKILL);
    let mut next = candidate(&place, &[], SERVE);
    next.pid_line();
    assert!(!is_alive(command), "before the next one leads");
    assert!(next.end().success());
}

#[test]
fn the_leader_is_printed() {
    let place = Place::new();
    let (said, _) = answer(&place, &["elect", "--print", "scheduler"], 1);
    assert_eq!(said, "no process leads `scheduler`\n");
    assert_eq!(json(&place, &["elect", "--print", "scheduler"], 1)["leader"], Value::Null);
    let mut leader = candidate(&place, &["--label", "blue"], SERVE);
    let (_, fence) = (leader.pid_line(), fence(&mut leader));
    let (said, _) = answer(&place, &["elect", "scheduler", "--print"], 0);
    let who = format!("(pid {}) leads `scheduler` under fence {fence}: blue\n", leader.pid());
    assert!(said.ends_with(&who), "{said}");
    let view = json(&place, &["elect", "--print", "scheduler"], 0);
    assert_eq!(view["leader"]["owner"]["pid"], leader.pid().as_raw());
    assert_eq!(
        (&view["leader"]["fence"], &view["leader"]["label"]),
        (&fence.into(), &"blue".into())
    );
    assert!(leader.end().success());
    says_that_the_store_is_away(&place, &["elect", "--print", "scheduler"]);
    says_that_the_store_is_away(&place, &["elect", "--observe", "scheduler"]);
}

#[test]
fn each_change_of_the_leader_is_a_line() {
    let place = Place::new();
    let mut words = place.start(&["elect", "--observe", "scheduler"]);
    let mut lines = place.start(&["elect", "--observe", "--json", "scheduler"]);
    let mut next = || -> Value { serde_json::from_str(&lines.line()).expect("a line of JSON") };
    assert_eq!(next()["leader"], Value::Null);
    assert!(words.line().ends_with(" no process leads `scheduler`"));
    let mut leader = candidate(&place, &[], SERVE);
    let (_, fence) = (leader.pid_line(), fence(&mut leader));
    let seen = next();
    assert_eq!((&seen["leader"]["fence"], &seen["version"]), (&fence.into(), &1.into()));
    assert!(words.line().ends_with(&format!(" leads `scheduler` under fence {fence}")));
    assert!(leader.end().success());
    assert_eq!(next()["leader"], Value::Null);
    words.signal(Signal::SIGTERM);
    assert_eq!(words.code(), 128 + 15);
}

#[test]
fn a_candidate_waits_for_a_store_that_is_away_and_says_so() {
    let place = Place::new();
    let mut candidate = place.start(&["--store", AWAY, "elect", "scheduler", "--", "echo", "ran"]);
    let mut said = std::io::BufReader::new(candidate.take_stderr());
    let mut line = String::new();
    std::io::BufRead::read_line(&mut said, &mut line).unwrap();
    assert!(line.contains("waiting for it up to 30s"), "{line}");
    candidate.signal(Signal::SIGTERM);
    assert_eq!(candidate.code(), 128 + 15);
}
