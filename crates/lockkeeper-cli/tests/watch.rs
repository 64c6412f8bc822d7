//! `watch`: the live view on a terminal, and JSON Lines elsewhere.

mod support;

use nix::sys::signal::Signal;
use serde_json::Value;
use std::{io, process::Command};
use support::{Place, Running, eventually, pty::Pty};

const CTRL_C: &str = "\u{3}";
const CTRL_Z: &str = "\u{1a}";
const ESCAPE: &str = "\u{1b}";
const ENTER: &str = "\r";
const DOWN: &str = "\u{1b}[B";
const END: &str = "\u{1b}[F";

fn watch(place: &Place) -> Pty {
    let pty = Pty::lockkeeper(place, &["watch", "--interval", "100ms"], 110, 30);
    pty.shows("● live");
    pty
}

#[test]
fn the_list_shows_locks_as_they_come_and_go() {
    let place = Place::new();
    let mut pty = watch(&place);
    pty.shows("no lock is held");
    let (mut holder, _) = place.hold(&[], "jobs/deploy");
    let row = pty.row("jobs/deploy");
    assert!(row.contains(&format!("(pid {})", holder.pid())) && row.contains('●'), "{row}");
    let mut waiter = place.start(&["run", "jobs/deploy", "--", "true"]);
    pty.shows("in 1 line ");
    assert!(holder.end().success() && waiter.wait().success());
    pty.shows("no lock is held");
    pty.write("q");
    assert_eq!(pty.code(), 0);
}

#[test]
fn ls_with_watch_is_the_same() {
    let place = Place::new();
    let mut pty = Pty::lockkeeper(&place, &["ls", "--watch", "jobs/"], 80, 24);
    pty.shows("no lock begins with `jobs/`");
    pty.write("q");
    assert_eq!(pty.code(), 0);
}

#[test]
fn the_list_is_filtered_while_the_filter_is_typed() {
    let place = Place::new();
    let held = ["jobs/deploy", "jobs/report", "gpu"].map(|name| place.hold(&[], name));
    let mut pty = watch(&place);
    for name in ["jobs/deploy", "jobs/report", "gpu"] {
        pty.shows(name);
    }
    pty.write("/REP");
    pty.shows("/ REP");
    let screen = pty.hides("gpu");
    assert!(screen.contains("jobs/report") && !screen.contains("jobs/deploy"), "{screen}");
    pty.write(ENTER);
    pty.shows("1 of 3 names match `REP`");
    pty.write(ESCAPE);
    pty.shows("gpu");
    pty.write("q");
    assert_eq!(pty.code(), 0);
    drop(held);
}

#[test]
fn an_open_lock_shows_its_whole_line() {
    let place = Place::new();
    let (mut holder, fence) = place.hold(&["--label", "night\u{1b}[2Jly"], "deploy");
    let mut waiters: Vec<Running> = Vec::new();
    for place_in_line in 1..=3 {
        waiters.push(place.start(&["run", "-s", "--label", "reader", "deploy", "--", "true"]));
        place.await_waiters("deploy", place_in_line);
    }
    let mut pty = watch(&place);
    pty.shows("deploy");
    pty.write(ENTER);
    let screen = pty.shows("3rd ");
    assert!(screen.contains("3 waiting, the longest for"), "{screen}");
    assert!(screen.contains("label night\\u{1b}[2Jly"), "{screen}");
    assert!(pty.row("● holds").contains(&fence.to_string()), "{screen}");
    pty.write(END);
    let ticket = place.show("deploy")["waiters"][2]["ticket"].as_str().unwrap().to_owned();
    let screen = pty.shows(&format!("ticket {ticket}"));
    assert!(screen.contains("label reader"), "{screen}");
    assert!(holder.end().success());
    pty.shows("free: no ticket holds it");
    pty.write(ESCAPE);
    pty.shows("no lock is held");
    pty.write(ESCAPE);
    assert_eq!(pty.code(), 0);
    waiters.iter_mut().for_each(|waiter| assert!(waiter.wait().success()));
}

