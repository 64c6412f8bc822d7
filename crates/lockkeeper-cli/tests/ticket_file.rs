//! `acquire`, `renew` and `release`: a lock that several processes hold one after the other, by a file.

mod support;

use nix::sys::signal::Signal;
use serde_json::Value;
use std::{
    fs,
    os::unix::fs::{PermissionsExt as _, symlink},
    path::Path,
    process::{Command, Output},
    time::Duration,
};
use support::{Place, eventually};

const TICKET: &str = "t.ticket";

/// A fresh store, in which `a` is held by a ticket file.
fn held(flags: &[&str]) -> Place {
    let place = Place::new();
    acquire(&place, flags);
    place
}

fn acquire(place: &Place, flags: &[&str]) -> String {
    place.stdout(&[&["acquire", "a", "--file", TICKET][..], flags].concat())
}

fn code(place: &Place, arguments: &[&str]) -> (i32, String) {
    said(&place.lockkeeper(arguments).output().expect("a process"))
}

fn said(output: &Output) -> (i32, String) {
    let stderr = String::from_utf8(output.stderr.clone()).expect("UTF-8");
    (output.status.code().expect("a code"), stderr)
}

fn read(place: &Place) -> Value {
    let text = fs::read_to_string(place.path(TICKET)).expect("a ticket file");
    serde_json::from_str(text.lines().next().expect("a line")).expect("JSON")
}

fn secret(place: &Place) -> String {
    let secret = read(place)["secret"].as_str().expect("a secret").to_owned();
    // What gives rights; the rest is the sequencer, which is public.
    secret.split(':').nth(1).expect("a session").to_owned()
}

fn held_count(place: &Place) -> usize {
    place.count("a", "holders")
}

/// The files in the store's folder that are not the store's.
fn files(place: &Place) -> Vec<String> {
    let folder = place.path(TICKET);
    let entries = fs::read_dir(folder.parent().expect("a folder")).expect("readable");
    let names =
        entries.map(|entry| entry.expect("an entry").file_name().into_string().expect("UTF-8"));
    let mut names: Vec<String> = names.filter(|name| !name.contains("locks.db")).collect();
    names.sort();
    names
}

fn sh(place: &Place, script: &str) -> Output {
    let mut shell = Command::new("bash");
    let command = place.lockkeeper(&[]);
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => shell.env(name, value),
            None => shell.env_remove(name),
        };
    }
    shell.env("lockkeeper", command.get_program()).current_dir(place.path("."));
    shell.arg("-c").arg(script).output().expect("a shell")
}

#[test]
fn the_lock_stays_held_until_it_is_released() {
    let place = held(&["--label", "import"]);
    assert_eq!(place.show("a")["holders"][0]["label"], "import");
    assert!(place.stdout(&["ls"]).contains("a "));
    place.assert(&["run", "-n", "a", "--", "true"]).code(75);
    for _ in 0..2 {
        place.assert(&["renew", TICKET]).success();
        assert_eq!(held_count(&place), 1);
    }
    place.assert(&["release", TICKET]).success();
    assert_eq!((held_count(&place), files(&place)), (0, Vec::new()));
    place.assert(&["run", "-n", "a", "--", "true"]).success();
}

#[test]
fn a_waiter_gets_the_lock_with_the_release() {
    let place = held(&[]);
    let mut waiter = place.start(&["run", "a", "--", "echo", "ran"]);
    place.await_waiters("a", 1);
    place.assert(&["release", TICKET]).success();
    assert_eq!((waiter.line().as_str(), waiter.code()), ("ran", 0));
}

