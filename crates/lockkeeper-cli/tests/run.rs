//! The command under the lock: what it gets and what becomes of its end.

mod support;

use assert_cmd::assert::OutputAssertExt as _;
use std::{fs, os::unix::fs::PermissionsExt as _, process::Command};
use support::{Place, Running};

fn error(place: &Place, arguments: &[&str], code: i32) -> String {
    let output = place.assert(arguments).code(code).get_output().clone();
    assert!(output.stdout.is_empty(), "{output:?}");
    String::from_utf8(output.stderr).unwrap()
}

#[test]
fn the_code_of_the_command_is_ours() {
    let place = Place::new();
    place.assert(&["run", "a", "--", "true"]).success().stdout("").stderr("");
    place.assert(&["run", "a", "--", "sh", "-c", "exit 7"]).code(7).stderr("");
    place.assert(&["run", "a", "--", "sh", "-c", "kill -TERM $$"]).code(128 + 15);
    place.assert(&["run", "a", "--", "sh", "-c", "kill -KILL $$"]).code(128 + 9);
    // The first real-time signal has no name.
    place.assert(&["run", "a", "--", "sh", "-c", "kill -34 $$"]).code(128 + 34);
}

#[test]
fn a_command_that_cannot_be_run_says_why() {
    let place = Place::new();
    let missing = error(&place, &["run", "a", "--", "no-such-command"], 127);
    assert_eq!(missing, "lockkeeper: cannot run `no-such-command`: not found\n");
    fs::write(place.path("data"), "no program").unwrap();
    let file = error(&place, &["run", "a", "--", "./data"], 126);
    assert!(file.contains("cannot run `./data`: Permission denied"), "{file}");
}

#[test]
fn arguments_reach_the_command_as_they_are() {
    let place = Place::new();
    let show = ["run", "a", "--", "printf", "[%s]", "-n", "", "a b", "$HOME", "--"];
    assert_eq!(place.stdout(&show), "[-n][][a b][$HOME][--]");
    assert_eq!(place.stdout(&["run", "a", "echo", "-n", "x"]), "x");
}

#[test]
fn the_command_finds_the_grant_in_its_environment() {
    let place = Place::new();
    let script = "printf '%s\\n' \"$LOCKKEEPER_NAME\" \"$LOCKKEEPER_FENCE\" \
                  \"$LOCKKEEPER_SEQUENCER\" \"$LOCKKEEPER_STORE\" \"$LOCKKEEPER_STORE_URL\"";
    let mut command = place.lockkeeper(&["run", "a b/ü", "--", "sh", "-c", script]);
    command.env("LOCKKEEPER_NAME", "inherited").env("LOCKKEEPER_FENCE", "0");
    command.env("LOCKKEEPER_STORE", format!("{}?ttl=20s", place.url()));
    let output = command.assert().success().get_output().clone();
    let text = String::from_utf8(output.stdout).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    let [name, fence, sequencer, store, open] = lines[..] else { panic!("{text}") };
    assert_eq!((name, store), ("a b/ü", format!("{}?ttl=20s", place.url()).as_str()));
    assert_eq!(store, open);
    let sequencer: lockkeeper::Sequencer = sequencer.parse().unwrap();
    assert_eq!(sequencer.fence(), fence.parse::<u64>().unwrap());
    assert_eq!(sequencer.name().as_str(), name);
}

#[test]
fn the_command_starts_with_no_signal_blocked() {
    let place = Place::new();
    let mask = place.stdout(&["run", "a", "--", "grep", "SigBlk", "/proc/self/status"]);
    assert_eq!(mask.trim(), "SigBlk:\t0000000000000000");
}

#[test]
fn stdin_belongs_to_the_command() {
    let place = Place::new();
    let mut cat = place.start(&["run", "a", "--", "cat"]);
    cat.write("one\n");
    assert_eq!(cat.line(), "one");
    cat.write("two\n");
    assert_eq!(cat.line(), "two");
    assert!(cat.end().success());
}

