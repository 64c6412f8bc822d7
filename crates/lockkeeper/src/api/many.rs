//! Several locks, all or none.

use crate::{
    api::{acquire::Acquire, guard::Guard, keeper::Keeper},
    error::{Error, Loss, Result},
    model::{
        name::{Name, NameError},
        ticket::Mode,
    },
};
use std::{future::poll_fn, pin::Pin, sync::Arc, task::Poll, time::Duration};

/// Several locks to be taken. Await it, or set options first: they are those of [`Acquire`] and hold
/// for each of the locks.
///
/// The locks are taken one after the other in the order of their names, whatever order they were given
/// in. So two programs that want overlapping sets cannot wait for each other. When one of the locks
/// cannot be had in time, those taken before are released. A name that is given twice is taken once.
///
/// The whole set is not one atomic step: while one lock is waited for, those before it are held already,
/// and other programs see that. Keep sets small and put the most contended name first in order.
///
/// ```
/// # use lockkeeper::Keeper; use std::time::Duration;
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> lockkeeper::Result<()> {
/// # let keeper = Keeper::connect("memory://doc-many").await?;
/// let transfer = keeper.lock_all(["acct/2", "acct/1"]).wait(Duration::from_secs(5));
/// let guards = transfer.label("transfer 17").await?;
/// assert!(guards.is_held() && guards.get("acct/1").is_some());
/// assert!(keeper.lock_all(["acct/1", "acct/3"]).try_now().await?.is_none());
/// guards.release().await?;
/// # keeper.close().await; Ok(()) }
/// ```
///
/// A set that is taken alone must not be mixed with locks that are taken one by one: a program that holds
/// `acct/2` and then awaits `acct/1` can still wait for a program that holds them in the right order.
///
/// # Errors
/// As [`Acquire`]; [`Error::Lost`] if one of them was lost while waiting for another.
///
/// # Cancel safety
/// Dropping the future releases what was taken, in the background, and loses its places in line.
#[derive(Clone, Debug)]
#[must_use = "locks are taken when this is awaited"]
pub struct LockAll {
    names: Result<Vec<Name>, NameError>,
    /// Each lock, without its name.
    lock: Acquire,
    /// For all locks together.
    wait: Option<Duration>,
}

impl LockAll {
    pub(crate) fn new(keeper: &Keeper, names: Result<Vec<Name>, NameError>) -> Self {
        let names = names.map(|mut names| {
            names.sort_unstable();
            names.dedup();
            names
        });
        let lock = Acquire::new(keeper, Err(NameError::Empty), Mode::Exclusive);
        Self { names, lock, wait: None }
    }

    /// Waits at most so long, for all of them together. When the time is over, the locks taken until then
    /// are released, and the error names the lock that was missing.
    ///
    /// ```
    /// # use lockkeeper::{Error, Keeper}; use std::time::Duration;
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> lockkeeper::Result<()> {
    /// # let keeper = Keeper::connect("memory://doc-many-wait").await?;
    /// let held = keeper.lock("acct/2").await?;
    /// let set = keeper.lock_all(["acct/1", "acct/2"]).wait(Duration::from_millis(20));
    /// match set.await {
    ///     Err(Error::NotAcquired { name, .. }) => assert_eq!(name.as_str(), "acct/2"),
    ///     other => panic!("acct/2 is held: {other:?}"),
    /// }
    /// assert!(keeper.get("acct/1").await?.is_none());        // released again
    /// # drop(held); keeper.close().await; Ok(()) }
    /// ```
    pub fn wait(mut self, wait: Duration) -> Self {
        self.wait = Some(wait);
        self
    }

    /// As [`Acquire::ttl`]. All of them share one session, so one renewal keeps all.
    pub fn ttl(self, ttl: Duration) -> Self {
        Self { lock: self.lock.ttl(ttl), ..self }
    }

    /// As [`Acquire::lock_delay`].
    pub fn lock_delay(self, lock_delay: Duration) -> Self {
        Self { lock: self.lock.lock_delay(lock_delay), ..self }
    }

    /// As [`Acquire::label`]: the same label for all of them.
    pub fn label(self, label: impl Into<Vec<u8>>) -> Self {
        Self { lock: self.lock.label(label), ..self }
    }

    /// As [`Acquire::reentrant_as`]: locks that this owner holds already are taken again.
    pub fn reentrant_as(self, owner: impl Into<Arc<str>>) -> Self {
        Self { lock: self.lock.reentrant_as(owner), ..self }
    }

    /// Contends for each of them instead of standing in line, as [`Acquire::unfair`].
    pub fn unfair(self) -> Self {
        Self { lock: self.lock.unfair(), ..self }
    }

    /// Takes all of them if all are free now; `None` otherwise. They are asked for one after the other, so
    /// those that were free are held for a moment until one is found taken.
    ///
    /// # Errors
    /// As [`Acquire::try_now`].
    ///
    /// # Cancel safety
    /// As [`LockAll`].
    pub async fn try_now(self) -> Result<Option<Guards>> {
        let mut guards = Guards(Vec::new());
        for name in self.names? {
            match self.lock.clone().named(name).try_now().await? {
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
        let clock = self.lock.clock().clone();
        let until = self.wait.map(|wait| clock.now() + wait);
        let mut guards = Guards(Vec::new());
        for name in self.names? {
            let lock = self.lock.clone().named(name);
            let guard = match until {
                None => lock.await,
                Some(until) => lock.wait(until.saturating_since(clock.now())).await,
            };
            match guard {
                Ok(guard) => guards.0.push(guard),
                Err(e) => {
                    // Why it failed is worth more than an error of the releases.
                    let _ = guards.release().await;
                    return Err(e);
                }
            }
        }
        let lost = guards.iter().find_map(|g| g.loss().why().map(|why| (g.name().clone(), why)));
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

/// Several locks in hand, in the order of their names. It is never partly held on purpose, but each of the locks can
/// be lost by itself: an eviction takes one, an expired session takes all. Work that needs all of them looks at
/// [`is_held`](Self::is_held), or ends with [`lost`](Self::lost).
///
/// ```
/// # use lockkeeper::Keeper;
/// # async fn transfer(fences: &[u64]) {}
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> lockkeeper::Result<()> {
/// # let keeper = Keeper::connect("memory://doc-guards").await?;
/// let guards = keeper.lock_all(["acct/1", "acct/2"]).await?;
/// let fences: Vec<u64> = guards.iter().map(|guard| guard.fence()).collect();
/// tokio::select! {
///     (name, why) = guards.lost() => eprintln!("{name} was lost: {why}"),
///     () = transfer(&fences) => {}
/// }
/// for guard in guards {
///     guard.release().await?;                            // or guards.release()
/// }
/// # keeper.close().await; Ok(()) }
/// ```
///
/// Dropping it releases all of them in the background, as dropping a [`Guard`] does.
#[derive(Debug)]
#[must_use = "dropping the guards releases the locks"]
pub struct Guards(Vec<Guard>);

impl Guards {
    /// The guard of this name; `None` if it was not asked for.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&Guard> {
        self.0.iter().find(|guard| guard.name().as_str() == name)
    }

    /// All of them, in the order of their names. Each has a [fence](Guard::fence) of its own, for its own resource:
    /// fences of different names cannot be compared.
    pub fn iter(&self) -> impl Iterator<Item = &Guard> {
        self.0.iter()
    }

    /// Are all of them held now? False as soon as one is lost. Exact at the moment of the call, as [`Guard::is_held`].
    #[must_use]
    pub fn is_held(&self) -> bool {
        self.0.iter().all(Guard::is_held)
    }

    /// Waits until the first of them is lost, and says which and why. The others stay held until they are released
    /// or lost themselves.
    ///
    /// # Cancel safety
    /// Can be dropped and called again as often as wanted.
    pub async fn lost(&self) -> (&Name, Loss) {
        let mut losses: Vec<_> =
            self.0.iter().map(|guard| (guard.name(), Box::pin(guard.lost()))).collect();
        poll_fn(|cx| {
            for (name, lost) in &mut losses {
                if let Poll::Ready(why) = lost.as_mut().poll(cx) {
                    return Poll::Ready((*name, why));
                }
            }
            Poll::Pending
        })
        .await
    }

    /// Releases all of them, the last one first, and waits until the store has confirmed it. To release only some, take
    /// the guards apart: `Guards` is an iterator over its guards.
    ///
    /// ```
    /// # use lockkeeper::Keeper;
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> lockkeeper::Result<()> {
    /// # let keeper = Keeper::connect("memory://doc-guards-release").await?;
    /// let mut guards = keeper.lock_all(["a", "b"]).await?.into_iter();
    /// let (a, b) = (guards.next().expect("a"), guards.next().expect("b"));
    /// b.release().await?;
    /// assert!(a.is_held());
    /// # drop(a); keeper.close().await; Ok(()) }
    /// ```
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

impl IntoIterator for Guards {
    type Item = Guard;
    type IntoIter = std::vec::IntoIter<Guard>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}
