//! `ls`, `show`, `check`, `held`, `evict`, `cell` and `elect` on every store, with real servers.
//!
//! The tests of one store share its server, and each has a lock of its own.

mod support;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use servers::{ETCD, MARIADB, POSTGRES, REDIS, REDLOCK, Running as Server, ZOOKEEPER};
use std::{
    io::{BufRead as _, BufReader},
    process::{ExitCode, Output, Stdio},
    sync::Arc,
};
use support::{Place, Running, eventually, is_alive};
use testkit::{
    live,
    trials::{self, Shared, Trial},
};

/// What one store can do, and how it is named.
#[derive(Clone, Copy)]
struct Kind {
    /// What is added to the server's URL.
    options: &'static str,
    /// A holder soon hears of its eviction.
    ttl: &'static str,
    /// The store keeps lines: a waiter is shown, and gets the lock in its turn.
    fair: bool,
    /// The store has cells.
    cells: bool,
}

const LINES: Kind = Kind { options: "", ttl: "2s", fair: true, cells: true };

/// A server that has just started has no vote for `max_ttl`.
const MAJORITY: Kind =
    Kind { options: "?max_ttl=3s&ttl=1s&lock_delay=1s", ttl: "1s", fair: false, cells: false };

type Test = fn(&Site) -> Result<()>;

const TESTS: [(&str, Test); 6] = [
    ("ls_and_show_name_the_holder_and_the_waiters", ls_and_show_name_the_holder_and_the_waiters),
    ("held_follows_grant_and_release", held_follows_grant_and_release),
    (
        "check_tells_a_held_grant_from_one_that_is_over",
        check_tells_a_held_grant_from_one_that_is_over,
    ),
    ("evict_takes_the_lock_from_its_holder", evict_takes_the_lock_from_its_holder),
    ("a_cell_is_written_under_the_grant_alone", a_cell_is_written_under_the_grant_alone),
    ("a_candidate_leads_and_stands_again", a_candidate_leads_and_stands_again),
];

fn main() -> ExitCode {
    let lines = [POSTGRES, MARIADB, REDIS, ETCD, ZOOKEEPER].map(|recipe| (recipe, LINES));
    let stores = lines.into_iter().chain([(REDLOCK, MAJORITY)]);
    let of_servers = stores.map(|(recipe, kind)| -> Vec<Trial> {
        let one = |(name, test): (&str, Test)| {
            let body = move |server: Arc<live::Server>| {
                let url = format!("{}{}", server.running()?.url(), kind.options);
                test(&Site::at(url, kind, Place::new())?)
            };
            trials::trial(Shared(recipe), format!("{name}::{}", recipe.name), body)
        };
        TESTS.map(one).into()
    });
    let on_files = TESTS.map(|(name, test)| {
        trials::trial((), format!("{name}::sqlite"), move |()| {
            let place = Place::new();
            test(&Site::at(place.url(), LINES, place)?)
        })
    });
    let on_service = TESTS.map(|(name, test)| {
        trials::trial((), format!("{name}::service"), move |()| {
            let place = Place::new();
            let mut service = place.start(&["serve", "--json", "--listen", "127.0.0.1:0"]);
            let said: Value = serde_json::from_str(&service.line())?;
            let at = said["listen"][0].as_str().context("an address")?;
            test(&Site::at(format!("lockkeeper+http://{at}"), LINES, place)?)
        })
    });
    let outage = "an_observer_goes_on_through_an_outage";
    let alone = vec![trials::trial(REDIS, outage, an_observer_goes_on_through_an_outage)];
    trials::main(of_servers.chain([on_files.into(), on_service.into(), alone]))
}

/// A store, and a folder for what the command needs.
struct Site {
    url: String,
    kind: Kind,
    place: Place,
}

/// A holder, and what it has said.
struct Held {
    running: Running,
    fence: u64,
    sequencer: String,
}

impl Site {
    /// A store that grants locks already.
    fn at(url: String, kind: Kind, place: Place) -> Result<Self> {
        let site = Self { url, kind, place };
        site.output(&["run", "--kill-after", "0.5", "first", "--", "true"], 0)?;
        Ok(site)
    }

    fn start(&self, arguments: &[&str]) -> Running {
        Running::start(self.place.lockkeeper(arguments).env("LOCKKEEPER_STORE", &self.url))
    }

    fn output(&self, arguments: &[&str], code: i32) -> Result<Output> {
        let mut command = self.place.lockkeeper(arguments);
        let output = command.env("LOCKKEEPER_STORE", &self.url).output()?;
        ensure!(output.status.code() == Some(code), "{arguments:?}, not {code}: {output:?}");
        Ok(output)
    }

    fn json(&self, arguments: &[&str], code: i32) -> Result<Value> {
        let output = self.output(&[&["--json"], arguments].concat(), code)?;
        Ok(serde_json::from_slice(&output.stdout)?)
    }

