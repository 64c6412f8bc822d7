//! Pairs of lock and release in one process, one after the other, uncontended.

use crate::{
    args::Plan,
    file::{self, LockFile},
    flavour::Flavour,
    floor::{Depth, Floor},
    machine::{cpu_time, now},
    report::Report,
    rounds::Rounds,
    stats::figure,
};
use anyhow::{Context as _, Result};
use lockkeeper::{
    Keeper, Mode, Name, Owner, Place, SessionId, Store as _, TIME_MAX, TicketId,
    clock::Moment,
    store::{Enter, Leave, Manner, Open, memory::Memory},
};
use std::{
    path::{Path, PathBuf},
    time::Duration,
};

/// The share of the same-statements floor that the whole stack must reach.
const SHARE: f64 = 0.8;
/// Pairs between two looks at the clock.
const BATCH: u64 = 16;
/// Runs before it counts: caches fill, prepared statements are made.
const WARM_UP: Duration = Duration::from_millis(30);

/// What is measured. The floor comes first: the others are compared with it.
#[derive(Clone, Copy)]
enum Variant {
    Floor(Depth),
    /// The store's own operations, without keeper and session task.
    Store,
    Stack(Flavour),
    Memory(Flavour),
}

impl Variant {
    const ALL: [Self; 7] = [
        Self::Floor(Depth::Same),
        Self::Floor(Depth::Lean),
        Self::Store,
        Self::Stack(Flavour::CurrentThread),
        Self::Stack(Flavour::MultiThread),
        Self::Memory(Flavour::CurrentThread),
        Self::Memory(Flavour::MultiThread),
    ];

    fn what(self) -> String {
        match self {
            Self::Floor(Depth::Same) => "floor: bare rusqlite, same statements".to_owned(),
            Self::Floor(Depth::Lean) => "floor: bare rusqlite, ticket row only".to_owned(),
            Self::Store => "SQLite store alone, current_thread".to_owned(),
            Self::Stack(flavour) => format!("whole stack on SQLite, {}", flavour.word()),
            Self::Memory(flavour) => format!("whole stack on memory, {}", flavour.word()),
        }
    }

    fn measure(self, path: &Path, time: Duration) -> Result<Speed> {
        match self {
            Self::Floor(depth) => bare(path, depth, time),
            Self::Store => Flavour::CurrentThread.run(store(path.to_owned(), time)),
            Self::Stack(flavour) => flavour.run(stack(path.to_owned(), time)),
            Self::Memory(flavour) => flavour.run(async move {
                let store = Memory::new();
                pairs(file::keeper_over(Keeper::builder(), store).await?, time).await
            }),
        }
    }
}

pub(super) fn run(plan: &Plan) -> Result<Report> {
    let files = Variant::ALL.map(|variant| (variant, LockFile::within(&plan.folder)));
    let files: Vec<(Variant, LockFile)> =
        files.into_iter().map(|(variant, file)| Ok((variant, file?))).collect::<Result<_>>()?;
    let rounds = Rounds::run(plan.rounds, &files, |(variant, file)| {
        variant.measure(file.path(), plan.round())
    })?;
    let mut report = Report::new("pairs");
    for (i, variant) in Variant::ALL.into_iter().enumerate() {
        report.row(
            variant.what(),
            &[
                ("pairs_per_s", rounds.median(i, |speed| speed.pairs_per_s)),
                ("of_floor", rounds.ratio(i, 0, |speed| speed.pairs_per_s)),
                ("cpu_us_per_pair", rounds.median(i, |speed| speed.cpu_us)),
            ],
        );
    }
    for depth in [Depth::Same, Depth::Lean] {
        report.note(format!("{}: {}", Variant::Floor(depth).what(), depth.statements()));
    }
    for (i, variant) in Variant::ALL.into_iter().enumerate() {
        if let Variant::Stack(flavour) = variant {
            let what = format!("share of the same-statements floor, {}", flavour.word());
            report.at_least(what, SHARE, rounds.ratio(i, 0, |speed| speed.pairs_per_s));
        }
    }
    Ok(report)
}

fn bare(path: &Path, depth: Depth, time: Duration) -> Result<Speed> {
    let mut floor = Floor::open(path, depth)?;
    let mut speed = None;
    for time in [WARM_UP, time] {
        let mut tally = Tally::begin(time)?;
        while tally.goes_on() {
            (0..BATCH).try_for_each(|_| floor.pair())?;
        }
        speed = Some(tally.speed()?);
    }
    speed.context("nothing was measured")
}

async fn stack(path: PathBuf, time: Duration) -> Result<Speed> {
    pairs(file::keeper(&path).await?, time).await
}

async fn pairs(keeper: Keeper, time: Duration) -> Result<Speed> {
    let mut speed = None;
    for time in [WARM_UP, time] {
        let mut tally = Tally::begin(time)?;
        while tally.goes_on() {
            for _ in 0..BATCH {
                keeper.lock("pairs").await?.release().await?;
            }
        }
        speed = Some(tally.speed()?);
    }
    keeper.close().await;
    speed.context("nothing was measured")
}

async fn store(path: PathBuf, time: Duration) -> Result<Speed> {
    let store = file::store(&path)?;
    let (session, name) = (SessionId::random(), Name::new("pairs")?);
    let (ttl, lock_delay) = (TIME_MAX, Duration::ZERO);
    store.open(Open { session, ttl, lock_delay, owner: Owner::this_process() }).await?;
    let mut speed = None;
    for time in [WARM_UP, time] {
        let mut tally = Tally::begin(time)?;
        while tally.goes_on() {
            for _ in 0..BATCH {
                let place = Place { session, name: name.clone(), ticket: TicketId::random() };
                let (mode, manner, note) = (Mode::Exclusive, Manner::Queue, Vec::new());
                store.enter(Enter { place: place.clone(), mode, manner, note }).await?;
                store.leave(Leave { place, keep: None, stray: false }).await?;
            }
        }
        speed = Some(tally.speed()?);
    }
    store.close(session).await?;
    speed.context("nothing was measured")
}

/// How fast a variant was.
struct Speed {
    pairs_per_s: f64,
    /// The processor time of a pair, all threads together: less disturbed by other programs.
    cpu_us: f64,
}

/// Counts batches of pairs for so long.
struct Tally {
    time: Duration,
    began: Moment,
    cpu: Duration,
    took: Duration,
    batches: u64,
}

impl Tally {
    fn begin(time: Duration) -> Result<Self> {
        let (began, cpu) = (now(), cpu_time()?);
        Ok(Self { time, began, cpu, took: Duration::ZERO, batches: 0 })
    }

    /// Called before each batch.
    fn goes_on(&mut self) -> bool {
        self.took = now().saturating_since(self.began);
        let goes_on = self.took < self.time;
        self.batches += u64::from(goes_on);
        goes_on
    }

    fn speed(&self) -> Result<Speed> {
        let pairs = figure(self.batches * BATCH);
        let cpu = cpu_time()?.saturating_sub(self.cpu);
        let pairs_per_s = pairs / self.took.as_secs_f64();
        Ok(Speed { pairs_per_s, cpu_us: cpu.as_secs_f64() * 1e6 / pairs })
    }
}
