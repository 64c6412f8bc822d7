//! The verbs that ask about locks, evict, read and write cells, and elect: every exit code, on SQLite.

#[path = "../support/mod.rs"]
mod support;

mod cell;
mod check;
mod check_signed;
mod elect;
mod evict;
mod held;
mod serve;
mod serve_security;
mod token;

use assert_cmd::assert::OutputAssertExt as _;
use serde_json::Value;
use support::{Place, Running};

/// A store that cannot be reached: nothing listens on this port.
const AWAY: &str = "redis://127.0.0.1:1";

/// What the command says on stdout and stderr when it ends with this code.
fn answer(place: &Place, arguments: &[&str], code: i32) -> (String, String) {
    let output = place.assert(arguments).code(code).get_output().clone();
    let text = |bytes| String::from_utf8(bytes).expect("UTF-8");
    (text(output.stdout), text(output.stderr))
}

/// The object on stdout.
fn json(place: &Place, arguments: &[&str], code: i32) -> Value {
    let (stdout, _) = answer(place, &[&["--json"], arguments].concat(), code);
    serde_json::from_str(&stdout).unwrap_or_else(|e| panic!("{e}: {stdout}"))
}

/// Takes the lock, and gives the sequencer; holds it until its stdin ends.
fn hold(place: &Place, flags: &[&str], name: &str) -> (Running, String) {
    let mut holder = place.start_script(flags, name, "echo $LOCKKEEPER_SEQUENCER; read _ || :");
    let sequencer = holder.line();
    (holder, sequencer)
}

/// The store cannot be reached, and the verb says so.
fn says_that_the_store_is_away(place: &Place, arguments: &[&str]) {
    let (_, said) = answer(place, &[&["--store", AWAY], arguments].concat(), 69);
    assert!(said.contains("hint: "), "{arguments:?}: {said}");
}

#[test]
fn every_verb_has_help_with_examples_and_exit_codes() {
    let place = Place::new();
    for verb in [
        &["check"][..],
        &["held"],
        &["evict"],
        &["elect"],
        &["cell", "get"],
        &["cell", "put"],
        &["token", "new"],
    ] {
        let help = place.stdout(&[verb, &["--help"]].concat());
        let example = format!("  lockkeeper {}", verb.join(" "));
        assert!(help.contains("Examples:") && help.contains(&example), "{verb:?}: {help}");
        assert!(help.contains("Exit codes:") && help.contains("--json"), "{verb:?}: {help}");
    }
    place.lockkeeper(&["cell"]).assert().code(64);
}
