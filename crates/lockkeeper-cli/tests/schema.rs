//! What the command writes as JSON is what the schemas in `docs/schema` describe.
//!
//! A new verb with an answer in JSON gets a file in `docs/schema` and a test like those below.

#[path = "support/json_schema.rs"]
mod json_schema;
mod support;

use json_schema::Schema;
use serde_json::{Value, json};
use support::{Place, Running, evict_holder};

/// Checks lines of JSON, and says what events they are.
fn events(stderr: &str) -> Vec<String> {
    let schema = Schema::of("events.json");
    let mut names = Vec::new();
    for line in stderr.lines() {
        let event: Value = serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}"));
        schema.check(&event).unwrap_or_else(|e| panic!("{e}\n{line}"));
        names.push(event["event"].as_str().unwrap().to_owned());
    }
    names
}

fn assert_listing(place: &Place, arguments: &[&str]) -> Value {
    let text = place.stdout(arguments);
    let listing: Value = serde_json::from_str(&text).unwrap();
    Schema::of("listing.json").check(&listing).unwrap_or_else(|e| panic!("{e}\n{text}"));
    listing
}

fn told(running: &mut Running) -> Vec<String> {
    running.code();
    events(&running.stderr())
}

#[test]
fn listings_are_as_described() {
    let place = Place::new();
    let (mut holder, _) = place.hold(&["--label", "nightly"], "deploy");
    let (mut reader, _) = place.hold(&["-s"], "cache");
    let (mut trainer, _) = place.hold(&["--limit", "4", "--permits", "3"], "gpu");
    place.assert(&["run", "--at-least", "60s", "kept", "--", "true"]).success();
    let mut waiter = place.start(&["run", "deploy", "--", "true"]);
    place.await_waiters("deploy", 1);
    assert_eq!(assert_listing(&place, &["ls", "--json"])["locks"].as_array().unwrap().len(), 4);
    for name in ["deploy", "cache", "gpu", "kept"] {
        let listing = assert_listing(&place, &["show", "--json", name]);
        assert_eq!(listing["locks"][0]["name"], name);
    }
    assert_eq!(assert_listing(&place, &["show", "--json", "free"])["locks"], json!([]));
    assert!(holder.end().success() && reader.end().success() && trainer.end().success());
    assert!(waiter.wait().success());
}

#[test]
fn events_of_a_wait_a_grant_and_a_release_are_as_described() {
    let place = Place::new();
    let (mut holder, _) = place.hold(&["--label", "nightly"], "a");
    let mut waiter = place.start(&["run", "--json", "a", "--", "true"]);
    place.await_waiters("a", 1);
    let mut refused = place.start(&["run", "--json", "-n", "a", "--", "true"]);
    assert_eq!(told(&mut refused), ["not_acquired"]);
    assert!(holder.end().success());
    assert_eq!(told(&mut waiter), ["waiting", "granted", "released"]);
}

#[test]
fn events_of_every_mode_are_as_described() {
    let place = Place::new();
    for (name, flag) in [("a", "-x"), ("b", "-s"), ("c", "--limit=2"), ("d", "--unfair")] {
        let mut run = place.start(&["run", "--json", flag, name, "--", "true"]);
        assert_eq!(told(&mut run), ["granted", "released"], "{flag}");
    }
}

#[test]
fn a_lost_lock_is_told_as_described() {
    let place = Place::new();
    let (mut holder, _) = place.hold(&["--json", "--kill-after", "0.5"], "a");
    evict_holder(&place, "a");
    let told = told(&mut holder);
    assert!(told.contains(&"lost".to_owned()), "{told:?}");
}

#[test]
fn errors_and_warnings_are_told_as_described() {
    let place = Place::new();
    let absent = "redis://127.0.0.1:1";
    for arguments in [
        &["--json", "--store", "mongo://x", "ls"][..],
        &["--json", "--store", absent, "show", "a"],
        &["--json", "--store", "nope", "run", "a", "--", "true"],
    ] {
        assert_eq!(told(&mut place.start(arguments)), ["error"], "{arguments:?}");
    }
    let secret = "redis://:hunter2@127.0.0.1:1";
    let arguments = ["--json", "--store", secret, "run", "-n", "a", "--", "true"];
    assert_eq!(told(&mut place.start(&arguments)), ["warning", "error"]);
}

#[test]
fn the_checker_refuses_what_is_not_described() {
    let schema = Schema::of("events.json");
    let at = "2026-11-19T15:07:12.123Z";
    let event = |more: Value| {
        let mut event = json!({"version": 1, "at": at, "event": "released", "name": "a"});
        event.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        schema.check(&event)
    };
    assert_eq!(event(json!({})), Ok(()));
    for wrong in [
        json!({"name": 3}),
        json!({"version": 2}),
        json!({"at": "yesterday"}),
        json!({"event": "won"}),
        json!({"event": "granted"}),
        json!({"surprise": true}),
    ] {
        assert!(event(wrong.clone()).is_err(), "{wrong}");
    }
}
