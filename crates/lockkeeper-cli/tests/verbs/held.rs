//! `lockkeeper held`.

use crate::{answer, json, says_that_the_store_is_away, support::Place};

#[test]
fn the_exit_code_says_whether_a_lock_is_held() {
    let place = Place::new();
    assert_eq!(answer(&place, &["held", "a"], 1).0, "`a` is free\n");
    let (mut holder, _) = place.hold(&[], "a");
    let (said, _) = answer(&place, &["held", "a"], 0);
    let pid = format!("(pid {})", holder.pid());
    assert!(said.starts_with("`a` is held by ") && said.contains(&pid), "{said}");
    assert_eq!(answer(&place, &["held", "-q", "a"], 0), (String::new(), String::new()));
    assert!(holder.end().success());
    assert_eq!(answer(&place, &["held", "-q", "a"], 1), (String::new(), String::new()));
    place.assert(&["held", "a\n"]).code(64);
    says_that_the_store_is_away(&place, &["held", "a"]);
}

#[test]
fn readers_and_waiters_are_counted() {
    let place = Place::new();
    let (mut one, _) = place.hold(&["-s"], "a");
    let (mut two, _) = place.hold(&["-s"], "a");
    let mut waiter = place.start(&["run", "a", "--", "true"]);
    place.await_waiters("a", 1);
    let view = json(&place, &["held", "a"], 0);
    assert_eq!((&view["held"], &view["waiters"]), (&true.into(), &1.into()));
    assert_eq!(view["holders"].as_array().unwrap().len(), 2);
    let (said, _) = answer(&place, &["held", "a"], 0);
    assert!(said.ends_with("and by 1 more\n"), "{said}");
    assert!(one.end().success() && two.end().success() && waiter.wait().success());
    let view = json(&place, &["held", "a"], 1);
    assert_eq!((&view["held"], &view["holders"]), (&false.into(), &serde_json::json!([])));
}

#[test]
fn a_lock_that_is_kept_closed_is_held() {
    let place = Place::new();
    place.assert(&["run", "--at-least", "60s", "a", "--", "true"]).success();
    let (said, _) = answer(&place, &["held", "a"], 0);
    assert!(said.starts_with("`a` is kept closed for another "), "{said}");
}
