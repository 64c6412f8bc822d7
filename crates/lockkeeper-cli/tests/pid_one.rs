//! lockkeeper as the first process of a PID namespace, as in a container.

mod support;

use anyhow::{Context as _, Result, ensure};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use servers::Unavailable;
use std::{
    fs,
    process::{Command, ExitCode},
};
use support::{Place, Running, eventually, evict_holder};
use testkit::trials::{self, Fixture};

/// The right to make PID namespaces.
#[derive(Clone, Copy)]
struct Namespaces;

impl Fixture for Namespaces {
    type Ready = ();

    fn variant(&self) -> &'static str {
        "unshare"
    }

    fn missing(&self) -> Option<Unavailable> {
        let made = Command::new("unshare").args(["--pid", "--fork", "true"]).output();
        let reason = match made {
            Ok(made) if made.status.success() => return None,
            Ok(made) => String::from_utf8_lossy(&made.stderr).trim().to_owned(),
            Err(e) => e.to_string(),
        };
        Some(Unavailable { store: "unshare", reason })
    }

    fn start(&self) -> Result<()> {
        Ok(())
    }
}

macro_rules! tests {
    ($($test:ident),* $(,)?) => {
        vec![$(trials::trial(Namespaces, stringify!($test), |()| $test(&Place::new()))),*]
    };
}

fn main() -> ExitCode {
    trials::main([tests![
        the_code_of_the_command_is_that_of_the_first_process,
        orphans_are_reaped_while_the_command_runs,
        orphans_are_reaped_while_the_lock_is_waited_for,
        orphans_are_reaped_after_a_lost_leadership,
        a_signal_to_the_first_process_ends_the_command_and_what_it_has_started,
        a_signal_to_the_first_process_ends_the_wait,
        without_a_proc_of_its_own_a_signal_ends_all_of_the_group,
    ]])
}

/// Starts lockkeeper as PID 1 of a namespace, with or without a `/proc` of its own.
fn start(place: &Place, own_proc: bool, arguments: &[&str]) -> Running {
    let inside = place.lockkeeper(arguments);
    let mut unshare = Command::new("unshare");
    unshare.args(["--pid", "--fork", "--kill-child"]);
    if own_proc {
        unshare.arg("--mount-proc");
    }
    unshare.arg(inside.get_program()).args(inside.get_args());
    unshare.env("LOCKKEEPER_STORE", place.url()).current_dir(place.path(""));
    Running::start(&mut unshare)
}

/// The first process of the namespace, as it is seen from outside.
fn first(unshare: &Running) -> Result<Pid> {
    let pid = unshare.pid();
    let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"))?;
    Ok(Pid::from_raw(children.split_whitespace().next().context("a child")?.parse()?))
}

fn the_code_of_the_command_is_that_of_the_first_process(place: &Place) -> Result<()> {
    for (script, code) in [
        ("[ $PPID = 1 ] && exit 7", 7),
        ("exit 0", 0),
        ("kill -TERM $$", 128 + 15),
        ("kill -INT $$", 128 + 2),
        ("kill -KILL $$", 128 + 9),
    ] {
        let mut run = start(place, true, &["run", "a", "-c", script]);
        let ended = run.code();
        ensure!(ended == code, "{script}: {ended}, {}", run.stderr());
    }
    ensure!(start(place, true, &["run", "a", "--", "no-such-command"]).code() == 127);
    Ok(())
}

/// Leaves processes behind whose parent has ended, and waits until nothing is left of them.
const ORPHANS: &str = "
    for i in 1 2 3; do
        orphan=$(sleep 0.1 >/dev/null & echo $!)
        orphans=\"$orphans $orphan\"
    done
    for orphan in $orphans; do
        grep -q '^PPid:.1$' /proc/$orphan/status && seen=1
        while [ -e /proc/$orphan ]; do sleep 0.05; done
    done
    echo reaped $seen";

