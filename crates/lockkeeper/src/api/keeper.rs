//! The handle that a program holds.

use crate::{
    api::{
        acquire::Acquire,
        builder::Builder,
        election::Election,
        guard::Owned,
        many::LockAll,
        options::{Renew, Times},
        rwlock::RwLock,
        semaphore::Semaphore,
        watch::Watch,
    },
    clock::Clock,
    error::{Error, Result},
    model::{
        line::Line,
        name::{IntoName, Name},
        sequencer::Sequencer,
        ticket::{Mode, Owner, TicketId},
    },
    session::{Session, local_queue::LocalQueue, opening::Opening, own_thread::OwnThread},
    store::{AnyStore, Capabilities, Cell, LIST_MAX, ListScope, Store, StoreResult},
    sync::Mutex,
};
use std::{
    fmt,
    sync::{
        Arc, MutexGuard, Weak,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};
use tokio::task::JoinHandle;

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
    pub(crate) inner: Arc<Inner>,
}

pub(crate) struct Inner {
    pub(crate) store: AnyStore,
    pub(crate) clock: Clock,
    pub(crate) local_queue: Arc<LocalQueue>,
    pub(crate) owned: Arc<Owned>,
    times: Times,
    renew: Renew,
    owner: Owner,
    sessions: Mutex<Sessions>,
    closed: AtomicBool,
    /// Held while closing, so that a second close waits for the first.
    closing: tokio::sync::Mutex<()>,
    pub(crate) own_thread: Option<OwnThread>,
}

#[derive(Default)]
struct Sessions {
    /// One for each choice of times; few programs make more than one.
    shared: Vec<(Times, Arc<Opening>)>,
    /// The session of the keeper's own times stays open; all others live with their guards.
    home: Option<Arc<Session>>,
    /// Sessions of fixed leases, each with one lock.
    leased: Vec<Weak<Session>>,
    /// The tasks of all sessions that have not ended.
    tasks: Vec<JoinHandle<()>>,
}

/// For how long closing waits for a store. What is not done then goes on in the background.
const CLOSE_MAX: Duration = Duration::from_secs(5);

impl Keeper {
    pub(crate) fn new(
        store: AnyStore,
        clock: Clock,
        times: Times,
        renew: Renew,
        owner: Owner,
        own_thread: Option<OwnThread>,
    ) -> Self {
        let inner = Inner {
            store,
            clock,
            local_queue: Arc::default(),
            owned: Arc::default(),
            times,
            renew,
            owner,
            sessions: Mutex::default(),
            closed: AtomicBool::new(false),
            closing: tokio::sync::Mutex::default(),
            own_thread,
        };
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

    /// The store behind the keeper, for what only a store can say
    /// ([`advice`](crate::Store::advice), [`blind_spots`](crate::Store::blind_spots)).
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
        let now = self.inner.clock.now();
        // The last handle of a session must not be dropped under this lock.
        let shared = self.inner.sessions().shared.clone();
        let sessions = shared.iter().filter_map(|(_, cell)| cell.get()?.upgrade());
        let renewal_loop = sessions.filter(|s| !s.is_lost()).filter_map(|s| s.state.away());
        let waiting = self.inner.local_queue.outages();
        renewal_loop.chain(waiting).map(|away| away.lasts(now)).max()
    }

    /// Finishes what dropped guards and futures have begun, and ends all sessions. Guards that
    /// still live are lost. Await this before the runtime ends: what is not finished then stays in
    /// the store until it expires. A store that does not answer is waited for 5 s.
    ///
    /// # Cancel safety
    /// Dropping the future goes on closing in the background.
    pub async fn close(&self) {
        self.inner.closed.store(true, Ordering::Release);
        let _one_at_a_time = self.inner.closing.lock().await;
        let Sessions { shared, home, leased, tasks } = std::mem::take(&mut *self.inner.sessions());
        let shared = shared.iter().filter_map(|(_, cell)| cell.get());
        for session in leased.iter().chain(shared).filter_map(Weak::upgrade) {
            session.close();
        }
        drop(home);
        // Also those whose last guard is gone: their tasks may still have something to finish.
        let finished = async {
            for task in tasks {
                let _ = task.await;
            }
        };
        tokio::select! {
            () = finished => {}
            () = self.inner.clock.sleep(CLOSE_MAX) => {}
        }
    }

    pub(crate) fn times(&self) -> Times {
        self.inner.times
    }
}

impl Inner {
    /// The session for these times, if it lives.
    pub(crate) fn living(&self, times: Times) -> Option<Arc<Session>> {
        if self.closed.load(Ordering::Acquire) {
            return None;
        }
        let session = {
            let sessions = self.sessions();
            let (_, cell) = sessions.shared.iter().find(|(of, _)| *of == times)?;
            cell.get()?.upgrade()?
        };
        (!session.is_lost()).then_some(session)
    }

    /// The session for these times, opened if there is none that lives.
    pub(crate) async fn session(&self, times: Times, leased: bool) -> Result<Arc<Session>> {
        if self.closed.load(Ordering::Acquire) {
            return Err(Error::Closed);
        }
        let session = if leased {
            self.leased_session(times).await?
        } else {
            self.shared_session(times).await?
        };
        // Closed while we opened: `close` has not seen this session.
        if self.closed.load(Ordering::Acquire) {
            session.close();
            return Err(Error::Closed);
        }
        Ok(session)
    }

    fn sessions(&self) -> MutexGuard<'_, Sessions> {
        self.sessions.lock()
    }

    async fn shared_session(&self, times: Times) -> Result<Arc<Session>> {
        loop {
            let cell = {
                let mut sessions = self.sessions();
                let over = |s: &Weak<Session>| s.upgrade().is_none_or(|s| s.is_lost());
                sessions.shared.retain(|(_, cell)| !cell.get().is_some_and(over));
                match sessions.shared.iter().find(|(of, _)| *of == times) {
                    Some((_, cell)) => Arc::clone(cell),
                    None => {
                        let cell = Arc::<Opening>::default();
                        sessions.shared.push((times, Arc::clone(&cell)));
                        cell
                    }
                }
            };
            let mut opened = None;
            let open = async || {
                let session = self.open(times).await?;
                let weak = Arc::downgrade(&session);
                opened = Some(session);
                Ok(weak)
            };
            let known = cell.get_or_open(open).await?;
            let Some(session) = known.upgrade() else { continue };
            if opened.is_some() && times == self.times {
                self.sessions().home = opened;
            }
            return Ok(session);
        }
    }

    async fn leased_session(&self, times: Times) -> Result<Arc<Session>> {
        let session = self.open(times).await?;
        let mut sessions = self.sessions();
        sessions.leased.retain(|s| s.strong_count() > 0);
        sessions.leased.push(Arc::downgrade(&session));
        Ok(session)
    }

    async fn open(&self, times: Times) -> StoreResult<Arc<Session>> {
        // The keeper's renewal interval need not suit a lock with a ttl of its own.
        let renew = if times.ttl == self.times.ttl { self.renew } else { Renew::DEFAULT };
        let owner = self.owner.clone();
        let (session, task) = Session::open(&self.store, &self.clock, times, renew, owner).await?;
        let mut sessions = self.sessions();
        sessions.tasks.retain(|task| !task.is_finished());
        sessions.tasks.push(task);
        Ok(session)
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if let Some(thread) = self.own_thread.take() {
            let Sessions { home, tasks, .. } = std::mem::take(&mut *self.sessions());
            drop(home);
            thread.end_after(tasks);
        }
    }
}

impl fmt::Debug for Keeper {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Keeper").field("store", &self.inner.store).finish_non_exhaustive()
    }
}
