//! One hand-over of a lock between two keepers of this process, measured.

use lockkeeper::{Acquire, Error, Guard, Keeper};
use std::{
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::{sync::Notify, task::JoinHandle, time::timeout};

/// A name for a lock that nothing else uses.
pub(crate) fn own_name(verb: &str) -> String {
    let random: String = lockkeeper::TicketId::random().to_string().chars().take(8).collect();
    format!("lockkeeper-{verb}-{random}")
}

/// The wish for a lock, in line where the store has lines.
pub(crate) fn lock(keeper: &Keeper, name: &str) -> Acquire {
    let lock = keeper.lock(name);
    if keeper.capabilities().fair { lock } else { lock.unfair() }
}

/// The store did not do what it was asked in time.
#[derive(Debug)]
pub(crate) enum Trouble {
    Late,
    Store(Error),
}

impl From<Error> for Trouble {
    fn from(e: Error) -> Self {
        Self::Store(e)
    }
}

/// Awaits what the store is asked for, but not for ever.
pub(crate) async fn within<T>(
    limit: Duration,
    ask: impl Future<Output = Result<T, Error>>,
) -> Result<T, Trouble> {
    Ok(timeout(limit, ask).await.map_err(|_| Trouble::Late)??)
}

/// Lets `next` wait for the lock, releases it, and says how long after that the other keeper had it.
pub(crate) async fn hand_over(
    held: Guard,
    next: &Keeper,
    limit: Duration,
) -> Result<(Guard, Duration), Trouble> {
    let waits = Arc::new(Notify::new());
    let tell = Arc::clone(&waits);
    let acquire = lock(next, held.name().as_str()).on_wait(move |_| tell.notify_one()).wait(limit);
    let mut waiter = Abort(tokio::spawn(async move {
        let granted = acquire.await?;
        Ok::<_, Error>((granted, Instant::now()))
    }));
    // A waiter that could not wait says why, below.
    tokio::select! {
        waiting = timeout(limit, waits.notified()) => waiting.map_err(|_| Trouble::Late)?,
        ended = &mut waiter.0 => return Err(ended_early(ended)),
    }
    let released = Instant::now();
    within(limit, held.release()).await?;
    let granted = timeout(limit, &mut waiter.0).await.map_err(|_| Trouble::Late)?;
    let (guard, at) = granted.map_err(|_| Trouble::Late)??;
    Ok((guard, at.saturating_duration_since(released)))
}

fn ended_early<T>(ended: Result<Result<(Guard, T), Error>, tokio::task::JoinError>) -> Trouble {
    match ended {
        Ok(Err(e)) => Trouble::Store(e),
        // Granted beside the holder: the caller has checked that before.
        _ => Trouble::Late,
    }
}

/// A task that ends with its handle.
struct Abort<T>(JoinHandle<T>);

impl<T> Drop for Abort<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// A time as people read it: 740 µs, 1.2 ms, 3.4 s.
pub(crate) fn short(time: Duration) -> String {
    match time.as_micros() {
        micros @ 0..1_000 => format!("{micros} µs"),
        1_000..1_000_000 => format!("{:.1} ms", time.as_secs_f64() * 1e3),
        _ => format!("{:.1} s", time.as_secs_f64()),
    }
}

/// Microseconds for machines.
pub(crate) fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}
