//! Hand-overs: from just before a release in one process to the grant in another, a table for each store.
//!
//! Takers in several processes take one lock in turn. Each notes when it was granted and when it
//! began to release; put in order, these give one hand-over after the other. A grant counts only if
//! its taker was already waiting when the release before it began.

use super::Run;
use crate::{
    child::{self, Child, Role, Shift, ready, say},
    flavour::Flavour::{self, CurrentThread, MultiThread},
    floor::{etcd::Bare, redis_messages, wake, zookeeper},
    http_client::{Caller, some_id},
    machine::now,
    report::Report,
    rounds::Rounds,
    service::Running,
    source::keeper,
    stats::{figure, max, median, millis, percentile},
};
use anyhow::Result;
use lockkeeper::{Keeper, Wait};
use rslock::LockManager;
use serde::{Deserialize, Serialize};
use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};
use tokio::task::JoinSet;

/// How long the lock is held; the last one of the line comes back in less than that.
pub(crate) const HOLD: Duration = Duration::from_millis(3);
/// How long a taker stays away after its release, so that its coming back disturbs no hand-over.
pub(crate) const AWAY: Duration = Duration::from_millis(1);
/// The same for rslock, whose waiters sleep for up to 200 ms: one that came back earlier would find
/// the lock free, and one that held it for less would release it before the last one is back.
const PEER_HOLD: Duration = Duration::from_millis(230);
const PEER_AWAY: Duration = Duration::from_millis(210);
const NAME: &str = "handoff";
/// More processes than this share the takers among them.
const PROCESSES: usize = 21;

/// What is compared on one store.
pub(crate) struct HandOvers {
    /// The floor, ours, and others.
    sides: &'static [Side],
    /// How many wait.
    waiting: &'static [usize],
    flavours: &'static [Flavour],
    hold: Duration,
    bound: Bound,
    noun: fn(usize) -> String,
}

struct Side {
    what: &'static str,
    /// The hand-overs of one round, in ms.
    run: fn(&Queue) -> Result<Vec<f64>>,
}

