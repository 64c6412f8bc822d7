//! What the command writes as JSON is what the schemas in `docs/schema` describe.
//!
//! A new verb with an answer in JSON gets a file in `docs/schema` and a test like those below.

#[path = "support/json_schema.rs"]
mod json_schema;
mod support;

use json_schema::Schema;
use lockkeeper::Keeper;
use nix::sys::signal::Signal;
use serde_json::{Value, json};
use std::{ffi::OsStr, fs, os::unix::ffi::OsStrExt as _, os::unix::fs::PermissionsExt as _};
use support::{
    Place, Running, evict_holder,
    proxied::{Words, start},
};

const LOCKKEEPER: &str = env!("CARGO_BIN_EXE_lockkeeper");

/// A holder that soon hears of its eviction.
const QUICK: [&str; 4] = ["--ttl", "1s", "--kill-after", "0.5"];

/// The object in this text, which is as the schema says.
fn checked(file: &str, text: &str) -> Value {
    let object: Value = serde_json::from_str(text).unwrap_or_else(|e| panic!("{e}: {text}"));
    Schema::of(file).check(&object).unwrap_or_else(|e| panic!("{file}: {e}\n{text}"));
    object
}

/// The name of the event in this line.
fn event(line: &str) -> String {
    checked("events.json", line)["event"].as_str().unwrap().to_owned()
}

/// The names of the events in these lines.
fn events(stderr: &str) -> Vec<String> {
    stderr.lines().map(event).collect()
}

/// The answer of a verb that ends with this code. It is as the schema says, and so is each line on stderr.
fn answer(place: &Place, file: &str, arguments: &[&str], code: i32) -> Value {
    let output = place.assert(&[&["--json"], arguments].concat()).code(code).get_output().clone();
    events(&String::from_utf8(output.stderr).unwrap());
    checked(file, &String::from_utf8(output.stdout).unwrap())
}

