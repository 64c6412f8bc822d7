//! Many locks in one hand.

use crate::{
    args::Plan,
    child::{self, Child, Role, ready, say},
    file::{self, LockFile},
    flavour::Flavour,
    machine::{now, resident_kib},
    meter::{Count, Meter},
    report::Report,
    stats::{figure, millis},
};
use anyhow::{Context, Result};
use lockkeeper::Keeper;
use serde::{Deserialize, Serialize};
use std::{path::PathBuf, time::Duration};

const TTL: Duration = Duration::from_secs(3);
/// A session is renewed three times in its time to live.
const PERIOD: Duration = Duration::from_secs(1);

pub(super) fn run(plan: &Plan) -> Result<Report> {
    let count = plan.scaled(10_000, 300);
    let periods = u32::try_from(plan.scaled(6, 1))?;
    let file = LockFile::within(&plan.folder)?;
    let role = Holder { path: file.path().to_owned(), count, periods };
    let mut children = Child::start_all(&[Role::Holder(role)])?;
    let held: Vec<Held> = child::work(&mut children, Duration::ZERO)?;
    let held = held.first().context("one child, one figure")?;
    let per_period = figure(held.renewals) / f64::from(periods);
    let names = figure(count as u64);
    let mut report = Report::new("held");
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
    Ok(report)
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
    path: PathBuf,
    count: usize,
    periods: u32,
}

impl Holder {
    pub(crate) fn play(self) -> Result<()> {
        say(&Flavour::CurrentThread.run(self.hold())?)
    }

    async fn hold(self) -> Result<Held> {
        let (store, count) = Meter::around(file::store(&self.path)?);
        let keeper = file::keeper_over(Keeper::builder().ttl(TTL), store).await?;
        ready()?;
        let (memory, began) = (resident_kib()?, now());
        let mut guards = Vec::with_capacity(self.count);
        for i in 0..self.count {
            guards.push(keeper.lock(format!("held/{i:05}")).await?);
        }
        let take_ms = millis_since(began);
        let grown_kib = resident_kib()?.saturating_sub(memory);
        let renewals = renewals_in(&count, self.periods).await;
        let lost = guards.iter().filter(|guard| !guard.is_held()).count() as u64;
        let closing = now();
        keeper.close().await;
        Ok(Held { take_ms, close_ms: millis_since(closing), renewals, grown_kib, lost })
    }
}

fn millis_since(began: lockkeeper::store::clock::Moment) -> f64 {
    millis(now().as_nanos() - began.as_nanos())
}

/// Counts over whole periods, from the middle of one on, so that no renewal falls on an edge.
async fn renewals_in(count: &Count, periods: u32) -> u64 {
    let before = count.renewals();
    while count.renewals() == before {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    tokio::time::sleep(PERIOD / 2).await;
    let before = count.renewals();
    tokio::time::sleep(PERIOD * periods).await;
    count.renewals() - before
}
