//! Locks on etcd, beside bare transactions and beside the lock service of etcd's own server.

use crate::{
    args::Plan,
    flavour::Flavour,
    floor::etcd::Bare,
    machine::now,
    report::Report,
    rounds::Rounds,
    stats::{figure, median, millis, percentile},
    turns::tell_cold,
};
use anyhow::{Result, bail};
use lockkeeper::{Keeper, store::clock::Moment};
use servers::{ETCD, Running};
use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};
use tokio::task::JoinSet;

/// The share of the bare pair that the whole stack must reach.
const OF_BARE: f64 = 0.9;
/// A hand-off may take so many times that of the server's own lock.
const TIMES: f64 = 1.2;
/// What most programs run on.
const FLAVOUR: Flavour = Flavour::MultiThread;
/// How long a lock is held before it passes on.
const HOLD: Duration = Duration::from_millis(2);

fn start() -> Result<Running> {
    if let Some(missing) = servers::install_missing(&[ETCD]).pop() {
        bail!("{missing}");
    }
    ETCD.start()
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Bare,
    Ours,
}

/// Pairs of lock and release, uncontended.
pub(super) fn pairs(plan: &Plan) -> Result<Report> {
    let server = start()?;
    let kinds = [(Kind::Bare, "floor: put if absent, delete"), (Kind::Ours, "whole stack")];
    let rounds = Rounds::run(plan.rounds, &kinds, |(kind, _)| {
        FLAVOUR.run(speed(*kind, server.url().to_owned(), plan.round()))
    })?;
    let mut report = Report::new("etcd-pairs");
    for (i, (kind, what)) in kinds.iter().enumerate() {
        let share = rounds.ratio(i, 0, |speed| *speed);
        report.row(*what, &[("pairs_per_s", rounds.median(i, |s| *s)), ("of_bare", share)]);
        if *kind == Kind::Ours {
            report.at_least("share of the bare pair", OF_BARE, share);
        }
    }
    Ok(report)
}

async fn speed(kind: Kind, url: String, time: Duration) -> Result<f64> {
    let (bare, keeper) = (Bare::connect(&url).await?, Keeper::connect(&url).await?);
    keeper.lock("pairs").await?.release().await?;
    let (began, mut count) = (now(), 0);
    while now() < began + time {
        match kind {
            Kind::Bare => bare.pair(b"pairs").await?,
            Kind::Ours => keeper.lock("pairs").await?.release().await?,
        }
        count += 1;
    }
    let speed = figure(count) / now().saturating_since(began).as_secs_f64();
    keeper.close().await;
    Ok(speed)
}

/// From a release to the next grant.
pub(super) fn handoff(plan: &Plan) -> Result<Report> {
    let server = start()?;
    let crowds = [1, 10, 100].map(|n: usize| n.min(plan.scaled(100, 3)));
    let variants: Vec<(Kind, usize)> =
        crowds.iter().flat_map(|n| [(Kind::Bare, *n), (Kind::Ours, *n)]).collect();
    let rounds = Rounds::run(plan.rounds, &variants, |(kind, waiting)| {
        FLAVOUR.run(line(*kind, server.url().to_owned(), *waiting, plan.round()))
    })?;
    let mut report = Report::new("etcd-handoff");
    for (i, (kind, waiting)) in variants.iter().enumerate() {
        let all = rounds.of(i).concat();
        let word = if *kind == Kind::Bare { "etcd's own lock service" } else { "lockkeeper" };
        let (p50, p90) = (median(&all), percentile(&all, 90));
        report.row(format!("{word}, {waiting} waiting"), &[("p50_ms", p50), ("p90_ms", p90)]);
        if *kind == Kind::Ours {
            let what = format!("times etcd's own, p50, {waiting} waiting");
            report.below(what, TIMES, rounds.ratio(i, i - 1, |all| median(all)));
        }
    }
    report.note("every taker has a connection of its own, in one process");
    tell_cold(plan, server.url(), &mut report)?;
    Ok(report)
}

/// Where takers note when a lock was released, and how long it took to the next grant.
#[derive(Default)]
struct Notes {
    released: AtomicU64,
    took: Mutex<Vec<f64>>,
}

impl Notes {
    fn granted(&self) {
        let released = self.released.load(Ordering::Acquire);
        if released > 0 {
            let took = millis(now().as_nanos() - released);
            self.took.lock().expect("not poisoned").push(took);
        }
    }

    fn releasing(&self) {
        self.released.store(now().as_nanos(), Ordering::Release);
    }
}

async fn line(kind: Kind, url: String, waiting: usize, time: Duration) -> Result<Vec<f64>> {
    let (notes, mut tasks) = (Arc::new(Notes::default()), JoinSet::new());
    let mut takers = Vec::new();
    for _ in 0..=waiting {
        let bare = Bare::connect(&url).await?;
        takers.push((bare, Keeper::connect(&url).await?));
    }
    let end = now() + time;
    for (bare, keeper) in takers {
        let notes = Arc::clone(&notes);
        tasks.spawn(async move {
            match kind {
                Kind::Bare => theirs(&bare, &notes, end).await,
                Kind::Ours => ours(&keeper, &notes, end).await,
            }
        });
    }
    for done in tasks.join_all().await {
        done?;
    }
    let took = std::mem::take(&mut *notes.took.lock().expect("not poisoned"));
    Ok(took)
}

async fn theirs(bare: &Bare, notes: &Notes, end: Moment) -> Result<()> {
    while now() < end {
        let key = bare.lock("line").await?;
        notes.granted();
        tokio::time::sleep(HOLD).await;
        notes.releasing();
        bare.unlock(key).await?;
    }
    Ok(())
}

async fn ours(keeper: &Keeper, notes: &Notes, end: Moment) -> Result<()> {
    while now() < end {
        let guard = keeper.lock("line").await?;
        notes.granted();
        tokio::time::sleep(HOLD).await;
        notes.releasing();
        guard.release().await?;
    }
    keeper.close().await;
    Ok(())
}