#[test]
fn a_script_evaluates_what_is_printed() {
    let place = Place::new();
    let script = r#"
        set -e
        grant=$("$lockkeeper" acquire "it's a name" --file 'a file.ticket')
        trap '"$lockkeeper" release "$LOCKKEEPER_TICKET_FILE"' EXIT
        eval "$grant"
        echo "$LOCKKEEPER_NAME|$LOCKKEEPER_FENCE|$LOCKKEEPER_SEQUENCER|$LOCKKEEPER_TICKET_FILE"
        test "$LOCKKEEPER_RENEW_BY" -gt "$(date +%s)"
        before=$LOCKKEEPER_RENEW_BY
        eval "$("$lockkeeper" renew "$LOCKKEEPER_TICKET_FILE")"
        test "$LOCKKEEPER_RENEW_BY" -ge "$before"
        "$lockkeeper" show --json "$LOCKKEEPER_NAME"
        echo "$$ $BASH"
    "#;
    let output = sh(&place, script);
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).expect("UTF-8");
    let (first, rest) = text.split_once('\n').expect("lines");
    let words: Vec<&str> = first.split('|').collect();
    assert_eq!(words[0], "it's a name");
    assert!(words[1].parse::<u64>().is_ok() && words[2].starts_with("lk1:"), "{first}");
    assert!(words[3].ends_with("/a file.ticket") && Path::new(words[3]).is_absolute(), "{first}");
    let (json, last) = rest.trim_end().rsplit_once('\n').expect("lines");
    let json: Value = serde_json::from_str(json).expect("JSON");
    // Others see the script as the holder, for lockkeeper itself has ended.
    let (pid, _) = last.split_once(' ').expect("a number");
    assert_eq!(json["locks"][0]["holders"][0]["owner"]["pid"].to_string(), pid, "{json}");
    assert_eq!((place.show("it's a name"), files(&place)), (Value::Null, Vec::new()));
}

#[test]
fn programs_get_json() {
    let place = Place::new();
    let json = |arguments: &[&str]| -> Value {
        serde_json::from_str(&place.stdout(&[arguments, &["--json"]].concat())).expect("JSON")
    };
    let acquired = json(&["acquire", "a", "--file", TICKET, "--ttl", "90s"]);
    assert_eq!((&acquired["version"], &acquired["name"]), (&1.into(), &"a".into()));
    assert_eq!(acquired["ttl_ms"], 90_000);
    assert_eq!(acquired["fence"], place.show("a")["holders"][0]["fence"]);
    assert!(acquired["file"].as_str().is_some_and(|file| file.ends_with(TICKET)), "{acquired}");
    let held = acquired["ends_in_ms"].as_u64().expect("a time");
    assert!((80_000..90_000).contains(&held), "{acquired}");
    let renewed = json(&["renew", TICKET]);
    assert_eq!(renewed["fence"], acquired["fence"]);
    assert!(renewed["renew_by"].as_str() >= acquired["renew_by"].as_str(), "{renewed}");
    assert_eq!(json(&["release", TICKET])["released"], true);
    assert_eq!(json(&["release", TICKET])["released"], false);
}

#[test]
fn only_its_owner_can_read_the_file_and_the_secret_is_nowhere_else() {
    let place = Place::new();
    let output = sh(&place, "umask 0; \"$lockkeeper\" -vv acquire a --file t.ticket");
    assert!(output.status.success(), "{output:?}");
    let mode = fs::metadata(place.path(TICKET)).expect("a file").permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let secret = secret(&place);
    assert_eq!(secret.len(), 32);
    let mut all = format!("{output:?}");
    for verb in ["renew", "release"] {
        all +=
            &format!("{:?}", place.lockkeeper(&["-vv", verb, TICKET]).output().expect("a process"));
    }
    assert!(!all.contains(&secret), "{all}");
    assert!(all.contains("lk1:"));
}

#[test]
fn a_file_that_others_may_read_is_told() {
    let place = held(&[]);
    fs::set_permissions(place.path(TICKET), fs::Permissions::from_mode(0o644)).expect("ours");
    let (code, said) = code(&place, &["renew", TICKET]);
    assert_eq!(code, 0);
    assert!(said.contains("others may read") && said.contains("chmod 600"), "{said}");
}

#[test]
fn the_lock_ends_with_its_ttl_unless_it_is_renewed() {
    let place = held(&["--ttl", "1s"]);
    eventually(|| held_count(&place) == 0);
    let (code_of_renew, said) = code(&place, &["renew", TICKET]);
    assert_eq!(code_of_renew, 79);
    assert!(said.contains("`a` was lost"), "{said}");
    assert_eq!(files(&place), [TICKET], "a renewal takes nothing away");
    let (code_of_release, said) = code(&place, &["release", TICKET]);
    assert_eq!(code_of_release, 79);
    assert!(said.contains("`a` was lost") && said.contains("not protected"), "{said}");
    assert_eq!(files(&place), Vec::<String>::new());
}

#[test]
fn renewals_hold_it_for_longer_than_its_ttl() {
    let place = held(&["--ttl", "2s"]);
    let began = std::time::Instant::now();
    while began.elapsed() < Duration::from_secs(4) {
        place.assert(&["renew", TICKET]).success();
        assert_eq!(held_count(&place), 1);
    }
    place.assert(&["release", TICKET]).success();
}

