//! A long line on a server: how long the next one waits for its turn.

use crate::{machine::now, stats::millis};
use anyhow::{Context as _, Result};
use lockkeeper::{Guard, Keeper};
use tokio::{sync::mpsc, task::JoinSet};

/// From each release to the grant of the next in line, in ms. Each has connections of its own.
pub(crate) async fn turns(url: String, waiters: usize) -> Result<Vec<f64>> {
    let first = Keeper::connect(&url).await?;
    let mut held: Guard = first.lock("turns").await?;
    let (send, mut granted) = mpsc::unbounded_channel();
    let mut tasks = JoinSet::new();
    for at in 0..waiters {
        let (keeper, send) = (Keeper::connect(&url).await?, send.clone());
        tasks.spawn(async move {
            let guard = keeper.lock("turns").await;
            send.send((now(), guard, keeper)).is_ok()
        });
        while first.get("turns").await?.is_none_or(|line| line.tickets.len() < at + 2) {
            tokio::task::yield_now().await;
        }
    }
    let (mut times, mut keepers) = (Vec::new(), Vec::new());
    for _ in 0..waiters {
        let released = now();
        held.release().await?;
        let (at, guard, keeper) = granted.recv().await.context("a waiter was lost")?;
        let nanos = u64::try_from(at.saturating_since(released).as_nanos())?;
        times.push(millis(nanos));
        held = guard?;
        keepers.push(keeper);
    }
    held.release().await?;
    Ok(times)
}
