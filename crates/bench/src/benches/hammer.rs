//! Many processes that take and release in one file as fast as they can.

use crate::{
    args::Plan,
    child::{self, Child, Role, ready, say},
    flavour::Flavour,
    machine::now,
    meter::Meter,
    report::Report,
    rounds::Rounds,
    source::{LockFile, keeper_over},
    stats::{figure, max, median, millis_between},
};
use anyhow::Result;
use lockkeeper::Keeper;
use rusqlite::Connection;
use serde::{Deserialize, Serialize};
use std::{path::Path, time::Duration};

/// The longest wait for an uncontended lock, in ms.
const WORST_MS: f64 = 2_000.0;

/// Short, so that renewals fall into the run.
const TTL: Duration = Duration::from_secs(3);

/// What the processes fight about.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fight {
    /// Each has a lock of its own: only the file is shared.
    Names,
    /// The same, while a reader has the file open for the whole time, so that its log cannot be cut.
    NamesBesideReader,
    /// All want the same lock.
    OneName,
}

impl Fight {
    const ALL: [Self; 3] = [Self::Names, Self::NamesBesideReader, Self::OneName];

    fn what(self, processes: usize) -> String {
        match self {
            Self::Names => format!("{processes} processes, {processes} names"),
            Self::NamesBesideReader => {
                format!("{processes} processes, {processes} names, a long read")
            }
            Self::OneName => format!("{processes} processes, one name"),
        }
    }
}

/// A long run shows more than several short ones: renewals and clean-ups of the log fall into it.
const ROUNDS: u32 = 2;

pub(super) fn run(plan: &Plan, report: &mut Report) -> Result<()> {
    let processes = plan.scaled(16, 4);
    let rounds = Rounds::run(ROUNDS, &Fight::ALL, |fight| measure(plan, processes, *fight))?;
    for (i, fight) in Fight::ALL.into_iter().enumerate() {
        tell(report, &fight.what(processes), fight, rounds.of(i));
    }
    report.note("current_thread; a long read keeps the log from being cut, so it grows meanwhile");
    Ok(())
}

fn tell(report: &mut Report, what: &str, fight: Fight, rounds: &[Round]) {
    let of = |figure: fn(&Round) -> f64| rounds.iter().map(figure).collect::<Vec<f64>>();
    let worst = max(&of(|round| round.most(|blows| blows.worst_wait_ms)));
    report.row(
        what,
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
    if fight != Fight::OneName {
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

fn measure(plan: &Plan, processes: usize, fight: Fight) -> Result<Round> {
    let file = LockFile::within(&plan.folder)?;
    let role = |i: usize| {
        let same = fight == Fight::OneName;
        let name = if same { "hammer".to_owned() } else { format!("hammer/{i}") };
        Role::Hammer(Hammer { url: file.url(), name })
    };
    let mut children = Child::start_all(&(0..processes).map(role).collect::<Vec<_>>())?;
    let reader = (fight == Fight::NamesBesideReader).then(|| read(file.path())).transpose()?;
    let log = file.watch_log();
    let blows: Vec<Blows> = child::work(&mut children, plan.time)?;
    drop(reader);
    let log_mib = figure(log.most()) / f64::from(1 << 20);
    let pairs: u64 = blows.iter().map(|blows| blows.pairs).sum();
    Ok(Round { pairs_per_s: figure(pairs) / plan.time.as_secs_f64(), log_mib, blows })
}

/// Reads until dropped.
fn read(path: &Path) -> Result<Connection> {
    let reader = Connection::open(path)?;
    reader.execute_batch("BEGIN; SELECT count(*) FROM ticket;")?;
    Ok(reader)
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
    url: String,
    name: String,
}

impl Hammer {
    pub(crate) fn play(self) -> Result<()> {
        say(&Flavour::CurrentThread.run(self.swing())?)
    }

    async fn swing(self) -> Result<Blows> {
        let (store, count) = Meter::around(&self.url).await?;
        let keeper = keeper_over(Keeper::builder().ttl(TTL), store).await?;
        let shift = ready()?;
        shift.begin().await;
        count.lock().expect("not poisoned").worst_ms = 0.0;
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
        blows.worst_store_ms = count.lock().expect("not poisoned").worst_ms;
        keeper.close().await;
        Ok(blows)
    }

    /// One pair; says how long the lock was waited for.
    async fn blow(&self, keeper: &Keeper) -> Result<f64> {
        let began = now();
        let guard = keeper.lock(self.name.as_str()).await?;
        let waited = millis_between(began, now());
        guard.release().await?;
        Ok(waited)
    }
}