#[test]
fn an_eviction_is_confirmed_and_hands_the_lock_over() {
    let place = Place::new();
    let (mut holder, _) = place.hold(&["--kill-after", "1"], "deploy");
    let mut waiter = place.start_script(&[], "deploy", "echo here; read _ || :");
    place.await_waiters("deploy", 1);
    let mut pty = watch(&place);
    pty.shows("deploy");
    pty.write("e");
    let screen = pty.shows("any other key");
    assert!(screen.contains(&format!("(pid {})", holder.pid())), "{screen}");
    assert!(screen.contains("Next in line: "), "{screen}");
    pty.write("n");
    pty.hides("any other key");
    assert_eq!(place.count("deploy", "waiters"), 1, "nothing was evicted");
    pty.write("e");
    pty.shows("any other key");
    pty.write("y");
    pty.shows("· evicted ");
    assert_eq!(waiter.line(), "here");
    assert_eq!(holder.code(), 79);
    pty.write("q");
    assert_eq!(pty.code(), 0);
    assert!(waiter.end().success());
}

#[test]
fn a_waiter_is_chosen_and_evicted_in_the_open_lock() {
    let place = Place::new();
    let (mut holder, _) = place.hold(&[], "deploy");
    let waiter = place.start(&["run", "deploy", "--", "true"]);
    place.await_waiters("deploy", 1);
    let ticket = place.show("deploy")["waiters"][0]["ticket"].clone();
    let mut pty = watch(&place);
    pty.shows("deploy");
    pty.write(ENTER);
    pty.shows("1st ");
    pty.write(DOWN);
    pty.shows(&format!("ticket {}", ticket.as_str().unwrap()));
    pty.write("e");
    pty.shows("Take out of the line");
    pty.write("y");
    // Its program still wants the lock, and takes a new ticket.
    eventually(|| {
        let now = place.show("deploy")["waiters"][0]["ticket"].clone();
        !now.is_null() && now != ticket
    });
    pty.write("q");
    assert_eq!(pty.code(), 0);
    drop(waiter);
    assert!(holder.end().success());
}

#[test]
fn the_view_follows_the_size_of_the_window() {
    let place = Place::new();
    let (_holder, _) = place.hold(&[], "jobs/deploy");
    let mut pty = watch(&place);
    pty.shows("HOLDER");
    pty.resize(40, 10);
    let screen = pty.shows("● 1 held");
    assert!(screen.contains("jobs/deploy") && !screen.contains("HOLDER"), "{screen}");
    pty.resize(150, 50);
    pty.shows("5 MINUTES");
    pty.write("q");
    assert_eq!(pty.code(), 0);
}

#[test]
fn every_end_gives_the_terminal_back() {
    let place = Place::new();
    for (keys, code) in [("q", 0), (ESCAPE, 0), (CTRL_C, 130)] {
        let mut pty = watch(&place);
        assert!(pty.is_taken());
        pty.write(keys);
        assert_eq!(pty.code(), code, "{keys:?}");
        eventually(|| pty.is_as_before());
    }
    for signal in [Signal::SIGTERM, Signal::SIGHUP, Signal::SIGINT, Signal::SIGQUIT] {
        let mut pty = watch(&place);
        pty.signal(signal);
        assert_eq!(pty.code(), 128 + signal as i32, "{signal}");
        eventually(|| pty.is_as_before());
    }
}

#[test]
fn a_job_that_is_stopped_gives_the_terminal_back_and_goes_on() {
    let place = Place::new();
    let (_holder, _) = place.hold(&[], "deploy");
    let mut bash = Command::new("bash");
    bash.args(["--norc", "--noprofile", "--noediting", "-i"]).current_dir(place.path(""));
    bash.env("LOCKKEEPER_STORE", place.url()).env("LK", env!("CARGO_BIN_EXE_lockkeeper"));
    bash.env("PS1", "ready> ").env_remove("NO_COLOR");
    let mut pty = Pty::start(&bash, 80, 24);
    pty.shows("ready>");
    pty.write("$LK watch; echo code $?\n");
    pty.shows("● live");
    pty.write(CTRL_Z);
    pty.shows("Stopped");
    eventually(|| pty.is_as_before());
    pty.write("fg\n");
    pty.shows("● live");
    pty.shows("deploy");
    assert!(pty.is_taken());
    pty.write("q");
    pty.shows("ready>");
    pty.write("exit\n");
    pty.code();
}