/// What our hand-over in the middle must stay below.
enum Bound {
    Millis(f64),
    /// So many times the floor, which is this.
    Times(f64, &'static str),
}

/// A line that stands for so long.
pub(crate) struct Queue {
    pub(crate) url: String,
    /// For each process, how many takers it has.
    pub(crate) takers: Vec<usize>,
    pub(crate) flavour: Flavour,
    pub(crate) hold: Duration,
    pub(crate) time: Duration,
}

const OURS: Side = Side { what: "lockkeeper", run: |queue| queue.stand(Locks::Ours) };
const CROWDS: &[usize] = &[1, 10, 100];

const fn crowds(sides: &'static [Side], bound: Bound) -> HandOvers {
    let noun = |n| format!("{n} waiting");
    HandOvers { sides, waiting: CROWDS, flavours: &[MultiThread], hold: HOLD, bound, noun }
}

pub(crate) const SQLITE: HandOvers = HandOvers {
    waiting: &[1, 20],
    flavours: &[CurrentThread, MultiThread],
    noun: |n| format!("{n} waiting process{}", if n == 1 { "" } else { "es" }),
    ..crowds(
        &[Side { what: "floor: one datagram to a blocked process", run: wake::datagrams }, OURS],
        Bound::Millis(0.6),
    )
};

pub(crate) const REDIS: HandOvers = crowds(
    &[
        Side { what: "floor: PUBLISH to a subscriber", run: redis_messages::messages },
        OURS,
        Side { what: "rslock", run: |queue| queue.stand(Locks::Rslock) },
    ],
    Bound::Times(1.5, "the bare message"),
);

pub(crate) const ETCD: HandOvers = crowds(
    &[Side { what: "etcd's own lock service", run: |queue| queue.stand(Locks::Etcd) }, OURS],
    Bound::Times(1.2, "etcd's own"),
);

/// The taker before is back in line after 10 ms, also with kazoo.
pub(crate) const ZOOKEEPER: HandOvers = HandOvers {
    hold: Duration::from_millis(10),
    ..crowds(&[Side { what: "kazoo", run: zookeeper::kazoo }, OURS], Bound::Times(1.0, "kazoo's"))
};

/// The service in front of the store, and the store without it.
pub(crate) const SERVICE: HandOvers = HandOvers {
    waiting: &[1, 10],
    ..crowds(
        &[
            Side { what: "direct", run: |queue| queue.stand(Locks::Ours) },
            Side { what: "service, bare HTTP clients", run: |queue| queue.through(Locks::Service) },
            Side { what: "service, library", run: |queue| queue.through(Locks::Ours) },
        ],
        Bound::Times(3.0, "the direct hand-off"),
    )
};

impl HandOvers {
    pub(crate) fn run(&self, run: &Run<'_>, report: &mut Report) -> Result<()> {
        let crowds = self.waiting.iter().map(|n| (*n).min(run.plan.scaled(*n, 3)));
        let crowds = crowds.flat_map(|n| self.flavours.iter().map(move |flavour| (n, *flavour)));
        let variants: Vec<(&Side, usize, Flavour)> = crowds
            .flat_map(|(n, flavour)| self.sides.iter().map(move |s| (s, n, flavour)))
            .collect();
        let rounds = Rounds::run(run.plan.rounds, &variants, |(side, waiting, flavour)| {
            let site = run.source.site()?;
            let (takers, time) = (spread(waiting + 1), run.plan.round());
            let (flavour, hold) = (*flavour, self.hold);
            (side.run)(&Queue { url: site.url(), takers, flavour, hold, time })
        })?;
        for (i, (side, waiting, flavour)) in variants.iter().enumerate() {
            let mut which = (self.noun)(*waiting);
            if self.flavours.len() > 1 {
                which = format!("{which}, {}", flavour.word());
            }
            let all = rounds.of(i).concat();
            report.row(
                format!("{}, {which}", side.what),
                &[
                    ("p50_ms", median(&all)),
                    ("p99_ms", percentile(&all, 99)),
                    ("max_ms", max(&all)),
                    ("handoffs", figure(all.len() as u64)),
                ],
            );
            match self.bound {
                _ if i % self.sides.len() != 1 => {}
                Bound::Millis(most) => report.below(format!("p50_ms, {which}"), most, median(&all)),
                Bound::Times(times, what) => {
                    let ratio = rounds.ratio(i, i - 1, |all| median(all));
                    report.below(format!("times {what}, p50, {which}"), times, ratio);
                }
            }
        }
        let what = "every taker has a connection of its own, in at most";
        report.note(format!("{what} {PROCESSES} processes"));
        Ok(())
    }
}

/// For each process, how many of these it has.
fn spread(all: usize) -> Vec<usize> {
    let processes = all.min(PROCESSES);
    (0..processes).map(|i| all / processes + usize::from(i < all % processes)).collect()
}

impl Queue {
    /// How many takers there are beside the one that holds the lock.
    pub(crate) fn waiting(&self) -> usize {
        self.takers.iter().sum::<usize>() - 1
    }

    fn stand(&self, locks: Locks) -> Result<Vec<f64>> {
        self.stand_at(&self.url, locks)
    }

    /// Stands at a service in front of the store.
    fn through(&self, locks: Locks) -> Result<Vec<f64>> {
        let service = Running::service(&self.url)?;
        match locks {
            Locks::Service => self.stand_at(&service.address, locks),
            _ => self.stand_at(&service.url(), locks),
        }
    }

    fn stand_at(&self, url: &str, locks: Locks) -> Result<Vec<f64>> {
        let Self { flavour, hold, .. } = self;
        let role = |takers: &usize| {
            let (url, takers, flavour, hold) = (url.to_owned(), *takers, *flavour, *hold);
            Role::Runner(Runner { locks, url, takers, flavour, hold })
        };
        self.among(Child::start_all(&self.takers.iter().map(role).collect::<Vec<_>>())?)
    }

