//! Hand-offs: from just before a release in one process to the grant in another.
//!
//! Processes take one lock in turn. Each notes when it was granted and when it began to release;
//! put in the order of their fences, these give one hand-off after the other. A grant counts only
//! if its process was already waiting when the release before it began.

use crate::{
    args::Plan,
    child::{self, Child, Role, ready, say},
    file::{self, LockFile},
    flavour::Flavour,
    machine::now,
    report::Report,
    rounds::Rounds,
    stats::{figure, max, median, millis, percentile},
};
use anyhow::Result;
use lockkeeper::Wait;
use serde::{Deserialize, Serialize};
use std::{
    os::unix::net::UnixDatagram,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

/// How long a hand-off may take in the middle, in ms.
const MIDDLE_MS: f64 = 0.6;
/// How long the lock is held; the last one of the line comes back in less than that.
const HOLD: Duration = Duration::from_millis(3);
/// How long a process stays away after its release, so that its coming back disturbs no hand-off.
const AWAY: Duration = Duration::from_millis(1);

#[derive(Clone, Copy)]
enum Variant {
    /// A bare datagram to one process that blocks for it.
    Wake,
    /// So many processes in line.
    Line(usize, Flavour),
}

impl Variant {
    fn what(self) -> String {
        match self {
            Self::Wake => "floor: one datagram to a blocked process".to_owned(),
            Self::Line(1, flavour) => format!("1 waiting process, {}", flavour.word()),
            Self::Line(n, flavour) => format!("{n} waiting processes, {}", flavour.word()),
        }
    }

    /// The hand-offs of one round, in ms.
    fn measure(self, plan: &Plan) -> Result<Vec<f64>> {
        let file = LockFile::within(&plan.folder)?;
        match self {
            Self::Wake => wakes(&file, plan.round()),
            Self::Line(waiting, flavour) => line(&file, waiting, flavour, plan.round()),
        }
    }
}

pub(super) fn run(plan: &Plan) -> Result<Report> {
    let many = plan.scaled(20, 3);
    let mut variants = vec![Variant::Wake];
    for flavour in Flavour::BOTH {
        variants.extend([Variant::Line(1, flavour), Variant::Line(many, flavour)]);
    }
    let rounds = Rounds::run(plan.rounds, &variants, |variant| variant.measure(plan))?;
    let mut report = Report::new("handoff");
    for (i, variant) in variants.iter().enumerate() {
        let all: Vec<f64> = rounds.of(i).concat();
        report.row(
            variant.what(),
            &[
                ("p50_ms", median(&all)),
                ("p99_ms", percentile(&all, 99)),
                ("max_ms", max(&all)),
                ("handoffs", figure(all.len() as u64)),
            ],
        );
        if matches!(variant, Variant::Line(..)) {
            report.below(format!("p50_ms, {}", variant.what()), MIDDLE_MS, median(&all));
        }
    }
    Ok(report)
}

fn line(file: &LockFile, waiting: usize, flavour: Flavour, time: Duration) -> Result<Vec<f64>> {
    let path = file.path().to_owned();
    let role = |_| Role::Runner(Runner { path: path.clone(), flavour });
    let mut children = Child::start_all(&(0..=waiting).map(role).collect::<Vec<_>>())?;
    let turns: Vec<Vec<Turn>> = child::work(&mut children, time)?;
    Ok(handoffs(turns.concat()))
}

/// One turn of one process: times in nanoseconds.
#[derive(Clone, Copy, Serialize, Deserialize)]
struct Turn {
    fence: u64,
    /// When the store had said that it must wait; 0 if it did not have to.
    queued: u64,
    granted: u64,
    releasing: u64,
}

/// The times between a release and the next grant, in ms.
fn handoffs(mut turns: Vec<Turn>) -> Vec<f64> {
    turns.sort_unstable_by_key(|turn| turn.fence);
    let waited = |pair: &&[Turn]| pair[1].queued > 0 && pair[1].queued < pair[0].releasing;
    let took = |pair: &[Turn]| millis(pair[1].granted.saturating_sub(pair[0].releasing));
    turns.windows(2).filter(waited).map(took).collect()
}

/// A process that takes the lock in turn with others.
#[derive(Serialize, Deserialize)]
pub(crate) struct Runner {
    path: PathBuf,
    flavour: Flavour,
}

impl Runner {
    pub(crate) fn play(self) -> Result<()> {
        let turns = self.flavour.run(run_in_turn(self.path))?;
        say(&turns)
    }
}

async fn run_in_turn(path: PathBuf) -> Result<Vec<Turn>> {
    let keeper = file::keeper(&path).await?;
    let shift = ready()?;
    shift.begin().await;
    let mut turns = Vec::new();
    while !shift.is_over() {
        let queued = Arc::new(AtomicU64::new(0));
        let told = Arc::clone(&queued);
        let first = move |_: &Wait| {
            let (when, order) = (now().as_nanos(), Ordering::Relaxed);
            let _ = told.compare_exchange(0, when, order, order);
        };
        let guard = keeper.lock("handoff").on_wait(first).await?;
        let granted = now().as_nanos();
        tokio::time::sleep(HOLD).await;
        let (fence, queued) = (guard.fence(), queued.load(Ordering::Relaxed));
        turns.push(Turn { fence, queued, granted, releasing: now().as_nanos() });
        guard.release().await?;
        tokio::time::sleep(AWAY).await;
    }
    keeper.close().await;
    Ok(turns)
}

/// A process that blocks for datagrams.
#[derive(Serialize, Deserialize)]
pub(crate) struct Wake {
    path: PathBuf,
}

impl Wake {
    /// Each datagram carries the moment at which it was sent; says how long each was under way.
    pub(crate) fn play(self) -> Result<()> {
        let socket = UnixDatagram::bind(&self.path)?;
        let shift = ready()?;
        socket.set_read_timeout(Some(shift.length() + Duration::from_secs(1)))?;
        let mut under_way = Vec::new();
        loop {
            let mut sent = [0; 8];
            let length = socket.recv(&mut sent)?;
            let came = now().as_nanos();
            if length < sent.len() {
                return say(&under_way);
            }
            under_way.push(came.saturating_sub(u64::from_be_bytes(sent)));
        }
    }
}

fn wakes(file: &LockFile, time: Duration) -> Result<Vec<f64>> {
    let bell = file.path().with_file_name("bell");
    let mut child = Child::start(&Role::Wake(Wake { path: bell.clone() }))?;
    let shift = child::Shift::of(time);
    child.tell(shift)?;
    let socket = UnixDatagram::unbound()?;
    while !shift.is_over() {
        std::thread::sleep(HOLD);
        socket.send_to(&now().as_nanos().to_be_bytes(), &bell)?;
    }
    socket.send_to(&[], &bell)?;
    let under_way: Vec<u64> = child.hear()?;
    Ok(under_way.into_iter().map(millis).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn turn(fence: u64, queued: u64, granted: u64, releasing: u64) -> Turn {
        Turn { fence, queued, granted, releasing }
    }

    #[test]
    fn a_handoff_goes_from_a_release_to_the_next_grant() {
        let turns =
            vec![turn(9, 4_000_000, 7_000_000, 9_000_000), turn(5, 0, 1_000_000, 6_500_000)];
        assert_eq!(handoffs(turns), [0.5]);
    }

    #[test]
    fn who_came_after_the_release_was_handed_nothing() {
        let late = turn(2, 7_000_000, 8_000_000, 9_000_000);
        let at_once = turn(3, 0, 9_500_000, 9_900_000);
        assert!(handoffs(vec![turn(1, 0, 1, 6_000_000), late, at_once]).is_empty());
    }
}