/// Takes the lock, and gives the sequencer; holds it until its stdin ends.
fn hold(place: &Place, flags: &[&str], name: &str) -> (Running, String) {
    let mut holder = place.start_script(flags, name, "echo $LOCKKEEPER_SEQUENCER; read _ || :");
    let sequencer = holder.line();
    (holder, sequencer)
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
    let listing = |arguments: &[&str]| answer(&place, "listing.json", arguments, 0);
    assert_eq!(listing(&["ls"])["locks"].as_array().unwrap().len(), 4);
    for name in ["deploy", "cache", "gpu", "kept"] {
        assert_eq!(listing(&["show", name])["locks"][0]["name"], name);
    }
    assert_eq!(listing(&["show", "free"])["locks"], json!([]));
    assert_eq!(listing(&["ls", "free"])["locks"], json!([]));
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
fn a_run_under_the_lock_of_the_run_around_it_is_told_as_described() {
    let place = Place::new();
    let inner = [LOCKKEEPER, "run", "--json", "--reentrant", "a", "--", "true"];
    let mut outer = place.start(&[&["run", "--json", "a", "--"][..], &inner].concat());
    assert_eq!(told(&mut outer), ["granted", "reentered", "released"]);
}

#[test]
fn a_store_that_does_not_answer_is_told_as_described() {
    let place = Place::new();
    let hold = ["run", "--json", "--ttl", "15s", "a", "-c", "echo in; read _ || :"];
    let (mut holder, held) = start(&mut place.lockkeeper(&hold));
    assert_eq!(holder.line(), "in");
    let wait = ["run", "--json", "--ttl", "6s", "a", "--", "true"];
    let (mut waiter, waited) = start(&mut place.lockkeeper(&wait));
    place.await_waiters("a", 1);
    let locked = place.lock_file();
    await_event(&waited, "outage");
    await_event(&held, "jeopardy");
    drop(locked);
    await_event(&waited, "outage_over");
    await_event(&held, "jeopardy_over");
    assert!(holder.end().success());
    await_event(&held, "released");
    await_event(&waited, "granted");
    assert!(waiter.wait().success());
    await_event(&waited, "released");
}

/// Reads and checks all lines up to this event, which has to come.
fn await_event(words: &Words, name: &str) {
    while event(&words.line()) != name {}
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
fn the_answer_about_a_grant_is_as_described() {
    let place = Place::new();
    let why = |sequencer: &str, code| {
        answer(&place, "check.json", &["check", sequencer], code)["why"].clone()
    };
    let (mut first, sequencer) = hold(&place, &[], "a");
    let forged = |at: usize, word| {
        let mut words: Vec<&str> = sequencer.split(':').collect();
        words[at] = word;
        words.join(":")
    };
    assert_eq!(why(&sequencer, 0), Value::Null);
    assert_eq!(why(&forged(3, "9007199254740991"), 1), "never");
    assert_eq!(why(&forged(1, "0123456789abcdef"), 1), "other_store");
    assert!(first.end().success());
    assert_eq!(why(&sequencer, 1), "lost");
    let (mut second, _) = hold(&place, &["--label", "nightly"], "a");
    assert_eq!(why(&sequencer, 1), "newer_fence");
    assert!(second.end().success());
}

#[test]
fn a_token_is_as_described() {
    let place = Place::new();
    let token = answer(&place, "token.json", &["token", "new", "ci", "--scope", "lock"], 0);
    assert!(token["line"].as_str().unwrap().starts_with("ci sha256$"), "{token}");
}

#[test]
fn a_lock_is_said_to_be_held_or_free_as_described() {
    let place = Place::new();
    let held = |name, code| answer(&place, "held.json", &["held", name], code);
    assert_eq!(held("a", 1)["holders"], json!([]));
    let (mut holder, _) = place.hold(&["--label", "nightly"], "a");
    assert_eq!(held("a", 0)["holders"][0]["label"], "nightly");
    assert!(holder.end().success());
    place.assert(&["run", "--at-least", "60s", "a", "--", "true"]).success();
    assert_eq!(held("a", 0)["holders"][0]["owner"], Value::Null);
}

#[test]
fn the_evicted_are_named_as_described() {
    let place = Place::new();
    let evict = |arguments: &[&str], code| {
        let arguments = [&["evict", "--yes", "a"], arguments].concat();
        answer(&place, "evict.json", &arguments, code)["evicted"].clone()
    };
    assert_eq!(evict(&[], 1), json!([]));
    let (mut holder, fence) = place.hold(&QUICK, "a");
    let mut waiter = place.start(&["run", "a", "--", "true"]);
    place.await_waiters("a", 1);
    assert_eq!(evict(&[&"0".repeat(32)], 1), json!([]));
    let ticket = place.show("a")["waiters"][0]["ticket"].as_str().unwrap().to_owned();
    assert_eq!(evict(&[&ticket], 0)[0]["fence"], Value::Null);
    assert_eq!(evict(&[], 0)[0]["fence"], fence);
    assert_eq!(holder.code(), 79);
    assert!(waiter.wait().success());
    let mut unconfirmed = place.start(&["--json", "evict", "a"]);
    assert_eq!(told(&mut unconfirmed), ["error"]);
}

#[test]
fn the_value_of_a_lock_is_as_described() {
    let place = Place::new();
    let get = |code| answer(&place, "cell-get.json", &["cell", "get", "a"], code);
    assert_eq!(get(1)["fence"], Value::Null);
    let (mut holder, sequencer) = hold(&place, &[], "a");
    let put = |value: &[u8]| {
        let mut put = place.lockkeeper(&["--json", "cell", "put", "--sequencer", &sequencer, "a"]);
        put.arg(OsStr::from_bytes(value)).output().unwrap()
    };
    for (value, text) in
        [(&b"\xc3\xa9tat"[..], json!("état")), (b"", json!("")), (b"\xff", Value::Null)]
    {
        let output = put(value);
        let said = checked("cell-put.json", std::str::from_utf8(&output.stdout).unwrap());
        assert_eq!(said["bytes"], value.len());
        assert_eq!(get(0)["value"], text);
    }
    assert!(holder.end().success());
    let output = put(b"late");
    assert_eq!((output.status.code(), output.stdout.as_slice()), (Some(79), &b""[..]));
    assert_eq!(events(std::str::from_utf8(&output.stderr).unwrap()), ["error"]);
}

#[test]
fn a_lock_of_a_ticket_file_is_as_described() {
    let place = Place::new();
    let acquire = ["acquire", "a", "--file", "one", "--ttl", "90s"];
    let acquired = answer(&place, "acquire.json", &acquire, 0);
    let mut refused = place.start(&["--json", "acquire", "-n", "a", "--file", "two"]);
    assert_eq!(told(&mut refused), ["not_acquired"]);
    let mut waiter = place.start(&["--json", "acquire", "a", "--file", "two", "--ttl", "90s"]);
    place.await_waiters("a", 1);
    let renewed = answer(&place, "renew.json", &["renew", "one"], 0);
    assert_eq!(renewed["fence"], acquired["fence"]);
    let release = |code| answer(&place, "release.json", &["release", "one"], code);
    assert_eq!(release(0)["name"], "a");
    assert_eq!(release(0)["released"], false);
    assert_eq!(told(&mut waiter), ["waiting"]);
    checked("acquire.json", &waiter.up_to("\n}\n"));
}

#[test]
fn what_is_wrong_with_a_ticket_file_is_told_as_described() {
    let place = Place::new();
    place.assert(&["acquire", "a", "--file", "t"]).success();
    fs::set_permissions(place.path("t"), fs::Permissions::from_mode(0o644)).unwrap();
    assert_eq!(told(&mut place.start(&["--json", "renew", "t"])), ["warning"]);
    fs::set_permissions(place.path("t"), fs::Permissions::from_mode(0o600)).unwrap();
    evict_holder(&place, "a");
    for verb in ["renew", "release", "renew"] {
        assert_eq!(told(&mut place.start(&["--json", verb, "t"])), ["error"], "{verb}");
    }
}

#[test]
fn the_leader_is_named_as_described() {
    let place = Place::new();
    let print = |code| answer(&place, "elect.json", &["elect", "--print", "a"], code);
    assert_eq!(print(1)["leader"], Value::Null);
    let mut observer = place.start(&["elect", "--observe", "--json", "a"]);
    let mut next = || checked("elect.json", &observer.line())["leader"].clone();
    assert_eq!(next(), Value::Null);
    let (mut leader, fence) = place.hold(&["--label", "blue"], "a");
    assert_eq!(print(0)["leader"]["label"], "blue");
    assert_eq!(next()["fence"], fence);
    assert!(leader.end().success());
    assert_eq!(next(), Value::Null);
    let mut candidate = place.start(&["elect", "--json", "a", "--", "true"]);
    assert_eq!(told(&mut candidate), ["granted", "released"]);
    place.assert(&["run", "--at-least", "60s", "a", "--", "true"]).success();
    let closed = &print(1)["leader"];
    assert!(closed["ticket"].is_string() && closed["owner"].is_null(), "{closed}");
}

#[test]
fn what_doctor_finds_is_as_described() {
    let place = Place::new();
    let fine = answer(&place, "doctor.json", &["doctor"], 0);
    assert!(fine["figures"]["hand_over_us"].is_u64(), "{fine}");
    let failed = answer(&place, "doctor.json", &["doctor", "redis://127.0.0.1:1"], 3);
    assert!(failed["scheme"].is_null() && failed["checks"][0]["remedy"].is_string(), "{failed}");
}

#[test]
fn what_bench_measures_is_as_described() {
    let measured = answer(&Place::new(), "bench.json", &["bench", "--seconds", "0.2"], 0);
    assert_eq!(measured["measured"].as_array().unwrap().len(), 3);
}

/// An outage needs a server that can fall silent: `tests/stores.rs` checks its lines.
#[test]
fn the_lines_of_watch_are_as_described() {
    let place = Place::new();
    let (mut other, _) = place.hold(&[], "b");
    let mut lines = place.start(&["watch", "--json", "--interval", "50ms"]);
    let mut next = || checked("watch.json", &lines.line());
    assert_eq!(next()["locks"].as_array().unwrap().len(), 1);
    let (mut holder, _) = place.hold(&["--limit", "4"], "a");
    let held = next();
    assert_eq!((&held["event"], &held["limit"]), (&"held".into(), &4.into()));
    let mut waiter =
        place.start(&["run", "--limit", "4", "--permits", "4", "a", "--", "echo", "ran"]);
    assert_eq!(next()["event"], "queued");
    waiter.signal(Signal::SIGTERM);
    assert_eq!(waiter.code(), 143);
    assert_eq!(next()["event"], "withdrawn");
    assert!(holder.end().success());
    assert_eq!(next()["event"], "released");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let keeper = Keeper::connect(&place.url()).await.unwrap();
        let guard = keeper.lock("c").await.unwrap();
        assert_eq!(next()["event"], "held");
        guard.set_label("blue").await.unwrap();
        let relabelled = next();
        assert_eq!(
            (&relabelled["event"], &relabelled["label"]),
            (&"relabelled".into(), &"blue".into())
        );
        guard.release().await.unwrap();
    });
    assert_eq!(next()["event"], "released");
    assert!(other.end().success());
}

