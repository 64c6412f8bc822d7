//! The same locks without async code: every call holds up the thread that makes it, and no other.
//!
//! A [`Keeper`] has a thread with a runtime of its own. Locks are renewed there, however busy the
//! program's threads are. Options, errors and promises are those of the async API, of which this is a
//! thin cover: what is awaited there ends with a verb here (`take`, `lead`).
//!
//! ```
//! # use std::{thread::sleep, time::Duration};
//! # fn main() -> lockkeeper::Result<()> {
//! use lockkeeper::blocking::Keeper;
//! let keeper = Keeper::connect("memory://doc-blocking")?;
//! let guard = keeper.lock("invoices").wait(Duration::from_secs(5)).take()?;
//! println!("fence {}", guard.fence());            // what does not wait is the async guard's
//! sleep(Duration::from_millis(20));               // renewed meanwhile
//! guard.release()?;                               // or drop it
//! if let Some(guard) = keeper.lock("report").try_now()? {
//!     guard.set_label("page 1")?;
//! }
//! keeper.rwlock("cache").read().take()?;
//! keeper.semaphore("gpu", 4).acquire(2).run(|_| println!("two of four"))?;
//! # Ok(()) }
//! ```
//!
//! # At the end
//! Dropping a guard releases its lock in the background. Dropping the keeper, with its clones and guards,
//! finishes that and ends its session: it waits for the store, for 5 s at most. So a program may simply
//! return from `main`.
//!
//! # Panics
//! Every call that waits panics when it is made by a task of an async runtime ("Cannot start a runtime
//! from within a runtime"), whose thread must not be held up. Use [`crate::Keeper`] there, or
//! `tokio::task::spawn_blocking`. Dropping works anywhere.

use crate::{
    Advice, Builder, Capabilities, Cell, Detached, Health, IntoName, Leader, Line, Loss, Observer,
    Result, Retry, Sequencer, Store, TicketId, Wait, Watch, api::acquire::finish,
    session::own_thread::OwnThread, store::AnyStore,
};
use futures_core::Stream;
use std::{
    future::poll_fn,
    ops::Deref,
    pin::Pin,
    sync::{Arc, mpsc},
    time::Duration,
};

/// The handle to a store of locks, for programs without async code. Cheap to clone; clones share the thread,
/// the connections and the sessions.
///
/// ```
/// # fn main() -> lockkeeper::Result<()> {
/// use lockkeeper::blocking::Keeper;
/// let keeper = Keeper::connect("memory://doc-blocking-keeper")?;
/// let workers: Vec<_> = (0..4)
///     .map(|_| {
///         let keeper = keeper.clone();
///         std::thread::spawn(move || keeper.lock("counter").run(|guard| guard.fence()))
///     })
///     .collect();
/// let mut fences = Vec::new();
/// for worker in workers {
///     fences.push(worker.join().expect("no worker panics")?);
/// }
/// fences.sort_unstable();
/// fences.dedup();
/// assert_eq!(fences.len(), 4);                    // one after the other, each with a fence of its own
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct Keeper(Arc<Shared>);

/// Closes the keeper when its last handle or guard is dropped.
#[derive(Debug)]
struct Shared(crate::Keeper);

impl Drop for Shared {
    fn drop(&mut self) {
        let (keeper, (closed, waits)) = (self.0.clone(), mpsc::channel::<()>());
        self.thread().handle().spawn(async move {
            keeper.close().await;
            drop(closed);
        });
        // An error says that the sender was dropped: the keeper is closed.
        let _ = waits.recv();
    }
}

impl Shared {
    fn thread(&self) -> &OwnThread {
        self.0.inner.own_thread.as_ref().expect("a blocking keeper has a thread")
    }
}

impl Keeper {
    /// Connects to the store that the URL names, as [`crate::Keeper::connect`].
    ///
    /// # Errors
    /// As [`crate::Keeper::connect`].
    pub fn connect(url: &str) -> Result<Self> {
        Self::connect_with(crate::Keeper::builder(), url)
    }

