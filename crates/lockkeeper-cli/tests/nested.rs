//! A run inside the command of another run.

mod support;

use assert_cmd::assert::OutputAssertExt as _;
use serde_json::Value;
use std::{process::Output, time::Instant};
use support::{DEADLINE, Place, eventually, evict_holder, is_alive};

const LOCKKEEPER: &str = env!("CARGO_BIN_EXE_lockkeeper");

/// Runs these one within the other, each a list of words up to the next `run`, and a command at the end.
fn nest(place: &Place, levels: &[&[&str]], command: &[&str]) -> Output {
    let mut words: Vec<&str> = Vec::new();
    for (depth, level) in levels.iter().enumerate() {
        if depth > 0 {
            words.push(LOCKKEEPER);
        }
        words.push("run");
        words.extend(*level);
        words.push("--");
    }
    words.extend(command);
    place.lockkeeper(&words).output().unwrap()
}

fn code(output: &Output) -> i32 {
    output.status.code().expect("an exit")
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn a_run_that_would_wait_for_itself_says_so_at_once() {
    let (place, began) = (Place::new(), Instant::now());
    for levels in [
        &[&["a"][..], &["a"]][..],
        &[&["a"], &["-w", "1000", "a"]],
        &[&["a"], &["b"], &["c"], &["a"]],
        &[&["a"], &["b"], &["c"], &["b"]],
        &[&["-s", "a"], &["a"]],
        &[&["a"], &["-s", "a"]],
        &[&["--limit", "4", "--permits", "3", "a"], &["--limit", "4", "--permits", "2", "a"]],
        &[&["a"], &["--unfair", "a"]],
    ] {
        let output = nest(&place, levels, &["echo", "ran"]);
        assert_eq!(code(&output), 64, "{levels:?}: {output:?}");
        assert!(output.stdout.is_empty(), "{output:?}");
        let said = said(&output);
        assert!(said.contains("` is held by the run around this one"), "{said}");
        assert!(said.contains("hint: --reentrant"), "{said}");
    }
    assert!(began.elapsed() < DEADLINE);
}

#[test]
fn a_nested_run_that_does_not_wait_for_itself_runs() {
    let place = Place::new();
    for levels in [
        &[&["a"][..], &["b"], &["c"]][..],
        &[&["-s", "a"], &["-s", "a"]],
        &[&["--limit", "4", "--permits", "3", "a"], &["--limit", "4", "a"]],
    ] {
        let output = nest(&place, levels, &["echo", "ran"]);
        assert_eq!((code(&output), said(&output)), (0, String::new()), "{levels:?}");
        assert_eq!(output.stdout, b"ran\n");
    }
    for levels in [&[&["a"][..], &["-n", "a"]], &[&["a"][..], &["-w", "0", "a"]]] {
        assert_eq!(code(&nest(&place, levels, &["echo", "ran"])), 75, "{levels:?}");
    }
    let one_store = format!("sqlite:{}", place.path("other.db").display());
    let other = ["--store", one_store.as_str(), "a"];
    assert_eq!(code(&nest(&place, &[&["a"], &other], &["true"])), 0, "the name in another store");
}

#[test]
fn a_reentrant_run_is_under_the_lock_that_is_held() {
    let place = Place::new();
    let tell = ["sh", "-c", "echo $LOCKKEEPER_NAME $LOCKKEEPER_FENCE; exit 7"];
    let outer = "echo $LOCKKEEPER_FENCE; \"$0\" run b -- \"$0\" run --reentrant a -- \"$@\"";
    let arguments = [&["run", "a", "--", "sh", "-c", outer, LOCKKEEPER][..], &tell].concat();
    let output = place.lockkeeper(&arguments).output().unwrap();
    let text = String::from_utf8(output.stdout.clone()).unwrap();
    let (fence, inner) = text.split_once('\n').unwrap();
    assert_eq!(inner, format!("a {fence}\n"), "{output:?}");
    assert_eq!((code(&output), said(&output)), (7, String::new()));
    assert_eq!(place.show("a"), Value::Null);
    // It covers what takes less of the lock.
    for (outer, inner) in [
        (&["a"][..], &["-s", "--reentrant", "a"][..]),
        (&["-s", "a"], &["-s", "--reentrant", "a"]),
        (&["--limit", "4", "--permits", "2", "a"], &["--limit", "4", "--reentrant", "a"]),
        (&["a"], &["-n", "--reentrant", "a"]),
        (&["a"], &["--reentrant", "b"]),
    ] {
        let output = nest(&place, &[outer, inner], &["true"]);
        assert_eq!((code(&output), said(&output)), (0, String::new()), "{inner:?} in {outer:?}");
    }
}

#[test]
fn a_reentrant_run_that_needs_more_than_is_held_is_refused() {
    let place = Place::new();
    for (outer, inner) in [
        (&["-s", "a"][..], &["--reentrant", "a"][..]),
        (
            &["--limit", "4", "--permits", "2", "a"],
            &["--limit", "4", "--permits", "3", "--reentrant", "a"],
        ),
    ] {
        let output = nest(&place, &[outer, inner], &["echo", "ran"]);
        assert_eq!(code(&output), 64, "{output:?}");
        assert!(said(&output).contains("that is not enough for "), "{output:?}");
    }
    for flag in [["--max-hold", "1s"], ["--at-least", "1s"]] {
        let arguments = [&["run", "--reentrant"][..], &flag, &["a", "--", "true"]].concat();
        place.assert(&arguments).code(64);
    }
}

#[test]
fn a_reentrant_command_starts_as_any_other_does() {
    let place = Place::new();
    let nested = |command: &[&str]| {
        let output = nest(&place, &[&["a"], &["--reentrant", "a"]], command);
        (code(&output), String::from_utf8(output.stdout.clone()).unwrap(), said(&output))
    };
    let (_, mask, _) = nested(&["grep", "SigBlk", "/proc/self/status"]);
    assert_eq!(mask.trim(), "SigBlk:\t0000000000000000");
    assert_eq!(nested(&["sh", "-c", "kill -TERM $$"]).0, 128 + 15);
    let (code, _, said) = nested(&["no-such-command"]);
    assert_eq!(
        (code, said.as_str()),
        (127, "lockkeeper: cannot run `no-such-command`: not found\n")
    );
}

#[test]
fn a_reentrant_command_is_told_to_programs() {
    let place = Place::new();
    let inner = [LOCKKEEPER, "--json", "run", "--reentrant", "a", "--", "true"];
    let output = place.lockkeeper(&[&["run", "a", "--"][..], &inner].concat()).output().unwrap();
    let event: Value = serde_json::from_slice(&output.stderr).unwrap();
    assert_eq!((&event["event"], &event["name"]), (&"reentered".into(), &"a".into()));
    assert!(event["fence"].is_u64() && event["sequencer"].is_string(), "{event}");
}

#[test]
fn a_reentrant_command_ends_with_the_lock() {
    let place = Place::new();
    let script = "trap '' TERM; echo $$; while :; do sleep 0.05; done";
    let inner = [LOCKKEEPER, "run", "--reentrant", "a", "--", "sh", "-c", script];
    let outer = ["run", "--ttl", "1s", "--kill-after", "0.5", "a", "--"];
    let mut holder = place.start(&[&outer[..], &inner].concat());
    let command = holder.pid_line();
    evict_holder(&place, "a");
    assert_eq!(holder.code(), 79);
    eventually(|| !is_alive(command));
}

/// The grants that the command of a run finds in its environment.
fn held(place: &Place, name: &str) -> String {
    place.stdout(&["run", name, "-c", "echo $LOCKKEEPER_HELD"]).trim().to_owned()
}

#[test]
fn an_environment_that_has_outlived_its_lock_changes_nothing() {
    let place = Place::new();
    let stale = held(&place, "a");
    assert!(stale.starts_with("lk1:"), "{stale}");
    let run = |flags: &[&str]| {
        let mut run = place.lockkeeper(&[&["run"], flags, &["a", "--", "true"]].concat());
        run.env("LOCKKEEPER_HELD", format!("{stale} nonsense lk1:x")).assert()
    };
    run(&[]).success().stderr("");
    run(&["--reentrant"]).success().stderr("");
    // Another run holds the lock now: it is waited for.
    let (mut holder, _) = place.hold(&[], "a");
    let output = run(&["-w", "0.2"]).code(75).get_output().clone();
    assert!(said(&output).contains("waiting for `a` · 1st in line"), "{}", said(&output));
    assert!(holder.end().success());
}

#[test]
fn a_command_finds_all_grants_that_are_held_around_it() {
    let place = Place::new();
    let output = nest(&place, &[&["a"], &["b"]], &["sh", "-c", "echo $LOCKKEEPER_HELD"]);
    let text = String::from_utf8(output.stdout).unwrap();
    let names: Vec<&str> =
        text.split_whitespace().filter_map(|one| one.rsplit(':').next()).collect();
    assert_eq!(names, ["a", "b"], "{text}");
}
