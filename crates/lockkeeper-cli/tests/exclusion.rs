//! Who runs with whom, and who has to wait.

mod support;

use std::{env, fs, thread, time::Instant};
use support::{DEADLINE, Place};

/// How many shells, and how often each: the large form is 20x50.
const COUNTER: &str = "LOCKKEEPER_TEST_COUNTER";

#[test]
fn fences_grow_with_every_grant() {
    let place = Place::new();
    let fence = || -> u64 {
        let script = ["run", "a", "--", "sh", "-c", "echo $LOCKKEEPER_FENCE"];
        place.stdout(&script).trim().parse().unwrap()
    };
    let fences: Vec<u64> = (0..5).map(|_| fence()).collect();
    assert!(fences.is_sorted_by(|a, b| a < b), "{fences:?}");
}

#[test]
fn a_held_lock_is_not_waited_for_when_told_so() {
    let place = Place::new();
    let (mut holder, _) = place.hold(&["--label", "nightly"], "a");
    let began = Instant::now();
    for flags in [&["-n"][..], &["-w", "0"], &["--nonblock", "-s"]] {
        let busy = place.assert(&[&["run"], flags, &["a", "--", "echo", "ran"]].concat());
        let output = busy.code(75).get_output().clone();
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(output.stdout.is_empty());
        assert!(
            said.contains("`a` was not acquired: held by ") && said.contains("nightly"),
            "{said}"
        );
    }
    assert!(began.elapsed() < DEADLINE / 2);
    place.assert(&["run", "-q", "-n", "-E", "3", "a", "--", "true"]).code(3).stderr("");
    place.assert(&["run", "-n", "-E", "0", "a", "--", "false"]).code(0);
    place.assert(&["run", "-n", "another", "--", "true"]).success();
    assert!(holder.end().success());
    place.assert(&["run", "-n", "a", "--", "true"]).success();
}

#[test]
fn a_wait_that_ends_in_vain_leaves_nothing_behind() {
    let place = Place::new();
    let (mut holder, _) = place.hold(&[], "a");
    let began = Instant::now();
    let late = place.assert(&["run", "-w", "0.3", "a", "--", "true"]).code(75);
    assert!(began.elapsed().as_millis() >= 300);
    let said = String::from_utf8(late.get_output().stderr.clone()).unwrap();
    let lines: Vec<&str> = said.lines().collect();
    assert_eq!(lines.len(), 2, "{said}");
    assert!(lines[0].contains("waiting for `a` · 1st in line · held by "), "{said}");
    assert!(lines[1].contains("`a` was not acquired within "), "{said}");
    assert!(lines[1].contains(" s: held by "), "{said}");
    assert_eq!(place.count("a", "waiters"), 0);
    assert!(holder.end().success());
    assert_eq!(place.show("a"), serde_json::Value::Null);
}

#[test]
fn waiters_come_in_turn_and_say_so_once() {
    let place = Place::new();
    let (mut holder, first) = place.hold(&[], "a");
    let mut two = place.start_script(&[], "a", "echo $LOCKKEEPER_FENCE");
    place.await_waiters("a", 1);
    let mut three = place.start_script(&["-q"], "a", "echo $LOCKKEEPER_FENCE");
    place.await_waiters("a", 2);
    assert!(holder.end().success());
    let fence = |line: String| line.parse::<u64>().unwrap();
    let (second, third) = (fence(two.line()), fence(three.line()));
    assert!(first < second && second < third);
    assert!(two.wait().success() && three.wait().success());
    assert_eq!(holder.stderr(), "");
    assert_eq!(three.stderr(), "");
    let said = two.stderr();
    let lines: Vec<&str> = said.lines().collect();
    assert!(lines.len() == 2 && lines[1].starts_with("lockkeeper: got `a` after "), "{said}");
}

#[test]
fn programs_are_told_every_step_of_a_wait() {
    let place = Place::new();
    let (mut holder, _) = place.hold(&["--label", "nightly"], "a");
    let mut waiter = place.start(&["run", "--json", "a", "--", "true"]);
    place.await_waiters("a", 1);
    assert!(holder.end().success() && waiter.wait().success());
    let said = waiter.stderr();
    let events = said.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
    let events: Vec<_> = events.collect();
    let names: Vec<&str> = events.iter().map(|e| e["event"].as_str().unwrap()).collect();
    assert_eq!(names, ["waiting", "granted", "released"]);
    assert_eq!(
        (&events[0]["ahead"], &events[0]["holder"]["label"]),
        (&1.into(), &"nightly".into())
    );
    assert_eq!(events[0]["holder"]["pid"], holder.pid().as_raw());
    assert!(events[1]["waited_ms"].is_u64(), "{said}");
}

