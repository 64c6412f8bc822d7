//! Many locks in one hand.

use crate::{
    args::Plan,
    child::{self, Child, Role, ready, say},
    flavour::Flavour,
    machine::{now, resident_kib},
    meter::{Count, Meter},
    report::Report,
    source::{LockFile, keeper_over},
    stats::{figure, millis_between},
};
use anyhow::{Context, Result};
use lockkeeper::Keeper;
use serde::{Deserialize, Serialize};
use std::{sync::Mutex, time::Duration};

const TTL: Duration = Duration::from_secs(3);
/// A session is renewed three times in its time to live.
const PERIOD: Duration = Duration::from_secs(1);

pub(super) fn run(plan: &Plan, report: &mut Report) -> Result<()> {
    let count = plan.scaled(10_000, 300);
    let periods = u32::try_from(plan.scaled(6, 1))?;
    let file = LockFile::within(&plan.folder)?;
    let role = Holder { url: file.url(), count, periods };
    let mut children = Child::start_all(&[Role::Holder(role)])?;
    let held: Vec<Held> = child::work(&mut children, Duration::ZERO)?;
    let held = held.first().context("one child, one figure")?;
    let per_period = figure(held.renewals) / f64::from(periods);
    let names = figure(count as u64);
    report.row(
        format!("{count} names, one keeper, current_thread"),
        &[
            ("take_ms", held.take_ms),
            ("us_per_lock", held.take_ms * 1e3 / names),
            ("renewals", figure(held.renewals)),
            ("periods", f64::from(periods)),
            ("kib_per_lock", figure(held.grown_kib) / names),
            ("close_ms", held.close_ms),
        ],
    );
    report.note(format!("the time to live is {TTL:?}, so a period is {PERIOD:?}"));
    report.exactly("renewals per period", 1.0, per_period);
    report.exactly("locks lost", 0.0, figure(held.lost));
    Ok(())
}

/// What a holder found.
#[derive(Serialize, Deserialize)]
struct Held {
    take_ms: f64,
    close_ms: f64,
    renewals: u64,
    grown_kib: u64,
    lost: u64,
}

/// A process that holds many locks.
#[derive(Serialize, Deserialize)]
pub(crate) struct Holder {
    url: String,
    count: usize,
    periods: u32,
}

impl Holder {
    pub(crate) fn play(self) -> Result<()> {
        say(&Flavour::CurrentThread.run(self.hold())?)
    }

    async fn hold(self) -> Result<Held> {
        let (store, count) = Meter::around(&self.url).await?;
        let keeper = keeper_over(Keeper::builder().ttl(TTL), store).await?;
        ready()?;
        let (memory, began) = (resident_kib()?, now());
        let mut guards = Vec::with_capacity(self.count);
        for i in 0..self.count {
            guards.push(keeper.lock(format!("held/{i:05}")).await?);
        }
        let take_ms = millis_between(began, now());
        let grown_kib = resident_kib()?.saturating_sub(memory);
        let renewals = renewals_in(&count, self.periods).await;
        let lost = guards.iter().filter(|guard| !guard.is_held()).count() as u64;
        let closing = now();
        keeper.close().await;
        Ok(Held { take_ms, close_ms: millis_between(closing, now()), renewals, grown_kib, lost })
    }
}

/// Counts over whole periods, from the middle of one on, so that no renewal falls on an edge.
async fn renewals_in(count: &Mutex<Count>, periods: u32) -> u64 {
    let sent = || count.lock().expect("not poisoned").renewals;
    let before = sent();
    while sent() == before {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    tokio::time::sleep(PERIOD / 2).await;
    let before = sent();
    tokio::time::sleep(PERIOD * periods).await;
    sent() - before
}
