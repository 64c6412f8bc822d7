//! Hand-offs: from just before a release in one process to the grant in another.
//!
//! Takers in several processes take one lock in turn. Each notes when it was granted and when it
//! began to release; put in order, these give one hand-off after the other. A grant counts only if
//! its taker was already waiting when the release before it began.

use crate::{
    args::Plan,
    child::{self, Child, Role, Shift, ready, say},
    file::{self, LockFile},
    flavour::Flavour,
    machine::now,
    report::Report,
    rounds::Rounds,
    server,
    stats::{figure, max, median, millis, percentile},
};
use anyhow::Result;
use lockkeeper::{Keeper, Wait};
use rslock::LockManager;
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
use tokio::task::JoinSet;

/// How long a hand-off may take in the middle, in ms.
const MIDDLE_MS: f64 = 0.6;
/// How long the lock is held; the last one of the line comes back in less than that.
pub(super) const HOLD: Duration = Duration::from_millis(3);
/// How long a taker stays away after its release, so that its coming back disturbs no hand-off.
pub(super) const AWAY: Duration = Duration::from_millis(1);
/// The same for the peer, whose waiters sleep for up to 200 ms: one that came back earlier would find
/// the lock free, and one that held it for less would release it before the last one is back.
const PEER_HOLD: Duration = Duration::from_millis(230);
const PEER_AWAY: Duration = Duration::from_millis(210);
const NAME: &str = "handoff";
/// More processes than this share the takers among them.
pub(super) const PROCESSES: usize = 11;

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
            Self::Line(waiting, flavour) => {
                let locks = Locks::File(file.path().to_owned());
                line(&locks, &vec![1; waiting + 1], flavour, HOLD, plan.round())
            }
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
        report.row(variant.what(), &figures(&all));
        if matches!(variant, Variant::Line(..)) {
            report.below(format!("p50_ms, {}", variant.what()), MIDDLE_MS, median(&all));
        }
    }
    Ok(report)
}