#[test]
fn nonsense_is_a_usage_error() {
    let place = Place::new();
    let long = "x".repeat(513);
    for (arguments, says) in [
        (&["run", "a"][..], "required arguments"),
        (&["run", "", "true"], "must not be empty"),
        (&["run", "a\nb", "true"], "control characters"),
        (&["run", long.as_str(), "true"], "at most 512 bytes"),
        (&["run", "--limit", "2", "--permits", "3", "a", "true"], "between 1 and --limit"),
        (&["run", "--permits", "3", "a", "true"], "--limit"),
        (&["run", "-s", "--limit", "3", "a", "true"], "cannot be used with"),
        (&["run", "-w", "soon", "a", "true"], "250ms"),
        (&["run", "-E", "256", "a", "true"], "256"),
        (&["run", "--lock-delay", "5s", "a", "true"], "too short for --kill-after"),
        (&["run", "--ttl", "1ms", "a", "true"], "'--ttl <TIME>': at least 100ms"),
        (&["run", "--ttl", "0", "a", "true"], "'0' for '--ttl <TIME>'"),
        (&["run", "--lock-delay", "25h", "a", "true"], "'--lock-delay <TIME>': at most 1day"),
        (&["run", "-w", "-1", "a", "true"], "'-1' for '--wait <TIME>': write seconds"),
        (&["run", "-w", "-1s", "a", "true"], "'-1s' for '--wait <TIME>': write seconds"),
        (&["run", "--limit", "-1", "a", "true"], "'-1' for '--limit <N>'"),
        (&["run", "--limit", "0", "a", "true"], "--limit must be at least 1"),
        (&["run", "--max-hold", "0", "a", "true"], "'--max-hold <TIME>': more than 0; without"),
        (&["run", "--max-hold", "0ms", "a", "true"], "the lock is held until the command ends"),
        (&["run", "--", "backup.sh"], "the command needs a lock: its name stands first"),
        (&["run", "--", "echo", "hi"], "the command needs a lock: its name stands first"),
        (&["run", "-w", "3", "--", "backup.sh"], "run NAME -- COMMAND"),
        (&["run", "--tll", "1s", "a", "true"], "--ttl"),
        (&["walk"], "walk"),
        (&[], "Usage"),
    ] {
        let said = error(&place, arguments, 64);
        assert!(said.contains(says), "{arguments:?} says: {said}");
        assert!(!said.contains("tip: to pass"), "{arguments:?} says: {said}");
    }
}

#[test]
fn help_and_version_are_no_errors() {
    let place = Place::new();
    let help = place.stdout(&["run", "--help"]);
    assert!(help.contains("Exit codes:") && help.contains("LOCKKEEPER_FENCE"), "{help}");
    assert!(place.stdout(&["--version"]).starts_with("lockkeeper "));
    assert!(place.stdout(&["--help"]).contains("run"));
    assert!(place.stdout(&["completions", "bash"]).contains("_lockkeeper"));
    let mut secret = place.lockkeeper(&["run", "--help"]);
    let output = secret.env("LOCKKEEPER_STORE", "redis://:hunter2@host").output().unwrap();
    assert!(!String::from_utf8_lossy(&output.stdout).contains("hunter2"));
}

#[test]
fn a_store_that_is_none_is_a_configuration_error() {
    let place = Place::new();
    let scheme = error(&place, &["--store", "mongo://x", "run", "a", "true"], 78);
    assert!(scheme.contains("unknown store \"mongo\"") && scheme.contains("sqlite"), "{scheme}");
    let plain = error(&place, &["ls", "--store", "locks.db"], 78);
    assert!(plain.contains("sqlite:PATH"), "{plain}");
    fs::write(place.path("prose"), "not a database, ".repeat(1000)).unwrap();
    let prose = error(&place, &["--store", "sqlite:prose", "run", "a", "true"], 78);
    assert!(prose.contains("lockkeeper: sqlite: ") && prose.contains("hint: "), "{prose}");
}

#[test]
fn without_a_store_locks_live_in_the_state_folder() {
    let place = Place::new();
    let run = || {
        let mut run = place.lockkeeper(&["run", "a", "--", "true"]);
        run.env_remove("LOCKKEEPER_STORE");
        run
    };
    run().assert().success();
    let folder = place.path(".local/state/lockkeeper");
    assert!(folder.join("locks.db").exists());
    assert_eq!(fs::metadata(&folder).unwrap().permissions().mode() & 0o777, 0o700);
    let state = place.path("state?100%");
    run().env("XDG_STATE_HOME", &state).env("LOCKKEEPER_STORE", "").assert().success();
    assert!(state.join("lockkeeper/locks.db").exists());
    let relative = run().env("HOME", "home").assert().code(78).get_output().clone();
    let said = String::from_utf8(relative.stderr).unwrap();
    assert!(said.contains("HOME is not an absolute path (home)"), "{said}");
    let homeless = run().env_remove("HOME").assert().code(78).get_output().clone();
    let said = String::from_utf8(homeless.stderr).unwrap();
    assert!(said.contains("XDG_STATE_HOME") && said.contains("--store"), "{said}");
}

#[test]
fn a_state_folder_that_cannot_be_made_is_a_configuration_error() {
    let place = Place::new();
    fs::write(place.path("file"), "").unwrap();
    let mut run = place.lockkeeper(&["run", "a", "--", "true"]);
    run.env_remove("LOCKKEEPER_STORE").env("XDG_STATE_HOME", place.path("file"));
    let said = run.assert().code(78).get_output().clone();
    assert!(String::from_utf8(said.stderr).unwrap().contains("cannot create the folder"));
}