    /// The hand-overs among these children.
    pub(crate) fn among(&self, mut children: Vec<Child>) -> Result<Vec<f64>> {
        let turns: Vec<Vec<Turn>> = child::work(&mut children, self.time)?;
        Ok(handoffs(turns.concat()))
    }
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

/// Whose lock it is.
#[derive(Clone, Copy, Serialize, Deserialize)]
enum Locks {
    Ours,
    /// That of the Redis server, locked by rslock.
    Rslock,
    /// The lock service of etcd's server.
    Etcd,
    /// Our service at this address, asked without the library.
    Service,
}

/// A process that takes the lock in turn with others. Each of its takers has a connection and a
/// session of its own, as if it were a process.
#[derive(Serialize, Deserialize)]
pub(crate) struct Runner {
    locks: Locks,
    url: String,
    takers: usize,
    flavour: Flavour,
    /// How long it holds the lock each time; rslock has a time of its own.
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
            takers.push(Taker::of(self.locks, &self.url).await?);
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
    Rslock(LockManager),
    Etcd(Bare),
    Service(Caller),
}

impl Taker {
    async fn of(locks: Locks, url: &str) -> Result<Self> {
        Ok(match locks {
            Locks::Ours => Self::Ours(keeper(url).await?),
            Locks::Rslock => Self::Rslock(LockManager::new(vec![url])),
            Locks::Etcd => Self::Etcd(Bare::connect(url).await?),
            Locks::Service => Self::Service(Caller::open(url).await?),
        })
    }

    async fn take_turns(mut self, hold: Duration, shift: Shift) -> Result<Vec<Turn>> {
        shift.begin().await;
        let away = if matches!(self, Self::Rslock(_)) { PEER_AWAY } else { AWAY };
        let mut turns = Vec::new();
        while !shift.is_over() {
            turns.extend(self.turn(hold, shift).await?);
            tokio::time::sleep(away).await;
        }
        if let Self::Ours(keeper) = self {
            keeper.close().await;
        }
        Ok(turns)
    }

    /// The others do not tell that they must wait, so they count as waiting from the call on.
    async fn turn(&mut self, time: Duration, shift: Shift) -> Result<Option<Turn>> {
        let called = now().as_nanos();
        let turn;
        match self {
            Self::Ours(keeper) => {
                let queued = Arc::new(AtomicU64::new(0));
                let told = Arc::clone(&queued);
                let first = move |_: &Wait| {
                    let (when, order) = (now().as_nanos(), Ordering::Relaxed);
                    let _ = told.compare_exchange(0, when, order, order);
                };
                let guard = keeper.lock(NAME).on_wait(first).await?;
                turn = hold(time, queued.load(Ordering::Relaxed), shift).await;
                guard.release().await?;
            }
            Self::Rslock(manager) => {
                let lock = manager.acquire(NAME, lockkeeper::TTL_DEFAULT).await?;
                turn = hold(PEER_HOLD, called, shift).await;
                lock.release().await;
            }
            Self::Etcd(bare) => {
                let key = bare.lock(NAME).await?;
                turn = hold(time, called, shift).await;
                bare.unlock(key).await?;
            }
            Self::Service(caller) => {
                let ticket = some_id();
                caller.take(NAME, &ticket).await?;
                turn = hold(time, called, shift).await;
                caller.leave(NAME, &ticket).await?;
            }
        }
        Ok(turn)
    }
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
        assert_eq!(spread(21), [1; 21]);
        let many = spread(101);
        assert_eq!((many.len(), many.iter().sum::<usize>()), (PROCESSES, 101));
        assert!(many.iter().all(|n| [4, 5].contains(n)));
    }

    #[test]
    fn a_waiter_that_came_after_the_release_was_handed_nothing() {
        let late = turn(7_000_000, 8_000_000, 9_000_000);
        let at_once = turn(0, 9_500_000, 9_900_000);
        assert!(handoffs(vec![turn(0, 1, 6_000_000), late, at_once]).is_empty());
    }
}
