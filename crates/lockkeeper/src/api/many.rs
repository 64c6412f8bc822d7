//! Several locks, all or none.

use crate::{
    api::{guard::Guard, keeper::Keeper},
    error::{Error, Loss, Result},
    model::name::{Name, NameError},
};
use std::{pin::Pin, time::Duration};

/// Several locks to be taken. Await it, or set options first.
///
/// They are taken one after the other in sorted order, whatever order they were named in. So two
/// who want overlapping sets cannot wait for each other. When one of them cannot be had in time,
/// those taken before are released.
///
/// # Errors
/// As [`Acquire`](crate::Acquire); [`Error::Lost`] if one of them was lost while waiting for another.
///
/// # Cancel safety
/// Dropping the future releases what was taken, in the background.
#[derive(Clone, Debug)]
#[must_use = "locks are taken when this is awaited"]
pub struct LockAll {
    keeper: Keeper,
    names: Result<Vec<Name>, NameError>,
    wait: Option<Duration>,
    unfair: bool,
}

impl LockAll {
    pub(crate) fn new(keeper: &Keeper, names: Result<Vec<Name>, NameError>) -> Self {
        let names = names.map(|mut names| {
            names.sort_unstable();
            names.dedup();
            names
        });
        Self { keeper: keeper.clone(), names, wait: None, unfair: false }
    }

    /// Waits at most so long, for all of them together.
    pub fn wait(mut self, wait: Duration) -> Self {
        self.wait = Some(wait);
        self
    }

    /// Contends for each of them instead of standing in line.
    pub fn unfair(mut self) -> Self {
        self.unfair = true;
        self
    }

    /// Takes all of them if all are free now; `None` otherwise.
    ///
    /// # Errors
    /// As [`Acquire::try_now`](crate::Acquire::try_now).
    ///
    /// # Cancel safety
    /// As [`LockAll`].
    pub async fn try_now(self) -> Result<Option<Guards>> {
        let mut guards = Guards(Vec::new());
        for name in self.names? {
            match self.keeper.lock(name).try_now().await? {
                Some(guard) => guards.0.push(guard),
                None => {
                    guards.release().await?;
                    return Ok(None);
                }
            }
        }
        Ok(Some(guards))
    }

    async fn go(self) -> Result<Guards> {
        let clock = &self.keeper.inner.clock;
        let until = self.wait.map(|wait| clock.now() + wait);
        let mut guards = Guards(Vec::new());
        for name in self.names.clone()? {
            let lock = self.keeper.lock(name);
            let lock = if self.unfair { lock.unfair() } else { lock };
            let guard = match until {
                None => lock.await,
                Some(until) => lock.wait(until.saturating_since(clock.now())).await,
            };
            match guard {
                Ok(guard) => guards.0.push(guard),
                Err(e) => {
                    // The reason why it failed is worth more than trouble while letting go.
                    let _ = guards.release().await;
                    return Err(e);
                }
            }
        }
        let lost = guards.iter().find_map(|g| g.loss().map(|why| (g.name().clone(), why)));
        match lost {
            None => Ok(guards),
            // Lost while we waited for the others.
            Some((name, why)) => {
                let _ = guards.release().await;
                Err(Error::Lost { name, why })
            }
        }
    }
}

impl IntoFuture for LockAll {
    type Output = Result<Guards>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.go())
    }
}

/// Several locks in hand, in the order of their names.
#[derive(Debug)]
#[must_use = "dropping the guards releases the locks"]
pub struct Guards(Vec<Guard>);

impl Guards {
    /// The guard of this name.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&Guard> {
        self.0.iter().find(|guard| guard.name().as_str() == name)
    }

    /// All of them, in the order of their names.
    pub fn iter(&self) -> impl Iterator<Item = &Guard> {
        self.0.iter()
    }

    /// Are all of them held now?
    #[must_use]
    pub fn is_held(&self) -> bool {
        self.0.iter().all(Guard::is_held)
    }

    /// Waits until the first of them is lost, and says which and why.
    ///
    /// # Cancel safety
    /// Can be dropped and called again as often as wanted.
    pub async fn lost(&self) -> (&Name, Loss) {
        let mut losses: Vec<_> =
            self.0.iter().map(|guard| (guard.name(), Box::pin(guard.lost()))).collect();
        std::future::poll_fn(|cx| {
            for (name, lost) in &mut losses {
                if let std::task::Poll::Ready(why) = lost.as_mut().poll(cx) {
                    return std::task::Poll::Ready((*name, why));
                }
            }
            std::task::Poll::Pending
        })
        .await
    }

    /// Releases all of them, the last one first.
    ///
    /// # Errors
    /// The first error; the others are released nevertheless.
    ///
    /// # Cancel safety
    /// Dropping the future releases the rest in the background.
    pub async fn release(self) -> Result<()> {
        let mut first: Option<Error> = None;
        for guard in self.0.into_iter().rev() {
            if let Err(e) = guard.release().await {
                first.get_or_insert(e);
            }
        }
        first.map_or(Ok(()), Err)
    }
}
