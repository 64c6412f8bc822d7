//! Pairs of lock and release, again and again, by several sides in turn.

use crate::{
    machine::{cpu_time, cpu_time_of, now},
    source::keeper,
    stats::{figure, median},
};
use anyhow::Result;
use lockkeeper::{
    Keeper, Mode, Name, Owner, Store as _, TIME_MAX, TicketId,
    store::{AnyStore, Enter, Leave, Manner, Open, Place, SessionId, clock::Moment},
};
use std::{pin::Pin, time::Duration};
use tokio::task::JoinSet;

/// Pairs of a lone task between two looks at the clock.
const BATCH: usize = 16;
/// Runs before it counts: caches fill, prepared statements are made.
const WARM_UP: Duration = Duration::from_millis(30);
/// How long one side runs before the next has its turn.
const SLICE: Duration = Duration::from_millis(50);

/// A future that a table's function returns.
pub(crate) type Boxed<T> = Pin<Box<dyn Future<Output = Result<T>> + Send>>;

/// Something that can be taken and released.
pub(crate) trait Pair: Send + 'static {
    /// Takes an uncontended lock, and releases it.
    fn pair(&mut self) -> impl Future<Output = Result<()>> + Send;
}

/// Any [`Pair`].
pub(crate) type AnyPair = Box<dyn Repeat>;

/// Pairs until a moment, so that the boxed future is one for many pairs.
pub(crate) trait Repeat: Send {
    fn until(self: Box<Self>, end: Moment, batch: usize) -> Boxed<(u64, AnyPair)>;
}

impl<P: Pair> Repeat for P {
    fn until(mut self: Box<Self>, end: Moment, batch: usize) -> Boxed<(u64, AnyPair)> {
        Box::pin(async move {
            let mut count = 0;
            while now() < end {
                for _ in 0..batch {
                    self.pair().await?;
                }
                count += batch as u64;
            }
            Ok((count, self as AnyPair))
        })
    }
}

/// Where a side works, and with how many tasks, each with a name of its own.
#[derive(Clone)]
pub(crate) struct At {
    pub(crate) url: String,
    pub(crate) tasks: usize,
}

impl At {
    pub(crate) fn pairs<P: Pair>(&self, one: impl Fn(Name) -> P) -> Result<Vec<AnyPair>> {
        let name = |i| Name::new(&format!("pairs/{i}"));
        (0..self.tasks).map(|i| Ok(Box::new(one(name(i)?)) as AnyPair)).collect()
    }
}

/// A side that is ready.
pub(crate) struct Ready {
    pub(crate) pairs: Vec<AnyPair>,
    /// Closed at the end; until then its session stays.
    pub(crate) keeper: Option<Keeper>,
}

impl Ready {
    pub(crate) fn one(pair: impl Pair) -> Self {
        Self { pairs: vec![Box::new(pair)], keeper: None }
    }
}

/// The whole library over this store.
pub(crate) fn stack(at: At) -> Boxed<Ready> {
    Box::pin(async move { stack_of(keeper(&at.url).await?, &at) })
}

pub(crate) fn stack_of(keeper: Keeper, at: &At) -> Result<Ready> {
    let pairs = at.pairs(|name| Stack { keeper: keeper.clone(), name })?;
    Ok(Ready { pairs, keeper: Some(keeper) })
}

pub(crate) struct Stack {
    pub(crate) keeper: Keeper,
    pub(crate) name: Name,
}

impl Pair for Stack {
    async fn pair(&mut self) -> Result<()> {
        Ok(self.keeper.lock(self.name.as_str()).await?.release().await?)
    }
}

/// A store's own operations, without session task and waiting loop.
pub(crate) fn store_alone(at: At) -> Boxed<Ready> {
    Box::pin(async move {
        let keeper = keeper(&at.url).await?;
        let (store, session) = (keeper.store().clone(), open(keeper.store()).await?);
        let pairs = at.pairs(|name| StoreAlone { store: store.clone(), session, name })?;
        Ok(Ready { pairs, keeper: Some(keeper) })
    })
}

struct StoreAlone {
    store: AnyStore,
    session: SessionId,
    name: Name,
}

impl Pair for StoreAlone {
    async fn pair(&mut self) -> Result<()> {
        let Self { store, session, name } = self;
        let place = Place { session: *session, name: name.clone(), ticket: TicketId::random() };
        let (mode, manner, label) = (Mode::Exclusive, Manner::Queue, Vec::new());
        store.enter(Enter { place: place.clone(), mode, manner, label }).await?;
        store.leave(Leave { place, keep: None, stray: false }).await?;
        Ok(())
    }
}