#[test]
fn events_are_told_as_json_on_stderr() {
    let place = Place::new();
    let output = place.assert(&["run", "--json", "a", "--", "echo", "x"]).success();
    let output = output.get_output().clone();
    assert_eq!(output.stdout, b"x\n");
    let text = String::from_utf8(output.stderr).unwrap();
    let events: Vec<serde_json::Value> =
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let names: Vec<&str> = events.iter().map(|e| e["event"].as_str().unwrap()).collect();
    assert_eq!(names, ["granted", "released"]);
    assert!(events[0]["fence"].is_u64() && events[0]["version"] == 1, "{text}");
    let failed = place.assert(&["--json", "--store", "mongo://x", "run", "a", "true"]).code(78);
    let error: serde_json::Value = serde_json::from_slice(&failed.get_output().stderr).unwrap();
    assert_eq!((&error["event"], &error["exit_code"]), (&"error".into(), &78.into()));
}

#[test]
fn errors_before_and_after_the_grant_are_told_as_json() {
    let place = Place::new();
    for (arguments, code, says) in [
        (&["--json", "run", "a", "--", "no-such-command"][..], 127, "cannot run `no-such-command`"),
        (&["run", "--json", "a", "--", "/dev/null"], 126, "cannot run `/dev/null`"),
        (&["run", "--json", "a"], 64, "required arguments were not provided"),
        (&["--json", "run", "--", "echo"], 64, "lockkeeper run NAME -- COMMAND"),
        (&["--json", "run", "--limit", "0", "a", "true"], 64, "--limit must be at least 1"),
    ] {
        let output = place.assert(arguments).code(code).get_output().clone();
        let text = String::from_utf8(output.stderr).unwrap();
        let events: Vec<serde_json::Value> =
            text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
        let error = events.iter().find(|event| event["event"] == "error").expect("an error");
        assert_eq!(error["exit_code"], code, "{error}");
        assert!(error["message"].as_str().unwrap().contains(says), "{error}");
    }
}

#[test]
fn a_lockkeeper_that_cannot_work_says_that_it_is_its_own_fault() {
    let place = Place::new();
    let lockkeeper = env!("CARGO_BIN_EXE_lockkeeper");
    let few_files = format!("ulimit -n 4; exec {lockkeeper} run a -- echo ran");
    let mut shell = Command::new("sh");
    shell.args(["-c", &few_files]).env("LOCKKEEPER_STORE", place.url());
    shell.assert().code(70).stdout("");
}

#[test]
fn a_program_replaced_while_it_runs_can_still_start_its_command() {
    let place = Place::new();
    let copy = place.path("lockkeeper-copy");
    fs::copy(env!("CARGO_BIN_EXE_lockkeeper"), &copy).unwrap();
    let (mut holder, _) = place.hold(&[], "a");
    let mut waiter = Command::new(&copy);
    waiter.env("LOCKKEEPER_STORE", place.url()).args(["run", "a", "--", "echo", "ran"]);
    let mut waiter = Running::start(&mut waiter);
    place.await_waiters("a", 1);
    fs::remove_file(&copy).unwrap();
    assert!(holder.end().success());
    assert_eq!(waiter.line(), "ran");
    assert!(waiter.wait().success());
}

#[test]
fn a_relative_store_is_the_same_file_for_a_nested_run_in_another_folder() {
    let place = Place::new();
    let (one, two) = (place.path("one"), place.path("two & ?%"));
    for folder in [&one, &two] {
        fs::create_dir(folder).unwrap();
    }
    let lockkeeper = env!("CARGO_BIN_EXE_lockkeeper");
    let nested = |name: &str| format!("cd '{}'; {lockkeeper} run -n {name} -- true", one.display());
    let from = |flags: &[&str], variable: &str, name: &str| {
        let mut run = place.lockkeeper(flags);
        run.args(["run", "a", "--", "sh", "-c", &nested(name)]).current_dir(&two);
        run.env("LOCKKEEPER_STORE", variable).output().unwrap().status.code()
    };
    for (flags, variable) in [
        (&["--store", "sqlite:rel.db"][..], ""),
        (&["--store", "sqlite://rel.db?ttl=9s"], "sqlite:other.db"),
        (&[], "sqlite:./rel.db?ttl=9s"),
    ] {
        assert_eq!(from(flags, variable, "a"), Some(75), "{flags:?} {variable}");
        assert_eq!(from(flags, variable, "b"), Some(0), "{flags:?} {variable}");
    }
    assert!(two.join("rel.db").exists() && !one.join("rel.db").exists());
}

