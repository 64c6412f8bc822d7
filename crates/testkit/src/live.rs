//! Tests beside the suite, with a server of their own: to start it, to meddle with it, and to see what
//! becomes of locks.

use crate::world::{eventually, soon};
use lockkeeper::{Guard, Keeper, Loss};
use servers::{Recipe, Running};
use std::{sync::OnceLock, time::Duration};
use tokio::task::JoinHandle;

/// A server that many share: started when the first of them asks for it, ended with the program.
#[derive(Debug)]
pub struct Server {
    recipe: Recipe,
    running: OnceLock<Result<Running, String>>,
}

impl Server {
    /// Nothing runs yet.
    #[must_use]
    pub fn of(recipe: Recipe) -> Self {
        Self { recipe, running: OnceLock::new() }
    }

    /// The running server.
    ///
    /// # Errors
    /// Why it did not start.
    pub fn running(&self) -> anyhow::Result<&Running> {
        self.prepared(|_| Ok(()))
    }

    /// The running server, to which this was done when it had started.
    pub(crate) fn prepared(
        &self,
        prepare: impl FnOnce(&Running) -> anyhow::Result<()>,
    ) -> anyhow::Result<&Running> {
        let start = || {
            let running = self.recipe.start()?;
            prepare(&running)?;
            anyhow::Ok(running)
        };
        let running = self.running.get_or_init(|| start().map_err(|e| format!("{e:#}")));
        running.as_ref().map_err(|e| anyhow::anyhow!("{} did not start: {e}", self.recipe.name))
    }
}

/// A keeper whose sessions live for so long.
pub async fn keeper(server: &Running, ttl: Duration) -> Keeper {
    Keeper::builder().ttl(ttl).connect(server.url()).await.expect("the server answers")
}

/// A task that waits for a lock.
pub type Waiter = JoinHandle<lockkeeper::Result<Guard>>;

/// Waits for a lock, and returns when its ticket stands in line behind `ahead` others.
pub async fn waiter(keeper: &Keeper, name: &str, ahead: usize) -> Waiter {
    let task = tokio::spawn(keeper.lock(name).into_future());
    until_length(keeper, name, ahead + 1).await;
    task
}

/// Waits until so many tickets stand in the line.
pub async fn until_length(keeper: &Keeper, name: &str, length: usize) {
    eventually("the line has its length", async || {
        let line = keeper.get(name).await;
        line.is_ok_and(|line| line.map_or(0, |line| line.tickets.len()) == length)
    })
    .await;
}

/// The lock `a`, which one keeper holds and another waits for.
pub async fn held_and_awaited(server: &Running, ttl: Duration) -> (Guard, Waiter) {
    let (one, two) = (keeper(server, ttl).await, keeper(server, ttl).await);
    let held = one.lock("a").await.expect("free");
    let waiter = waiter(&two, "a", 1).await;
    (held, waiter)
}

/// The next in line after one whose fence was this one.
pub async fn next(waiter: Waiter, fence: u64) -> Guard {
    let next = soon("the waiter's turn", waiter).await.expect("no panic").expect("granted");
    assert!(next.fence() > fence, "{} after {fence}", next.fence());
    next
}

/// A server that stands still loses its holders and keeps its waiters: unknown is not lost, until the
/// deadline; waiters are served when the server goes on.
pub async fn stands_still(mut server: Running, ttl: Duration) {
    let (held, waiter) = held_and_awaited(&server, ttl).await;
    server.freeze().expect("frozen");
    assert_eq!(soon("the loss", held.lost()).await, Loss::Expired);
    server.thaw().expect("thawed");
    // Its session may be the one of before, at its end: that it was served is enough.
    drop(next(waiter, held.fence()).await);
}

/// A server that crashes keeps the locks, and the waiters keep their places.
pub async fn crashes_and_remembers(mut server: Running) {
    let keeper = keeper(&server, Duration::from_secs(60)).await;
    let held = keeper.lock("a").await.expect("free");
    let waiter = waiter(&keeper, "a", 1).await;
    server.kill().expect("killed");
    server.restart().expect("restarted");
    still_held(&keeper, &held).await;
    let fence = held.fence();
    held.release().await.expect("released");
    drop(next(waiter, fence).await);
    keeper.close().await;
}

/// After all that happened the lock is held, the holder knows it, and the store says so.
pub async fn still_held(keeper: &Keeper, held: &Guard) {
    eventually("a renewal", async || held.extend(Duration::from_secs(5)).await.is_ok()).await;
    assert!(held.is_held());
    assert!(keeper.check(&held.sequencer()).await.expect("an answer"));
}
