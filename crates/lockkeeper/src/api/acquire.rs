//! The builder behind every primitive: what is wanted, how long to wait, how to hold it.

use crate::{
    api::{
        guard::Guard,
        keeper::Keeper,
        options::{Renew, TIME_MAX, TTL_MIN},
        retry::Retry,
    },
    clock::Clock,
    error::{Error, Result},
    model::{
        name::{Name, NameError},
        ticket::Mode,
    },
    observe,
    session::{
        keeper_state::KeeperState,
        request::{LockRequest, OnWait, Patience, check_label, check_mode},
        times::{Times, at_least, at_most},
        wait::acquire,
    },
    store::{Manner, Store as _, Wait},
};
use std::{fmt, pin::Pin, sync::Arc, time::Duration};
use tracing::Instrument as _;

/// A lock to be taken. Await it, or set options first.
///
/// ```
/// # use lockkeeper::{Keeper, Retry}; use std::time::Duration;
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> lockkeeper::Result<()> {
/// # let keeper = Keeper::connect("memory://doc-acquire").await?;
/// let guard = keeper.lock("a").await?;
/// assert!(keeper.lock("a").try_now().await?.is_none());
/// let late = keeper.lock("a").wait(Duration::from_millis(10)).label("nightly").await;
/// assert!(late.unwrap_err().is_not_acquired());
/// # drop(guard); keeper.close().await; Ok(()) }
/// ```
///
/// # Fairness
/// Locks are granted in the order in which their tickets entered the line, across all processes,
/// unless [`unfair`](Self::unfair) is said.
///
/// # Errors
/// [`Error::NotAcquired`] when the wait or the retries end; [`Error::Name`], [`Error::Option`],
/// [`Error::Capacity`], [`Error::Upgrade`] and [`Error::Unsupported`] for what cannot be had;
/// [`Error::Unavailable`] and [`Error::Store`] for a store that cannot be reached or refuses.
///
/// # Cancel safety
/// Dropping the future withdraws its ticket, so the **place in line is lost**: the next attempt
/// enters at the end. A `select!` in a loop or a short timeout that is repeated therefore waits
/// longer than one long wait. Keep the future and poll it on (`tokio::pin!`), or give it the whole
/// time with [`wait`](Self::wait).
///
/// No ticket is left behind, whenever the future is dropped: what was begun is finished in the
/// background, as long as the runtime lives.
#[derive(Clone)]
#[must_use = "a lock is taken when this is awaited"]
pub struct Acquire {
    keeper: Keeper,
    name: Result<Name, NameError>,
    mode: Mode,
    manner: Manner,
    patience: Patience,
    retry: Retry,
    ttl: Option<Duration>,
    lock_delay: Option<Duration>,
    lease: Option<Duration>,
    at_least: Option<Duration>,
    max_hold: Option<Duration>,
    owner: Option<Arc<str>>,
    label: Vec<u8>,
    tell: Option<OnWait>,
}

impl Acquire {
    pub(crate) fn new(keeper: &Keeper, name: Result<Name, NameError>, mode: Mode) -> Self {
        Self {
            keeper: keeper.clone(),
            name,
            mode,
            manner: Manner::Queue,
            patience: Patience::Forever,
            retry: Retry::default(),
            ttl: None,
            lock_delay: None,
            lease: None,
            at_least: None,
            max_hold: None,
            owner: None,
            label: Vec::new(),
            tell: None,
        }
    }

    /// Waits at most so long. Without a limit the wait goes on through an outage of the store, and the
    /// lock is granted when the store is back.
    ///
    /// If the store cannot be reached when the time is over, the error is [`Error::Unavailable`]:
    /// whether the lock was free is not known then.
    ///
    /// A request that is under way when the time is over may still be answered, for up to a second after
    /// it was sent; so a wait that is shorter than a round trip is one attempt. `wait(0)` is one attempt
    /// too, exactly as [`try_now`](Self::try_now) makes it.
    ///
    /// ```
    /// # use lockkeeper::{Error, Keeper}; use std::time::Duration;
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> lockkeeper::Result<()> {
    /// # let keeper = Keeper::connect("memory://doc-wait").await?;
    /// # let held = keeper.lock("report").await?;
    /// match keeper.lock("report").wait(Duration::from_millis(20)).await {
    ///     Ok(guard) => guard.release().await?,
    ///     Err(Error::NotAcquired { waited, .. }) => println!("still taken after {waited:?}"),
    ///     Err(Error::Unavailable { .. }) => println!("the store is away; try later"),
    ///     Err(e) => return Err(e),
    /// }
    /// # drop(held); keeper.close().await; Ok(()) }
    /// ```
    pub fn wait(mut self, wait: Duration) -> Self {
        self.patience = Patience::For(wait);
        self
    }

    /// For how long the lock outlives the last renewal: the time after which a crashed holder's lock
    /// comes free. 15 s by default ([`TTL_DEFAULT`](crate::TTL_DEFAULT)).
    ///
    /// ```
    /// # use lockkeeper::Keeper; use std::time::Duration;
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> lockkeeper::Result<()> {
    /// # let keeper = Keeper::connect("memory://doc-ttl").await?;
    /// let lock = keeper.lock("job").ttl(Duration::from_secs(6));
    /// let guard = lock.lock_delay(Duration::from_secs(2)).await?;
    /// assert!(guard.remaining() <= Duration::from_secs(6));
    /// # drop(guard); keeper.close().await; Ok(()) }
    /// ```
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = Some(ttl);
        self
    }

    /// Extra time after the TTL before the store grants the lock to others, so that a crashed holder's
    /// writes can land. Zero by default. A release frees the lock at once all the same. Resources that check
    /// the [fence](Guard::fence) need none.
    pub fn lock_delay(mut self, lock_delay: Duration) -> Self {
        self.lock_delay = Some(lock_delay);
        self
    }

    /// A fixed lease instead of renewal in the background: the lock ends so long after its grant
    /// unless it is [extended](Guard::extend). Such a lock has a session of its own.
    ///
    /// ```
    /// # use lockkeeper::Keeper; use std::time::Duration;
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> lockkeeper::Result<()> {
    /// # let keeper = Keeper::connect("memory://doc-lease").await?;
    /// let guard = keeper.lock("job").lease(Duration::from_millis(200)).await?;
    /// guard.extend(Duration::from_millis(100)).await?;       // begins anew
    /// guard.lost().await;                                    // 200 ms later
    /// # keeper.close().await; Ok(()) }
    /// ```
    pub fn lease(mut self, lease: Duration) -> Self {
        self.lease = Some(lease);
        self
    }

    /// Keeps the lock closed for at least so long after its grant, also when it is released
    /// earlier: for jobs that must not run twice within that time.
    ///
    /// The store learns of it with the release. If there is none, because the process was killed or the
    /// session was lost, the lock is closed until TTL and lock-delay are over, and no longer: a lock that
    /// must stay closed after a crash too needs a lock-delay that is as long.
    ///
    /// ```
    /// # use lockkeeper::Keeper; use std::time::Duration;
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> lockkeeper::Result<()> {
    /// # let keeper = Keeper::connect("memory://doc-at-least").await?;
    /// let hourly = keeper.lock("hourly").at_least(Duration::from_secs(3600));
    /// hourly.clone().run(|_| async { /* two minutes of work */ }).await?;
    /// assert!(hourly.try_now().await?.is_none());            // an hour after the grant, not before
    /// # keeper.close().await; Ok(()) }
    /// ```
    pub fn at_least(mut self, at_least: Duration) -> Self {
        self.at_least = Some(at_least);
        self
    }

    /// Lets go of the lock so long after its grant, whatever its holder does:
    /// [`lost`](Guard::lost) says [`Loss::MaxHold`](crate::Loss::MaxHold). A bound for work that hangs.
    ///
    /// ```
    /// # use lockkeeper::{Error, Keeper, Loss}; use std::time::Duration;
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> lockkeeper::Result<()> {
    /// # let keeper = Keeper::connect("memory://doc-max-hold").await?;
    /// let bounded = keeper.lock("job").max_hold(Duration::from_millis(20));
    /// let hangs = bounded.run(|_| std::future::pending::<()>()).await;
    /// assert!(matches!(hangs, Err(Error::Lost { why: Loss::MaxHold, .. })));
    /// # keeper.close().await; Ok(()) }
    /// ```
    pub fn max_hold(mut self, max_hold: Duration) -> Self {
        self.max_hold = Some(max_hold);
        self
    }

    /// Makes the lock re-entrant for this owner within the keeper: the same owner gets the same
    /// grant again, and n acquires need n releases. Another process with the same owner waits.
    ///
    /// ```
    /// # use lockkeeper::Keeper;
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> lockkeeper::Result<()> {
    /// # let keeper = Keeper::connect("memory://doc-reentrant").await?;
    /// let outer = keeper.lock("tree").reentrant_as("worker-3").await?;
    /// let inner = keeper.lock("tree").reentrant_as("worker-3").await?;
    /// assert_eq!((inner.fence(), inner.holds()), (outer.fence(), 2));
    /// # drop((outer, inner)); keeper.close().await; Ok(()) }
    /// ```
    ///
    /// # Errors
    /// Awaiting it is [`Error::Upgrade`] when the owner holds the lock in a mode that does not cover the
    /// one asked for: a reader cannot become the writer.
    pub fn reentrant_as(mut self, owner: impl Into<Arc<str>>) -> Self {
        self.owner = Some(owner.into());
        self
    }

    /// What others read beside the ticket ([`Ticket::label`](crate::Ticket::label)): at most
    /// [`LABEL_MAX`](crate::LABEL_MAX) bytes. The holder can [change](Guard::set_label) it.
    ///
    /// ```
    /// # use lockkeeper::Keeper;
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> lockkeeper::Result<()> {
    /// # let keeper = Keeper::connect("memory://doc-label").await?;
    /// let guard = keeper.lock("deploy").label("release 4.2, by ci-7").await?;
    /// let line = keeper.get("deploy").await?.expect("it is held");
    /// assert_eq!(line.tickets[0].label, b"release 4.2, by ci-7");
    /// # drop(guard); keeper.close().await; Ok(()) }
    /// ```
    pub fn label(mut self, label: impl Into<Vec<u8>>) -> Self {
        self.label = label.into();
        self
    }

    /// Contends for the lock instead of standing in line: takes it when it is free and its line is
    /// empty, else tries again as [`retry`](Self::retry) says. A contender never overtakes a waiting
    /// ticket.
    ///
    /// ```
    /// # use lockkeeper::{Keeper, Retry}; use std::time::Duration;
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> lockkeeper::Result<()> {
    /// # let keeper = Keeper::connect("memory://doc-unfair").await?;
    /// let ten_times = Retry::limited(10, Duration::from_millis(50));
    /// let guard = keeper.lock("cache").unfair().retry(ten_times).await?;
    /// # drop(guard); keeper.close().await; Ok(()) }
    /// ```
    pub fn unfair(mut self) -> Self {
        self.manner = Manner::Contend;
        self
    }

    /// When to try again, for [`unfair`](Self::unfair). Without it the pauses grow from 5 ms to a second,
    /// for as long as [`wait`](Self::wait) allows. A lock that stands in line ignores it.
    pub fn retry(mut self, retry: Retry) -> Self {
        self.retry = retry;
        self
    }

    /// Calls `tell` whenever the store says how the ticket stands, until it is granted. Of updates that
    /// follow each other quickly only the latest may be passed on.
    ///
    /// ```
    /// # use lockkeeper::Keeper;
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> lockkeeper::Result<()> {
    /// # let keeper = Keeper::connect("memory://doc-on-wait").await?;
    /// let guard = keeper.lock("deploy").on_wait(|wait| match &wait.holder {
    ///     Some(holder) => eprintln!("{} ahead; held by {}", wait.ahead, holder.owner),
    ///     None => eprintln!("{} ahead", wait.ahead),
    /// }).await?;
    /// # drop(guard); keeper.close().await; Ok(()) }
    /// ```
    ///
    /// It is called in the task that awaits the lock: a `tell` that panics or blocks hurts this wait alone
    /// (and what else runs on the thread that it blocks).
    pub fn on_wait(mut self, tell: impl Fn(&Wait) + Send + Sync + 'static) -> Self {
        self.tell = Some(Arc::new(tell));
        self
    }

    /// Takes the lock if it is free now; `None` if it is held or a ticket waits for it.
    ///
    /// ```
    /// # use lockkeeper::Keeper;
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> lockkeeper::Result<()> {
    /// # let keeper = Keeper::connect("memory://doc-try-now").await?;
    /// match keeper.lock("report").try_now().await? {
    ///     Some(guard) => guard.release().await?,
    ///     None => println!("another process writes it"),
    /// }
    /// # keeper.close().await; Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As awaiting the builder, but never [`Error::NotAcquired`].
    ///
    /// # Cancel safety
    /// As [`Acquire`].
    pub async fn try_now(mut self) -> Result<Option<Guard>> {
        self.manner = Manner::Contend;
        self.patience = Patience::Try;
        self.go(|got| Ok(got.ok())).await
    }

    /// Takes the lock, runs the work, and releases. The work is dropped the moment the lock is lost.
    ///
    /// ```
    /// # use lockkeeper::Keeper;
    /// # async fn bill(fence: u64) -> u64 { fence }
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> lockkeeper::Result<()> {
    /// # let keeper = Keeper::connect("memory://doc-run").await?;
    /// let billed = keeper.lock("bills").run(|g| async move { bill(g.fence()).await }).await?;
    /// # assert!(billed > 0); keeper.close().await; Ok(()) }
    /// ```
    ///
    /// The guard is passed in an `Arc`, so that the work can look at it; it is released when the
    /// work is done, or with the last clone of it that the work has left somewhere.
    ///
    /// # Errors
    /// As awaiting the builder, or [`Error::Lost`] if the lock was lost before the work was done.
    ///
    /// # Cancel safety
    /// Dropping the future drops the work and releases in the background.
    pub async fn run<T, F, W>(self, work: F) -> Result<T>
    where
        F: FnOnce(Arc<Guard>) -> W + Send,
        W: Future<Output = T> + Send,
        T: Send,
    {
        let guard = Arc::new(self.await?);
        let out = tokio::select! {
            biased;
            why = guard.lost() => {
                return Err(Error::Lost { name: guard.name().clone(), why });
            }
            out = work(Arc::clone(&guard)) => out,
        };
        match Arc::into_inner(guard) {
            Some(guard) => finish(guard, out).await,
            None => Ok(out),
        }
    }

    /// The same lock with another name.
    pub(crate) fn named(self, name: Name) -> Self {
        Self { name: Ok(name), ..self }
    }

    pub(crate) fn clock(&self) -> &Clock {
        &self.keeper.inner.clock
    }

    async fn go<T>(self, then: fn(Result<Guard, Missed>) -> Result<T>) -> Result<T> {
        let (keeper, request) = self.request()?;
        let span = observe::acquire(&request.name, request.mode, keeper.store.scheme());
        async {
            let got = acquire(&keeper, &request).await;
            let waited = || keeper.clock.now().saturating_since(request.began);
            match got {
                Ok(Some(guard)) => then(Ok(guard)),
                Ok(None) => {
                    let missed = Missed { name: request.name.clone(), waited: waited() };
                    observe::not_acquired(&missed.name, missed.waited);
                    then(Err(missed))
                }
                Err(e) => {
                    observe::acquire_failed(&request.name, &e, waited());
                    Err(e)
                }
            }
        }
        .instrument(span)
        .await
    }

    /// Checks everything that can be wrong before anything is sent.
    fn request(mut self) -> Result<(Arc<KeeperState>, LockRequest)> {
        if self.patience == Patience::For(Duration::ZERO) {
            (self.manner, self.patience) = (Manner::Contend, Patience::Try);
        }
        let name = self.name.clone()?;
        let times = self.times()?;
        check_mode(self.mode)?;
        self.check_capabilities()?;
        at_most("at_least", self.at_least.unwrap_or_default(), self.max_hold.unwrap_or(TIME_MAX))?;
        at_most("max_hold", self.max_hold.unwrap_or_default(), TIME_MAX)?;
        check_label(&self.label)?;
        let request = LockRequest {
            name,
            mode: self.mode,
            manner: self.manner,
            patience: self.patience,
            retry: self.retry,
            times,
            leased: self.lease.is_some(),
            at_least: self.at_least,
            max_hold: self.max_hold,
            owner: self.owner,
            label: self.label,
            tell: self.tell,
            began: self.keeper.inner.clock.now(),
        };
        Ok((self.keeper.inner, request))
    }

    fn times(&self) -> Result<Times> {
        let default = self.keeper.times();
        if self.lease.is_some() && self.ttl.is_some() {
            let what = "a lock has either a ttl, renewed in the background, or a fixed lease";
            return Err(Error::option("lease", what));
        }
        if let Some(lease) = self.lease {
            at_least("lease", lease, TTL_MIN)?;
        }
        let times = Times {
            ttl: self.lease.or(self.ttl).unwrap_or(default.ttl),
            lock_delay: self.lock_delay.unwrap_or(default.lock_delay),
        };
        times.check(&Renew::DEFAULT)?;
        Ok(times)
    }

    fn check_capabilities(&self) -> Result<()> {
        let can = self.keeper.capabilities();
        let shared = matches!(self.mode, Mode::Shared);
        let permits = matches!(self.mode, Mode::Permits { .. });
        let words = self.keeper.store().unsupported(self.mode);
        let missing = [
            (self.manner == Manner::Queue && !can.fair, "waiting in line; use unfair()"),
            (shared && !can.shared, words.unwrap_or("read locks")),
            (permits && !can.permits, words.unwrap_or("semaphores")),
            (self.at_least.is_some() && !can.at_least, "at_least"),
        ];
        match missing.into_iter().find(|(missing, _)| *missing) {
            Some((_, what)) => {
                Err(Error::Unsupported { store: self.keeper.store().scheme(), what })
            }
            None => Ok(()),
        }
    }
}

/// Releases the lock of work that is done.
pub(crate) async fn finish<T>(guard: Guard, out: T) -> Result<T> {
    match guard.release().await {
        Err(e @ Error::Lost { .. }) => return Err(e),
        // The work was protected to its end. That the store could not be told makes others
        // wait for the session to expire, and is no reason to throw the result away.
        Err(e) => observe::release_failed(&e),
        Ok(()) => {}
    }
    Ok(out)
}

/// The lock could not be had in time.
struct Missed {
    name: Name,
    waited: Duration,
}

impl IntoFuture for Acquire {
    type Output = Result<Guard>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(
            self.go(|got| {
                got.map_err(|Missed { name, waited }| Error::NotAcquired { name, waited })
            }),
        )
    }
}

impl fmt::Debug for Acquire {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Acquire")
            .field("name", &self.name)
            .field("mode", &self.mode)
            .field("manner", &self.manner)
            .field("patience", &self.patience)
            .finish_non_exhaustive()
    }
}
