//! A lock in hand.

use crate::{
    api::{detached::Detached, loss_token::LossToken},
    clock::Moment,
    error::{Error, Loss, Result},
    model::{
        name::Name,
        sequencer::Sequencer,
        ticket::{Mode, TicketId},
    },
    session::{
        hold::Hold,
        request::{check_cell, check_label},
    },
    store::{Edited, Store as _, Terms},
};
use std::{fmt, sync::Arc, time::Duration};

/// How a lock in hand stands.
///
/// ```
/// # use lockkeeper::{Health, Keeper};
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> lockkeeper::Result<()> {
/// # let keeper = Keeper::connect("memory://doc-health").await?;
/// let guard = keeper.lock("a").await?;
/// match guard.health() {
///     Health::Held => println!("sure for {:?}", guard.remaining()),
///     Health::Jeopardy => println!("a renewal has failed; {:?} left", guard.remaining()),
///     Health::Lost(why) => println!("stop: {why}"),
///     _ => {}
/// }
/// # drop(guard); keeper.close().await; Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
#[non_exhaustive]
pub enum Health {
    /// Held, and the last renewal was answered.
    Held,
    /// Held, but a renewal has failed: unless one succeeds soon, the lock will be lost.
    Jeopardy,
    /// Lost.
    Lost(Loss),
}

/// A lock in hand: one type for every primitive.
///
/// The lock is renewed in the background for as long as the guard lives. Work that must not go on
/// without the lock selects on [`lost`](Self::lost), or passes the [`fence`](Self::fence) to a
/// resource that refuses older ones.
///
/// ```
/// # use lockkeeper::Keeper;
/// # async fn work() {}
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> lockkeeper::Result<()> {
/// # let keeper = Keeper::connect("memory://doc-guard").await?;
/// let guard = keeper.lock("invoices").label("nightly").await?;
/// tokio::select! {
///     why = guard.lost() => eprintln!("stopped: {why}"),
///     () = work() => guard.release().await?,
/// }
/// # keeper.close().await; Ok(()) }
/// ```
///
/// # Release on drop
/// Dropping the guard releases the lock in the background: the drop itself neither blocks nor
/// fails. Use [`release`](Self::release) to know that it is done, and
/// [`Keeper::close`](crate::Keeper::close) before the runtime ends.
///
/// # Re-entrancy
/// Guards of one [`owner`](crate::Acquire::reentrant_as) for one name share one ticket and one fence. The
/// lock is released with the last of them.
#[must_use = "dropping the guard releases the lock"]
pub struct Guard {
    hold: Arc<Hold>,
}

impl Guard {
    pub(crate) fn new(hold: Arc<Hold>) -> Self {
        Self { hold }
    }

    /// The number of this grant. For one name it grows with every exclusive grant, so a resource
    /// that remembers the highest it has seen can refuse a holder whose time has passed.
    ///
    /// 0 means that there is none: the store is not [`fenced`](crate::Capabilities::fenced) (plain string
    /// locks of Redis, `?compat=string`). Do not pass it on; a program that needs fences says so with
    /// [`Keeper::require`](crate::Keeper::require).
    #[must_use]
    pub fn fence(&self) -> u64 {
        self.hold.state().fence
    }

    /// The lock's name.
    #[must_use]
    pub fn name(&self) -> &Name {
        self.hold.name()
    }

    /// How it is held.
    #[must_use]
    pub fn mode(&self) -> Mode {
        self.hold.mode()
    }

    /// The ticket's id: public, as it appears in listings.
    #[must_use]
    pub fn ticket(&self) -> TicketId {
        self.hold.ticket()
    }

    /// A text that carries this grant to another program, which can have it
    /// [checked](crate::Keeper::check). It is no secret and gives no rights.
    #[must_use]
    pub fn sequencer(&self) -> Sequencer {
        Sequencer::of(self.hold.session().store.id(), self.hold.claim())
    }

    /// How the store itself names this grant (a key, a path, a row), for the user's own
    /// transactions there.
    #[must_use]
    pub fn native(&self) -> Vec<(&'static str, String)> {
        self.hold.session().store.native(&self.hold.claim())
    }

    /// The terms on which the store really holds the lock. A store may grant less than was asked for
    /// (ZooKeeper: no longer sessions than `maxSessionTimeout`) or more (etcd: whole seconds, and two
    /// at least), so a program that relies on a certain TTL or lock-delay compares them.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> lockkeeper::Result<()> {
    /// # use lockkeeper::Keeper; use std::time::Duration;
    /// # let keeper = Keeper::connect("memory://doc-terms").await?;
    /// let wanted = Duration::from_secs(6);
    /// let guard = keeper.lock("a").lock_delay(wanted).await?;
    /// assert!(guard.terms().lock_delay >= wanted);
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn terms(&self) -> Terms {
        self.hold.session().terms
    }

    /// Is the lock held now? Exact at the moment of the call, also right after the process was
    /// stopped or the machine suspended.
    #[must_use]
    pub fn is_held(&self) -> bool {
        !matches!(self.health(), Health::Lost(_))
    }

    /// How the lock stands.
    #[must_use]
    pub fn health(&self) -> Health {
        self.hold.state().health(&self.hold.session().state)
    }

    /// A token that says when the lock is held no more, for code that does not have the guard: a
    /// spawned task, a callback, another thread.
    #[must_use]
    pub fn loss(&self) -> LossToken {
        LossToken::new(&self.hold.session().state, self.hold.state())
    }

    /// For how long the lock is held for certain, if no further renewal succeeds.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        let state = &self.hold.session().state;
        let until = self.hold.state().max_hold.unwrap_or(Moment::NEVER).min(state.deadline());
        if self.is_held() { until.saturating_since(state.clock.now()) } else { Duration::ZERO }
    }

    /// Waits until the lock is lost, and says why. It returns at the session's deadline at the latest,
    /// which is before the store can grant the lock to another client. (After a suspend it can take a
    /// second to wake up; [`is_held`](Self::is_held) is exact at once.)
    ///
    /// The future borrows the guard; [`loss`](Self::loss) is for code that does not have it.
    ///
    /// # Cancel safety
    /// Can be dropped and called again as often as wanted.
    pub async fn lost(&self) -> Loss {
        self.hold.state().lost(&self.hold.session().state).await
    }

    /// Waits until the lock is in jeopardy (a renewal has failed) or lost, and says which. While that
    /// lasts it returns at once. A program can use the time that is left to come to a safe point:
    ///
    /// ```no_run
    /// # use lockkeeper::{Guard, Health};
    /// # async fn pause_new_work() {}
    /// # async fn example(guard: Guard) {
    /// match guard.jeopardy().await {
    ///     Health::Lost(why) => eprintln!("lost: {why}"),
    ///     _ => pause_new_work().await,
    /// }
    /// # }
    /// ```
    ///
    /// # Cancel safety
    /// As [`lost`](Self::lost).
    pub async fn jeopardy(&self) -> Health {
        self.hold.state().jeopardy(&self.hold.session().state).await
    }

    /// Renews now, so that the lock is held for at least `at_least` from now on.
    ///
    /// A fixed [`lease`](crate::Acquire::lease) begins anew. Returns for how long the lock is held for
    /// certain now.
    ///
    /// ```
    /// # use lockkeeper::Keeper; use std::time::Duration;
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> lockkeeper::Result<()> {
    /// # let keeper = Keeper::connect("memory://doc-extend").await?;
    /// let guard = keeper.lock("a").lease(Duration::from_secs(20)).await?;
    /// let sure = guard.extend(Duration::from_secs(15)).await?;   // before a step that takes so long
    /// assert!(sure >= Duration::from_secs(15));
    /// # drop(guard); keeper.close().await; Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`Error::Option`] if `at_least` is longer than a renewal is good for, [`Error::Lost`], or the
    /// store's error.
    ///
    /// # Cancel safety
    /// Dropping the future may or may not renew.
    pub async fn extend(&self, at_least: Duration) -> Result<Duration> {
        let session = self.hold.session();
        let longest = session.terms.belief();
        if at_least > longest {
            let what = format!(
                "cannot extend by {at_least:?}: a renewal is good for {longest:?}; ask for a \
                 longer ttl or lease when taking the lock"
            );
            return Err(Error::option("at_least", what));
        }
        self.ensure_held()?;
        session.renew_now(self.name()).await?;
        self.ensure_held()?;
        Ok(self.remaining())
    }

    /// Changes what others read beside the ticket: its [label](crate::Acquire::label).
    ///
    /// ```
    /// # use lockkeeper::Keeper;
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> lockkeeper::Result<()> {
    /// # let keeper = Keeper::connect("memory://doc-label").await?;
    /// let guard = keeper.lock("import").label("0 of 7 files").await?;
    /// guard.set_label("3 of 7 files").await?;
    /// let line = keeper.get("import").await?.expect("we hold it");
    /// assert_eq!(line.tickets[0].label, b"3 of 7 files");
    /// # drop(guard); keeper.close().await; Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`Error::Option`] if the label is too long, [`Error::Lost`], or the store's error.
    ///
    /// # Cancel safety
    /// Dropping the future may or may not change it.
    pub async fn set_label(&self, label: impl Into<Vec<u8>>) -> Result<()> {
        let label = label.into();
        check_label(&label)?;
        self.ensure_held()?;
        let edit = self.hold.label_edit(label);
        let edited = self.hold.session().store.set_label(edit).await?;
        self.edited(edited)
    }

    /// Writes the lock's cell, the small value that belongs to its name, if the lock is still held:
    /// check and write are one step in the store. `None` empties the cell.
    ///
    /// ```
    /// # use lockkeeper::Keeper;
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> lockkeeper::Result<()> {
    /// # let keeper = Keeper::connect("memory://doc-cell").await?;
    /// let guard = keeper.lock("orders").await?;
    /// guard.write(b"up to 4711".to_vec()).await?;
    /// let cell = keeper.read("orders").await?.expect("written");
    /// assert_eq!((cell.bytes, cell.fence), (b"up to 4711".to_vec(), guard.fence()));
    /// # drop(guard); keeper.close().await; Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`Error::Option`] if there are too many bytes or the lock is not held exclusively,
    /// [`Error::Lost`], or the store's error.
    ///
    /// # Cancel safety
    /// Dropping the future may or may not write; a late copy never undoes a newer write.
    pub async fn write(&self, bytes: impl Into<Option<Vec<u8>>>) -> Result<()> {
        let bytes = bytes.into();
        check_cell(bytes.as_ref().map_or(0, Vec::len), self.mode())?;
        self.ensure_held()?;
        let edit = self.hold.cell_edit(bytes);
        let edited = self.hold.session().store.write(edit).await?;
        self.edited(edited)
    }

    fn edited(&self, edited: Edited) -> Result<()> {
        match edited {
            Edited::Done => Ok(()),
            Edited::NotHeld => {
                self.hold.state().end(Loss::Evicted);
                self.ensure_held()
            }
        }
    }

    fn ensure_held(&self) -> Result<()> {
        match self.health() {
            Health::Lost(why) => Err(Error::Lost { name: self.name().clone(), why }),
            _ => Ok(()),
        }
    }

    /// How many guards of the same owner share this ticket.
    #[must_use]
    pub fn holds(&self) -> usize {
        Arc::strong_count(&self.hold)
    }

    /// Lets go of the lock without releasing it, and returns what another process needs to
    /// [attach](crate::Keeper::attach) it. Until then no process renews the lock: it ends with its TTL.
    ///
    /// Only a lock with a fixed [`lease`](crate::Acquire::lease), or one that was attached, can be detached: it
    /// has a session of its own.
    ///
    /// ```
    /// # use lockkeeper::{Detached, Keeper}; use std::time::Duration;
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> lockkeeper::Result<()> {
    /// # let url = "memory://doc-detach";
    /// # let (keeper, other) = (Keeper::connect(url).await?, Keeper::connect(url).await?);
    /// let guard = keeper.lock("import").lease(Duration::from_secs(60)).await?;
    /// let secret: String = guard.detach().await?.secret_text();    // into a file of mode 0600
    /// // Another process:
    /// let guard = other.attach(&secret.parse()?).await?;
    /// guard.release().await?;
    /// # keeper.close().await; other.close().await; Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`Error::Option`] if the lock has no session of its own, has other guards, or was taken with `at_least`
    /// or `max_hold`; [`Error::Lost`]; [`Error::Unsupported`] by a store that ties sessions to a connection.
    /// After an error the lock is released in the background.
    ///
    /// # Cancel safety
    /// Dropping the future may leave the lock held until its TTL is over.
    pub async fn detach(self) -> Result<Detached> {
        self.ensure_held()?;
        let Some(hold) = Arc::into_inner(self.hold) else {
            let what = "another guard of the same owner holds the lock: it cannot be detached";
            return Err(Error::option("reentrant_as", what));
        };
        hold.detach().await
    }

    /// Releases the lock and waits until the store has confirmed it. One round trip.
    ///
    /// While the store cannot be reached the release is repeated until the session's deadline.
    ///
    /// # Errors
    /// [`Error::Lost`] if the lock was lost before, so the work done under it was not protected to
    /// its end; or the store's error.
    ///
    /// # Cancel safety
    /// Dropping the future releases in the background.
    pub async fn release(self) -> Result<()> {
        let held = self.ensure_held();
        match Arc::into_inner(self.hold) {
            Some(hold) => hold.release().await,
            // Another guard of the same owner still holds it.
            None => held,
        }
    }
}

impl fmt::Debug for Guard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Guard")
            .field("name", self.name())
            .field("mode", &self.mode())
            .field("fence", &self.fence())
            .field("ticket", &self.ticket())
            .field("health", &self.health())
            .finish()
    }
}
