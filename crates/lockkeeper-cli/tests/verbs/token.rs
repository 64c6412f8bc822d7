//! `lockkeeper token`.

use crate::{answer, json, support::Place};
use std::{fs, os::unix::fs::PermissionsExt as _};

#[test]
fn a_token_is_shown_once_and_its_line_goes_into_the_file() {
    let place = Place::new();
    let path = place.path("tokens");
    let file = path.to_str().unwrap();
    let new = ["token", "new", "ci", "--scope", "lock:jobs/*", "--scope", "read", "--into", file];
    let (first, said) = answer(&place, &new, 0);
    assert!(first.starts_with("lkt_") && first.lines().count() == 1, "{first}");
    assert!(said.contains("this once"), "{said}");
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    fs::write(&path, fs::read_to_string(&path).unwrap().trim_end()).unwrap();
    let (second, _) =
        answer(&place, &["-q", "token", "new", "ci", "--scope", "admin", "--into", file], 0);
    assert_ne!(first, second);
    let text = fs::read_to_string(&path).unwrap();
    assert!(text.lines().next().unwrap().ends_with(" lock:jobs/* read"), "{text}");
    assert!(text.lines().all(|line| line.starts_with("ci sha256$")) && text.lines().count() == 2);
    assert!(!text.contains(first.trim()) && !text.contains(second.trim()));
}

#[test]
fn without_a_file_the_line_is_printed() {
    let place = Place::new();
    let new = ["token", "new", "web", "--scope", "read", "--valid", "30d"];
    let (said, _) = answer(&place, &new, 0);
    let lines: Vec<&str> = said.lines().collect();
    assert!(lines[0].starts_with("lkt_") && lines[1].starts_with("web sha256$"), "{said}");
    assert!(lines[1].contains(" read until=2"), "{said}");
    let view = json(&place, &new, 0);
    assert_eq!(view["name"], "web");
    assert!(view["token"].as_str().unwrap().starts_with("lkt_"));
}

#[test]
fn what_makes_no_sense_is_refused_and_writes_nothing() {
    let place = Place::new();
    let path = place.path("tokens");
    let file = path.to_str().unwrap();
    for (name, scope) in [("a b", "read"), ("a", "write"), ("a", "lock:a*b"), ("#a", "read")] {
        let new = ["token", "new", name, "--scope", scope, "--into", file];
        let (out, said) = answer(&place, &new, 64);
        assert!(out.is_empty() && said.contains("hint: "), "{said}");
    }
    assert!(!path.exists());
    answer(&place, &["token", "new", "a"], 64);
    answer(&place, &["token", "new", "a", "--scope", "read", "--into", "/nowhere/tokens"], 73);
}
