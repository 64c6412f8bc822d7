//! Pairs of lock and release, again and again.

use crate::{
    machine::{cpu_time, cpu_time_of, now},
    stats::{figure, median},
};
use anyhow::Result;
use lockkeeper::{
    Keeper, Mode, Name, Owner, Store as _, TIME_MAX, TicketId,
    store::{AnyStore, Enter, Leave, Manner, Open, Place, SessionId},
};
use std::time::Duration;
use tokio::task::JoinSet;

/// Pairs of a lone task between two looks at the clock.
const BATCH: usize = 16;
/// Runs before it counts: caches fill, prepared statements are made.
const WARM_UP: Duration = Duration::from_millis(30);

/// How long one runs before the other has its turn, where two are compared.
const SLICE: Duration = Duration::from_millis(50);

/// Something that can be taken and released.
pub(crate) trait Pair: Send + 'static {
    /// Takes an uncontended lock, and releases it.
    fn pair(&mut self) -> impl Future<Output = Result<()>> + Send;
}

/// The whole library.
pub(crate) struct Stack {
    pub(crate) keeper: Keeper,
    pub(crate) name: String,
}

impl Pair for Stack {
    async fn pair(&mut self) -> Result<()> {
        Ok(self.keeper.lock(self.name.as_str()).await?.release().await?)
    }
}

/// A store's own operations, without keeper and session task.
pub(crate) struct StoreAlone {
    store: AnyStore,
    session: SessionId,
    name: Name,
}

impl StoreAlone {
    /// Opens a session for it.
    pub(crate) async fn over(store: AnyStore) -> Result<Self> {
        let session = open(&store).await?;
        Ok(Self { store, session, name: Name::new("pairs")? })
    }

    /// Another line in the same session.
    pub(crate) fn named(&self, name: Name) -> Self {
        Self { store: self.store.clone(), session: self.session, name }
    }
}

impl Pair for StoreAlone {
    async fn pair(&mut self) -> Result<()> {
        let Self { store, session, name } = self;
        let place = Place { session: *session, name: name.clone(), ticket: TicketId::random() };
        let (mode, manner, note) = (Mode::Exclusive, Manner::Queue, Vec::new());
        store.enter(Enter { place: place.clone(), mode, manner, label: note }).await?;
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
pub(crate) struct Speed {
    pub(crate) pairs_per_s: f64,
    /// The processor time of a pair, all threads together: less disturbed by other programs.
    pub(crate) cpu_us: f64,
    /// The same of the server; 0 without one.
    pub(crate) server_cpu_us: f64,
}

/// How fast a lone task is with the whole library on this store.
pub(crate) async fn stack_speed(url: String, time: Duration) -> Result<Speed> {
    let (keeper, name) = (Keeper::connect(&url).await?, "pairs".to_owned());
    let speed = speed(vec![Stack { keeper: keeper.clone(), name }], time, None).await;
    keeper.close().await;
    speed
}

/// Runs these side by side, each in a task of its own.
pub(crate) async fn speed<P: Pair>(
    pairs: Vec<P>,
    time: Duration,
    server: Option<u32>,
) -> Result<Speed> {
    let server_cpu = || server.map_or(Ok(Duration::ZERO), cpu_time_of);
    let (_, pairs) = all(pairs, WARM_UP).await?;
    let (began, cpu, their_cpu) = (now(), cpu_time()?, server_cpu()?);
    let (count, _) = all(pairs, time).await?;
    let (took, count) = (now().saturating_since(began), figure(count));
    let each_us = |spent: Duration| spent.as_secs_f64() * 1e6 / count;
    Ok(Speed {
        pairs_per_s: count / took.as_secs_f64(),
        cpu_us: each_us(cpu_time()?.saturating_sub(cpu)),
        server_cpu_us: each_us(server_cpu()?.saturating_sub(their_cpu)),
    })
}

/// Two that took turns.
pub(crate) struct Turns {
    pub(crate) speeds: [Speed; 2],
    /// How fast the second was for the first.
    pub(crate) share: f64,
}

/// Has two take turns for so long each, a slice at a time, so that what disturbs the machine for longer
/// disturbs both. What disturbs one slice alone does not count: the middle of all turns is told. That
/// leaves out what either does rarely, as a renewal is.
pub(crate) async fn in_turns<A: Pair, B: Pair>(a: A, b: B, time: Duration) -> Result<Turns> {
    let (mut a, mut b) = (Runner::warm(a).await?, Runner::warm(b).await?);
    let (until, slice) = (now() + time * 2, SLICE.min(time));
    while now() < until || a.slices.len() < 2 {
        a.run(slice).await?;
        b.run(slice).await?;
        // The side that comes second pays for what the first has left to do.
        b.run(slice).await?;
        a.run(slice).await?;
    }
    let turns = b.slices.iter().zip(&a.slices);
    let shares: Vec<f64> = turns.map(|(b, a)| b.pairs_per_s / a.pairs_per_s).collect();
    Ok(Turns { speeds: [a.speed(), b.speed()], share: median(&shares) })
}

/// One that runs now and then.
struct Runner<P> {
    pair: Option<P>,
    slices: Vec<Speed>,
}

impl<P: Pair> Runner<P> {
    async fn warm(pair: P) -> Result<Self> {
        let (_, mut pairs) = all(vec![pair], WARM_UP).await?;
        Ok(Self { pair: pairs.pop(), slices: Vec::new() })
    }

    async fn run(&mut self, time: Duration) -> Result<()> {
        let (began, cpu) = (now(), cpu_time()?);
        let (count, mut pairs) = all(self.pair.take().into_iter().collect(), time).await?;
        let (took, cpu) = (now().saturating_since(began), cpu_time()?.saturating_sub(cpu));
        self.pair = pairs.pop();
        self.slices.push(Speed {
            pairs_per_s: figure(count) / took.as_secs_f64(),
            cpu_us: cpu.as_secs_f64() * 1e6 / figure(count),
            server_cpu_us: 0.0,
        });
        Ok(())
    }

    fn speed(&self) -> Speed {
        let middle =
            |of: fn(&Speed) -> f64| median(&self.slices.iter().map(of).collect::<Vec<_>>());
        Speed {
            pairs_per_s: middle(|slice| slice.pairs_per_s),
            cpu_us: middle(|slice| slice.cpu_us),
            server_cpu_us: 0.0,
        }
    }
}

/// Has all of them go on for so long; says how many pairs there were.
async fn all<P: Pair>(pairs: Vec<P>, time: Duration) -> Result<(u64, Vec<P>)> {
    let (until, batch) = (now() + time, (BATCH / pairs.len().max(1)).max(1));
    let mut tasks = JoinSet::new();
    for mut pair in pairs {
        tasks.spawn(async move {
            let mut batches = 0;
            while now() < until {
                for _ in 0..batch {
                    pair.pair().await?;
                }
                batches += 1;
            }
            anyhow::Ok((batches * batch as u64, pair))
        });
    }
    let (mut count, mut pairs) = (0, Vec::new());
    while let Some(done) = tasks.join_next().await {
        let (some, pair) = done??;
        count += some;
        pairs.push(pair);
    }
    Ok((count, pairs))
}
