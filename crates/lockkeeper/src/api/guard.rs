//! A lock in hand.

use crate::{
    api::{
        acquire::check_label,
        loss_token::{self, LossToken},
    },
    clock::Moment,
    error::{Error, Loss, Result},
    model::{
        name::Name,
        sequencer::Sequencer,
        ticket::{Mode, TicketId},
    },
    observe,
    session::{
        Session, hold_state::HoldState, pending_ticket::PendingTicket, state::Lease,
        wait::LockRequest,
    },
    store::{CELL_MAX, Claim, Edit, Edited, Left, Store as _, Terms},
    sync::Mutex,
};
use std::{
    collections::HashMap,
    fmt,
    sync::{
        Arc, Weak,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

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
    /// The number of this grant. For one name it grows with every exclusive grant, so a resource
    /// that remembers the highest it has seen can refuse a holder whose time has passed.
    ///
    /// 0 means that there is none: the store is not [`fenced`](crate::Capabilities::fenced) (plain string
    /// locks of Redis, `?compat=string`). Do not pass it on; a program that needs fences says so with
    /// [`Keeper::require`](crate::Keeper::require).
    #[must_use]
    pub fn fence(&self) -> u64 {
        self.hold.hold_state.fence
    }

    /// The lock's name.
    #[must_use]
    pub fn name(&self) -> &Name {
        self.hold.name()
    }

    /// How it is held.
    #[must_use]
    pub fn mode(&self) -> Mode {
        self.hold.pending.mode
    }

    /// The ticket's id: public, as it appears in listings.
    #[must_use]
    pub fn ticket(&self) -> TicketId {
        self.hold.pending.ticket
    }

    /// A text that carries this grant to another program, which can have it
    /// [checked](crate::Keeper::check).
    #[must_use]
    pub fn sequencer(&self) -> Sequencer {
        Sequencer::new(self.hold.session().store.id(), self.hold.claim())
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
        loss_token::health(&self.hold.session().state, &self.hold.hold_state)
    }

    /// A token that says when the lock is held no more, for code that does not have the guard: a
    /// spawned task, a callback, another thread.
    #[must_use]
    pub fn loss(&self) -> LossToken {
        LossToken::new(&self.hold.session().state, &self.hold.hold_state)
    }

    /// For how long the lock is held for certain, if no further renewal succeeds.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        let state = &self.hold.session().state;
        let until = self.hold.hold_state.max_hold.unwrap_or(Moment::NEVER).min(state.deadline());
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
        loss_token::lost(&self.hold.session().state, &self.hold.hold_state).await
    }

    /// Waits until the lock is in jeopardy (a renewal has failed) or lost, and says which. While that
    /// lasts it returns at once.
    ///
    /// # Cancel safety
    /// As [`lost`](Self::lost).
    pub async fn jeopardy(&self) -> Health {
        let Hold { pending, hold_state, .. } = &*self.hold;
        tokio::select! {
            why = hold_state.ended() => Health::Lost(why),
            lease = pending.session.state.lease_where(|l| *l != Lease::Held) => match lease {
                Lease::Lost(why) => Health::Lost(why),
                _ => Health::Jeopardy,
            },
        }
    }

    /// Renews now, so that the lock is held for at least `at_least` from now on.
    ///
    /// A fixed [`lease`](crate::Acquire::lease) begins anew.
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
        let edit = self.hold.edit(&self.hold.label_edits, Some(label));
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
        let (bytes, mode) = (bytes.into(), self.mode());
        let len = bytes.as_ref().map_or(0, Vec::len);
        if len > CELL_MAX {
            let what = format!("a cell has at most {CELL_MAX} bytes, not {len}");
            return Err(Error::option("cell", what));
        }
        if mode.weight() != mode.capacity() {
            let what = format!(
                "a cell can be written only under an exclusive lock, and this one is {mode}"
            );
            return Err(Error::option("mode", what));
        }
        self.ensure_held()?;
        let edit = self.hold.edit(&self.hold.cell_edits, bytes);
        let edited = self.hold.session().store.write(edit).await?;
        self.edited(edited)
    }

    fn edited(&self, edited: Edited) -> Result<()> {
        match edited {
            Edited::Done => Ok(()),
            Edited::NotHeld => {
                self.hold.hold_state.end(Loss::Evicted);
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

/// A granted ticket. Dropping it hands it to the session's task.
pub(crate) struct Hold {
    pending: PendingTicket,
    hold_state: Arc<HoldState>,
    granted: Moment,
    at_least: Option<Duration>,
    label_edits: AtomicU64,
    cell_edits: AtomicU64,
    owned: Option<(Weak<Owned>, Arc<str>)>,
}

impl Hold {
    pub(crate) fn new(
        pending: PendingTicket,
        hold_state: Arc<HoldState>,
        granted: Moment,
        request: &LockRequest,
    ) -> Self {
        let (label_edits, cell_edits) = Default::default();
        let at_least = request.at_least;
        Self { pending, hold_state, granted, at_least, label_edits, cell_edits, owned: None }
    }

    pub(crate) fn session(&self) -> &Session {
        &self.pending.session
    }

    pub(crate) fn name(&self) -> &Name {
        &self.pending.name
    }

    fn claim(&self) -> Claim {
        let PendingTicket { name, ticket, mode, .. } = &self.pending;
        Claim { name: name.clone(), ticket: *ticket, mode: *mode, fence: self.hold_state.fence }
    }

    fn edit(&self, number: &AtomicU64, bytes: Option<Vec<u8>>) -> Edit {
        let place = self.session().place(self.name(), self.pending.ticket);
        Edit { place, edit: number.fetch_add(1, Ordering::Relaxed) + 1, bytes }
    }

    fn held_for(&self) -> Duration {
        self.session().state.clock.now().saturating_since(self.granted)
    }

    /// For how long the lock must stay closed after its release.
    fn keep(&self) -> Option<Duration> {
        let keep = self.at_least?.saturating_sub(self.held_for());
        (!keep.is_zero()).then_some(keep)
    }

    async fn release(mut self) -> Result<()> {
        let name = self.name().clone();
        let why = match (self.hold_state.why(), self.session().state.lease()) {
            (Some(why), _) | (None, Lease::Lost(why)) => Some(why),
            _ => None,
        };
        if let Some(why) = why {
            return Err(Error::Lost { name, why });
        }
        let leave = self.pending.leave_request(self.keep());
        // From here on a ticket that is missing in the store is no loss.
        self.session().state.leaving(self.pending.ticket);
        let left = self.session().leave(leave).await?;
        self.pending.left();
        match left {
            Left::Gone => {
                let why = self.hold_state.why().unwrap_or(Loss::Evicted);
                Err(Error::Lost { name, why })
            }
            Left::Released | Left::Withdrawn => Ok(()),
        }
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.hold_state.release();
        observe::let_go(self.name(), self.pending.ticket, self.held_for());
        let keep = self.keep();
        self.pending.hand_over(keep);
        if let Some((owned, owner)) = self.owned.take()
            && let Some(owned) = owned.upgrade()
        {
            owned.forget(self.name(), &owner);
        }
    }
}

/// The locks that named owners hold in this process, so that they can come again.
#[derive(Default)]
pub(crate) struct Owned {
    holds: Mutex<HashMap<OwnerOf, Weak<Hold>>>,
}

/// A name, and who holds it.
type OwnerOf = (Name, Arc<str>);

impl Owned {
    /// The guard for an owner who holds the lock already.
    pub(crate) fn again(&self, request: &LockRequest) -> Result<Option<Guard>> {
        let Some(owner) = &request.owner else { return Ok(None) };
        let key = (request.name.clone(), Arc::clone(owner));
        let hold = {
            let holds = self.holds.lock();
            holds.get(&key).and_then(Weak::upgrade)
        };
        let Some(guard) = hold.map(|hold| Guard { hold }).filter(Guard::is_held) else {
            return Ok(None);
        };
        let (held, asked) = (guard.mode(), request.mode);
        if held.capacity() != asked.capacity() || held.weight() < asked.weight() {
            return Err(Error::Upgrade { name: request.name.clone(), held, asked });
        }
        Ok(Some(guard))
    }

    /// The first guard of a hold; its owner, if it has one, can come again from now on.
    pub(crate) fn first(self: &Arc<Self>, request: &LockRequest, mut hold: Hold) -> Guard {
        let Some(owner) = &request.owner else { return Guard { hold: Arc::new(hold) } };
        hold.owned = Some((Arc::downgrade(self), Arc::clone(owner)));
        let hold = Arc::new(hold);
        let key = (request.name.clone(), Arc::clone(owner));
        let mut holds = self.holds.lock();
        holds.insert(key, Arc::downgrade(&hold));
        Guard { hold }
    }

    fn forget(&self, name: &Name, owner: &Arc<str>) {
        let mut holds = self.holds.lock();
        let key = (name.clone(), Arc::clone(owner));
        // The owner may have taken the lock anew meanwhile: that hold stays.
        if holds.get(&key).is_some_and(|hold| hold.strong_count() == 0) {
            holds.remove(&key);
        }
    }
}
