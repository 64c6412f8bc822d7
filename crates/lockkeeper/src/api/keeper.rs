//! The handle that a program holds.

use crate::{
    api::{
        acquire::Acquire,
        election::Election,
        guard::Owned,
        many::LockAll,
        options::{Renew, TTL_DEFAULT, Times},
        rwlock::RwLock,
        semaphore::Semaphore,
        watch::Watch,
    },
    clock::{Clock, Moment},
    error::{Error, Result},
    model::{
        line::Line,
        name::{IntoName, Name},
        sequencer::Sequencer,
        ticket::{Mode, Owner, TicketId},
    },
    session::{Session, local_queue::LocalQueue, opening::Opening, outage::Outage},
    store::{AnyStore, Capabilities, Cell, LIST_MAX, ListScope, Store, StoreResult, url::StoreUrl},
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

/// Options for a [`Keeper`]. What a lock does not say for itself, it takes from here.
///
/// ```
/// # use lockkeeper::{Keeper, Owner}; use std::time::Duration;
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> lockkeeper::Result<()> {
/// let keeper = Keeper::builder()
///     .ttl(Duration::from_secs(10))
///     .lock_delay(Duration::from_secs(2))
///     .identity(Owner { program: "billing".into(), ..Owner::this_process() })
///     .connect_wait(Duration::from_secs(30))
///     .connect("memory://doc-builder")
///     .await?;
/// # keeper.close().await; Ok(()) }
/// ```
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until connected"]
pub struct Builder {
    ttl: Option<Duration>,
    lock_delay: Option<Duration>,
    renew: Renew,
    owner: Option<Owner>,
    clock: Clock,
    connect_wait: Duration,
}

impl Builder {
    /// For how long a lock outlives its holder's last renewal: [`TTL_DEFAULT`], unless this or `ttl=` in
    /// the URL says otherwise. This wins over the URL.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = Some(ttl);
        self
    }

    /// Extra time after the TTL before the store grants the lock to others, so that a crashed holder's
    /// writes can land. Zero by default.
    pub fn lock_delay(mut self, lock_delay: Duration) -> Self {
        self.lock_delay = Some(lock_delay);
        self
    }

    /// How sessions are renewed.
    pub fn renew(mut self, renew: Renew) -> Self {
        self.renew = renew;
        self
    }

    /// What others see as the owner of the locks ([`Ticket::owner`](crate::Ticket::owner)): this process
    /// by default.
    pub fn identity(mut self, owner: Owner) -> Self {
        self.owner = Some(owner);
        self
    }

    /// Another clock, for tests.
    #[cfg(any(test, feature = "_test"))]
    #[doc(hidden)]
    pub fn clock(mut self, clock: Clock) -> Self {
        self.clock = clock;
        self
    }

    /// For how long to go on trying to [connect](Self::connect) to a store that cannot be reached yet,
    /// because it or its leader is only just starting. One attempt by default.
    ///
    /// What trying again cannot mend (a wrong password, a URL that makes no sense) is an error at once.
    /// The first attempt always runs to its end, which each store bounds to a few seconds.
    pub fn connect_wait(mut self, wait: Duration) -> Self {
        self.connect_wait = wait;
        self
    }

    /// Connects to the store that the URL names.
    ///
    /// # Errors
    /// [`Error::Url`] if the URL is not understood; [`Error::Unavailable`] if the store could not be
    /// reached within [`connect_wait`](Self::connect_wait); or the store's error.
    ///
    /// # Cancel safety
    /// Dropping the future leaves no lock behind.
    pub async fn connect(self, url: &str) -> Result<Keeper> {
        let mut url = StoreUrl::parse(url)?;
        let ttl = url.take_duration("ttl")?;
        let lock_delay = url.take_duration("lock_delay")?;
        let store = self.reach(|| url.clone().connect()).await?;
        Self { ttl: self.ttl.or(ttl), lock_delay: self.lock_delay.or(lock_delay), ..self }
            .over_any(store)
    }

    /// Connects, and again while the store cannot be reached, until the time given for that is over.
    async fn reach<F>(&self, mut connect: impl FnMut() -> F) -> Result<AnyStore>
    where
        F: Future<Output = Result<AnyStore>>,
    {
        let end = self.clock.now() + self.connect_wait;
        let mut outage = Outage::new(&self.clock, self.clock.now(), None);
        let mut until = Moment::NEVER;
        loop {
            let answer = tokio::select! {
                biased;
                answer = connect() => answer,
                () = self.clock.sleep_until(until) => break,
            };
            let pause = match answer {
                Err(Error::Store(e)) if e.is_transient() && !self.connect_wait.is_zero() => {
                    outage.failed(e)
                }
                answer => return answer,
            };
            until = end;
            tokio::select! {
                biased;
                () = self.clock.sleep_until(until) => break,
                () = self.clock.sleep(pause) => {}
            }
        }
        Err(outage.or(()).expect_err("the first attempt is not cut off"))
    }

    /// Uses a store that the program has made itself: one of [`store`](crate::store), or its own.
    ///
    /// # Errors
    /// [`Error::Option`] if the options make no sense.
    pub fn over(self, store: impl Store) -> Result<Keeper> {
        self.over_any(AnyStore::new(store))
    }

    fn over_any(self, store: AnyStore) -> Result<Keeper> {
        let ttl = self.ttl.unwrap_or(TTL_DEFAULT);
        let times = Times { ttl, lock_delay: self.lock_delay.unwrap_or_default() };
        times.check(&self.renew)?;
        let inner = Inner {
            store,
            clock: self.clock,
            local_queue: Arc::default(),
            owned: Arc::default(),
            times,
            renew: self.renew,
            owner: self.owner.unwrap_or_else(Owner::this_process).bounded(),
            sessions: Mutex::default(),
            closed: AtomicBool::new(false),
            closing: tokio::sync::Mutex::default(),
        };
        Ok(Keeper { inner: Arc::new(inner) })
    }
}

impl Keeper {
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
        let renew = Renew::DEFAULT;
        Builder {
            ttl: None,
            lock_delay: None,
            renew,
            owner: None,
            clock: Clock::system(),
            connect_wait: Duration::ZERO,
        }
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

impl fmt::Debug for Keeper {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Keeper").field("store", &self.inner.store).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        error::{ErrorKind, StoreError},
        store::memory::Memory,
    };
    use std::sync::atomic::AtomicU32;

    /// Connects with this patience to a store that answers from the third attempt on, or refuses for ever
    /// with another error than being unreachable. Says how often it was tried.
    async fn connect(wait: Duration, kind: ErrorKind) -> (Result<AnyStore>, u32) {
        let attempts = AtomicU32::new(0);
        let attempt = async || match attempts.fetch_add(1, Ordering::Relaxed) {
            2.. if kind == ErrorKind::Unavailable => Ok(AnyStore::new(Memory::new())),
            _ => Err(StoreError::not_applied("late", kind, "not yet").into()),
        };
        let connected = Keeper::builder().connect_wait(wait).reach(attempt).await;
        (connected, attempts.into_inner())
    }

    #[tokio::test]
    async fn a_store_that_is_not_there_yet_is_waited_for() {
        let (connected, attempts) = connect(Duration::from_secs(60), ErrorKind::Unavailable).await;
        assert!(connected.is_ok() && attempts == 3, "{attempts}: {connected:?}");
    }

    #[tokio::test]
    async fn without_patience_the_first_error_is_the_answer() {
        let (connected, attempts) = connect(Duration::ZERO, ErrorKind::Unavailable).await;
        assert!(matches!(connected, Err(Error::Store(_))), "{connected:?}");
        assert_eq!(attempts, 1);
    }

    #[tokio::test]
    async fn what_trying_again_cannot_mend_is_said_at_once() {
        let (connected, attempts) = connect(Duration::from_secs(60), ErrorKind::Denied).await;
        assert!(matches!(connected, Err(Error::Store(_))), "{connected:?}");
        assert_eq!(attempts, 1);
    }

    #[tokio::test]
    async fn a_store_that_stays_away_is_unavailable_when_the_time_is_over() {
        let (connected, attempts) = connect(Duration::from_millis(1), ErrorKind::Unavailable).await;
        assert!(matches!(connected, Err(Error::Unavailable { .. })), "{connected:?}");
        assert_eq!(attempts, 1);
    }
}
