//! The processor time of a process that waits for a lock.

use crate::{
    args::Plan,
    child::{self, Child, Role, ready, say},
    flavour::Flavour,
    machine::cpu_time,
    report::Report,
    source::{LockFile, keeper},
    stats::millis,
};
use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use std::{sync::Arc, time::Duration};
use tokio::sync::Notify;

/// The processor time that a waiter may use, in ms per second.
const BUDGET_MS: f64 = 1.0;
/// Long enough for several of the waiter's slow re-checks.
const LEAST: Duration = Duration::from_secs(5);
/// Pairs per second of a neighbour who uses other locks of the same file.
const NEIGHBOUR_RATE: u64 = 500;

pub(super) fn run(plan: &Plan, report: &mut Report) -> Result<()> {
    let time = if plan.quick { plan.time } else { plan.time.max(LEAST) };
    for flavour in Flavour::BOTH {
        for (what, rate) in [("quiet file", 0), ("500 pairs/s on another name", NEIGHBOUR_RATE)] {
            let used = measure(plan, flavour, rate, time)?;
            let what = format!("{what}, {}", flavour.word());
            report.row(&what, &[("cpu_ms_per_s", used)]);
            report.below(format!("cpu_ms_per_s, {what}"), BUDGET_MS, used);
        }
    }
    Ok(())
}

fn measure(plan: &Plan, flavour: Flavour, rate: u64, time: Duration) -> Result<f64> {
    let file = LockFile::within(&plan.folder)?;
    let url = file.url();
    let runtime = Flavour::MultiThread.runtime()?;
    let holder = runtime.block_on(keeper(&url))?;
    let guard = runtime.block_on(holder.lock("idle").into_future())?;
    let neighbour = (rate > 0).then(|| runtime.spawn(neighbour(holder.clone(), rate)));
    let mut idlers = Child::start_all(&[Role::Idler(Idler { url, flavour })])?;
    let used: Vec<f64> = child::work(&mut idlers, time)?;
    if let Some(neighbour) = neighbour {
        neighbour.abort();
    }
    runtime.block_on(guard.release())?;
    used.first().copied().context("one child, one figure")
}

async fn neighbour(keeper: lockkeeper::Keeper, rate: u64) -> Result<()> {
    let mut ticks = tokio::time::interval(Duration::from_nanos(1_000_000_000 / rate));
    loop {
        ticks.tick().await;
        keeper.lock("neighbour").await?.release().await?;
    }
}

/// A process that waits for a lock that is never released.
#[derive(Serialize, Deserialize)]
pub(crate) struct Idler {
    url: String,
    flavour: Flavour,
}

impl Idler {
    pub(crate) fn play(self) -> Result<()> {
        let used = self.flavour.run(wait(self.url))?;
        say(&used)
    }
}

async fn wait(url: String) -> Result<f64> {
    let keeper = keeper(&url).await?;
    let waiting = Arc::new(Notify::new());
    let told = Arc::clone(&waiting);
    let lock = keeper.lock("idle").on_wait(move |_| told.notify_one());
    let waiter = tokio::spawn(lock.into_future());
    waiting.notified().await;
    let shift = ready()?;
    shift.begin().await;
    let before = cpu_time()?;
    tokio::time::sleep(shift.length()).await;
    let used = cpu_time()?.saturating_sub(before);
    waiter.abort();
    let nanos = u64::try_from(used.as_nanos()).unwrap_or(u64::MAX);
    Ok(millis(nanos) / shift.length().as_secs_f64())
}
