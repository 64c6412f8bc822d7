//! Hand-overs among keepers of one process: down a long line, and to and fro between two.

use super::Run;
use crate::{
    flavour::Flavour,
    floor::postgres::Bell,
    machine::now,
    report::Report,
    stats::{median, millis_between, percentile},
};
use anyhow::{Context as _, Result};
use lockkeeper::{Guard, Keeper};
use std::time::Duration;
use tokio::{sync::mpsc, task::JoinSet};

/// How long the next of so many in line waits for its turn.
pub(crate) struct Line {
    waiters: usize,
    /// In ms, in the middle of all turns.
    below: Option<f64>,
}

pub(crate) const POSTGRES: Line = Line { waiters: 100, below: Some(5.0) };
pub(crate) const MYSQL: Line = Line { waiters: 20, below: None };

impl Line {
    pub(crate) fn run(&self, run: &Run<'_>, report: &mut Report) -> Result<()> {
        let (waiters, site) =
            (run.plan.scaled(self.waiters, self.waiters.min(5)), run.source.site()?);
        let times = Flavour::MultiThread.run(turns(site.url(), waiters))?;
        let at = |percent| percentile(&times, percent);
        let what = format!("the next of {waiters} in line gets its turn");
        report.row(&what, &[("p50_ms", at(50)), ("p90_ms", at(90)), ("p99_ms", at(99))]);
        if let Some(bound) = self.below {
            report.below(format!("{what}, p50 in ms"), bound, at(50));
        }
        Ok(())
    }
}

/// From each release to the grant of the next in line, in ms. Each has connections of its own.
async fn turns(url: String, waiters: usize) -> Result<Vec<f64>> {
    let first = Keeper::connect(&url).await?;
    let mut held: Guard = first.lock("turns").await?;
    let (send, mut granted) = mpsc::unbounded_channel();
    let mut tasks = JoinSet::new();
    for at in 0..waiters {
        let (keeper, send) = (Keeper::connect(&url).await?, send.clone());
        tasks.spawn(async move {
            let guard = keeper.lock("turns").await;
            send.send((now(), guard, keeper)).is_ok()
        });
        until_length(&first, "turns", at + 2).await?;
    }
    let (mut times, mut keepers) = (Vec::new(), Vec::new());
    for _ in 0..waiters {
        let released = now();
        held.release().await?;
        let (at, guard, keeper) = granted.recv().await.context("a waiter was lost")?;
        times.push(millis_between(released, at));
        held = guard?;
        keepers.push(keeper);
    }
    held.release().await?;
    Ok(times)
}

async fn until_length(keeper: &Keeper, name: &str, length: usize) -> Result<()> {
    while keeper.get(name).await?.is_none_or(|line| line.tickets.len() < length) {
        tokio::task::yield_now().await;
    }
    Ok(())
}

/// A keeper's first hand-over beside its later ones, and these beside a bare one.
pub(crate) struct Cold {
    /// How many pairs of keepers there are, one pair after the other.
    pairs: usize,
    bare: bool,
    /// How much longer than a warm hand-over after the same rest a cold one may take.
    by_rested: Option<f64>,
    /// How much longer than the bare one a warm hand-over may take.
    by_bare: Option<f64>,
}

pub(crate) const COLD: Cold = Cold { pairs: 20, bare: false, by_rested: None, by_bare: None };
pub(crate) const COLD_POSTGRES: Cold =
    Cold { pairs: 30, bare: true, by_rested: Some(2.0), by_bare: Some(2.0) };

/// How often two keepers pass a lock to and fro.
const HAND_OVERS: usize = 12;
/// How many of these follow a rest. The first one of either keeper is cold, the others are warm.
const RESTED: usize = 6;
/// For how long the lock is held before such a hand-over. Meanwhile the processors turn to other work and forget ours,
/// which makes a hand-over slower whether the connection is prepared for it or not.
const HELD: Duration = Duration::from_millis(100);

impl Cold {
    pub(crate) fn run(&self, run: &Run<'_>, report: &mut Report) -> Result<()> {
        let (pairs, url) = (run.plan.scaled(self.pairs, 3), run.source.site()?.url());
        let has_floor = self.bare;
        let (times, bare) = Flavour::MultiThread.run(async move {
            let (mut all, mut bare) = (Times::default(), Vec::new());
            let mut bell = if has_floor { Some(Bell::open(&url).await?) } else { None };
            for at in 0..pairs {
                to_and_fro(&url, &format!("hand-over {at}"), &mut all).await?;
                for _ in 0..HAND_OVERS {
                    if let Some(bell) = &mut bell {
                        bare.push(bell.ring().await?);
                    }
                }
            }
            anyhow::Ok((all, median(&bare)))
        })?;
        let [cold, rested, warm] = [times.cold, times.rested, times.warm].map(|all| median(&all));
        let mut figures = vec![("cold_ms", cold), ("rested_ms", rested), ("warm_ms", warm)];
        if self.bare {
            figures.push(("bare_ms", bare));
            report.note("bare: a durable update and a notification behind it");
        }
        report.row("a hand-over between two keepers", &figures);
        report.note(format!(
            "cold: a keeper's first release, {HELD:?} after its lock; rested: a later one, likewise"
        ));
        if let Some(bound) = self.by_rested {
            report.below(
                "a cold hand-over beside a warm one after the same rest",
                bound,
                cold / rested,
            );
        }
        if let Some(bound) = self.by_bare {
            report.below("a warm hand-over beside the bare one", bound, warm / bare);
        }
        Ok(())
    }
}

/// Hand-overs, in ms.
#[derive(Default)]
struct Times {
    cold: Vec<f64>,
    rested: Vec<f64>,
    warm: Vec<f64>,
}

/// Two keepers with connections of their own pass a lock to and fro; each release is awaited by the other. The time
/// from a release to the next grant is noted.
async fn to_and_fro(url: &str, name: &str, times: &mut Times) -> Result<()> {
    let keepers = [Keeper::connect(url).await?, Keeper::connect(url).await?];
    let mut held = keepers[0].lock(name).await?;
    for at in 0..HAND_OVERS {
        let next = keepers[(at + 1) % 2].clone();
        let waiter = next.lock(name).into_future();
        let waiter = tokio::spawn(async move { (waiter.await, now()) });
        until_length(&next, name, 2).await?;
        if at < RESTED {
            tokio::time::sleep(HELD).await;
        }
        let released = now();
        held.release().await?;
        let (granted, heard) = waiter.await?;
        held = granted?;
        let list = match at {
            0 => &mut times.cold,
            // The other keeper's first one: the one that waits has been through a hand-over, so it is neither.
            1 => continue,
            2..RESTED => &mut times.rested,
            _ => &mut times.warm,
        };
        list.push(millis_between(released, heard));
    }
    held.release().await?;
    Ok(())
}