/// Opens a session that needs no renewal.
pub(crate) async fn open(store: &AnyStore) -> Result<SessionId> {
    let (session, lock_delay) = (SessionId::random(), Duration::ZERO);
    let owner = Owner::this_process();
    store.open(Open { session, ttl: TIME_MAX, lock_delay, owner }).await?;
    Ok(session)
}

/// How fast pairs were.
#[derive(Clone, Copy)]
pub(crate) struct Speed {
    pub(crate) pairs_per_s: f64,
    /// The processor time of a pair, all threads together: less disturbed by other programs.
    pub(crate) cpu_us: f64,
    /// The same of the server; 0 if it is not counted.
    pub(crate) server_cpu_us: f64,
}

/// What one side has done, slice by slice.
pub(crate) struct Slices(Vec<Speed>);

impl Slices {
    /// What one slice alone was disturbed by does not count: the middle of all is told. That leaves out what a
    /// side does rarely, as a renewal is.
    pub(crate) fn median(&self, figure: impl Fn(&Speed) -> f64) -> f64 {
        median(&self.0.iter().map(figure).collect::<Vec<_>>())
    }

    /// The middle of the ratios to another side at the same time.
    pub(crate) fn ratio(&self, to: &Self, figure: fn(&Speed) -> f64) -> f64 {
        let slices = self.0.iter().zip(&to.0);
        median(&slices.map(|(a, b)| figure(a) / figure(b)).collect::<Vec<_>>())
    }
}

/// Has the sides take turns for so long each, a slice at a time, so that what disturbs the machine for longer
/// disturbs all of them. Every second time the order is reversed, because a side pays for what the one before it
/// has left to do.
pub(crate) async fn in_turns(
    sides: Vec<Ready>,
    time: Duration,
    server: Option<u32>,
) -> Result<Vec<Slices>> {
    let mut runners = Vec::new();
    for Ready { pairs, keeper } in sides {
        let (_, pairs) = all(pairs, WARM_UP).await?;
        runners.push(Runner { pairs, keeper, slices: Vec::new() });
    }
    let (until, slice) = (now() + time * u32::try_from(runners.len())?, SLICE.min(time));
    while now() < until || runners[0].slices.len() < 2 {
        for i in (0..runners.len()).chain((0..runners.len()).rev()) {
            runners[i].run(slice, server).await?;
        }
    }
    let mut slices = Vec::new();
    for runner in runners {
        slices.push(Slices(runner.slices));
        if let Some(keeper) = runner.keeper {
            keeper.close().await;
        }
    }
    Ok(slices)
}

/// A side that runs now and then.
struct Runner {
    pairs: Vec<AnyPair>,
    keeper: Option<Keeper>,
    slices: Vec<Speed>,
}

impl Runner {
    async fn run(&mut self, time: Duration, server: Option<u32>) -> Result<()> {
        let server_cpu = || server.map_or(Ok(Duration::ZERO), cpu_time_of);
        let (began, cpu, their_cpu) = (now(), cpu_time()?, server_cpu()?);
        let count;
        (count, self.pairs) = all(std::mem::take(&mut self.pairs), time).await?;
        let (took, count) = (now().saturating_since(began), figure(count));
        let each_us = |spent: Duration| spent.as_secs_f64() * 1e6 / count;
        self.slices.push(Speed {
            pairs_per_s: count / took.as_secs_f64(),
            cpu_us: each_us(cpu_time()?.saturating_sub(cpu)),
            server_cpu_us: each_us(server_cpu()?.saturating_sub(their_cpu)),
        });
        Ok(())
    }
}

/// Runs these side by side for so long, each in a task of its own; says how many pairs there were.
async fn all(pairs: Vec<AnyPair>, time: Duration) -> Result<(u64, Vec<AnyPair>)> {
    let (end, batch) = (now() + time, (BATCH / pairs.len().max(1)).max(1));
    let mut tasks: JoinSet<_> = pairs.into_iter().map(|pair| pair.until(end, batch)).collect();
    let (mut count, mut pairs) = (0, Vec::new());
    while let Some(done) = tasks.join_next().await {
        let (some, pair) = done??;
        count += some;
        pairs.push(pair);
    }
    Ok((count, pairs))
}