#[test]
fn an_evicted_lock_is_lost() {
    let place = held(&[]);
    support::evict_holder(&place, "a");
    place.assert(&["renew", TICKET]).code(79);
    place.assert(&["release", TICKET]).code(79);
    assert_eq!(files(&place), Vec::<String>::new());
}

#[test]
fn a_second_release_is_harmless_and_says_so() {
    let place = held(&[]);
    place.assert(&["release", TICKET]).success();
    let (again, said) = code(&place, &["release", TICKET]);
    assert!(again == 0 && said.contains("there is no ticket file t.ticket"), "{again} {said}");
    assert_eq!(code(&place, &["-q", "release", TICKET]), (0, String::new()));
    let (renew, said) = code(&place, &["renew", TICKET]);
    assert!(renew == 66 && said.contains("there is no ticket file t.ticket"), "{renew} {said}");
}

#[test]
fn many_releases_at_once_release_once() {
    let place = held(&[]);
    let mut all: Vec<_> = (0..8).map(|_| place.start(&["release", TICKET])).collect();
    let codes: Vec<i32> = all.iter_mut().map(support::Running::code).collect();
    assert_eq!(codes, [0; 8]);
    assert_eq!((held_count(&place), files(&place)), (0, Vec::new()));
}

#[test]
fn a_ticket_that_holds_is_not_overwritten() {
    let place = held(&[]);
    let before = fs::read_to_string(place.path(TICKET)).expect("a file");
    for name in ["a", "b"] {
        let (code, said) = code(&place, &["acquire", name, "--file", TICKET, "-n"]);
        assert_eq!(code, 73, "{said}");
        assert!(said.contains("with it `a` is held") && said.contains("hint: "), "{said}");
    }
    assert_eq!(fs::read_to_string(place.path(TICKET)).expect("a file"), before);
    assert!(place.show("b").is_null(), "no lock was taken");
    place.assert(&["release", TICKET]).success();
}

#[test]
fn a_ticket_that_holds_no_more_is_replaced() {
    let place = held(&["--ttl", "1s"]);
    let before = read(&place);
    eventually(|| held_count(&place) == 0);
    acquire(&place, &[]);
    assert!(read(&place)["fence"].as_u64() > before["fence"].as_u64());
    assert_eq!((held_count(&place), files(&place)), (1, vec![TICKET.to_owned()]));
    place.assert(&["release", TICKET]).success();
}

#[test]
fn of_many_that_write_the_same_file_one_has_its_lock() {
    for stale in [false, true] {
        let place = if stale { held(&["--ttl", "0.5"]) } else { Place::new() };
        eventually(|| held_count(&place) == 0);
        let names: Vec<String> = (0..6).map(|n| format!("n{n}")).collect();
        let start = |name: &String| place.start(&["acquire", name, "--file", TICKET]);
        let mut all: Vec<_> = names.iter().map(start).collect();
        let mut codes: Vec<i32> = all.iter_mut().map(support::Running::code).collect();
        codes.sort_unstable();
        assert_eq!(codes, [0, 73, 73, 73, 73, 73]);
        let winner = read(&place)["name"].as_str().expect("a name").to_owned();
        let held: Vec<&String> =
            names.iter().filter(|name| place.count(name, "holders") == 1).collect();
        assert_eq!(held, [&winner], "the others have given theirs back");
        assert_eq!(files(&place), [TICKET]);
        place.assert(&["release", TICKET]).success();
    }
}

#[test]
fn what_is_no_ticket_file_is_neither_used_nor_overwritten() {
    let place = held(&[]);
    let good = fs::read_to_string(place.path(TICKET)).expect("a file");
    let cases = [
        String::new(),
        "hello\n".to_owned(),
        good[..good.len() / 2].to_owned(),
        good.replace("\"version\":1", "\"version\":2"),
        good.replace("lkd1:", "lkd1:zz"),
    ];
    for text in cases {
        fs::write(place.path("x"), &text).expect("ours");
        for verb in ["renew", "release"] {
            let (code, said) = code(&place, &[verb, "x"]);
            assert!(
                code == 66 && said.contains("x is no ticket file"),
                "{verb} {text}: {code} {said}"
            );
            assert!(!said.contains(&secret(&place)));
        }
        let (code, said) = code(&place, &["acquire", "b", "--file", "x"]);
        assert!(code == 73 && said.contains("is there already"), "{text}: {code} {said}");
        assert_eq!(fs::read_to_string(place.path("x")).expect("still there"), text);
    }
    for path in [".", "/dev/null", "/dev/full"] {
        assert_eq!(code(&place, &["release", path]).0, 66, "{path}");
        assert_eq!(code(&place, &["acquire", "b", "--file", path]).0, 73, "{path}");
    }
    assert!(place.show("b").is_null(), "no lock was taken");
    place.assert(&["release", TICKET]).success();
}