    /// The lock as `show` has it; null if it is free.
    fn show(&self, name: &str) -> Result<Value> {
        Ok(self.json(&["show", name], 0)?["locks"].get(0).cloned().unwrap_or(Value::Null))
    }

    /// Takes the lock, and holds it until stdin ends.
    fn hold(&self, name: &str) -> Result<Held> {
        let script = "echo $LOCKKEEPER_FENCE; echo $LOCKKEEPER_SEQUENCER; read _ || :";
        let mut running = self.start(&[
            "run",
            "--ttl",
            self.kind.ttl,
            "--kill-after",
            "0.5",
            name,
            "--",
            "sh",
            "-c",
            script,
        ]);
        let fence = running.line().parse().context("a fence")?;
        let sequencer = running.line();
        Ok(Held { running, fence, sequencer })
    }

    fn await_waiters(&self, name: &str, waiters: usize) {
        eventually(|| {
            let shown = self.show(name).expect("an answer");
            shown["waiters"].as_array().map_or(0, Vec::len) == waiters
        });
    }
}

fn ls_and_show_name_the_holder_and_the_waiters(site: &Site) -> Result<()> {
    let mut held = site.hold("shown/a")?;
    let mut waiter = site.start(&["run", "--kill-after", "0.5", "shown/a", "--", "true"]);
    if site.kind.fair {
        site.await_waiters("shown/a", 1);
    }
    let listed = site.json(&["ls", "shown/"], 0)?;
    let shown = site.show("shown/a")?;
    for lock in [&listed["locks"][0], &shown] {
        let holder = &lock["holders"][0];
        ensure!(lock["name"] == "shown/a", "{lock}");
        ensure!(holder["owner"]["pid"] == held.running.pid().as_raw(), "{lock}");
        ensure!(holder["fence"] == held.fence && holder["mode"] == "exclusive", "{lock}");
        let waiters = lock["waiters"].as_array().map_or(0, Vec::len);
        ensure!(waiters == usize::from(site.kind.fair), "{lock}");
    }
    let table = String::from_utf8(site.output(&["ls", "shown/"], 0)?.stdout)?;
    ensure!(table.lines().count() == 2 && table.contains(&held.fence.to_string()), "{table}");
    ensure!(held.running.end().success() && waiter.wait().success());
    ensure!(site.show("shown/a")? == Value::Null);
    Ok(())
}

fn held_follows_grant_and_release(site: &Site) -> Result<()> {
    let answer = |code| site.output(&["held", "held"], code);
    answer(1)?;
    let mut held = site.hold("held")?;
    let said = String::from_utf8(answer(0)?.stdout)?;
    ensure!(said.contains(&format!("(pid {})", held.running.pid())), "{said}");
    ensure!(held.running.end().success());
    let said = String::from_utf8(answer(1)?.stdout)?;
    ensure!(said == "`held` is free\n", "{said}");
    Ok(())
}

fn check_tells_a_held_grant_from_one_that_is_over(site: &Site) -> Result<()> {
    let check = |held: &Held, code| site.json(&["check", &held.sequencer], code);
    let mut first = site.hold("checked")?;
    let view = check(&first, 0)?;
    ensure!(view["held"] == true && view["fence"] == first.fence, "{view}");
    ensure!(first.running.end().success());
    let view = check(&first, 1)?;
    ensure!(view["why"] == "lost", "{view}");
    let mut second = site.hold("checked")?;
    let view = check(&first, 1)?;
    ensure!(view["why"] == "newer_fence" && view["current_fence"] == second.fence, "{view}");
    check(&second, 0)?;
    ensure!(second.running.end().success());
    Ok(())
}

fn evict_takes_the_lock_from_its_holder(site: &Site) -> Result<()> {
    let evict = |code| site.json(&["evict", "--yes", "evicted"], code);
    let mut held = site.hold("evicted")?;
    let mut waiter = site.start(&["run", "--kill-after", "0.5", "evicted", "--", "true"]);
    if site.kind.fair {
        site.await_waiters("evicted", 1);
    }
    let view = evict(0)?;
    let evicted = &view["evicted"][0];
    ensure!(evicted["owner"]["pid"] == held.running.pid().as_raw(), "{view}");
    ensure!(evicted["fence"] == held.fence, "{view}");
    ensure!(held.running.code() == 79);
    site.output(&["check", &held.sequencer], 1)?;
    ensure!(waiter.wait().success(), "{}", waiter.stderr());
    evict(1)?;
    Ok(())
}

