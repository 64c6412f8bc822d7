//! Locks on ZooKeeper, beside bare requests and beside the lock of kazoo.

use super::handoff::{AWAY, Locks, PROCESSES, figures, line, spread, turns};
use crate::{
    args::Plan,
    child::Child,
    flavour::Flavour,
    floor::zookeeper::Bare,
    pair::{Speed, speed, stack_speed},
    report::Report,
    rounds::Rounds,
    server::Server,
    stats::median,
};
use anyhow::{Context as _, Result, bail};
use servers::{KAZOO, ZOOKEEPER};
use std::{path::Path, process::Command, time::Duration};

/// The share of the bare pair that the whole stack must reach.
const OF_BARE: f64 = 0.9;
/// Rounds that do not count.
const WARM_UP: u32 = 2;
/// What most programs run on.
const FLAVOUR: Flavour = Flavour::MultiThread;
/// How long each taker holds the lock: the one before it is back in line by then, also with kazoo.
const HOLD: Duration = Duration::from_millis(10);

#[derive(Clone, Copy, PartialEq, Eq)]
enum Pairs {
    Bare,
    /// What a lock has to know besides is who else is there.
    WithList,
    Ours,
}

/// Pairs of lock and release, uncontended.
pub(super) fn pairs(plan: &Plan) -> Result<Report> {
    let server = Server::start(ZOOKEEPER, plan)?;
    let kinds = [
        (Pairs::Bare, "floor: create, delete"),
        (Pairs::WithList, "floor: create and list, delete"),
        (Pairs::Ours, "whole stack"),
    ];
    let measure = |(kind, _): &(Pairs, &str)| {
        let (url, time) = (server.url().to_owned(), plan.round());
        match kind {
            Pairs::Bare => FLAVOUR.run(bare_speed(url, false, time)),
            Pairs::WithList => FLAVOUR.run(bare_speed(url, true, time)),
            Pairs::Ours => FLAVOUR.run(stack_speed(url, time)),
        }
    };
    // A server in Java gets faster in its first seconds, and the side measured later would profit.
    Rounds::run(WARM_UP, &kinds, measure)?;
    let rounds = Rounds::run(plan.rounds, &kinds, measure)?;
    let mut report = Report::new("zookeeper-pairs");
    for (i, (kind, what)) in kinds.iter().enumerate() {
        let share = rounds.ratio(i, 0, |speed| speed.pairs_per_s);
        let row = [
            ("pairs_per_s", rounds.median(i, |speed| speed.pairs_per_s)),
            ("of_bare", share),
            ("cpu_us", rounds.median(i, |speed| speed.cpu_us)),
        ];
        report.row(*what, &row);
        if *kind == Pairs::Ours {
            report.at_least("share of the bare pair", OF_BARE, share);
        }
    }
    Ok(report)
}

async fn bare_speed(url: String, lists: bool, time: Duration) -> Result<Speed> {
    speed(vec![Bare::connect(&url, lists).await?], time, None).await
}

/// From a release to the next grant.
pub(super) fn handoff(plan: &Plan) -> Result<Report> {
    if let Some(missing) = servers::install_peers(&[KAZOO]).pop() {
        bail!("{missing}");
    }
    let server = Server::start(ZOOKEEPER, plan)?;
    let crowds = [1, 10, 100].map(|n: usize| n.min(plan.scaled(100, 3)));
    let variants: Vec<(bool, usize)> =
        crowds.iter().flat_map(|n| [(false, *n), (true, *n)]).collect();
    let rounds = Rounds::run(plan.rounds, &variants, |(ours, waiting)| {
        let (url, takers, time) = (server.url(), spread(waiting + 1), plan.round());
        if *ours {
            line(&Locks::Server(url.to_owned()), &takers, FLAVOUR, HOLD, time)
        } else {
            turns(Child::start_programs(kazoos(url, &takers)?)?, time)
        }
    })?;
    let mut report = Report::new("zookeeper-handoff");
    for (i, (ours, waiting)) in variants.iter().enumerate() {
        let word = if *ours { "lockkeeper" } else { "kazoo" };
        report.row(format!("{word}, {waiting} waiting"), &figures(&rounds.of(i).concat()));
        if *ours {
            let what = format!("times kazoo's, p50, {waiting} waiting");
            report.below(what, 1.0, rounds.ratio(i, i - 1, |all| median(all)));
        }
    }
    report.note(format!(
        "every taker has a connection of its own, in at most {PROCESSES} processes, ours {}",
        FLAVOUR.word()
    ));
    Ok(report)
}

/// For each process, how many takers it has.
fn kazoos(url: &str, takers: &[usize]) -> Result<Vec<Command>> {
    let python = KAZOO.python().context("it was installed a moment ago")?;
    let hosts = url.strip_prefix("zookeeper://").context("a URL of ZooKeeper")?;
    let program = Path::new(env!("CARGO_MANIFEST_DIR")).join("peers/kazoo_line.py");
    let command = |takers: &usize| {
        let mut command = Command::new(&python);
        command.arg(&program).args([hosts, "/kazoo", &takers.to_string()]);
        command.args([HOLD, AWAY].map(|time| time.as_millis().to_string()));
        command
    };
    Ok(takers.iter().map(command).collect())
}
