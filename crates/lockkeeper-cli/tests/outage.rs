//! Servers that are away or silent: how long `run` takes for them, and what it says.

mod support;

use anyhow::{Result, ensure};
use serde_json::Value;
use servers::{ETCD, MARIADB, POSTGRES, REDIS, REDLOCK, Running as Server, ZOOKEEPER};
use std::{
    process::{Command, ExitCode},
    time::{Duration, Instant},
};
use support::{
    Place, Running,
    proxied::{Proxied, Words, start},
};
use testkit::trials;

macro_rules! tests {
    ($test:ident: $($recipe:ident $options:literal),* $(,)?) => {
        vec![$(trials::trial($recipe, concat!(stringify!($test), "::", stringify!($recipe)),
            |server: Server| $test(&mut Proxied::of(server, $options)?))),*]
    };
}

fn main() -> ExitCode {
    trials::main([
        // A server that has just started has no vote for `max_ttl`.
        vec![trials::trial((), "the_wait_bounds_a_file_that_is_locked", |()| {
            the_wait_bounds_a_file_that_is_locked(&Place::new())
        })],
        tests![the_wait_bounds_all_that_a_store_can_do:
            POSTGRES "", MARIADB "", REDIS "", REDLOCK "?max_ttl=6s", ETCD "", ZOOKEEPER ""],
        tests![a_ticket_is_renewed_and_released_within_the_wait_or_not: REDIS "", ETCD ""],
        tests![jeopardy_is_told_once_and_its_end_once: POSTGRES "", REDIS "", ETCD ""],
        tests![a_loss_comes_after_a_warning: REDIS "", POSTGRES ""],
        tests![a_waiter_tells_programs_of_an_outage: REDIS "", ZOOKEEPER ""],
        tests![a_waiter_on_a_terminal_counts_the_outage_and_no_age: REDIS "", ETCD ""],
    ])
}

/// How much longer than `-w` says the command may take, on a machine that is busy. A store's own time for a
/// request is longer.
const SLACK: Duration = Duration::from_secs(4);

/// Terms that every store grants, Redlock with its short `max_ttl` too.
const QUICK: [&str; 4] = ["--ttl", "3s", "--kill-after", "0.5"];

fn hold(site: &Proxied, url: &str, flags: &[&str]) -> Result<(Running, Words)> {
    let tail = ["a", "-c", "echo in; read _ || :"];
    let arguments = [&["run"], flags, &tail].concat();
    let (mut holder, words) = start(&mut site.lockkeeper(url, &arguments));
    let line = holder.line();
    ensure!(line == "in", "no holder: {line:?}, {:?}", words.rest());
    Ok((holder, words))
}

fn the_wait_bounds_all_that_a_store_can_do(site: &mut Proxied) -> Result<()> {
    site.silence();
    bounded(site, &site.through(), "a server that is silent from the start")?;
    site.open();

    let (mut holder, _words) = hold(site, &site.direct(), &QUICK)?;
    let (wait, began) = (Duration::from_secs(5), Instant::now());
    let arguments = [&["run", "-w", "5"], &QUICK[..], &["a", "--", "echo", "ran"]].concat();
    let (mut waiter, said) = start(&mut site.lockkeeper(&site.through(), &arguments));
    said.find("waiting for `a`");
    site.silence();
    let code = waiter.code();
    let took = began.elapsed();
    let said = said.rest();
    eprintln!("a server that falls silent: -w 5 took {took:.1?}: {said:?}");
    ensure!(code == 69, "{code}: {said:?}");
    ensure!(took >= wait && took < wait + SLACK, "{took:?}: {said:?}");
    let told = said.iter().filter(|line| line.contains("the store has not answered for "));
    ensure!(told.count() <= 1, "{said:?}");
    site.open();
    ensure!(holder.end().success());

    let (mut holder, said) = hold(site, &site.direct(), &QUICK)?;
    site.server.kill()?;
    bounded(site, &site.direct(), "a server that is away")?;
    let code = holder.code();
    ensure!(code == 79, "the holder ended with {code}: {:?}", said.rest());
    Ok(())
}

