//! Stalls: how long a neighbouring task of the same runtime has to wait for its turn while others
//! take and release as fast as they can.
//!
//! The neighbour does nothing but yield and look at the clock. The tasks at work yield after every
//! pair, so a long gap is one operation that held its thread. The noise of the machine is measured
//! in the same way, with tasks that compute for as long as a pair takes.

use crate::{
    args::Plan,
    flavour::Flavour,
    machine::now,
    report::Report,
    rounds::Rounds,
    source::{LockFile, keeper},
    stats::{figure, max, millis_between},
};
use anyhow::Result;
use lockkeeper::{Keeper, store::clock::Moment};
use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    thread::available_parallelism,
    time::Duration,
};
use tokio::task::JoinSet;

/// From here on a gap is a stall.
const STALL_MS: f64 = 1.0;
/// The log is cut back at 4,000 pages of 1 KiB; this leaves room for what is written meanwhile.
const LOG_MIB: f64 = 64.0;
/// Stalls per second that are no cause for worry beside the machine's own.
const STALLS_PER_S: f64 = 5.0;

/// What the busy tasks do.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Work {
    Noise,
    Pairs,
    /// Without yielding by themselves: how long the library keeps its turn.
    PairsInOneGo,
}

#[derive(Clone, Copy)]
struct Variant {
    work: Work,
    flavour: Flavour,
}

impl Variant {
    fn what(self) -> String {
        let what = match self.work {
            Work::Noise => "noise: computing",
            Work::Pairs => "pairs",
            Work::PairsInOneGo => "pairs, yielding only as the library does",
        };
        format!("{what}, {}", self.flavour.word())
    }

    fn measure(self, plan: &Plan) -> Result<Gaps> {
        let file = LockFile::within(&plan.folder)?;
        let log = file.watch_log();
        let (url, time, work) = (file.url(), plan.round(), self.work);
        let tasks = match self.flavour {
            Flavour::CurrentThread => 1,
            Flavour::MultiThread => available_parallelism()?.get(),
        };
        let mut gaps = self.flavour.run(beside(url, work, tasks, time))?;
        gaps.log_mib = figure(log.most()) / f64::from(1 << 20);
        Ok(gaps)
    }
}

pub(super) fn run(plan: &Plan, report: &mut Report) -> Result<()> {
    let works = [Work::Noise, Work::Pairs];
    let variants = Flavour::BOTH.into_iter().flat_map(|flavour| works.map(|w| (w, flavour)));
    let in_one_go = (Work::PairsInOneGo, Flavour::CurrentThread);
    let variants: Vec<Variant> =
        variants.chain([in_one_go]).map(|(work, flavour)| Variant { work, flavour }).collect();
    let rounds = Rounds::run(plan.rounds, &variants, |variant| variant.measure(plan))?;
    let per_s = |i: usize| {
        let stalls: u64 = rounds.of(i).iter().map(|gaps| gaps.stalls).sum();
        figure(stalls) / plan.time.as_secs_f64()
    };
    let most = |i: usize, figure: fn(&Gaps) -> f64| {
        max(&rounds.of(i).iter().map(figure).collect::<Vec<_>>())
    };
    for (i, variant) in variants.iter().enumerate() {
        report.row(
            variant.what(),
            &[
                ("stalls_per_s", per_s(i)),
                ("longest_ms", most(i, |gaps| gaps.longest_ms)),
                ("turns_per_s", rounds.median(i, |gaps| gaps.turns_per_s)),
                ("log_mib", most(i, |gaps| gaps.log_mib)),
            ],
        );
        if variant.work == Work::Pairs {
            let what = format!("stalls_per_s above the noise, {}", variant.flavour.word());
            report.below(what, STALLS_PER_S, per_s(i) - per_s(i - 1));
            report.below(
                format!("log_mib, {}", variant.flavour.word()),
                LOG_MIB,
                most(i, |gaps| gaps.log_mib),
            );
        }
    }
    report.note(
        "a stall is a gap of more than 1 ms between two turns of a neighbouring task that only \
         yields; a turn of the busy tasks, one for each worker, is one pair, or computing for as \
         long as a pair takes",
    );
    Ok(())
}

/// What the neighbour saw.
struct Gaps {
    stalls: u64,
    longest_ms: f64,
    /// How often the busy tasks did their work, all together.
    turns_per_s: f64,
    log_mib: f64,
}

async fn beside(url: String, work: Work, tasks: usize, time: Duration) -> Result<Gaps> {
    let keeper = keeper(&url).await?;
    let pair = length_of_a_pair(&keeper).await?;
    let until = now() + time;
    let done = Arc::new(AtomicU64::new(0));
    let mut busy = JoinSet::new();
    for i in 0..tasks {
        let (keeper, done) = (keeper.clone(), Arc::clone(&done));
        busy.spawn(async move {
            while now() < until {
                match work {
                    Work::Noise => compute(pair),
                    Work::Pairs | Work::PairsInOneGo => {
                        keeper.lock(format!("stalls/{i}")).await?.release().await?;
                    }
                }
                done.fetch_add(1, Ordering::Relaxed);
                if work != Work::PairsInOneGo {
                    tokio::task::yield_now().await;
                }
            }
            anyhow::Ok(())
        });
    }
    let mut gaps = look(until).await;
    while let Some(task) = busy.join_next().await {
        task??;
    }
    keeper.close().await;
    gaps.turns_per_s = figure(done.load(Ordering::Relaxed)) / time.as_secs_f64();
    Ok(gaps)
}

/// Yields and looks at the clock, again and again.
async fn look(until: Moment) -> Gaps {
    let mut gaps = Gaps { stalls: 0, longest_ms: 0.0, turns_per_s: 0.0, log_mib: 0.0 };
    let mut last = now();
    while last < until {
        tokio::task::yield_now().await;
        let this = now();
        let gap = millis_between(last, this);
        gaps.stalls += u64::from(gap > STALL_MS);
        gaps.longest_ms = gaps.longest_ms.max(gap);
        last = this;
    }
    gaps
}

async fn length_of_a_pair(keeper: &Keeper) -> Result<Duration> {
    const PAIRS: u32 = 500;
    let began = now();
    for _ in 0..PAIRS {
        keeper.lock("stalls").await?.release().await?;
    }
    Ok(now().saturating_since(began) / PAIRS)
}

fn compute(time: Duration) {
    let until = now() + time;
    while now() < until {
        std::hint::spin_loop();
    }
}
