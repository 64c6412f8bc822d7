//! How processes are started, held, ended and lost, shown on programs that every system has.
#![cfg(target_os = "linux")]

use std::io::{self, Read};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use std::{env, fs, thread};

use anyhow::{Result, bail};
use nix::sys::signal::Signal;
use nix::unistd::gettid;
use servers::{Detached, Process, Recipe, Sandbox};
use tempfile::tempdir;

/// Two processes that do nothing, and are ready when both have said so in a file of their own.
const PAIR: Recipe = Recipe {
    name: "pair",
    packages: &[],
    programs: &["sh"],
    folders: &[],
    root: None,
    newest: None,
    ports: 2,
    stop: Signal::SIGTERM,
    ready_within: Duration::from_secs(30),
    processes: |sandbox| Ok(vec![idle("left", sandbox), idle("right", sandbox)]),
    form: None,
    url: |sandbox| format!("pair://127.0.0.1:{},127.0.0.1:{}", sandbox.ports[0], sandbox.ports[1]),
};

fn idle(name: &str, sandbox: &Sandbox) -> Process {
    let sign = sandbox.folder.join(name);
    shell(name, &format!("touch {name}; exec sleep 1000"), move || Ok(sign.try_exists()?))
}

fn shell(
    name: &str,
    script: &str,
    ready: impl Fn() -> Result<bool> + Send + Sync + 'static,
) -> Process {
    Process {
        name: name.to_owned(),
        program: "sh",
        args: vec!["-c".into(), script.into()],
        env: Vec::new(),
        user: None,
        ready: Box::new(move || if ready()? { Ok(()) } else { bail!("no sign of it") }),
    }
}

fn state(pid: u32) -> Option<char> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit(") ").next()?.chars().next()
}

fn is_gone(pid: u32) -> bool {
    matches!(state(pid), None | Some('Z'))
}

fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(30);
    while !condition() {
        assert!(Instant::now() < deadline, "still not so: {what}");
        thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn one_recipe_starts_several_processes_and_drop_ends_them() {
    let mut pair = PAIR.start().unwrap();
    let (pids, folder) = (pair.pids(), pair.folder().to_owned());
    assert_eq!(pids.len(), 2);
    let [left, right] = pair.ports() else { panic!("asked for two ports") };
    assert_eq!(pair.url(), format!("pair://127.0.0.1:{left},127.0.0.1:{right}"));
    assert!(folder.join("right.log").exists());
    drop(pair);
    assert!(pids.iter().all(|pid| is_gone(*pid)));
    assert!(!folder.exists());
}

#[test]
fn one_process_can_fail_alone_and_come_back() {
    let mut pair = PAIR.start().unwrap();
    let before = pair.pids();
    pair.nodes()[1].kill().unwrap();
    assert_eq!(pair.pids(), before[..1]);
    assert!(pair.nodes()[1].freeze().is_err());
    assert!(pair.nodes()[0].restart().is_err(), "it is up");
    pair.restart().unwrap();
    let after = pair.pids();
    assert_eq!(after[0], before[0]);
    assert_ne!(after[1], before[1]);
}

#[test]
fn frozen_processes_stand_still_and_can_be_stopped() {
    let mut pair = PAIR.start().unwrap();
    let pids = pair.pids();
    pair.freeze().unwrap();
    assert!(pids.iter().all(|pid| state(*pid) == Some('T')));
    pair.thaw().unwrap();
    wait_until("both go on", || pids.iter().all(|pid| state(*pid) != Some('T')));
    pair.freeze().unwrap();
    pair.stop().unwrap();
    assert!(pids.iter().all(|pid| is_gone(*pid)));
    pair.stop().unwrap();
}

#[test]
fn a_process_that_ends_early_is_tried_again_and_then_shows_its_log() {
    let recipe = Recipe {
        name: "broken",
        processes: |_| Ok(vec![shell("broken", "echo out of luck >&2; exit 3", || Ok(false))]),
        ..PAIR
    };
    let error = recipe.start().unwrap_err().to_string();
    assert!(error.contains("ended before it was ready"), "{error}");
    assert!(error.contains("out of luck"), "{error}");
}

#[test]
fn an_answer_does_not_count_if_our_process_has_ended() {
    let recipe = Recipe {
        name: "robbed",
        processes: |sandbox| {
            let pid_file = sandbox.folder.join("pid");
            // Agrees only once the process has ended: another process must be answering.
            Ok(vec![shell("robbed", "echo $$ > pid", move || {
                let pid = fs::read_to_string(&pid_file).unwrap_or_default();
                Ok(pid.trim().parse().is_ok_and(is_gone))
            })])
        },
        ..PAIR
    };
    let error = recipe.start().unwrap_err().to_string();
    assert!(error.contains("ended before it was ready"), "{error}");
}

#[test]
fn a_process_that_is_never_ready_says_what_the_probe_saw() {
    let recipe = Recipe {
        name: "mute",
        ready_within: Duration::from_millis(50),
        processes: |_| Ok(vec![shell("mute", "echo still loading; exec sleep 1000", || Ok(false))]),
        ..PAIR
    };
    let error = recipe.start().unwrap_err().to_string();
    assert!(error.contains("mute is not ready after 50ms: no sign of it"), "{error}");
}

/// Draws a line with every call, and agrees once there are three.
fn draw_lines(sandbox: &Sandbox) -> Result<()> {
    let file = sandbox.folder.join("lines");
    let lines = fs::read_to_string(&file).unwrap_or_default();
    if lines.len() == 3 {
        return Ok(());
    }
    fs::write(file, format!("{lines}|"))?;
    bail!("{} of 3 lines", lines.len() + 1)
}

#[test]
fn the_whole_is_formed_after_the_start_and_waited_for_after_a_restart() {
    let recipe = Recipe { form: Some(draw_lines), ..PAIR };
    let mut pair = recipe.start().unwrap();
    let lines = pair.folder().join("lines");
    assert_eq!(fs::read_to_string(&lines).unwrap(), "|||");
    pair.kill().unwrap();
    fs::write(&lines, "|").unwrap();
    pair.restart().unwrap();
    assert_eq!(fs::read_to_string(&lines).unwrap(), "|||");
}

#[test]
fn a_whole_that_does_not_come_about_says_what_is_missing_and_shows_all_logs() {
    let recipe = Recipe {
        name: "loners",
        ready_within: Duration::from_secs(1),
        processes: |sandbox| {
            let [left, right] = ["left", "right"].map(|name| {
                let sign = sandbox.folder.join(name);
                let script = format!("echo {name} is alone; touch {name}; exec sleep 1000");
                shell(name, &script, move || Ok(sign.try_exists()?))
            });
            Ok(vec![left, right])
        },
        form: Some(|_| bail!("they have not met")),
        ..PAIR
    };
    let error = recipe.start().unwrap_err().to_string();
    assert!(error.contains("loners is not whole after 1s: they have not met"), "{error}");
    assert!(error.contains("left is alone") && error.contains("right is alone"), "{error}");
}

#[test]
fn a_process_lost_while_the_whole_is_formed_is_no_reason_to_wait_long() {
    let recipe = Recipe {
        name: "leavers",
        ready_within: Duration::from_secs(1000),
        processes: |sandbox| {
            let sign = sandbox.folder.join("leave");
            let script = "until test -e leave; do sleep 0.01; done; echo gone for good";
            Ok(vec![shell("leaver", script, move || Ok(!sign.try_exists()?))])
        },
        form: Some(|sandbox| {
            fs::write(sandbox.folder.join("leave"), "")?;
            bail!("no process stays")
        }),
        ..PAIR
    };
    let error = recipe.start().unwrap_err().to_string();
    assert!(error.contains("lost a process before it was whole: no process stays"), "{error}");
    assert!(error.contains("gone for good"), "{error}");
}

#[test]
fn a_recipe_made_from_another_can_add_to_the_environment() {
    let recipe = Recipe {
        processes: |sandbox| {
            let sign = sandbox.folder.join("colour");
            let script = "echo $COLOUR $SIZE > draft; mv draft colour; exec sleep 1000";
            let mut painter = shell("painter", script, move || Ok(sign.try_exists()?));
            painter.env = vec![("COLOUR".into(), "blue".into()), ("SIZE".into(), "big".into())];
            Ok(vec![painter])
        },
        ..PAIR
    };
    let mut painter = recipe.start().unwrap();
    let colour = painter.folder().join("colour");
    assert_eq!(fs::read_to_string(&colour).unwrap(), "blue big\n");
    painter.kill().unwrap();
    fs::remove_file(&colour).unwrap();
    painter.restart().unwrap();
    assert_eq!(fs::read_to_string(&colour).unwrap(), "blue big\n");
}

#[test]
fn a_missing_program_is_named() {
    let recipe = Recipe {
        programs: &["sh", "no-such-server"],
        processes: |_| {
            let process = shell("server", "", || Ok(true));
            Ok(vec![Process { program: "no-such-server", ..process }])
        },
        ..PAIR
    };
    assert_eq!(recipe.first_missing(), Some("no-such-server"));
    assert_eq!(recipe.start().unwrap_err().to_string(), "no-such-server is not installed");
}

#[test]
fn a_server_outlives_the_thread_that_started_it() {
    let starter = thread::spawn(|| (PAIR.start().unwrap(), gettid()));
    let (mut pair, thread) = starter.join().unwrap();
    let trace = format!("/proc/self/task/{thread}");
    wait_until("the thread is gone", || !Path::new(&trace).exists());
    // A process that has a death signal waiting can no longer be frozen.
    pair.freeze().unwrap();
}

#[test]
fn a_detached_server_stays_until_it_is_stopped() {
    let scratch = tempdir().unwrap();
    let folder = scratch.path().join("one");
    let recipe = Recipe {
        processes: |sandbox| {
            let sign = sandbox.folder.join("up");
            // The mark holds the program's name, so the shell must not become another one; and it
            // ends some time, in case this test fails before it has stopped it.
            let script = "touch up; for second in $(seq 60); do sleep 1; done";
            Ok(vec![shell("one", script, move || Ok(sign.try_exists()?))])
        },
        ..PAIR
    };
    let started = recipe.start_detached(&folder).unwrap();
    let found = Detached::load(&folder).unwrap().expect("a state file");
    assert_eq!(found, started);
    assert!(found.is_up());
    found.stop(recipe.stop).unwrap();
    assert!(!found.is_up());
}

/// Set for the copy of this program that is killed, to the file where it reports.
const VICTIM: &str = "SERVERS_TEST_VICTIM";

#[test]
fn servers_die_with_a_program_that_is_killed() {
    if let Some(report) = env::var_os(VICTIM) {
        return be_the_victim(Path::new(&report));
    }
    let scratch = tempdir().unwrap();
    let report = scratch.path().join("pids");
    let mut victim = Command::new(env::current_exe().unwrap())
        .args(["--exact", "servers_die_with_a_program_that_is_killed"])
        .env(VICTIM, &report)
        .env("TMPDIR", scratch.path())
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    wait_until("the victim has started its servers", || report.exists());
    victim.kill().unwrap();
    victim.wait().unwrap();
    let pids = fs::read_to_string(&report).unwrap();
    for pid in pids.split(' ').map(|pid| pid.parse().unwrap()) {
        wait_until("its servers are gone", || is_gone(pid));
    }
}

fn be_the_victim(report: &Path) {
    let mut pair = PAIR.start().unwrap();
    let pids: Vec<String> = pair.pids().iter().map(u32::to_string).collect();
    let draft = report.with_extension("draft");
    fs::write(&draft, pids.join(" ")).unwrap();
    fs::rename(draft, report).unwrap();
    // Until the other side kills us or goes away.
    let _ = io::stdin().read(&mut [0]);
}