/// Verbs whose answers are words also with `--json`, and how to have one.
const IN_WORDS: [(&str, &[&str]); 3] = [
    ("completions", &["completions", "bash"]),
    ("man", &["man"]),
    ("migrate", &["migrate", "--print", "--store", "postgres://127.0.0.1:1/locks"]),
];

#[test]
fn every_verb_whose_answer_is_json_is_named_in_a_schema() {
    let place = Place::new();
    let schemas: Vec<String> = files().iter().map(|file| read(file)).collect();
    let is_named = |verb: &String| {
        let call = format!("`lockkeeper {verb} --");
        let calls = schemas.iter().flat_map(|text| text.split(&call).skip(1));
        let mut flags = calls.filter_map(|rest| rest.split('`').next());
        flags.any(|flags| flags.ends_with("json"))
    };
    let mut unnamed = verbs(&place, &[]);
    assert!(unnamed.len() > 15, "{unnamed:?}");
    unnamed.retain(|verb| !is_named(verb));
    unnamed.sort();
    assert_eq!(unnamed, IN_WORDS.map(|(verb, _)| verb));
    for (verb, arguments) in IN_WORDS {
        let words = place.stdout(&[&["--json"], arguments].concat());
        let json = serde_json::from_str::<Value>(&words);
        assert!(!words.is_empty() && json.is_err(), "{verb} answers in JSON: {words}");
    }
}

