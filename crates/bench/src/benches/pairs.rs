//! Pairs of lock and release in one process, one after the other, uncontended.

use crate::{
    args::Plan,
    file::{self, LockFile},
    flavour::Flavour,
    floor::sqlite::{Depth, Floor},
    pair::{Speed, Stack, StoreAlone, speed},
    report::Report,
    rounds::Rounds,
};
use anyhow::Result;
use lockkeeper::{
    Keeper,
    store::{AnyStore, memory::Memory},
};
use std::{path::Path, time::Duration};

/// The share of the same-statements floor that the whole stack must reach.
const SHARE: f64 = 0.8;
/// What is measured. The floor comes first: the others are compared with it.
#[derive(Clone, Copy)]
enum Variant {
    Floor(Depth),
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
        let path = path.to_owned();
        match self {
            Self::Floor(depth) => {
                let floor = Floor::open(&path, depth)?;
                Flavour::CurrentThread.run(speed(vec![floor], time, None))
            }
            Self::Store => Flavour::CurrentThread.run(async move {
                let store = AnyStore::new(file::store(&path)?);
                speed(vec![StoreAlone::over(store).await?], time, None).await
            }),
            Self::Stack(flavour) => {
                flavour.run(async move { stack(file::keeper(&path).await?, time).await })
            }
            Self::Memory(flavour) => flavour.run(async move {
                stack(file::keeper_over(Keeper::builder(), Memory::new()).await?, time).await
            }),
        }
    }
}

async fn stack(keeper: Keeper, time: Duration) -> Result<Speed> {
    let stack = Stack { keeper: keeper.clone(), name: "pairs".to_owned() };
    let speed = speed(vec![stack], time, None).await;
    keeper.close().await;
    speed
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
