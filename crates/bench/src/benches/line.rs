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
    /// How much longer than a warm hand-over a cold one may take.
    by_warm: Option<f64>,
    /// How much longer than the bare one a warm hand-over may take.
    by_bare: Option<f64>,
}

pub(crate) const COLD: Cold = Cold { pairs: 20, bare: false, by_warm: None, by_bare: None };
pub(crate) const COLD_POSTGRES: Cold =
    Cold { pairs: 30, bare: true, by_warm: Some(2.0), by_bare: Some(2.0) };

/// How often two keepers pass a lock to and fro.
const HAND_OVERS: usize = 10;
/// For how long the lock is held before it is passed on for the first time.
const HELD: Duration = Duration::from_millis(100);

impl Cold {
    pub(crate) fn run(&self, run: &Run<'_>, report: &mut Report) -> Result<()> {
        let (pairs, url) = (run.plan.scaled(self.pairs, 3), run.source.site()?.url());
        let has_floor = self.bare;
        let (cold, warm, bare) = Flavour::MultiThread.run(async move {
            let (mut cold, mut warm, mut bare) = (Vec::new(), Vec::new(), Vec::new());
            let mut bell = if has_floor { Some(Bell::open(&url).await?) } else { None };
            for at in 0..pairs {
                let (first, others) = to_and_fro(&url, &format!("hand-over {at}")).await?;
                cold.push(first);
                warm.extend(others);
                for _ in 0..HAND_OVERS {
                    if let Some(bell) = &mut bell {
                        bare.push(bell.ring().await?);
                    }
                }
            }
            anyhow::Ok((median(&cold), median(&warm), median(&bare)))
        })?;
        let mut figures = vec![("cold_ms", cold), ("warm_ms", warm), ("cold_by_warm", cold / warm)];
        if self.bare {
            figures.push(("bare_ms", bare));
            report.note("bare: a durable update and a notification behind it");
        }
        report.row("a hand-over between two keepers", &figures);
        report.note(format!("cold: a keeper's first release, {HELD:?} after its lock"));
        if let Some(bound) = self.by_warm {
            report.below("a cold hand-over beside a warm one", bound, cold / warm);
        }
        if let Some(bound) = self.by_bare {
            report.below("a warm hand-over beside the bare one", bound, warm / bare);
        }
        Ok(())
    }
}

/// Two keepers with connections of their own pass a lock to and fro; each release is awaited by the other. The time
/// from a release to the next grant, in ms: the first one of a keeper, and those after either keeper's first.
async fn to_and_fro(url: &str, name: &str) -> Result<(f64, Vec<f64>)> {
    let keepers = [Keeper::connect(url).await?, Keeper::connect(url).await?];
    let (mut held, mut times) = (keepers[0].lock(name).await?, Vec::new());
    for at in 1..=HAND_OVERS {
        let next = keepers[at % 2].clone();
        let waiter = next.lock(name).into_future();
        let waiter = tokio::spawn(async move { (waiter.await, now()) });
        until_length(&next, name, 2).await?;
        // Either keeper's first release is a cold one.
        if at <= keepers.len() {
            tokio::time::sleep(HELD).await;
        }
        let released = now();
        held.release().await?;
        let (granted, heard) = waiter.await?;
        held = granted?;
        times.push(millis_between(released, heard));
    }
    held.release().await?;
    let warm = times.split_off(keepers.len());
    Ok((times[0], warm))
}
