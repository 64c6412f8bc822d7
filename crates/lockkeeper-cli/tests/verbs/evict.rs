//! `lockkeeper evict`.

use crate::{
    answer, json, says_that_the_store_is_away,
    support::{Place, Running},
};
use std::process::Command;

/// A holder that soon hears of its eviction.
const QUICK: [&str; 4] = ["--ttl", "1s", "--kill-after", "0.5"];

#[test]
fn the_holder_is_evicted_and_named() {
    let place = Place::new();
    let (mut holder, fence) = place.hold(&QUICK, "a");
    let mut waiter = place.start(&["run", "a", "--", "true"]);
    place.await_waiters("a", 1);
    let (said, _) = answer(&place, &["evict", "--yes", "a"], 0);
    let who = format!("(pid {}) from `a` (fence {fence})\n", holder.pid());
    assert!(said.starts_with("evicted ") && said.ends_with(&who), "{said}");
    assert_eq!(holder.code(), 79);
    assert!(waiter.wait().success(), "the next in line gets the lock");
    let (said, _) = answer(&place, &["evict", "--yes", "a"], 1);
    assert_eq!(said, "no client holds `a`\n");
}

#[test]
fn all_readers_are_evicted_and_no_waiter() {
    let place = Place::new();
    let (mut one, _) = place.hold(&["-s", "--ttl", "1s"], "a");
    let (mut two, _) = place.hold(&["-s", "--ttl", "1s"], "a");
    let mut waiter = place.start(&["run", "a", "--", "echo", "ran"]);
    place.await_waiters("a", 1);
    let view = json(&place, &["evict", "-y", "a"], 0);
    let evicted = view["evicted"].as_array().unwrap();
    assert_eq!((evicted.len(), &evicted[0]["mode"]), (2, &"shared".into()));
    assert_eq!((one.code(), two.code()), (79, 79));
    assert_eq!((waiter.line(), waiter.code()), ("ran".to_owned(), 0));
}

#[test]
fn one_ticket_is_evicted_by_its_id() {
    let place = Place::new();
    let (mut one, _) = place.hold(&["-s", "--ttl", "1s"], "a");
    let (mut two, _) = place.hold(&["-s", "--ttl", "1s"], "a");
    let holders = &place.show("a")["holders"];
    let of = |running: &Running| {
        let pid = running.pid().as_raw();
        let own = holders.as_array().unwrap().iter().find(|held| held["owner"]["pid"] == pid);
        own.unwrap()["ticket"].as_str().unwrap().to_owned()
    };
    let ticket = of(&one);
    answer(&place, &["evict", "--yes", "a", &ticket], 0);
    assert_eq!(one.code(), 79);
    let (said, _) = answer(&place, &["evict", "--yes", "a", &ticket], 1);
    assert_eq!(said, format!("`a` has no ticket {ticket}\n"));
    assert_eq!(
        json(&place, &["evict", "--yes", "a", &ticket], 1)["evicted"],
        serde_json::json!([])
    );
    assert!(two.end().success(), "the other reader is left alone");
}

#[test]
fn a_waiter_is_evicted_by_its_ticket_and_stands_again() {
    let place = Place::new();
    let (mut holder, _) = place.hold(&[], "a");
    let mut waiter = place.start(&["run", "a", "--", "echo", "ran"]);
    place.await_waiters("a", 1);
    let ticket = place.show("a")["waiters"][0]["ticket"].as_str().unwrap().to_owned();
    let (said, _) = answer(&place, &["evict", "--yes", "a", &ticket], 0);
    assert!(said.ends_with(" from `a` (waiting)\n"), "{said}");
    assert!(holder.end().success());
    assert_eq!(waiter.line(), "ran");
}

#[test]
fn without_a_terminal_evicting_must_be_confirmed_by_a_flag() {
    let place = Place::new();
    let (mut holder, _) = place.hold(&[], "a");
    let (out, said) = answer(&place, &["evict", "a"], 64);
    assert!(out.is_empty() && said.contains("hint: say --yes"), "{said}");
    place.assert(&["held", "a"]).code(0);
    place.assert(&["evict", "--yes", "a", "5f"]).code(64);
    says_that_the_store_is_away(&place, &["evict", "--yes", "a"]);
    assert!(holder.end().success());
}

#[test]
fn on_a_terminal_the_question_names_the_holder_and_no_is_the_default() {
    let place = Place::new();
    let (mut holder, _) = place.hold(&QUICK, "a");
    for (typed, code) in [("\n", 1), ("n\n", 1), ("y\n", 0)] {
        let mut script = Command::new("script");
        let line = format!("{} evict a", env!("CARGO_BIN_EXE_lockkeeper"));
        script.args(["-qfec", &line, "/dev/null"]).env("LOCKKEEPER_STORE", place.url());
        let mut terminal = Running::start(&mut script);
        let asked = terminal.up_to("really? [y/N] ");
        assert!(asked.contains(&format!("(pid {}) from `a`", holder.pid())), "{asked}");
        terminal.write(typed);
        assert_eq!(terminal.code(), code, "{typed:?}");
    }
    assert_eq!(holder.code(), 79);
}