#[test]
fn no_color_and_never_are_honoured() {
    let place = Place::new();
    let (_holder, _) = place.hold(&[], "deploy");
    let colored = |arguments: &[&str], variables: &[(&str, &str)]| {
        let mut command = place.lockkeeper(arguments);
        command.envs(variables.iter().copied());
        let mut pty = Pty::start(&command, 80, 24);
        pty.shows("deploy");
        pty.write("q");
        assert_eq!(pty.code(), 0);
        pty.saw_colors()
    };
    assert!(colored(&["watch"], &[]));
    assert!(!colored(&["watch"], &[("NO_COLOR", "1")]));
    assert!(!colored(&["watch", "--color", "never"], &[]));
    assert!(colored(&["watch", "--color", "always"], &[("NO_COLOR", "1")]));
}

fn event(lines: &mut Running) -> Value {
    let line = lines.line();
    serde_json::from_str(&line).unwrap_or_else(|e| panic!("{e}: {line:?}"))
}

#[test]
fn json_lines_tell_a_snapshot_and_then_every_change() {
    let place = Place::new();
    let (mut holder, fence) = place.hold(&["--label", "nightly"], "jobs/deploy");
    let (mut other, _) = place.hold(&[], "gpu");
    let mut lines = place.start(&["watch", "jobs/", "--interval", "50ms"]);
    let snapshot = event(&mut lines);
    assert_eq!((&snapshot["event"], &snapshot["version"]), (&"snapshot".into(), &1.into()));
    assert_eq!(snapshot["locks"].as_array().unwrap().len(), 1);
    assert_eq!(snapshot["locks"][0]["holders"][0]["label"], "nightly");

    let mut waiter = place.start_script(&[], "jobs/deploy", "echo here; read _ || :");
    let queued = event(&mut lines);
    assert_eq!((&queued["event"], &queued["name"]), (&"queued".into(), &"jobs/deploy".into()));
    assert_eq!((&queued["mode"], &queued["fence"]), (&"exclusive".into(), &Value::Null));

    assert!(holder.end().success());
    assert_eq!(waiter.line(), "here");
    let released = event(&mut lines);
    assert_eq!((&released["event"], &released["fence"]), (&"released".into(), &fence.into()));
    let held = event(&mut lines);
    assert_eq!((&held["event"], &held["ticket"]), (&"held".into(), &queued["ticket"]));
    assert!(held["fence"].as_u64().unwrap() > fence);

    let mut second = place.start(&["run", "jobs/deploy", "--", "true"]);
    assert_eq!(event(&mut lines)["event"], "queued");
    second.signal(Signal::SIGTERM);
    assert_eq!(second.code(), 143);
    assert_eq!(event(&mut lines)["event"], "withdrawn");
    lines.signal(Signal::SIGTERM);
    assert_eq!(lines.code(), 143);
    assert!(waiter.end().success() && other.end().success());
}

#[test]
fn json_lines_end_when_their_reader_is_gone() {
    let place = Place::new();
    let (reader, writer) = io::pipe().unwrap();
    let mut quiet = place.lockkeeper(&["watch"]).stdout(writer).spawn().unwrap();
    let mut reader = io::BufReader::new(reader);
    let mut line = String::new();
    io::BufRead::read_line(&mut reader, &mut line).unwrap();
    assert!(line.contains("\"snapshot\""), "{line}");
    drop(reader);
    // Nothing changes, so nothing is written any more.
    eventually(|| quiet.try_wait().unwrap().is_some());
    assert!(quiet.wait().unwrap().success());
}

#[test]
fn json_is_spoken_on_a_terminal_where_it_is_wanted() {
    let place = Place::new();
    let pty = Pty::lockkeeper(&place, &["watch", "--json"], 80, 24);
    pty.shows("\"event\":\"snapshot\"");
    assert!(!pty.is_taken());
}

#[test]
fn an_interval_out_of_bounds_is_a_usage_error() {
    let place = Place::new();
    for interval in ["0", "2h", "soon"] {
        let refused = place.assert(&["watch", "--interval", interval]).failure().code(64);
        let output = String::from_utf8_lossy(&refused.get_output().stderr).into_owned();
        assert!(output.contains("--interval"), "{output}");
    }
}
