//! The handle that a program holds.

use crate::{
    api::{
        acquire::Acquire, builder::Builder, detached::Detached, election::Election, guard::Guard,
        many::LockAll, options::Renew, rwlock::RwLock, semaphore::Semaphore, watch::Watch,
    },
    clock::Clock,
    error::{Error, Result},
    model::{
        line::Line,
        name::{IntoName, Name},
        sequencer::Sequencer,
        ticket::{Mode, Owner, TicketId},
    },
    session::{
        keeper_state::KeeperState, own_thread::OwnThread, request::check_cell, times::Times,
    },
    store::{Advice, AnyStore, Capabilities, Cell, Edited, LIST_MAX, ListScope, Store},
};
use std::{fmt, sync::Arc, time::Duration};

/// The handle to a store of locks. Cheap to clone; all clones share their sessions.
///
/// A program without async code uses [`blocking::Keeper`](crate::blocking::Keeper).
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> lockkeeper::Result<()> {
/// use lockkeeper::Keeper;
/// let keeper = Keeper::connect("memory://doc").await?;
/// let guard = keeper.lock("invoices/2026-11").await?;
/// println!("fence {}", guard.fence());
/// guard.release().await?;
/// # keeper.close().await; Ok(()) }
/// ```
#[derive(Clone)]
pub struct Keeper {
    pub(crate) inner: Arc<KeeperState>,
}

impl Keeper {
    pub(crate) fn new(
        store: AnyStore,
        clock: Clock,
        times: Times,
        renew: Renew,
        owner: Owner,
        own_thread: Option<OwnThread>,
    ) -> Self {
        let inner = KeeperState::new(store, clock, times, renew, owner, own_thread);
        Self { inner: Arc::new(inner) }
    }

    /// Connects to the store that the URL names, for example `sqlite:locks.db` or `memory://name`.
    ///
    /// # Errors
    /// [`Error::Url`] if the URL is not understood, or the store's error.
    pub async fn connect(url: &str) -> Result<Self> {
        Self::builder().connect(url).await
    }

    /// Uses a store that the program has made itself, with default options.
    ///
    /// ```
    /// # use lockkeeper::{Keeper, store::memory::Memory};
    /// let keeper = Keeper::over(Memory::new());
    /// assert!(keeper.capabilities().fair);
    /// ```
    pub fn over(store: impl Store) -> Self {
        Self::builder().over(store).expect("the default options make sense")
    }

    /// Options first, then connect: see [`Builder`].
    pub fn builder() -> Builder {
        Builder::new()
    }

    /// What the store can do.
    #[must_use]
    pub fn capabilities(&self) -> Capabilities {
        self.inner.store.capabilities()
    }

    /// Fails early if the store cannot do what the program relies on.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> lockkeeper::Result<()> {
    /// # use lockkeeper::Keeper;
    /// let keeper = Keeper::connect("memory://doc").await?;
    /// let keeper = keeper.require("fences", |can| can.fenced)?;
    /// assert!(keeper.require("durable locks", |can| can.durable).is_err());
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`Error::Unsupported`] with `what` if `wanted` says no.
    pub fn require(
        &self,
        what: &'static str,
        wanted: impl FnOnce(&Capabilities) -> bool,
    ) -> Result<Self> {
        if !wanted(&self.capabilities()) {
            return Err(Error::Unsupported { store: self.inner.store.scheme(), what });
        }
        Ok(self.clone())
    }

    /// Looks at the store's set-up: what of it can hurt locks, the worst first. It asks the server a few questions,
    /// which connecting does not.
    ///
    /// ```
    /// # use lockkeeper::{Keeper, Severity};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> lockkeeper::Result<()> {
    /// # let keeper = Keeper::connect("memory://doc-advice").await?;
    /// for advice in keeper.advice().await? {
    ///     eprintln!("{} ({}): {advice}", advice.code, advice.severity);
    ///     assert!(advice.severity < Severity::Exclusion, "two could hold one lock");
    /// }
    /// # keeper.close().await; Ok(()) }
    /// ```
    ///
    /// # Errors
    /// The store's error.
    ///
    /// # Cancel safety
    /// Only reads.
    pub async fn advice(&self) -> Result<Vec<Advice>> {
        let mut advice = self.inner.store.advice().await?;
        advice.sort_by_key(|advice| std::cmp::Reverse(advice.severity));
        Ok(advice)
    }

    /// The store behind the keeper, for what only a store can say
    /// ([`blind_spots`](crate::Store::blind_spots)).
    ///
    /// A clone of it does not outlive the thread of a keeper that has one of its own
    /// ([`renew_on_own_thread`](crate::Builder::renew_on_own_thread)): use it while the keeper is there.
    #[must_use]
    pub fn store(&self) -> &AnyStore {
        &self.inner.store
    }

    /// The lock of this name: one at a time.
    pub fn lock(&self, name: impl IntoName) -> Acquire {
        Acquire::new(self, name.into_name(), Mode::Exclusive)
    }

    /// The read-write lock of this name. Its write side is the same as [`lock`](Self::lock).
    pub fn rwlock(&self, name: impl IntoName) -> RwLock {
        RwLock::new(self, name.into_name())
    }

    /// The semaphore of this name, with so many permits.
    pub fn semaphore(&self, name: impl IntoName, permits: u32) -> Semaphore {
        Semaphore::new(self, name.into_name(), permits)
    }

    /// Takes over a lock that a process has [detached](Guard::detach), and renews it from now on. One renewal
    /// and one poll tell whether the lock is still held.
    ///
    /// The same detached lock can be attached again, one process after the other. If two have it at the same
    /// time, both renew it; when one releases it, the other loses it with its next renewal at the latest.
    ///
    /// # Errors
    /// [`Error::Lost`] if it was released, evicted or not renewed in time; [`Error::OtherStore`];
    /// [`Error::Unsupported`]; or the store's error: the lock may still be held then, and can be attached later.
    ///
    /// # Cancel safety
    /// Dropping the future may or may not renew the lock. It stays detached.
    pub async fn attach(&self, detached: &Detached) -> Result<Guard> {
        Ok(Guard::new(Arc::new(self.inner.attach(detached).await?)))
    }

    /// The locks of these names, all or none of them. They are taken in the order of their names, so
    /// two programs that take several cannot deadlock.
    pub fn lock_all<N: IntoName>(&self, names: impl IntoIterator<Item = N>) -> LockAll {
        LockAll::new(self, names.into_iter().map(IntoName::into_name).collect())
    }

    /// The election of this name.
    pub fn election(&self, name: impl IntoName) -> Election {
        Election::new(self, name.into_name())
    }

    /// Is the grant that the sequencer speaks of held now?
    ///
    /// ```
    /// # use lockkeeper::{Keeper, Sequencer};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> lockkeeper::Result<()> {
    /// # let keeper = Keeper::connect("memory://doc-check").await?;
    /// let guard = keeper.lock("a").await?;
    /// let sent = guard.sequencer().to_string();              // travels with a request
    /// let sequencer: Sequencer = sent.parse()?;
    /// assert!(keeper.check(&sequencer).await?);
    /// guard.release().await?;
    /// assert!(!keeper.check(&sequencer).await?);
    /// # keeper.close().await; Ok(()) }
    /// ```
    ///
    /// # Errors
    /// The store's error. A sequencer of another store is not held here: `false`.
    ///
    /// # Cancel safety
    /// Only reads.
    pub async fn check(&self, sequencer: &Sequencer) -> Result<bool> {
        if sequencer.store() != self.inner.store.id() {
            return Ok(false);
        }
        Ok(self.inner.store.check(sequencer.claim().clone()).await?)
    }

    /// Writes the lock's cell under a grant of another client, which has passed on its sequencer: check and write
    /// are one step in the store. Says whether it was written; `false`: the grant is not held any more.
    ///
    /// This is for a helper of the holder, as the commands that `lockkeeper run` starts. The holder itself
    /// writes with [`Guard::write`](crate::Guard::write).
    ///
    /// ```
    /// # use lockkeeper::Keeper;
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> lockkeeper::Result<()> {
    /// # let keeper = Keeper::connect("memory://doc-write-under").await?;
    /// let guard = keeper.lock("orders").await?;
    /// let sequencer = guard.sequencer();                     // travels to a helper
    /// assert!(keeper.write_under(&sequencer, "up to 4711").await?);
    /// guard.release().await?;
    /// assert!(!keeper.write_under(&sequencer, "up to 4712").await?);
    /// # keeper.close().await; Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`Error::Option`] if there are too many bytes or the grant is not exclusive, or the store's error. A
    /// sequencer of another store is not held here: `false`.
    ///
    /// # Cancel safety
    /// Dropping the future may or may not write.
    pub async fn write_under(
        &self,
        sequencer: &Sequencer,
        bytes: impl Into<Vec<u8>>,
    ) -> Result<bool> {
        let (bytes, claim) = (bytes.into(), sequencer.claim());
        check_cell(bytes.len(), claim.mode)?;
        if sequencer.store() != self.inner.store.id() {
            return Ok(false);
        }
        let edited = self.inner.store.write_under(claim.clone(), bytes).await?;
        Ok(edited == Edited::Done)
    }

    /// A lock's cell: the small value that belongs to its name, written by
    /// [`Guard::write`](crate::Guard::write). `None` if it was never written, or was emptied.
    ///
    /// # Errors
    /// [`Error::Name`], or the store's error.
    ///
    /// # Cancel safety
    /// Only reads.
    pub async fn read(&self, name: impl IntoName + Send) -> Result<Option<Cell>> {
        let name = name.into_name()?;
        Ok(self.inner.store.read(name).await?)
    }

    /// The lines whose names begin with `prefix`, in the order of their bytes.
    ///
    /// ```
    /// # use lockkeeper::Keeper;
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> lockkeeper::Result<()> {
    /// # let keeper = Keeper::connect("memory://doc-list").await?;
    /// let guard = keeper.lock("orders/7").await?;
    /// for line in keeper.list("orders/").await? {
    ///     let (held, waiting) = (line.holders().count(), line.waiters().count());
    ///     println!("{}: {held} held, {waiting} waiting", line.name);
    /// }
    /// # drop(guard); keeper.close().await; Ok(()) }
    /// ```
    ///
    /// # Errors
    /// The store's error.
    ///
    /// # Cancel safety
    /// Only reads.
    pub async fn list(&self, prefix: &str) -> Result<Vec<Line>> {
        let mut lines: Vec<Line> = Vec::new();
        loop {
            let after = lines.last().map(|line| line.name.clone());
            let which = ListScope::Prefix { prefix: prefix.to_owned(), after };
            let page = self.inner.store.list(which).await?;
            let full = page.len() >= LIST_MAX;
            lines.extend(page);
            if !full {
                return Ok(lines);
            }
        }
    }

    /// The line of this name; `None` if it is empty.
    ///
    /// # Errors
    /// [`Error::Name`], or the store's error.
    ///
    /// # Cancel safety
    /// Only reads.
    pub async fn get(&self, name: impl IntoName + Send) -> Result<Option<Line>> {
        let which = ListScope::Exact(name.into_name()?);
        Ok(self.inner.store.list(which).await?.pop())
    }

    /// Follows the lines whose names begin with `prefix`: see [`Watch`].
    pub fn watch(&self, prefix: &str) -> Watch {
        Watch::prefix(self, prefix)
    }

    /// Ends another client's ticket by force; says whether there was one. Its holder is told with its
    /// next renewal at the latest; until then it may believe that it holds the lock, and only a fence
    /// keeps its writes out. A waiter goes to the end of the line.
    ///
    /// ```
    /// # use lockkeeper::{Keeper, Loss};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> lockkeeper::Result<()> {
    /// # let keeper = Keeper::connect("memory://doc-evict").await?;
    /// let guard = keeper.lock("stuck").await?;
    /// let line = keeper.get("stuck").await?.expect("a line");
    /// assert!(keeper.evict("stuck", line.tickets[0].id).await?);
    /// assert!(guard.release().await.is_err());
    /// # keeper.close().await; Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`Error::Name`], or the store's error.
    ///
    /// # Cancel safety
    /// Dropping the future may or may not evict.
    pub async fn evict(&self, name: impl IntoName + Send, ticket: TicketId) -> Result<bool> {
        let name: Name = name.into_name()?;
        Ok(self.inner.store.evict(name, ticket).await?)
    }

    /// For how long the store has not answered, as the tasks of this keeper that wait and renew have
    /// found; `None` if it has answered the last of their requests. Asks the store nothing.
    ///
    /// A waiter goes on through an outage: this is for a program that tells its users so meanwhile.
    #[must_use]
    pub fn outage(&self) -> Option<Duration> {
        self.inner.outage()
    }

    /// Finishes what dropped guards and futures have begun, and ends all sessions. Guards that
    /// still live are lost. Await this before the runtime ends: what is not finished then stays in
    /// the store until it expires. A store that does not answer is waited for 5 s.
    ///
    /// # Cancel safety
    /// Dropping the future goes on closing in the background.
    pub async fn close(&self) {
        self.inner.close().await;
    }

    pub(crate) fn times(&self) -> Times {
        self.inner.times()
    }
}

impl fmt::Debug for Keeper {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Keeper").field("store", &self.inner.store).finish_non_exhaustive()
    }
}