#[test]
fn a_file_that_cannot_be_written_takes_no_lock() {
    let place = Place::new();
    let (no_folder, said) = code(&place, &["acquire", "a", "--file", "none/t.ticket"]);
    assert!(no_folder == 73 && said.contains("cannot write"), "{no_folder} {said}");
    assert!(place.show("a").is_null());
    symlink("none/t.ticket", place.path("dangling")).expect("a link");
    assert_eq!(code(&place, &["acquire", "a", "--file", "dangling"]).0, 73);
    assert!(place.show("a").is_null());
    assert_eq!(files(&place), ["dangling"]);
}

#[test]
fn a_ticket_is_for_one_store() {
    let place = held(&[]);
    let other = format!("sqlite:{}", place.path("other.db").display());
    for verb in ["renew", "release"] {
        let (code, said) = code(&place, &["--store", &other, verb, TICKET]);
        assert!(
            code == 78 && said.contains("the ticket is for the store sqlite:"),
            "{code} {said}"
        );
    }
    let (code, said) = code(&place, &["--store", &other, "acquire", "b", "--file", TICKET]);
    assert!(code == 73 && said.contains("in another store"), "{code} {said}");
    assert_eq!((held_count(&place), read(&place)["name"].as_str()), (1, Some("a")));
}

#[test]
fn the_file_says_which_store_it_is_for() {
    let place = held(&[]);
    for verb in ["renew", "release"] {
        let mut command = place.lockkeeper(&[verb, TICKET]);
        let output = command.env_remove("LOCKKEEPER_STORE").output().expect("a process");
        assert!(output.status.success(), "{output:?}");
    }
    assert_eq!(held_count(&place), 0);
}

#[test]
fn a_lock_that_is_held_is_waited_for_as_long_as_was_said() {
    let place = Place::new();
    let (mut holder, _) = place.hold(&[], "a");
    for flags in [&["-n"][..], &["-w", "0"], &["-w", "0.2"]] {
        let (code, said) = code(&place, &[&["acquire", "a", "--file", TICKET], flags].concat());
        assert!(code == 75 && said.contains("`a` was not acquired: held by"), "{code} {said}");
    }
    let (code, _) = code(&place, &["acquire", "a", "--file", TICKET, "-n", "-E", "9"]);
    assert_eq!((code, files(&place)), (9, Vec::new()));
    let mut waiter = place.start(&["acquire", "a", "--file", TICKET, "-w", "60"]);
    place.await_waiters("a", 1);
    assert!(holder.end().success());
    assert_eq!(waiter.code(), 0);
    // It was granted long after its session was opened, and lasts for its whole TTL.
    place.assert(&["release", TICKET]).success();
}

#[test]
fn a_signal_ends_the_wait_and_leaves_the_line() {
    let place = Place::new();
    let (_holder, _) = place.hold(&[], "a");
    let mut waiter = place.start(&["acquire", "a", "--file", TICKET]);
    place.await_waiters("a", 1);
    waiter.signal(Signal::SIGTERM);
    assert_eq!(waiter.code(), 143);
    assert_eq!((place.count("a", "waiters"), files(&place)), (0, Vec::new()));
}

#[test]
fn a_killed_acquire_leaves_no_ticket_and_its_place_ends_with_the_ttl() {
    let place = Place::new();
    let (mut holder, _) = place.hold(&[], "a");
    let mut waiter = place.start(&["acquire", "a", "--file", TICKET, "--ttl", "1s"]);
    place.await_waiters("a", 1);
    waiter.signal(Signal::SIGKILL);
    assert_eq!(waiter.code(), 137);
    assert!(!place.path(TICKET).exists());
    holder.end();
    eventually(|| place.show("a").is_null());
    acquire(&place, &["-w", "30"]);
    place.assert(&["release", TICKET]).success();
}

