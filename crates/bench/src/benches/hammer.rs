//! Many processes that take and release in one file as fast as they can.

use crate::{
    args::Plan,
    child::{self, Child, Role, ready, say},
    file::{self, LockFile},
    flavour::Flavour,
    machine::now,
    meter::Meter,
    report::Report,
    rounds::Rounds,
    stats::{figure, max, median, millis},
};
use anyhow::Result;
use lockkeeper::Keeper;
use serde::{Deserialize, Serialize};
use std::{path::PathBuf, time::Duration};

/// The longest wait for a lock that nobody else wants, in ms.
const WORST_MS: f64 = 2_000.0;

/// Short, so that renewals fall into the run.
const TTL: Duration = Duration::from_secs(3);

/// Which names the processes use.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Names {
    One,
    Distinct,
}

/// A long run shows more than several short ones: renewals and clean-ups of the log fall into it.
const ROUNDS: u32 = 2;

pub(super) fn run(plan: &Plan) -> Result<Report> {
    let processes = plan.scaled(16, 4);
    let variants = [Names::Distinct, Names::One];
    let rounds = Rounds::run(ROUNDS, &variants, |names| measure(plan, processes, *names))?;
    let mut report = Report::new("hammer");
    for (i, names) in variants.into_iter().enumerate() {
        let what = match names {
            Names::Distinct => format!("{processes} processes, {processes} names"),
            Names::One => format!("{processes} processes, one name"),
        };
        tell(&mut report, &what, names, rounds.of(i));
    }
    Ok(report)
}

fn tell(report: &mut Report, what: &str, names: Names, rounds: &[Round]) {
    let of = |figure: fn(&Round) -> f64| rounds.iter().map(figure).collect::<Vec<f64>>();
    let worst = max(&of(|round| round.most(|blows| blows.worst_wait_ms)));
    report.row(
        format!("{what}, current_thread"),
        &[
            ("pairs_per_s", median(&of(|round| round.pairs_per_s))),
            ("worst_wait_ms", worst),
            ("worst_store_ms", max(&of(|round| round.most(|blows| blows.worst_store_ms)))),
            ("least_pairs", median(&of(|round| -round.most(|blows| -figure(blows.pairs))))),
            ("most_pairs", median(&of(|round| round.most(|blows| figure(blows.pairs))))),
            ("log_mib", max(&of(|round| round.log_mib))),
        ],
    );
    let errors: Vec<&String> =
        rounds.iter().flat_map(|round| &round.blows).flat_map(|blows| &blows.errors).collect();
    errors.iter().for_each(|error| report.note(format!("{what}: {error}")));
    if names == Names::Distinct {
        report.below(format!("worst_wait_ms, {what}"), WORST_MS, worst);
    }
    report.exactly(format!("errors, {what}"), 0.0, figure(errors.len() as u64));
}

/// What all processes did in one round.
struct Round {
    pairs_per_s: f64,
    log_mib: f64,
    blows: Vec<Blows>,
}

impl Round {
    fn most(&self, figure: impl Fn(&Blows) -> f64) -> f64 {
        max(&self.blows.iter().map(figure).collect::<Vec<_>>())
    }
}

fn measure(plan: &Plan, processes: usize, names: Names) -> Result<Round> {
    let file = LockFile::within(&plan.folder)?;
    let role = |i: usize| {
        let name = if names == Names::One { "hammer".to_owned() } else { format!("hammer/{i}") };
        Role::Hammer(Hammer { path: file.path().to_owned(), name })
    };
    let mut children = Child::start_all(&(0..processes).map(role).collect::<Vec<_>>())?;
    let log = file.watch_log();
    let blows: Vec<Blows> = child::work(&mut children, plan.time)?;
    let log_mib = figure(log.most()) / f64::from(1 << 20);
    let pairs: u64 = blows.iter().map(|blows| blows.pairs).sum();
    Ok(Round { pairs_per_s: figure(pairs) / plan.time.as_secs_f64(), log_mib, blows })
}

/// What one process did.
#[derive(Default, Serialize, Deserialize)]
struct Blows {
    pairs: u64,
    worst_wait_ms: f64,
    /// The slowest single request to the store.
    worst_store_ms: f64,
    errors: Vec<String>,
}

/// A process that takes and releases as fast as it can.
#[derive(Serialize, Deserialize)]
pub(crate) struct Hammer {
    path: PathBuf,
    name: String,
}

impl Hammer {
    pub(crate) fn play(self) -> Result<()> {
        say(&Flavour::CurrentThread.run(self.swing())?)
    }

    async fn swing(self) -> Result<Blows> {
        let (store, count) = Meter::around(file::store(&self.path)?);
        let keeper = file::keeper_over(Keeper::builder().ttl(TTL), store).await?;
        let shift = ready()?;
        shift.begin().await;
        count.reset_worst();
        let mut blows = Blows::default();
        while !shift.is_over() {
            match self.blow(&keeper).await {
                Ok(wait_ms) => {
                    blows.pairs += 1;
                    blows.worst_wait_ms = blows.worst_wait_ms.max(wait_ms);
                }
                Err(e) => blows.errors.push(format!("{e:#}")),
            }
        }
        blows.worst_store_ms = millis(count.worst_nanos());
        keeper.close().await;
        Ok(blows)
    }

    /// One pair; says how long the lock was waited for.
    async fn blow(&self, keeper: &Keeper) -> Result<f64> {
        let began = now();
        let guard = keeper.lock(self.name.as_str()).await?;
        let waited = now().as_nanos() - began.as_nanos();
        guard.release().await?;
        Ok(millis(waited))
    }
}
