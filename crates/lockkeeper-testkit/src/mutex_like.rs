//! Everything that can serve as a mutex, behind one type.

use crate::case::Need;
use lockkeeper::{Guard, Keeper, Result, Term};
use std::time::Duration;

/// A primitive used as a mutex.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MutexLike {
    /// `lock(name)`.
    Lock,
    /// `rwlock(name).write()`.
    Write,
    /// `semaphore(name, 1).acquire(1)`.
    Permit,
    /// `election(name).campaign(…)`.
    Campaign,
}

impl MutexLike {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Lock, Self::Write, Self::Permit, Self::Campaign];

    /// Its word in the names of cases.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Lock => "lock",
            Self::Write => "write",
            Self::Permit => "permit",
            Self::Campaign => "campaign",
        }
    }

    /// What the store must be able to do for it.
    #[must_use]
    pub fn needs(self) -> &'static [Need] {
        match self {
            Self::Lock | Self::Write => &[],
            Self::Permit => &[Need::Permits],
            Self::Campaign => &[Need::Fair],
        }
    }

    /// Waits its turn.
    ///
    /// # Errors
    /// Those of the primitive.
    pub async fn take(self, keeper: &Keeper, name: &str) -> Result<Held> {
        match self {
            Self::Lock => keeper.lock(name).await.map(Held::Guard),
            Self::Write => keeper.rwlock(name).write().await.map(Held::Guard),
            Self::Permit => keeper.semaphore(name, 1).acquire(1).await.map(Held::Guard),
            Self::Campaign => keeper.election(name).campaign("me").await.map(Held::Term),
        }
    }

    /// Waits its turn, for so long.
    ///
    /// # Errors
    /// Those of the primitive.
    pub async fn wait(self, keeper: &Keeper, name: &str, wait: Duration) -> Result<Held> {
        match self {
            Self::Lock => keeper.lock(name).wait(wait).await.map(Held::Guard),
            Self::Write => keeper.rwlock(name).write().wait(wait).await.map(Held::Guard),
            Self::Permit => keeper.semaphore(name, 1).acquire(1).wait(wait).await.map(Held::Guard),
            Self::Campaign => keeper.election(name).campaign("me").wait(wait).await.map(Held::Term),
        }
    }

    /// Takes it if it is free.
    ///
    /// # Errors
    /// Those of the primitive.
    pub async fn try_now(self, keeper: &Keeper, name: &str) -> Result<Option<Held>> {
        Ok(match self {
            Self::Lock => keeper.lock(name).try_now().await?.map(Held::Guard),
            Self::Write => keeper.rwlock(name).write().try_now().await?.map(Held::Guard),
            Self::Permit => keeper.semaphore(name, 1).acquire(1).try_now().await?.map(Held::Guard),
            Self::Campaign => keeper.election(name).campaign("me").try_now().await?.map(Held::Term),
        })
    }
}

/// What a granted [`MutexLike`] gives.
#[derive(Debug)]
#[must_use = "dropping it releases the lock"]
pub enum Held {
    /// A lock.
    Guard(Guard),
    /// A term of leadership.
    Term(Term),
}

impl Held {
    /// The guard in it.
    pub fn guard(&self) -> &Guard {
        match self {
            Self::Guard(guard) => guard,
            Self::Term(term) => term.guard(),
        }
    }

    /// The number of the grant.
    #[must_use]
    pub fn fence(&self) -> u64 {
        self.guard().fence()
    }

    /// Lets go.
    ///
    /// # Errors
    /// Those of the primitive.
    pub async fn release(self) -> Result<()> {
        match self {
            Self::Guard(guard) => guard.release().await,
            Self::Term(term) => term.resign().await,
        }
    }
}