#[test]
fn a_store_in_the_memory_of_one_process_is_refused() {
    let place = Place::new();
    for verb in [&["run", "a", "--", "echo", "ran"][..], &["ls"], &["show", "a"]] {
        let said = error(&place, &[&["--store", "memory://x"], verb].concat(), 78);
        assert!(
            said.contains("by one process alone") && said.contains("sqlite:locks.db"),
            "{said}"
        );
    }
    let none = error(&place, &["--store", "sqlite::memory:", "run", "a", "true"], 78);
    assert!(none.contains("sqlite::memory:"), "{none}");
    let tilde = error(&place, &["--store", "sqlite:~/locks.db", "run", "a", "true"], 78);
    assert!(tilde.contains("only a shell knows ~"), "{tilde}");
    let url = "redis://127.0.0.1:1?password_file=~/pw";
    let tilde = error(&place, &["--store", url, "run", "-n", "a", "true"], 78);
    assert!(tilde.contains("only a shell knows ~"), "{tilde}");
}

#[test]
fn a_name_may_begin_with_a_dash() {
    let place = Place::new();
    assert_eq!(place.stdout(&["run", "-n", "--", "-x", "echo", "ran"]), "ran\n");
    place.assert(&["show", "--", "-x"]).success();
}

#[test]
fn a_password_is_never_repeated_wherever_its_url_stands() {
    let place = Place::new();
    let url = "redis://me:hunter2@127.0.0.1:1/0";
    let bare = "redis:me:hunter2@127.0.0.1:1";
    let (equals, short) = (format!("--stor={url}"), format!("-w{url}"));
    let bare_equals = format!("--stor={bare}");
    for (arguments, code) in [
        (&[url][..], 64),
        (&[url, "ls"], 64),
        (&["ls", "a", url], 64),
        (&["show", url], 64),
        (&["run", url, "--", "true"], 64),
        (&["run", bare, "--", "true"], 64),
        (&[bare], 64),
        (&["show", bare], 64),
        (&["run", "a", "--ttl", bare, "true"], 64),
        (&["run", bare_equals.as_str(), "a", "true"], 64),
        (&["run", "a", "--", bare], 127),
        (&["run", "a", "--ttl", url, "true"], 64),
        (&["run", equals.as_str(), "a", "true"], 64),
        (&["run", short.as_str(), "a", "true"], 64),
        (&["--color", url, "ls"], 64),
        (&["completions", url], 64),
        (&["run", "a", "--", url], 127),
        (&["--store", url, "ls"], 69),
        (&["--store", bare, "run", "-n", "a", "--", "true"], 69),
        (&["--store", "reddis://me:hunter2@h", "ls"], 78),
        (&["-vv", "--store", url, "ls"], 69),
    ] {
        let said = error(&place, arguments, code);
        assert!(!said.contains("hunter2"), "{arguments:?} says: {said}");
    }
    let named = error(&place, &["run", url, "--", "true"], 64);
    assert!(named.contains("redis://me@127.0.0.1:1/0"), "{named}");
    assert!(named.contains("name the store with --store"), "{named}");
    place.assert(&["ls", url]).success().stdout("");
}

#[test]
fn a_store_that_cannot_be_reached_is_unavailable() {
    let place = Place::new();
    let url = "redis://127.0.0.1:1";
    let once = error(&place, &["--store", url, "run", "-n", "a", "--", "echo", "ran"], 69);
    assert_eq!(once.matches("refused").count(), 1, "{once}");
    assert!(once.contains("hint: is the store running"), "{once}");
    let patient = error(&place, &["--store", url, "run", "-w", "0.2", "a", "--", "true"], 69);
    assert!(patient.contains("refused"), "{patient}");
    error(&place, &["--store", url, "ls"], 69);
}

#[test]
fn an_answer_that_cannot_be_written_is_no_success() {
    let place = Place::new();
    let full = fs::File::options().write(true).open("/dev/full").unwrap();
    let output = place.lockkeeper(&["show", "a"]).stdout(full).output().unwrap();
    assert_eq!(output.status.code(), Some(70));
    assert!(String::from_utf8(output.stderr).unwrap().contains("cannot write to stdout"));
}

#[test]
fn a_name_is_taken_as_it_is() {
    let place = Place::new();
    let (mut holder, _) = place.hold(&[], "//a");
    for other in ["/a", "a", "//a/", "//A"] {
        place.assert(&["run", "-n", other, "--", "true"]).success();
    }
    place.assert(&["run", "-n", "//a", "--", "true"]).code(75);
    assert!(holder.end().success());
}
