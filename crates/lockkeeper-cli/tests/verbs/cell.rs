//! `lockkeeper cell`.

use crate::{
    answer, hold, json, says_that_the_store_is_away,
    support::{Place, Running},
};
use assert_cmd::assert::OutputAssertExt as _;
use std::{fs, fs::File};

const LOCKKEEPER: &str = env!("CARGO_BIN_EXE_lockkeeper");

#[test]
fn a_command_under_run_writes_the_cell() {
    let place = Place::new();
    let (out, said) = answer(&place, &["cell", "get", "a"], 1);
    assert_eq!((out.as_str(), said.as_str()), ("", "lockkeeper: `a` has no value\n"));
    let put = ["run", "a", "--", LOCKKEEPER, "cell", "put", "a", "up to 4711"];
    assert_eq!(place.stdout(&put), "");
    assert_eq!(place.stdout(&["cell", "get", "a"]), "up to 4711");
    place.assert(&["run", "a", "--", LOCKKEEPER, "cell", "put", "a", ""]).success();
    assert_eq!(place.stdout(&["cell", "get", "a"]), "");
}

#[test]
fn bytes_go_in_and_come_out_as_they_are() {
    let place = Place::new();
    let bytes: Vec<u8> = (0..=255).cycle().take(65_536).collect();
    fs::write(place.path("in"), &bytes).unwrap();
    for from_stdin in [&["a"][..], &["a", "-"]] {
        let put = [&["run", "a", "--", LOCKKEEPER, "cell", "put"], from_stdin].concat();
        let mut put = place.lockkeeper(&put);
        put.stdin(File::open(place.path("in")).unwrap()).assert().success();
        place.assert(&["cell", "get", "a"]).success().stdout(bytes.clone());
    }
    let view = json(&place, &["cell", "get", "a"], 0);
    assert_eq!(view["value"], serde_json::Value::Null);
    assert!(view["value_hex"].as_str().unwrap().starts_with("000102"));
    fs::write(place.path("in"), [&bytes[..], b"x"].concat()).unwrap();
    let mut put = place.lockkeeper(&["run", "a", "--", LOCKKEEPER, "cell", "put", "a"]);
    put.stdin(File::open(place.path("in")).unwrap()).assert().code(64);
}

#[test]
fn the_json_forms_have_the_fence() {
    let place = Place::new();
    let (mut holder, sequencer) = hold(&place, &[], "a");
    let put = json(&place, &["cell", "put", "--sequencer", &sequencer, "a", "état"], 0);
    let got = json(&place, &["cell", "get", "a"], 0);
    assert_eq!((&got["value"], &put["bytes"]), (&"état".into(), &5.into()));
    assert_eq!(got["fence"], put["fence"]);
    assert_eq!(got["fence"].to_string(), sequencer.split(':').nth(3).unwrap());
    let none = json(&place, &["cell", "get", "b"], 1);
    assert_eq!(
        (&none["value"], &none["fence"]),
        (&serde_json::Value::Null, &serde_json::Value::Null)
    );
    assert!(holder.end().success());
}

#[test]
fn an_overtaken_process_writes_nothing_and_learns_the_current_fence() {
    let place = Place::new();
    let (mut first, stale) = hold(&place, &[], "a");
    let put = |sequencer: &str, value: &str, code| {
        answer(&place, &["cell", "put", "--sequencer", sequencer, "a", value], code).1
    };
    put(&stale, "first", 0);
    assert!(first.end().success());
    let said = put(&stale, "late", 79);
    assert!(said.contains("nothing was written: the grant of `a`"), "{said}");
    let (mut second, sequencer) = hold(&place, &[], "a");
    put(&sequencer, "second", 0);
    let (said, fence) = (put(&stale, "later", 79), sequencer.split(':').nth(3).unwrap());
    assert!(said.contains(&format!(" under fence {fence}")), "{said}");
    assert_eq!(place.stdout(&["cell", "get", "a"]), "second");
    assert!(second.end().success());
}

#[test]
fn a_cell_needs_an_exclusive_grant_of_its_lock() {
    let place = Place::new();
    let (_, said) = answer(&place, &["cell", "put", "a", "x"], 64);
    assert!(said.contains("LOCKKEEPER_SEQUENCER is not set"), "{said}");
    let (mut other, sequencer) = hold(&place, &[], "b");
    let (_, said) = answer(&place, &["cell", "put", "--sequencer", &sequencer, "a", "x"], 64);
    assert!(said.contains("the sequencer is of the lock `b`, not of `a`"), "{said}");
    let (mut reader, sequencer) = hold(&place, &["-s"], "a");
    let (_, said) = answer(&place, &["cell", "put", "--sequencer", &sequencer, "a", "x"], 64);
    assert!(said.contains("only under an exclusive lock"), "{said}");
    let forged = sequencer.replacen(":s:", ":x:", 1);
    answer(&place, &["cell", "put", "--sequencer", &forged, "a", "x"], 79);
    place.assert(&["cell", "put", "--sequencer", "-", "a"]).code(64);
    says_that_the_store_is_away(&place, &["cell", "put", "--sequencer", &forged, "a", "x"]);
    says_that_the_store_is_away(&place, &["cell", "get", "a"]);
    assert!(other.end().success() && reader.end().success());
}

#[test]
fn a_reader_who_has_seen_enough_of_a_value_is_no_error() {
    let place = Place::new();
    place.assert(&["run", "a", "--", LOCKKEEPER, "cell", "put", "a", "value"]).success();
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let mut get = place.lockkeeper(&["cell", "get", "a"]);
    assert!(get.stdout(writer).status().unwrap().success());
    let mut get = Running::start(&mut place.lockkeeper(&["cell", "get", "a"]));
    assert_eq!(get.up_to("value"), "value");
}
