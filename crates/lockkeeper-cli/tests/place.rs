//! A waiter's place in the line: the same for the waiter itself and for others.

mod support;

use serde_json::Value;
use std::io::{BufRead as _, BufReader};
use support::{Place, Running};

/// Starts a waiter, and gives what it tells when its wait begins.
fn wait(place: &Place, flags: &[&str], waiters: usize) -> (Running, String) {
    let mut waiter = place.start(&[&["run"], flags, &["a", "--", "true"]].concat());
    place.await_waiters("a", waiters);
    let mut told = String::new();
    BufReader::new(waiter.take_stderr()).read_line(&mut told).unwrap();
    (waiter, told)
}

/// The place of a waiter among all, as `show` counts it.
fn shown(place: &Place, waiter: &Running) -> usize {
    let line = place.show("a");
    let waiters = line["waiters"].as_array().expect("waiters");
    let pid = Value::from(waiter.pid().as_raw());
    1 + waiters.iter().position(|one| one["owner"]["pid"] == pid).expect("our ticket")
}

#[test]
fn a_place_counts_the_same_for_the_waiter_and_for_others() {
    let readers = &["-s"][..];
    let permits = &["--limit", "4", "--permits", "2"][..];
    let all = &["--limit", "4", "--permits", "4"][..];
    for (holder, holders, waiter) in
        [(&[][..], 1, &[][..]), (readers, 3, &[][..]), (permits, 2, permits), (permits, 2, all)]
    {
        let place = Place::new();
        let mut held: Vec<_> = (0..holders).map(|_| place.hold(holder, "a").0).collect();
        for (at, words) in [(1, "1st"), (2, "2nd"), (3, "3rd")] {
            // It is dropped at the end of the test, with all that are before it still waiting.
            let (one, told) = wait(&place, waiter, at);
            assert_eq!(shown(&place, &one), at);
            let expected = format!("waiting for `a` · {words} in line · held by ");
            assert!(told.contains(&expected), "{holders} {holder:?}: {told}");
            held.push(one);
        }
        let json = [&["--json"], waiter].concat();
        let (one, told) = wait(&place, &json, 4);
        let event: Value = serde_json::from_str(&told).unwrap();
        assert_eq!((&event["event"], &event["place"]), (&"waiting".into(), &4.into()), "{event}");
        assert_eq!(event["ahead"], holders + 3, "holders and waiters: {event}");
        held.push(one);
        // The last who came is the first to go.
        while held.pop().is_some() {}
    }
}