#[test]
fn readers_run_together_and_keep_writers_out() {
    let place = Place::new();
    let (mut one, _) = place.hold(&["-s"], "a");
    let (mut two, _) = place.hold(&["-s", "-n"], "a");
    place.assert(&["run", "-n", "a", "--", "true"]).code(75);
    place.assert(&["run", "-n", "-x", "a", "--", "true"]).code(75);
    assert!(one.end().success() && two.end().success());
    let (mut writer, _) = place.hold(&["-x", "-n"], "a");
    place.assert(&["run", "-n", "-s", "a", "--", "true"]).code(75);
    assert!(writer.end().success());
}

#[test]
fn a_lock_can_be_contended_for() {
    let place = Place::new();
    let (mut holder, _) = place.hold(&[], "a");
    let busy = place.assert(&["run", "--unfair", "-w", "0.2", "a", "--", "true"]).code(75);
    let said = String::from_utf8(busy.get_output().stderr.clone()).unwrap();
    assert!(said.contains("waiting for `a` · asking again and again · held by "), "{said}");
    assert_eq!(place.count("a", "waiters"), 0);
    assert!(holder.end().success());
    place.assert(&["run", "--unfair", "a", "--", "true"]).success().stderr("");
}

#[test]
fn permits_are_counted() {
    let place = Place::new();
    let (mut three, _) = place.hold(&["--limit", "4", "--permits", "3"], "gpu");
    let with = |permits| ["run", "-n", "--limit", "4", "--permits", permits, "gpu", "--", "true"];
    place.assert(&with("2")).code(75);
    place.assert(&with("1")).success();
    place.assert(&["run", "-n", "--limit", "4", "gpu", "--", "true"]).success();
    let other = place.assert(&["run", "-n", "--limit", "5", "gpu", "--", "true"]).code(64);
    let said = String::from_utf8(other.get_output().stderr.clone()).unwrap();
    assert!(said.contains("semaphore of 4") && said.contains("same --limit"), "{said}");
    let plain = place.assert(&["run", "-n", "gpu", "--", "true"]).code(64);
    let said = String::from_utf8(plain.get_output().stderr.clone()).unwrap();
    assert!(said.contains("as a plain lock"), "{said}");
    assert!(three.end().success());
    place.assert(&with("4")).success();
}

#[test]
fn a_lock_can_stay_closed_after_its_command() {
    let place = Place::new();
    place.assert(&["run", "--at-least", "1h", "nightly", "--", "true"]).success();
    let busy = place.assert(&["run", "-n", "nightly", "--", "true"]).code(75);
    let said = String::from_utf8(busy.get_output().stderr.clone()).unwrap();
    assert!(said.contains("kept closed for another 59 min"), "{said}");
    assert!(place.stdout(&["ls"]).contains("kept closed"));
    assert_eq!(place.show("nightly")["holders"][0]["owner"], serde_json::Value::Null);
}

#[test]
fn many_shells_count_without_losing_one() {
    let place = Place::new();
    let size = env::var(COUNTER).unwrap_or_else(|_| "8x10".into());
    let (shells, rounds) = size.split_once('x').expect("SHELLSxROUNDS");
    let (shells, rounds): (usize, usize) = (shells.parse().unwrap(), rounds.parse().unwrap());
    fs::write(place.path("counter"), "0\n").unwrap();
    let add = "read n < counter; echo $((n + 1)) > counter";
    thread::scope(|scope| {
        for _ in 0..shells {
            scope.spawn(|| {
                for _ in 0..rounds {
                    place.assert(&["run", "-q", "counter", "--", "sh", "-c", add]).success();
                }
            });
        }
    });
    let counted = fs::read_to_string(place.path("counter")).unwrap();
    assert_eq!(counted.trim(), (shells * rounds).to_string());
    assert_eq!(place.show("counter"), serde_json::Value::Null);
}