    /// Connects with options.
    ///
    /// ```
    /// # use std::time::Duration;
    /// let builder = lockkeeper::Keeper::builder().ttl(Duration::from_secs(30));
    /// let keeper = lockkeeper::blocking::Keeper::connect_with(builder, "memory://doc-with")?;
    /// # Ok::<(), lockkeeper::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Builder::connect`].
    pub fn connect_with(builder: Builder, url: &str) -> Result<Self> {
        let thread = OwnThread::start()?;
        let runtime = thread.handle().clone();
        let keeper = runtime.block_on(builder.connect_on(Some(thread), url))?;
        Ok(Self(Arc::new(Shared(keeper))))
    }

    /// Uses a store that the program has made itself.
    ///
    /// ```
    /// # use lockkeeper::{Keeper, blocking, store::memory::Memory};
    /// let keeper = blocking::Keeper::over(Keeper::builder(), Memory::new())?;
    /// # Ok::<(), lockkeeper::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Builder::over`].
    pub fn over(builder: Builder, store: impl Store) -> Result<Self> {
        let keeper = builder.over_any(AnyStore::new(store), Some(OwnThread::start()?))?;
        Ok(Self(Arc::new(Shared(keeper))))
    }

    /// The async keeper below, for what does not wait. Its futures run in any runtime.
    #[must_use]
    pub fn as_async(&self) -> &crate::Keeper {
        &self.0.0
    }

    fn block_on<T>(&self, work: impl Future<Output = T>) -> T {
        self.0.thread().handle().block_on(work)
    }

    /// As [`crate::Keeper::lock`].
    pub fn lock(&self, name: impl IntoName) -> Lock {
        Lock { inner: self.as_async().lock(name), keeper: self.clone() }
    }

    /// As [`crate::Keeper::rwlock`].
    pub fn rwlock(&self, name: impl IntoName) -> RwLock {
        RwLock(self.as_async().rwlock(name), self.clone())
    }

    /// As [`crate::Keeper::semaphore`].
    pub fn semaphore(&self, name: impl IntoName, permits: u32) -> Semaphore {
        Semaphore(self.as_async().semaphore(name, permits), self.clone())
    }

    /// As [`crate::Keeper::lock_all`].
    pub fn lock_all<N: IntoName>(&self, names: impl IntoIterator<Item = N>) -> LockAll {
        LockAll { inner: self.as_async().lock_all(names), keeper: self.clone() }
    }

    /// As [`crate::Keeper::election`].
    pub fn election(&self, name: impl IntoName) -> Election {
        Election(self.as_async().election(name), self.clone())
    }

    /// As [`crate::Keeper::attach`], with the same errors.
    pub fn attach(&self, detached: &Detached) -> Result<Guard> {
        let guard = self.block_on(self.as_async().attach(detached))?;
        Ok(Guard { guard, keeper: self.clone() })
    }

    /// As [`crate::Keeper::capabilities`].
    #[must_use]
    pub fn capabilities(&self) -> Capabilities {
        self.as_async().capabilities()
    }

    /// As [`crate::Keeper::advice`], with the same errors.
    pub fn advice(&self) -> Result<Vec<Advice>> {
        self.block_on(self.as_async().advice())
    }

    /// As [`crate::Keeper::watch`]: an iterator that never ends.
    pub fn watch(&self, prefix: &str) -> Changes<Watch> {
        Changes { stream: self.as_async().watch(prefix), keeper: self.clone() }
    }

    /// As [`crate::Keeper::evict`], with the same errors.
    pub fn evict(&self, name: impl IntoName + Send, ticket: TicketId) -> Result<bool> {
        self.block_on(self.as_async().evict(name, ticket))
    }

    /// As [`crate::Keeper::write_under`], with the same errors.
    pub fn write_under(&self, sequencer: &Sequencer, bytes: impl Into<Vec<u8>>) -> Result<bool> {
        self.block_on(self.as_async().write_under(sequencer, bytes))
    }

    /// As [`crate::Keeper::close`]. Dropping the keeper does it too.
    pub fn close(&self) {
        self.block_on(self.as_async().close());
    }
}

/// Calls of the async type below that wait.
macro_rules! calls {
    ($type:ident like $like:ident($this:ident: $inner:expr, $keeper:expr):
        $($call:ident($($value:ident: $of:ty)?) -> $out:ty,)*) => {
        impl $type { $(
            #[doc = concat!("As [`", stringify!($like), "::", stringify!($call), "`](crate::",
                stringify!($like), "::", stringify!($call), "), with the same errors.")]
            pub fn $call(&self $(, $value: $of)?) -> $out {
                let $this = self;
                $keeper.block_on($inner.$call($($value)?))
            }
        )* }
    };
}