/// What a report says about hand-offs.
pub(super) fn figures(all: &[f64]) -> [(&'static str, f64); 4] {
    [
        ("p50_ms", median(all)),
        ("p99_ms", percentile(all, 99)),
        ("max_ms", max(all)),
        ("handoffs", figure(all.len() as u64)),
    ]
}

/// For each process, how many of these it has.
pub(super) fn spread(all: usize) -> Vec<usize> {
    let processes = all.min(PROCESSES);
    (0..processes).map(|i| all / processes + usize::from(i < all % processes)).collect()
}

/// The hand-offs, in ms, of a line that stands for so long. For each process, how many takers it has.
pub(super) fn line(
    locks: &Locks,
    takers: &[usize],
    flavour: Flavour,
    hold: Duration,
    time: Duration,
) -> Result<Vec<f64>> {
    let role = |takers: &usize| {
        Role::Runner(Runner { locks: locks.clone(), takers: *takers, flavour, hold })
    };
    turns(Child::start_all(&takers.iter().map(role).collect::<Vec<_>>())?, time)
}

/// The hand-offs, in ms, among children that take turns for so long.
pub(super) fn turns(mut children: Vec<Child>, time: Duration) -> Result<Vec<f64>> {
    let turns: Vec<Vec<Turn>> = child::work(&mut children, time)?;
    Ok(handoffs(turns.concat()))
}

/// One turn of one taker: times in nanoseconds.
#[derive(Clone, Copy, Serialize, Deserialize)]
struct Turn {
    /// When it was known that it must wait; 0 if it did not have to.
    queued: u64,
    granted: u64,
    releasing: u64,
}

/// The times between a release and the next grant, in ms.
fn handoffs(mut turns: Vec<Turn>) -> Vec<f64> {
    turns.sort_unstable_by_key(|turn| turn.granted);
    let waited = |pair: &&[Turn]| pair[1].queued > 0 && pair[1].queued < pair[0].releasing;
    let took = |pair: &[Turn]| millis(pair[1].granted.saturating_sub(pair[0].releasing));
    turns.windows(2).filter(waited).map(took).collect()
}

/// Where the lock is, and whose it is.
#[derive(Clone, Serialize, Deserialize)]
pub(super) enum Locks {
    File(PathBuf),
    Server(String),
    /// The same server, but locked by the peer.
    Peer(String),
}

/// A process that takes the lock in turn with others. Each of its takers has a connection and a
/// session of its own, as if it were a process.
#[derive(Serialize, Deserialize)]
pub(crate) struct Runner {
    locks: Locks,
    takers: usize,
    flavour: Flavour,
    /// How long it holds the lock each time; the peer has a time of its own.
    hold: Duration,
}

impl Runner {
    pub(crate) fn play(self) -> Result<()> {
        let turns = self.flavour.run(self.run())?;
        say(&turns)
    }

    async fn run(self) -> Result<Vec<Turn>> {
        let mut takers = Vec::new();
        for _ in 0..self.takers {
            takers.push(Taker::of(&self.locks).await?);
        }
        let shift = ready()?;
        let mut tasks: JoinSet<Result<Vec<Turn>>> =
            takers.into_iter().map(|taker| taker.take_turns(self.hold, shift)).collect();
        let mut turns = Vec::new();
        while let Some(done) = tasks.join_next().await {
            turns.extend(done??);
        }
        Ok(turns)
    }
}

enum Taker {
    Ours(Keeper),
    Peer(LockManager),
}

impl Taker {
    async fn of(locks: &Locks) -> Result<Self> {
        Ok(match locks {
            Locks::File(path) => Self::Ours(file::keeper(path).await?),
            Locks::Server(url) => Self::Ours(server::keeper(url).await?),
            Locks::Peer(url) => Self::Peer(LockManager::new(vec![url.as_str()])),
        })
    }

    async fn take_turns(self, time: Duration, shift: Shift) -> Result<Vec<Turn>> {
        shift.begin().await;
        let mut turns = Vec::new();
        while !shift.is_over() {
            let (turn, away) = match &self {
                Self::Ours(keeper) => (turn_of_ours(keeper, time, shift).await?, AWAY),
                Self::Peer(manager) => (turn_of_peer(manager, shift).await?, PEER_AWAY),
            };
            turns.extend(turn);
            tokio::time::sleep(away).await;
        }
        if let Self::Ours(keeper) = self {
            keeper.close().await;
        }
        Ok(turns)
    }
}

async fn turn_of_ours(keeper: &Keeper, time: Duration, shift: Shift) -> Result<Option<Turn>> {
    let queued = Arc::new(AtomicU64::new(0));
    let told = Arc::clone(&queued);
    let first = move |_: &Wait| {
        let (when, order) = (now().as_nanos(), Ordering::Relaxed);
        let _ = told.compare_exchange(0, when, order, order);
    };
    let guard = keeper.lock(NAME).on_wait(first).await?;
    let turn = hold(time, queued.load(Ordering::Relaxed), shift).await;
    guard.release().await?;
    Ok(turn)
}

async fn turn_of_peer(manager: &LockManager, shift: Shift) -> Result<Option<Turn>> {
    // It does not tell that it must wait, so it counts as waiting from the call on.
    let called = now().as_nanos();
    let lock = manager.acquire(NAME, lockkeeper::TTL_DEFAULT).await?;
    let turn = hold(PEER_HOLD, called, shift).await;
    lock.release().await;
    Ok(turn)
}

/// Holds what was granted just now. When the shift is over the line only dissolves: nothing counts.
async fn hold(time: Duration, queued: u64, shift: Shift) -> Option<Turn> {
    let granted = now().as_nanos();
    if shift.is_over() {
        return None;
    }
    tokio::time::sleep(time).await;
    Some(Turn { queued, granted, releasing: now().as_nanos() })
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

    fn turn(queued: u64, granted: u64, releasing: u64) -> Turn {
        Turn { queued, granted, releasing }
    }

    #[test]
    fn a_handoff_goes_from_a_release_to_the_next_grant() {
        let turns = vec![turn(4_000_000, 7_000_000, 9_000_000), turn(0, 1_000_000, 6_500_000)];
        assert_eq!(handoffs(turns), [0.5]);
    }

    #[test]
    fn takers_are_spread_evenly_over_few_processes() {
        assert_eq!(spread(2), [1, 1]);
        assert_eq!(spread(11), [1; 11]);
        let many = spread(101);
        assert_eq!((many.len(), many.iter().sum::<usize>()), (PROCESSES, 101));
        assert!(many.iter().all(|n| [9, 10].contains(n)));
    }

    #[test]
    fn a_waiter_that_came_after_the_release_was_handed_nothing() {
        let late = turn(7_000_000, 8_000_000, 9_000_000);
        let at_once = turn(0, 9_500_000, 9_900_000);
        assert!(handoffs(vec![turn(0, 1, 6_000_000), late, at_once]).is_empty());
    }
}