/// Nothing answers: the command ends in time.
fn bounded(site: &Proxied, url: &str, what: &str) -> Result<()> {
    let command = |arguments: &[&str]| site.lockkeeper(url, arguments);
    ends_in_time(command, &["-w", "1"], Duration::from_secs(1), what)?;
    ends_in_time(command, &["-n"], ONCE, what)?;
    for (flags, most) in [(&["-w", "1"][..], Duration::from_secs(1)), (&["-n"], ONCE)] {
        let arguments = [&["acquire", "a", "--file", "t.ticket"], flags].concat();
        ends_with_no_store(command(&arguments), &arguments, most, what)?;
    }
    Ok(())
}

/// What the one attempt of `-n` is given.
const ONCE: Duration = Duration::from_secs(5);

fn ends_in_time(
    command: impl Fn(&[&str]) -> Command,
    flags: &[&str],
    most: Duration,
    what: &str,
) -> Result<()> {
    let arguments = [&["run"], &QUICK[..], flags, &["a", "--", "echo", "ran"]].concat();
    ends_with_no_store(command(&arguments), flags, most, what)
}

fn ends_with_no_store(
    mut command: Command,
    flags: &[&str],
    most: Duration,
    what: &str,
) -> Result<()> {
    let began = Instant::now();
    let output = command.output()?;
    let (took, said) = (began.elapsed(), String::from_utf8_lossy(&output.stderr));
    eprintln!("{what}: {flags:?} took {took:.1?}: {}", said.lines().next().unwrap_or_default());
    ensure!(output.status.code() == Some(69) && output.stdout.is_empty(), "{output:?}");
    ensure!(took < most + SLACK, "{took:?}: {said}");
    let hints = ["hint: is the store running", "hint: the ticket file was kept"];
    ensure!(hints.iter().any(|hint| said.contains(hint)), "{said}");
    Ok(())
}

fn a_ticket_is_renewed_and_released_within_the_wait_or_not(site: &mut Proxied) -> Result<()> {
    let run = |arguments: &[&str]| site.lockkeeper(&site.through(), arguments);
    let acquired = run(&["acquire", "a", "--file", "t.ticket", "--ttl", "60s"]).output()?;
    ensure!(acquired.status.success(), "{acquired:?}");
    site.silence();
    for verb in ["renew", "release"] {
        let arguments = [verb, "-w", "1", "t.ticket"];
        ends_with_no_store(run(&arguments), &arguments, Duration::from_secs(1), "silent")?;
    }
    site.open();
    // The release that reached no store has released nothing and hides nothing.
    for verb in ["renew", "release"] {
        let output = run(&[verb, "t.ticket"]).output()?;
        ensure!(output.status.success(), "{output:?}");
    }
    Ok(())
}

fn the_wait_bounds_a_file_that_is_locked(place: &Place) -> Result<()> {
    let (mut holder, _) = place.hold(&["--ttl", "1h"], "b");
    let locked = place.lock_file();
    for (flags, most) in [
        (&["-w", "1"][..], Duration::from_secs(1)),
        (&["-w", "4"], Duration::from_secs(4)),
        (&["-n"], ONCE),
    ] {
        ends_in_time(|arguments| place.lockkeeper(arguments), flags, most, "a locked file")?;
    }
    drop(locked);
    ensure!(holder.end().success());
    Ok(())
}

/// With it a renewal is overdue after four seconds, and the lock is lost after nearly nine.
const TTL: [&str; 2] = ["--ttl", "9s"];

