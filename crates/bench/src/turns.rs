//! Hand-overs on a server: how long the next in line waits for its turn.

use crate::{
    args::Plan,
    flavour::Flavour,
    machine::now,
    report::Report,
    stats::{median, millis},
};
use anyhow::{Context as _, Result};
use lockkeeper::{Guard, Keeper};
use std::time::Duration;
use tokio::{sync::mpsc, task::JoinSet};

/// How often two keepers pass a lock to and fro.
pub(crate) const HAND_OVERS: usize = 10;
/// For how long the lock is held before it is passed on for the first time.
pub(crate) const HELD: Duration = Duration::from_millis(100);
/// How many pairs of keepers there are, one pair after the other.
const PAIRS: usize = 20;

/// From each release to the grant of the next in line, in ms. Each has connections of its own.
pub(crate) async fn turns(url: String, waiters: usize) -> Result<Vec<f64>> {
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
        while first.get("turns").await?.is_none_or(|line| line.tickets.len() < at + 2) {
            tokio::task::yield_now().await;
        }
    }
    let (mut times, mut keepers) = (Vec::new(), Vec::new());
    for _ in 0..waiters {
        let released = now();
        held.release().await?;
        let (at, guard, keeper) = granted.recv().await.context("a waiter was lost")?;
        let nanos = u64::try_from(at.saturating_since(released).as_nanos())?;
        times.push(millis(nanos));
        held = guard?;
        keepers.push(keeper);
    }
    held.release().await?;
    Ok(times)
}

/// Two keepers with connections of their own pass a lock to and fro; each release is awaited by the other. The time
/// from a release to the next grant, in ms: the first one of a keeper, and those after either keeper's first.
pub(crate) async fn hand_overs(url: &str, name: &str) -> Result<(f64, Vec<f64>)> {
    let keepers = [Keeper::connect(url).await?, Keeper::connect(url).await?];
    let (mut held, mut times) = (keepers[0].lock(name).await?, Vec::new());
    for at in 1..=HAND_OVERS {
        let next = keepers[at % 2].clone();
        let waiter = next.lock(name).into_future();
        let waiter = tokio::spawn(async move { (waiter.await, now()) });
        while next.get(name).await?.is_none_or(|line| line.tickets.len() < 2) {
            tokio::task::yield_now().await;
        }
        // Either keeper's first release is a cold one.
        if at <= keepers.len() {
            tokio::time::sleep(HELD).await;
        }
        let released = now();
        held.release().await?;
        let (granted, heard) = waiter.await?;
        held = granted?;
        times.push(millis(u64::try_from(heard.saturating_since(released).as_nanos())?));
    }
    held.release().await?;
    let warm = times.split_off(keepers.len());
    Ok((times[0], warm))
}

/// Reports a keeper's first hand-over beside its later ones.
pub(crate) fn tell_cold(plan: &Plan, url: &str, report: &mut Report) -> Result<()> {
    let (pairs, url) = (plan.scaled(PAIRS, 3), url.to_owned());
    let (cold, warm) = Flavour::MultiThread.run(async move {
        let (mut cold, mut warm) = (Vec::new(), Vec::new());
        for at in 0..pairs {
            let (first, others) = hand_overs(&url, &format!("hand-over {at}")).await?;
            cold.push(first);
            warm.extend(others);
        }
        anyhow::Ok((median(&cold), median(&warm)))
    })?;
    let figures = [("cold_ms", cold), ("warm_ms", warm), ("cold_by_warm", cold / warm)];
    report.row("a hand-over between two keepers", &figures);
    report.note(format!("cold: a keeper's first release, {HELD:?} after its lock"));
    Ok(())
}
