//! `ls` and `show`.

mod support;

use serde_json::Value;
use support::Place;

fn ls_json(place: &Place, prefix: &str) -> Value {
    serde_json::from_str(&place.stdout(&["ls", "--json", prefix])).unwrap()
}

#[test]
fn nothing_is_shown_as_nothing() {
    let place = Place::new();
    let nothing = "lockkeeper: nothing is held and nobody waits\n";
    place.assert(&["ls"]).success().stdout("").stderr(nothing);
    place.assert(&["ls", "-q"]).success().stdout("").stderr("");
    let none = "lockkeeper: no lock begins with `nope`\n";
    place.assert(&["ls", "nope"]).success().stdout("").stderr(none);
    assert_eq!(ls_json(&place, "")["locks"], serde_json::json!([]));
    let free = place.stdout(&["show", "a"]);
    assert_eq!(free, "nobody holds `a`, and nobody waits for it\n");
    assert_eq!(place.show("a"), Value::Null);
}

#[test]
fn a_table_says_who_holds_what() {
    let place = Place::new();
    let (mut holder, fence) = place.hold(&[], "jobs/deploy");
    let (mut reader, _) = place.hold(&["-s"], "jobs/cache");
    let (mut other, _) = place.hold(&["--limit", "4", "--permits", "3"], "gpu");
    let mut waiter = place.start(&["run", "jobs/deploy", "--", "true"]);
    place.await_waiters("jobs/deploy", 1);
    let table = place.stdout(&["ls"]);
    let lines: Vec<&str> = table.lines().collect();
    assert!(lines[0].starts_with("NAME         STATE"), "{table}");
    assert!(lines[1].starts_with("gpu          3 of 4 permits"), "{table}");
    assert!(lines[2].starts_with("jobs/cache   shared by 1"), "{table}");
    assert!(lines[3].starts_with("jobs/deploy  exclusive"), "{table}");
    assert!(lines[3].ends_with(&format!("  1        {fence}")), "{table}");
    let pid = format!("(pid {})", holder.pid());
    assert!(lines[3].contains(&pid), "{table}");
    assert_eq!(place.stdout(&["ls", "jobs/"]).lines().count(), 3);
    for held in [&mut holder, &mut reader, &mut other] {
        assert!(held.end().success());
    }
    assert!(waiter.wait().success());
}

#[test]
fn the_listing_is_json_with_ages_and_times() {
    let place = Place::new();
    let (mut holder, fence) = place.hold(&["--label", "nightly", "--ttl", "30s"], "deploy");
    let mut waiter = place.start(&["run", "deploy", "--", "true"]);
    place.await_waiters("deploy", 1);
    let json = ls_json(&place, "dep");
    assert_eq!(json["version"], 1);
    let lock = &json["locks"][0];
    assert_eq!((&lock["name"], &lock["limit"]), (&"deploy".into(), &Value::Null));
    let held = &lock["holders"][0];
    assert_eq!(held["fence"], fence);
    assert_eq!((&held["mode"], &held["label"]), (&"exclusive".into(), &"nightly".into()));
    assert_eq!(held["owner"]["pid"], holder.pid().as_raw());
    assert_eq!(held["owner"]["program"], "sh");
    assert!(held["held_ms"].is_u64() && held["granted_at"].as_str().unwrap().ends_with('Z'));
    let ends_in = held["ends_in_ms"].as_u64().unwrap();
    assert!((20_000..=36_000).contains(&ends_in), "{ends_in}: the TTL and the lock-delay");
    let waits = &lock["waiters"][0];
    assert_eq!((&waits["fence"], &waits["granted_at"]), (&Value::Null, &Value::Null));
    assert_eq!(place.show("deploy")["holders"][0]["ticket"], held["ticket"]);
    assert!(holder.end().success() && waiter.wait().success());
}

#[test]
fn one_lock_is_shown_with_its_whole_line() {
    let place = Place::new();
    let (mut holder, fence) = place.hold(&["--label", "night\u{1b}[2J\u{202e}ly"], "deploy");
    let mut waiter = place.start(&["run", "-s", "deploy", "--", "true"]);
    place.await_waiters("deploy", 1);
    let text = place.stdout(&["show", "deploy"]);
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), 3, "{text}");
    assert!(lines[1].starts_with("holds        exclusive"), "{text}");
    assert!(lines[1].contains(&fence.to_string()), "{text}");
    assert!(lines[1].contains("night\\u{1b}[2J\\u{202e}ly"), "{text}");
    assert!(lines[2].starts_with("1st in line  shared"), "{text}");
    assert!(holder.end().success() && waiter.wait().success());
}

#[test]
fn colours_come_only_when_wanted() {
    let place = Place::new();
    let (mut holder, _) = place.hold(&[], "deploy");
    let escapes = |arguments: &[&str], variables: &[(&str, &str)]| {
        let mut command = place.lockkeeper(arguments);
        let output = command.envs(variables.iter().copied()).output().unwrap();
        output.stdout.contains(&0x1b)
    };
    assert!(!escapes(&["ls"], &[]), "a pipe is not a terminal");
    assert!(escapes(&["ls", "--color", "always"], &[]));
    assert!(escapes(&["ls"], &[("CLICOLOR_FORCE", "1")]));
    assert!(!escapes(&["ls"], &[("CLICOLOR_FORCE", "1"), ("NO_COLOR", "1")]));
    assert!(!escapes(&["ls", "--color", "never"], &[("CLICOLOR_FORCE", "1")]));
    assert!(!escapes(&["ls", "--json", "--color", "always"], &[]));
    assert!(holder.end().success());
}

#[test]
fn a_reader_who_has_seen_enough_is_no_error() {
    let place = Place::new();
    let (mut holder, _) = place.hold(&[], "deploy");
    let mut ls = place.lockkeeper(&["ls"]);
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    assert!(ls.stdout(writer).status().unwrap().success());
    assert!(holder.end().success());
}