/// The verbs in the list of this one's help; for a verb with verbs of its own, those: `cell get`.
fn verbs(place: &Place, parent: &[&str]) -> Vec<String> {
    let help = place.stdout(&[parent, &["-h"]].concat());
    let Some((_, list)) = help.split_once("\nCommands:\n") else { return vec![parent.join(" ")] };
    let lines = list.lines().take_while(|line| !line.is_empty());
    let names = lines.filter_map(|line| line.strip_prefix("  ")?.split(' ').next());
    let names = names.filter(|name| !name.is_empty() && *name != "help");
    names.flat_map(|name| verbs(place, &[parent, &[name]].concat())).collect()
}

#[test]
fn every_schema_is_linked_in_the_documents() {
    let documents = fs::read_to_string(Schema::folder().join("../cli.md")).unwrap();
    for file in files() {
        assert!(documents.contains(&format!("(schema/{file})")), "{file} is not in docs/cli.md");
    }
}

/// The names of all schemas.
fn files() -> Vec<String> {
    let entries = fs::read_dir(Schema::folder()).unwrap();
    entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

fn read(file: &str) -> String {
    fs::read_to_string(Schema::folder().join(file)).unwrap()
}

#[test]
fn an_error_of_the_command_line_is_told_as_described() {
    let place = Place::new();
    let output = place.assert(&["--json", "held", "--nope"]).code(64).get_output().clone();
    let told = checked("events.json", std::str::from_utf8(&output.stderr).unwrap());
    assert_eq!((&told["event"], &told["hint"]), (&"error".into(), &"see lockkeeper --help".into()));
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
    let foreign = json!({"version": 1, "at": at, "name": "a", "held": true, "waiters": 0,
                         "holders": [{"ticket": "5f"}]});
    let refused = Schema::of("held.json").check(&foreign).unwrap_err();
    assert!(refused.starts_with("/holders/0: required"), "a definition of another file: {refused}");
}