fn jeopardy_is_told_once_and_its_end_once(site: &mut Proxied) -> Result<()> {
    let (mut holder, words) = hold(site, &site.through(), &TTL)?;
    site.silence();
    let line = words.find("lockkeeper: `a` not renewed for ");
    ensure!(line.ends_with(" s; stops at 8 s"), "{line}");
    site.open();
    words.find("lockkeeper: `a` renewed again after ");
    ensure!(holder.end().success());
    let mut rest = words.rest();
    // What the server's set-up can hurt is told once a day, whenever the server has answered.
    rest.retain(|line| !line.contains("(said once a day"));
    ensure!(rest.is_empty(), "{rest:?}");
    Ok(())
}

fn events(words: &Words) -> Vec<Value> {
    let parse = |line: &String| serde_json::from_str(line);
    words.rest().iter().map(parse).collect::<Result<_, _>>().expect("lines of JSON")
}

fn names(events: &[Value]) -> Vec<&str> {
    events.iter().map(|event| event["event"].as_str().unwrap_or_default()).collect()
}

fn a_loss_comes_after_a_warning(site: &mut Proxied) -> Result<()> {
    let flags = [&TTL[..], &["--json", "--kill-after", "1s"]].concat();
    let (mut holder, words) = hold(site, &site.through(), &flags)?;
    site.silence();
    ensure!(holder.code() == 79);
    let mut events = events(&words);
    // A busy machine may take its time to connect.
    events.retain(|event| event["event"] != "warning");
    ensure!(names(&events) == ["granted", "jeopardy", "lost"], "{events:?}");
    let time = |what| events[1][what].as_u64().unwrap_or_default();
    let (not_renewed, left) = (time("not_renewed_ms"), time("lost_in_ms"));
    ensure!(not_renewed > 4_000 && left > 0 && not_renewed + left < 9_000, "{events:?}");
    Ok(())
}

fn a_waiter_tells_programs_of_an_outage(site: &mut Proxied) -> Result<()> {
    let (mut holder, _words) = hold(site, &site.direct(), &[])?;
    let arguments = ["run", "--json", "a", "--", "true"];
    let (mut waiter, words) = start(&mut site.lockkeeper(&site.through(), &arguments));
    words.find("\"waiting\"");
    site.silence();
    let outage: Value = serde_json::from_str(&words.line())?;
    ensure!(outage["event"] == "outage" && outage["outage_ms"].as_u64() >= Some(2_000), "{outage}");
    site.open();
    let over: Value = serde_json::from_str(&words.line())?;
    ensure!(over["event"] == "outage_over", "{over}");
    ensure!(over["outage_ms"].as_u64() >= outage["outage_ms"].as_u64(), "{over} after {outage}");
    ensure!(holder.end().success() && waiter.code() == 0);
    let events = events(&words);
    ensure!(names(&events).ends_with(&["granted", "released"]), "{events:?}");
    Ok(())
}

fn a_waiter_on_a_terminal_counts_the_outage_and_no_age(site: &mut Proxied) -> Result<()> {
    let (mut holder, _words) = hold(site, &site.direct(), &[])?;
    let mut script = Command::new("script");
    script.args(["-qfec", "$LK run a -- echo done", "/dev/null"]).env("TERM", "xterm");
    script.env("LK", env!("CARGO_BIN_EXE_lockkeeper")).env("LOCKKEEPER_STORE", site.through());
    let mut terminal = Running::start(script.env_remove("NO_COLOR"));
    terminal.up_to("waiting for `a` · 1st in line · held by ");
    site.silence();
    let seen = terminal.up_to("· the store has not answered for ");
    ensure!(seen.ends_with("1st in line · the store has not answered for "), "{seen:?}");
    for _ in 0..2 {
        let seen = terminal.up_to("· the store has not answered for ");
        ensure!(!seen.contains("held by"), "an age that is not known: {seen:?}");
    }
    site.open();
    let seen = terminal.up_to("· held by ");
    ensure!(seen.ends_with("waiting for `a` · 1st in line · held by "), "{seen:?}");
    ensure!(holder.end().success());
    let seen = terminal.up_to("done");
    ensure!(seen.ends_with("\r\u{1b}[2Kdone"), "{seen:?}");
    ensure!(terminal.wait().success());
    Ok(())
}