fn a_cell_is_written_under_the_grant_alone(site: &Site) -> Result<()> {
    let mut first = site.hold("cell")?;
    let put = |held: &Held, value: &str, code| {
        site.output(&["cell", "put", "--sequencer", &held.sequencer, "cell", value], code)
    };
    if !site.kind.cells {
        for refused in [put(&first, "x", 80)?, site.output(&["cell", "get", "cell"], 80)?] {
            let said = String::from_utf8(refused.stderr)?;
            ensure!(said.contains("does not support cells"), "{said}");
        }
        ensure!(first.running.end().success());
        return Ok(());
    }
    let get = || site.json(&["cell", "get", "cell"], 0);
    site.output(&["cell", "get", "cell"], 1)?;
    put(&first, "one", 0)?;
    put(&first, "two", 0)?;
    let view = get()?;
    ensure!(view["value"] == "two" && view["fence"] == first.fence, "{view}");
    ensure!(first.running.end().success());
    put(&first, "late", 79)?;
    let mut second = site.hold("cell")?;
    let refused = String::from_utf8(put(&first, "later", 79)?.stderr)?;
    ensure!(refused.contains(&format!(" under fence {}", second.fence)), "{refused}");
    ensure!(get()?["value"] == "two");
    put(&second, "three", 0)?;
    let view = get()?;
    ensure!(view["value"] == "three" && view["fence"] == second.fence, "{view}");
    ensure!(second.running.end().success());
    let bytes = b"\0\xff\n'\\".as_slice();
    let lockkeeper = env!("CARGO_BIN_EXE_lockkeeper");
    let mut put = site.place.lockkeeper(&["run", "cell", "--", lockkeeper, "cell", "put", "cell"]);
    put.env("LOCKKEEPER_STORE", &site.url).stdin(Stdio::piped());
    let mut put = Running::start(&mut put);
    std::io::Write::write_all(put.stdin.as_mut().context("open")?, bytes)?;
    ensure!(put.end().success(), "{}", put.stderr());
    ensure!(site.output(&["cell", "get", "cell"], 0)?.stdout == bytes);
    Ok(())
}

fn a_candidate_leads_and_stands_again(site: &Site) -> Result<()> {
    let candidate = || {
        let script = "echo $$; echo $LOCKKEEPER_FENCE; read _ || :";
        site.start(&[
            "elect",
            "--ttl",
            site.kind.ttl,
            "--kill-after",
            "0.5",
            "leader",
            "--",
            "sh",
            "-c",
            script,
        ])
    };
    let leader = |code| site.json(&["elect", "--print", "leader"], code);
    leader(1)?;
    let mut observer = site.start(&["elect", "--observe", "--json", "leader"]);
    let mut one = candidate();
    let (command, first): (_, u64) = (one.pid_line(), one.line().parse()?);
    ensure!(leader(0)?["leader"]["owner"]["pid"] == one.pid().as_raw());
    let mut fences = vec![first];
    let mut two = None;
    if site.kind.fair {
        two = Some(candidate());
        site.await_waiters("leader", 1);
    }
    site.output(&["evict", "--yes", "leader"], 0)?;
    if let Some(two) = &mut two {
        two.pid_line();
        fences.push(two.line().parse()?);
        site.await_waiters("leader", 1);
        ensure!(two.end().success());
    }
    one.pid_line();
    fences.push(one.line().parse()?);
    ensure!(!is_alive(command) && fences.is_sorted_by(|a, b| a < b), "{fences:?}");
    // The observer may miss a term that is short, and sees how it ends.
    let (mut seen, last) = (Vec::new(), fences.last().copied());
    while seen.last() != last.as_ref() {
        let view: Value = serde_json::from_str(&observer.line())?;
        seen.extend(view["leader"]["fence"].as_u64());
    }
    ensure!(seen.iter().all(|fence| fences.contains(fence)), "{seen:?} of {fences:?}");
    ensure!(one.end().success(), "{}", one.stderr());
    leader(1)?;
    let view: Value = serde_json::from_str(&observer.line())?;
    ensure!(view["leader"] == Value::Null, "{view}");
    Ok(())
}

fn an_observer_goes_on_through_an_outage(mut server: Server) -> Result<()> {
    let site = Site::at(server.url().to_owned(), LINES, Place::new())?;
    let mut observer = site.start(&["elect", "--observe", "a"]);
    let mut said = BufReader::new(observer.take_stderr()).lines().map_while(Result::ok);
    ensure!(observer.line().ends_with(" no process leads `a`"));
    server.kill()?;
    let line = said.next().context("a word about the outage")?;
    ensure!(line == "lockkeeper: the store does not answer; still watching", "{line}");
    server.restart()?;
    let mut held = site.hold("a")?;
    let line = observer.line();
    ensure!(line.ends_with(&format!(" leads `a` under fence {}", held.fence)), "{line}");
    let line = said.next().context("a word about the end of the outage")?;
    ensure!(line == "lockkeeper: the store answers again", "{line}");
    ensure!(held.running.end().success());
    Ok(())
}