fn orphans_are_reaped_while_the_command_runs(place: &Place) -> Result<()> {
    let mut run = start(place, true, &["run", "a", "-c", &format!("{ORPHANS}; exit 7")]);
    let line = run.line();
    ensure!(line == "reaped 1", "{line}");
    ensure!(run.code() == 7);
    Ok(())
}

fn orphans_are_reaped_while_the_lock_is_waited_for(place: &Place) -> Result<()> {
    let (mut holder, _) = place.hold(&[], "a");
    // The shell becomes lockkeeper, and the process that it has started becomes its child.
    let script = "sleep 0.1 >/dev/null 2>&1 & echo $!; exec \"$0\" run a -- echo ran";
    let mut unshare = Command::new("unshare");
    unshare.args(["--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-c", script]);
    unshare.arg(env!("CARGO_BIN_EXE_lockkeeper")).env("LOCKKEEPER_STORE", place.url());
    let mut run = Running::start(&mut unshare);
    run.pid_line();
    place.await_waiters("a", 1);
    let lockkeeper = first(&run)?;
    let children = format!("/proc/{lockkeeper}/task/{lockkeeper}/children");
    eventually(|| fs::read_to_string(&children).is_ok_and(|text| text.trim().is_empty()));
    holder.end();
    ensure!(run.line() == "ran" && run.code() == 0);
    Ok(())
}

fn orphans_are_reaped_after_a_lost_leadership(place: &Place) -> Result<()> {
    // The second round is the last: it ends by itself.
    let script =
        format!("[ -e again ] || {{ touch again; echo leads; read _; }}; {ORPHANS}; exit 7");
    let flags = ["elect", "--ttl", "1s", "--kill-after", "0.5", "a", "--", "sh", "-c", &script];
    let mut elect = start(place, true, &flags);
    ensure!(elect.line() == "leads", "{}", elect.stderr());
    evict_holder(place, "a");
    let line = elect.line();
    ensure!(line == "reaped 1", "{line}");
    ensure!(elect.code() == 7);
    Ok(())
}

fn a_signal_to_the_first_process_ends_the_wait(place: &Place) -> Result<()> {
    let (mut holder, _) = place.hold(&[], "a");
    for (signal, code) in [(Signal::SIGTERM, 143), (Signal::SIGINT, 130)] {
        let mut run = start(place, true, &["run", "a", "--", "echo", "ran"]);
        place.await_waiters("a", 1);
        kill(first(&run)?, signal)?;
        let ended = run.code();
        ensure!(ended == code && place.count("a", "waiters") == 0, "{signal}: {ended}");
    }
    ensure!(holder.end().success());
    Ok(())
}

fn a_signal_to_the_first_process_ends_the_command_and_what_it_has_started(
    place: &Place,
) -> Result<()> {
    ends_all_of_the_group(place, true)
}

fn without_a_proc_of_its_own_a_signal_ends_all_of_the_group(place: &Place) -> Result<()> {
    ends_all_of_the_group(place, false)
}

fn ends_all_of_the_group(place: &Place, own_proc: bool) -> Result<()> {
    let script = "(trap '' TERM; while :; do echo beat >>beats; sleep 0.02; done) &
                  until [ -s beats ]; do sleep 0.01; done; echo in; wait";
    let flags = ["run", "--kill-after", "0.5", "a", "-c", script];
    let mut run = start(place, own_proc, &flags);
    ensure!(run.line() == "in");
    kill(first(&run)?, Signal::SIGTERM)?;
    // Another holder comes only when nothing of the first command is left.
    let beats = "wc -l <beats; sleep 0.2; wc -l <beats";
    let text = place.stdout(&["run", "a", "-c", beats]);
    let (first, second) = text.split_once('\n').context("two lines")?;
    ensure!(first == second.trim_end(), "it goes on: {text}");
    ensure!(run.code() == 143);
    Ok(())
}