calls! { Keeper like Keeper(this: this.as_async(), this):
    check(sequencer: &Sequencer) -> Result<bool>,
    read(name: impl IntoName + Send) -> Result<Option<Cell>>,
    list(prefix: &str) -> Result<Vec<Line>>,
    get(name: impl IntoName + Send) -> Result<Option<Line>>,
}

/// Passes options on to the async builder below.
macro_rules! options {
    ($type:ident like $like:ident: $($option:ident($($value:ident: $of:ty)?),)*) => {
        impl $type { $(
            #[doc = concat!("As [`", stringify!($like), "::", stringify!($option), "`](crate::",
                stringify!($like), "::", stringify!($option), ").")]
            pub fn $option(self $(, $value: $of)?) -> Self {
                Self { inner: self.inner.$option($($value)?), ..self }
            }
        )* }
    };
}

/// A lock to be taken, with the options of [`Acquire`](crate::Acquire). It can be cloned and taken again.
///
/// ```
/// # use std::time::Duration;
/// # fn main() -> lockkeeper::Result<()> {
/// # let keeper = lockkeeper::blocking::Keeper::connect("memory://doc-blocking-lock")?;
/// let report = keeper.lock("report").ttl(Duration::from_secs(30)).label("weekly");
/// let guard = report.clone().take()?;
/// assert!(report.clone().try_now()?.is_none());
/// let late = report.wait(Duration::from_millis(20)).take();
/// assert!(late.unwrap_err().is_not_acquired());
/// guard.release()?;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
#[must_use = "a lock is taken by take(), try_now() or run()"]
pub struct Lock {
    inner: crate::Acquire,
    keeper: Keeper,
}

