//! Options for a keeper, and how it connects.

use crate::{
    api::{
        keeper::Keeper,
        options::{Renew, TTL_DEFAULT},
    },
    clock::Clock,
    error::Result,
    model::ticket::Owner,
    session::{
        outage,
        own_thread::{OwnThread, Within},
        times::Times,
    },
    store::{AnyStore, Store, url::StoreUrl},
};
use std::time::Duration;

/// Options for a [`Keeper`]. What a lock does not say for itself, it takes from here.
///
/// ```
/// # use lockkeeper::{Keeper, Owner}; use std::time::Duration;
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> lockkeeper::Result<()> {
/// let keeper = Keeper::builder()
///     .ttl(Duration::from_secs(10))
///     .lock_delay(Duration::from_secs(2))
///     .identity(Owner::new("ci-7", std::process::id(), "billing"))
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
    own_thread: bool,
}

impl Builder {
    pub(crate) fn new() -> Self {
        Self {
            ttl: None,
            lock_delay: None,
            renew: Renew::DEFAULT,
            owner: None,
            clock: Clock::system(),
            connect_wait: Duration::ZERO,
            own_thread: false,
        }
    }

    /// For how long a lock outlives its holder's last renewal: [`TTL_DEFAULT`], unless this or `ttl=` in
    /// the URL says otherwise. This wins over the URL.
    ///
    /// A short TTL frees a crashed holder's locks soon, and is lost in a short outage of the store or a long pause
    /// of the process. A session is renewed three times in its TTL, so the TTL should be at least three times
    /// the longest pause that must be outlasted.
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

    /// How sessions are renewed: see [`Renew`]. It holds for sessions with the keeper's own TTL; a lock
    /// with a TTL of its own is renewed every third of that.
    pub fn renew(mut self, renew: Renew) -> Self {
        self.renew = renew;
        self
    }

    /// What listings, waiters and the command see as the owner of the locks ([`Ticket::owner`](crate::Ticket::owner)): this process
    /// by default. It is text for people: it gives no rights, and two programs may share it.
    ///
    /// ```
    /// # use lockkeeper::{Keeper, Owner};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> lockkeeper::Result<()> {
    /// let identity = Owner::new("ci-7", std::process::id(), "billing");
    /// let keeper = Keeper::builder().identity(identity).connect("memory://doc-identity").await?;
    /// let guard = keeper.lock("invoices").await?;
    /// let line = keeper.get("invoices").await?.expect("it is held");
    /// assert!(line.tickets[0].owner.as_ref().is_some_and(|owner| owner.to_string().contains("ci-7")));
    /// # drop(guard); keeper.close().await; Ok(()) }
    /// ```
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

    /// Renews on a thread of the keeper's own, so that a program whose tasks compute for longer than a
    /// TTL between two awaits keeps its locks. Without it the renewals run in the program's runtime.
    ///
    /// ```
    /// # use lockkeeper::Keeper; use std::{thread::sleep, time::Duration};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> lockkeeper::Result<()> {
    /// let builder = Keeper::builder().renew_on_own_thread().ttl(Duration::from_millis(200));
    /// let keeper = builder.connect("memory://doc-own-thread").await?;
    /// let guard = keeper.lock("a").await?;
    /// sleep(Duration::from_millis(500));                     // no await, no other thread
    /// assert!(guard.is_held());
    /// # drop(guard); keeper.close().await; Ok(()) }
    /// ```
    ///
    /// The thread ends after the keeper, its clones and its guards. A store given to [`over`](Self::over)
    /// keeps the connections that it has made elsewhere.
    pub fn renew_on_own_thread(mut self) -> Self {
        self.own_thread = true;
        self
    }

    /// Connects to the store that the URL names.
    ///
    /// ```
    /// # use lockkeeper::{Error, Keeper};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> lockkeeper::Result<()> {
    /// let keeper = Keeper::builder().connect("memory://doc-connect?ttl=20s").await?;
    /// match Keeper::builder().connect("memory://doc-connect?ttl=soon").await {
    ///     Err(Error::Url(e)) => assert_eq!(e.option.as_deref(), Some("ttl")),
    ///     other => panic!("soon is no duration: {other:?}"),
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`Error::Url`](crate::Error::Url) if the URL is not understood; [`Error::Unavailable`](crate::Error::Unavailable) if the store could not be
    /// reached within [`connect_wait`](Self::connect_wait); or the store's error.
    ///
    /// # Cancel safety
    /// Dropping the future leaves no lock behind.
    pub async fn connect(self, url: &str) -> Result<Keeper> {
        let thread = self.start_thread()?;
        self.connect_on(thread, url).await
    }

    /// Connects in the runtime of this thread.
    pub(crate) async fn connect_on(self, thread: Option<OwnThread>, url: &str) -> Result<Keeper> {
        let mut url = StoreUrl::parse(url)?;
        let ttl = url.take_duration("ttl")?;
        let lock_delay = url.take_duration("lock_delay")?;
        let connecting =
            Box::pin(outage::reach(&self.clock, self.connect_wait, || url.clone().connect()));
        let store = match &thread {
            Some(thread) => Within::new(thread.handle(), connecting).await?,
            None => connecting.await?,
        };
        Self { ttl: self.ttl.or(ttl), lock_delay: self.lock_delay.or(lock_delay), ..self }
            .over_any(store, thread)
    }

    fn start_thread(&self) -> Result<Option<OwnThread>> {
        self.own_thread.then(OwnThread::start).transpose()
    }

    /// Uses a store that the program has made itself: one of [`store`](crate::store), or its own.
    ///
    /// ```
    /// # use lockkeeper::{Keeper, store::memory::Memory}; use std::time::Duration;
    /// let keeper = Keeper::builder().ttl(Duration::from_secs(5)).over(Memory::new())?;
    /// # Ok::<(), lockkeeper::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Option`](crate::Error::Option) if the options make no sense.
    pub fn over(self, store: impl Store) -> Result<Keeper> {
        let thread = self.start_thread()?;
        self.over_any(AnyStore::new(store), thread)
    }

    pub(crate) fn over_any(self, store: AnyStore, thread: Option<OwnThread>) -> Result<Keeper> {
        let ttl = self.ttl.unwrap_or(TTL_DEFAULT);
        let times = Times { ttl, lock_delay: self.lock_delay.unwrap_or_default() };
        times.check(&self.renew)?;
        let store = match &thread {
            Some(thread) => store.on(thread.handle()),
            None => store,
        };
        let owner = self.owner.unwrap_or_else(Owner::this_process).bounded();
        Ok(Keeper::new(store, self.clock, times, self.renew, owner, thread))
    }
}
