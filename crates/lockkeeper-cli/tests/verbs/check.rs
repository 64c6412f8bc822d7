//! `lockkeeper check`.

use crate::{
    answer, hold, json, says_that_the_store_is_away,
    support::{Place, Running, evict_holder},
};
use std::process::Stdio;

#[test]
fn a_grant_that_is_held_is_said_to_be_held() {
    let place = Place::new();
    let (mut holder, sequencer) = hold(&place, &[], "deploy");
    let fence = sequencer.split(':').nth(3).unwrap();
    let (said, _) = answer(&place, &["check", &sequencer], 0);
    assert_eq!(said, format!("the grant of `deploy` with fence {fence} is held\n"));
    assert_eq!(answer(&place, &["check", "-q", &sequencer], 0), (String::new(), String::new()));
    let view = json(&place, &["check", &sequencer], 0);
    assert_eq!((&view["held"], &view["why"]), (&true.into(), &serde_json::Value::Null));
    assert_eq!(view["fence"].to_string(), fence);
    assert_eq!(view["current_fence"], view["fence"]);
    assert!(holder.end().success());
}

#[test]
fn a_command_under_run_checks_its_own_grant() {
    let place = Place::new();
    let lockkeeper = env!("CARGO_BIN_EXE_lockkeeper");
    let said = place.stdout(&["run", "a", "--", lockkeeper, "check"]);
    assert!(said.ends_with("is held\n"), "{said}");
}

#[test]
fn a_sequencer_is_read_from_stdin() {
    let place = Place::new();
    let (mut holder, sequencer) = hold(&place, &[], "a");
    for (text, code) in
        [(format!("{sequencer}\n"), 0), ("nonsense".to_owned(), 64), (String::new(), 64)]
    {
        let mut check = place.lockkeeper(&["check", "-"]);
        let mut check = Running::start(check.stdin(Stdio::piped()));
        check.write(&text);
        check.stdin = None;
        assert_eq!(check.code(), code, "{text:?}");
    }
    assert!(holder.end().success());
}

#[test]
fn a_grant_that_is_over_is_told_with_the_reason() {
    let place = Place::new();
    let (mut first, sequencer) = hold(&place, &[], "a");
    assert!(first.end().success());
    let lost = json(&place, &["check", &sequencer], 1);
    assert_eq!((&lost["held"], &lost["why"]), (&false.into(), &"lost".into()));
    assert_eq!(lost["current_fence"], serde_json::Value::Null);
    let (mut second, newer) = hold(&place, &["--ttl", "1s"], "a");
    let over = json(&place, &["check", &sequencer], 1);
    assert_eq!(over["why"], "newer_fence");
    assert!(over["current_fence"].as_u64() > over["fence"].as_u64(), "{over}");
    assert_eq!(over["holder"]["pid"], second.pid().as_raw());
    let (said, _) = answer(&place, &["check", &sequencer], 1);
    let now = format!("; now held by {}", over["holder"]["host"].as_str().unwrap());
    assert!(said.contains(&now) && said.contains(" under fence "), "{said}");
    evict_holder(&place, "a");
    assert_eq!(json(&place, &["check", &newer], 1)["why"], "lost");
    assert_eq!(second.code(), 79);
}

#[test]
fn a_grant_that_was_never_made_is_told_apart() {
    let place = Place::new();
    let (mut holder, sequencer) = hold(&place, &[], "a");
    let mut words: Vec<&str> = sequencer.split(':').collect();
    words[3] = "9007199254740991";
    let (forged, ticket) = (words.join(":"), "0".repeat(32));
    assert_eq!(json(&place, &["check", &forged], 1)["why"], "never");
    words[4] = &ticket;
    assert_eq!(json(&place, &["check", &words.join(":")], 1)["why"], "never");
    words[1] = "0123456789abcdef";
    assert_eq!(json(&place, &["check", &words.join(":")], 1)["why"], "other_store");
    let (said, _) = answer(&place, &["check", &words.join(":")], 1);
    assert!(said.contains("was made by another store"), "{said}");
    assert!(holder.end().success());
}

#[test]
fn without_a_sequencer_the_remedy_is_said() {
    let place = Place::new();
    let (out, said) = answer(&place, &["check"], 64);
    assert!(out.is_empty() && said.contains("LOCKKEEPER_SEQUENCER is not set"), "{said}");
    assert!(said.contains("hint: "), "{said}");
    let (_, said) = answer(&place, &["check", "lk1:x"], 64);
    assert!(said.contains("not a sequencer: "), "{said}");
    let sequencer = format!("lk1:0000000000000007:x:5:{}:a", "0".repeat(32));
    says_that_the_store_is_away(&place, &["check", &sequencer]);
}