options! { Lock like Acquire:
    wait(wait: Duration), ttl(ttl: Duration), lock_delay(lock_delay: Duration), lease(lease: Duration),
    at_least(at_least: Duration), max_hold(max_hold: Duration), unfair(), retry(retry: Retry),
    reentrant_as(owner: impl Into<Arc<str>>), label(label: impl Into<Vec<u8>>),
    on_wait(tell: impl Fn(&Wait) + Send + Sync + 'static),
}

impl Lock {
    /// Waits for the lock. The thread sleeps meanwhile; without [`wait`](Self::wait) there is no limit.
    ///
    /// # Errors
    /// As [`Acquire`](crate::Acquire).
    pub fn take(self) -> Result<Guard> {
        let guard = self.keeper.block_on(self.inner.into_future())?;
        Ok(Guard { guard, keeper: self.keeper })
    }

    /// Takes the lock if it is free now; `None` if it is held or a ticket waits for it.
    ///
    /// # Errors
    /// As [`Acquire::try_now`](crate::Acquire::try_now).
    pub fn try_now(self) -> Result<Option<Guard>> {
        let guard = self.keeper.block_on(self.inner.try_now())?;
        Ok(guard.map(|guard| Guard { guard, keeper: self.keeper }))
    }

    /// Waits for the lock, runs the work and releases. The work cannot be stopped when the lock is lost:
    /// long work looks at [`is_held`](crate::Guard::is_held) from time to time.
    ///
    /// ```
    /// # fn main() -> lockkeeper::Result<()> {
    /// # let keeper = lockkeeper::blocking::Keeper::connect("memory://doc-blocking-run")?;
    /// let done = keeper.lock("import").run(|guard| {
    ///     let rows = ["a", "b", "c"].iter().take_while(|_| guard.is_held());
    ///     rows.count()
    /// })?;
    /// assert_eq!(done, 3);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`Acquire::run`](crate::Acquire::run).
    pub fn run<T>(self, work: impl FnOnce(&Guard) -> T) -> Result<T> {
        let guard = self.take()?;
        let out = work(&guard);
        let Guard { guard, keeper } = guard;
        keeper.block_on(finish(guard, out))
    }
}

/// As [`crate::RwLock`]: many readers, or one writer.
///
/// ```
/// # fn main() -> lockkeeper::Result<()> {
/// # let keeper = lockkeeper::blocking::Keeper::connect("memory://doc-blocking-rwlock")?;
/// let cache = keeper.rwlock("cache");
/// let readers = [cache.read().take()?, cache.read().take()?];
/// assert!(cache.write().try_now()?.is_none());
/// drop(readers);
/// cache.write().take()?.release()?;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct RwLock(crate::RwLock, Keeper);

impl RwLock {
    /// Together with other readers.
    pub fn read(&self) -> Lock {
        Lock { inner: self.0.read(), keeper: self.1.clone() }
    }

    /// Alone.
    pub fn write(&self) -> Lock {
        Lock { inner: self.0.write(), keeper: self.1.clone() }
    }
}

/// As [`crate::Semaphore`]: so many permits, which holders share.
///
/// ```
/// # fn main() -> lockkeeper::Result<()> {
/// # let keeper = lockkeeper::blocking::Keeper::connect("memory://doc-blocking-semaphore")?;
/// let gpu = keeper.semaphore("gpu", 4);
/// let three = gpu.acquire(3).take()?;
/// assert!(gpu.acquire(2).try_now()?.is_none());   // only one is left
/// # drop(three); Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct Semaphore(crate::Semaphore, Keeper);

impl Semaphore {
    /// `weight` of the permits, together.
    pub fn acquire(&self, weight: u32) -> Lock {
        Lock { inner: self.0.acquire(weight), keeper: self.1.clone() }
    }
}

/// A lock in hand. What does not wait is the async guard's, to which this one dereferences. Dropping it
/// releases the lock in the background.
///
/// ```
/// # use std::time::Duration;
/// # fn main() -> lockkeeper::Result<()> {
/// # let keeper = lockkeeper::blocking::Keeper::connect("memory://doc-blocking-guard")?;
/// let guard = keeper.lock("batch").take()?;
/// guard.set_label("page 1 of 9")?;                // others see it in the listing
/// guard.write(b"page 1".to_vec())?;               // stays when the lock is released
/// let cell = keeper.read("batch")?.expect("just written");
/// assert_eq!(cell.bytes, b"page 1");
/// let loss = guard.loss();                        // for other threads: clonable, `'static`
/// assert!(loss.why().is_none() && guard.remaining() > Duration::ZERO);
/// guard.release()?;
/// # Ok(()) }
/// ```
#[derive(Debug)]
#[must_use = "dropping the guard releases the lock"]
pub struct Guard {
    guard: crate::Guard,
    keeper: Keeper,
}

impl Deref for Guard {
    type Target = crate::Guard;

    fn deref(&self) -> &crate::Guard {
        &self.guard
    }
}

calls! { Guard like Guard(this: this.guard, this.keeper):
    lost() -> Loss,
    jeopardy() -> Health,
    extend(at_least: Duration) -> Result<Duration>,
    set_label(label: impl Into<Vec<u8>>) -> Result<()>,
    write(bytes: impl Into<Option<Vec<u8>>>) -> Result<()>,
}

impl Guard {
    /// Releases the lock and waits until the store has confirmed it.
    ///
    /// # Errors
    /// As [`crate::Guard::release`].
    pub fn release(self) -> Result<()> {
        self.keeper.block_on(self.guard.release())
    }

    /// As [`crate::Guard::detach`], with the same errors.
    pub fn detach(self) -> Result<Detached> {
        self.keeper.block_on(self.guard.detach())
    }
}

/// Several locks to be taken, as [`crate::LockAll`]: in the order of their names, all or none.
///
/// ```
/// # fn main() -> lockkeeper::Result<()> {
/// # let keeper = lockkeeper::blocking::Keeper::connect("memory://doc-blocking-many")?;
/// let guards = keeper.lock_all(["acct/2", "acct/1"]).take()?;
/// let names: Vec<&str> = guards.iter().map(|guard| guard.name().as_str()).collect();
/// assert_eq!(names, ["acct/1", "acct/2"]);
/// assert!(keeper.lock_all(["acct/2", "acct/3"]).try_now()?.is_none());
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
#[must_use = "locks are taken by take() or try_now()"]
pub struct LockAll {
    inner: crate::LockAll,
    keeper: Keeper,
}

options! { LockAll like LockAll:
    wait(wait: Duration), ttl(ttl: Duration), lock_delay(lock_delay: Duration), unfair(),
    reentrant_as(owner: impl Into<Arc<str>>), label(label: impl Into<Vec<u8>>),
}

impl LockAll {
    /// Waits for all of the locks. The guards are in the order of their names.
    ///
    /// # Errors
    /// As [`crate::LockAll`].
    pub fn take(self) -> Result<Vec<Guard>> {
        let guards = self.keeper.block_on(self.inner.into_future())?;
        Ok(each(guards, &self.keeper))
    }

    /// Takes all of them if all are free now; `None` otherwise.
    ///
    /// # Errors
    /// As [`crate::LockAll::try_now`].
    pub fn try_now(self) -> Result<Option<Vec<Guard>>> {
        let guards = self.keeper.block_on(self.inner.try_now())?;
        Ok(guards.map(|guards| each(guards, &self.keeper)))
    }
}

fn each(guards: crate::Guards, keeper: &Keeper) -> Vec<Guard> {
    guards.into_iter().map(|guard| Guard { guard, keeper: keeper.clone() }).collect()
}

/// As [`crate::Election`].
///
/// ```
/// # fn main() -> lockkeeper::Result<()> {
/// # let keeper = lockkeeper::blocking::Keeper::connect("memory://doc-blocking-election")?;
/// let scheduler = keeper.election("scheduler");
/// let term = scheduler.campaign("node 1").lead()?;
/// let leader = scheduler.leader()?.expect("we lead");
/// assert_eq!(leader.label, b"node 1");
/// let first = scheduler.observe().next().expect("it never ends")?;
/// assert!(first.is_some());
/// term.release()?;                                // resigns
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct Election(crate::Election, Keeper);

impl Election {
    /// As [`crate::Election::campaign`].
    pub fn campaign(&self, label: impl Into<Vec<u8>>) -> Campaign {
        Campaign { inner: self.0.campaign(label), keeper: self.1.clone() }
    }

    /// As [`crate::Election::observe`]: an iterator that never ends.
    pub fn observe(&self) -> Changes<Observer> {
        Changes { stream: self.0.observe(), keeper: self.1.clone() }
    }
}

calls! { Election like Election(this: this.0, this.1):
    leader() -> Result<Option<Leader>>,
}

/// A candidacy, as [`crate::Campaign`].
#[derive(Clone, Debug)]
#[must_use = "a campaign begins with lead() or try_now()"]
pub struct Campaign {
    inner: crate::Campaign,
    keeper: Keeper,
}

options! { Campaign like Campaign:
    wait(wait: Duration), ttl(ttl: Duration), lock_delay(lock_delay: Duration), unfair(),
}

impl Campaign {
    /// Waits until it leads. The guard is the term of office: its label is what the leader proclaims,
    /// and its release resigns.
    ///
    /// # Errors
    /// As [`crate::Campaign`].
    pub fn lead(self) -> Result<Guard> {
        let term = self.keeper.block_on(self.inner.into_future())?;
        Ok(Guard { guard: term.into_guard(), keeper: self.keeper })
    }

    /// As [`crate::Campaign::try_now`].
    ///
    /// # Errors
    /// As [`crate::Campaign::try_now`].
    pub fn try_now(self) -> Result<Option<Guard>> {
        let term = self.keeper.block_on(self.inner.try_now())?;
        Ok(term.map(|term| Guard { guard: term.into_guard(), keeper: self.keeper }))
    }
}

/// A stream of changes, as an iterator that waits for the next one. It never ends: an error of the store is
/// an item, and the next call goes on.
///
/// ```
/// # fn main() -> lockkeeper::Result<()> {
/// # let keeper = lockkeeper::blocking::Keeper::connect("memory://doc-blocking-changes")?;
/// let mut lines = keeper.watch("jobs/");
/// assert!(lines.next().expect("it never ends")?.is_empty());
/// let guard = keeper.lock("jobs/nightly").take()?;
/// assert_eq!(lines.next().expect("it never ends")?.len(), 1);
/// # drop(guard); Ok(()) }
/// ```
#[derive(Debug)]
#[must_use = "the iterator does nothing until it is asked for the next change"]
pub struct Changes<S> {
    stream: S,
    keeper: Keeper,
}

impl<S: Stream + Unpin> Iterator for Changes<S> {
    type Item = S::Item;

    fn next(&mut self) -> Option<S::Item> {
        let Self { stream, keeper } = self;
        keeper.block_on(poll_fn(|cx| Pin::new(&mut *stream).poll_next(cx)))
    }
}