#[test]
fn a_release_that_was_killed_is_repeated() {
    let place = held(&[]);
    // As far as a release comes before the store is asked, and as far as it comes after.
    let text = fs::read_to_string(place.path(TICKET)).expect("a file") + "releasing\n";
    fs::write(place.path(TICKET), &text).expect("ours");
    let (renew, said) = code(&place, &["renew", TICKET]);
    assert!(renew == 79 && said.contains("the release of `a` has begun"), "{renew} {said}");
    assert_eq!(held_count(&place), 1);
    place.assert(&["release", TICKET]).success();
    assert_eq!(held_count(&place), 0);
    fs::write(place.path(TICKET), &text).expect("ours");
    let (again, said) = code(&place, &["release", TICKET]);
    assert!(again == 0 && said.contains("its release was begun before"), "{again} {said}");
    assert_eq!(files(&place), Vec::<String>::new());
}

#[test]
fn a_release_that_reached_no_store_does_not_count() {
    let place = held(&["--ttl", "5s"]);
    let other = format!("sqlite:{}", place.path("other.db").display());
    assert_eq!(code(&place, &["release", "--store", &other, TICKET]).0, 78);
    assert_eq!(code(&place, &["renew", TICKET]), (0, String::new()), "it is held as before");
    assert_eq!(code(&place, &["release", "--store", &other, TICKET]).0, 78);
    eventually(|| held_count(&place) == 0);
    let (ended, said) = code(&place, &["release", TICKET]);
    assert_eq!(ended, 79, "what was lost before its release is told as lost: {said}");
}

#[test]
fn readers_and_permits_have_tickets_too() {
    let place = Place::new();
    for (name, flags, full) in
        [("r", ["-s", "-s"], "-x"), ("p", ["--limit=2", "--permits=1"], "--limit=2")]
    {
        for file in ["one", "two"] {
            let file = format!("{name}-{file}");
            let mut arguments = vec!["acquire", name, "-n", "--file", &file];
            arguments.extend(flags);
            place.assert(&arguments).success();
        }
        assert_eq!(place.count(name, "holders"), 2);
        assert_eq!(code(&place, &["acquire", name, "-n", full, "--file", "three"]).0, 75);
        for file in ["one", "two"] {
            place.assert(&["release", &format!("{name}-{file}")]).success();
        }
        assert!(place.show(name).is_null());
    }
}

#[test]
fn keeping_goes_on_until_the_release() {
    let place = held(&["--ttl", "1s"]);
    let mut keeper = place.start(&["renew", "--keep", TICKET]);
    assert!(keeper.line().starts_with("LOCKKEEPER_RENEW_BY="));
    let began = std::time::Instant::now();
    while began.elapsed() < Duration::from_secs(3) {
        assert_eq!(held_count(&place), 1);
    }
    assert!(!keeper.has_ended());
    place.assert(&["release", TICKET]).success();
    assert_eq!(keeper.code(), 0, "{}", keeper.stderr());
    assert_eq!(held_count(&place), 0);
}

#[test]
fn keeping_ends_with_the_script() {
    let place = held(&["--ttl", "1s"]);
    let script = "\"$lockkeeper\" renew --keep t.ticket > keep.out & \
                  until grep -q RENEW keep.out; do sleep 0.01; done";
    assert!(sh(&place, script).status.success());
    eventually(|| held_count(&place) == 0);
    assert_eq!(code(&place, &["release", TICKET]).0, 79);
}

#[test]
fn keeping_ends_when_the_lock_is_lost() {
    let place = held(&["--ttl", "1s"]);
    let mut keeper = place.start(&["renew", "--keep", TICKET]);
    assert!(keeper.line().starts_with("LOCKKEEPER_RENEW_BY="));
    support::evict_holder(&place, "a");
    assert_eq!(keeper.code(), 79);
    assert!(keeper.stderr().contains("`a` was lost"));
}

#[test]
fn a_store_that_is_gone_keeps_the_file() {
    let place = Place::new();
    let url = "redis://127.0.0.1:1";
    let good = {
        acquire(&place, &[]);
        fs::read_to_string(place.path(TICKET)).expect("a file")
    };
    let path = format!("sqlite:{}", place.path("locks.db").display());
    fs::write(place.path("away"), good.replace(&path, url)).expect("ours");
    fs::set_permissions(place.path("away"), fs::Permissions::from_mode(0o600)).expect("ours");
    for verb in ["renew", "release"] {
        let mut command = place.lockkeeper(&[verb, "-w", "0.1", "away"]);
        let output = command.env_remove("LOCKKEEPER_STORE").output().expect("a process");
        let (code, said) = said(&output);
        assert_eq!(code, 69, "{said}");
        assert!(
            verb == "renew" || said.contains("the ticket file was kept: run it again"),
            "{said}"
        );
        assert!(place.path("away").exists());
    }
}
