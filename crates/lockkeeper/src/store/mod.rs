//! The contract between the core and a store.
//!
//! A store keeps lines of tickets that belong to sessions. It decides nothing that the core decides: when to
//! wait, to renew and to give up. It offers operations, each atomic and, where the store can, each one round
//! trip; and hints that something may have changed. Within the time that bounds an operation it may send the
//! same request again.
//!
//! # Rules for every operation
//! - **It can be repeated.** Ids are made by the client. The same request sent twice has the effect
//!   of one, and a copy that comes late, after the ticket was left or the session closed, has none
//!   (save that a late copy of an open may leave an empty session, which expires).
//! - **It may trust its caller in form.** The core has checked names, weights (1 to the capacity),
//!   times and lengths.
//! - **It ends.** A store bounds its requests in time. When the time is over and the request may
//!   have been carried out, the error's outcome is [`Outcome::Unknown`](crate::Outcome::Unknown).
//! - **The dead stay dead.** Where expiry is only a passed deadline, a read never grants. A grant
//!   that rests on an expiry ends the expired session in the same write, and a session that has
//!   ended is never renewed.
//! - **Cancelling is safe.** The core may drop the future of any operation. It treats the outcome as
//!   unknown and repeats or withdraws.
//!
//! [`memory::Memory`] is the reference: read it first.
//!
//! # A leader dies
//! 1. The store's requests fail or go unanswered: each store bounds them, looks for the new leader and says
//!    whether a write was applied ([`StoreError::outcome`]).
//! 2. `session/task.rs`: the renewal task repeats the renewal until the session's deadline. Meanwhile the
//!    guards are in [jeopardy](crate::Health::Jeopardy): the lock is held, for the store keeps it too.
//! 3. `session/wait.rs`: a waiter whose enter was not answered repeats it under the same ticket id, with growing
//!    pauses (`session/outage.rs`), and keeps its place. One that stands in line sleeps on, and the session task
//!    polls its ticket.
//! 4. If the new leader answers a renewal with another version, or with other tickets than expected
//!    ([`Renewal::Renewed`]), `session/state.rs` asks for a comparison. If it has lost nothing, all goes on.
//! 5. `session/state/compare.rs`: all tickets are polled. A held one that is missing is lost, a waiting one
//!    enters again, an unknown one is left.
//! 6. No answer until the deadline (TTL after the last good renewal, less a margin): the guards are lost, and
//!    nothing more is sent for the session, except a close if it never handed out a lock. The store keeps its
//!    locks closed for TTL and lock-delay.

mod advice;
mod attach;
mod capabilities;
mod common;
mod erased;
#[cfg(feature = "etcd")]
pub mod etcd;
#[cfg(feature = "http")]
pub mod http;
pub mod memory;
#[cfg(feature = "mysql")]
pub mod mysql;
#[cfg(feature = "postgres")]
pub mod postgres;
#[cfg(feature = "redis")]
pub mod redis;
#[cfg(feature = "redis")]
pub mod redlock;
#[cfg(feature = "sqlite")]
pub mod sqlite;
pub(crate) mod url;
#[cfg(feature = "zookeeper")]
pub mod zookeeper;

/// The clock that sessions and stores are measured on; tests set their own.
pub mod clock {
    pub use crate::clock::*;
}
pub use crate::model::{
    admission::{Room, admitted},
    line::{Front, LINE_MAX, LineRow, settle},
    ticket::{PLAIN_CAPACITY, Place, SessionId},
};
pub use advice::{Advice, Severity};
pub use attach::Attach;
pub use capabilities::Capabilities;
pub use erased::AnyStore;
pub use url::{absolute, absolute_in, migration};

use crate::{
    error::StoreError,
    model::{
        line::Line,
        name::Name,
        ticket::{Mode, Owner, TicketId},
    },
};
use std::{fmt, future::Future, sync::Arc, time::Duration};

/// What a store's operations return.
pub type StoreResult<T> = std::result::Result<T, StoreError>;

/// The longest value of a cell, in bytes.
pub const CELL_MAX: usize = 65_536;

/// The most lines that one [`list`](Store::list) returns.
pub const LIST_MAX: usize = 1_000;

/// The identity of a store's data: a random number written with it, so that a sequencer from
/// elsewhere is never taken for one of here.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct StoreId(pub [u8; 8]);

impl fmt::Debug for StoreId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for StoreId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", u64::from_be_bytes(self.0))
    }
}

/// The wish to open a session.
#[derive(Clone, Debug)]
pub struct Open {
    /// Its id, which is its secret.
    pub session: SessionId,
    /// For how long a renewal is good.
    pub ttl: Duration,
    /// For how long the store keeps the tickets of a session that was not renewed in time.
    pub lock_delay: Duration,
    /// The process that asks, to show in listings.
    pub owner: Owner,
}

/// The terms on which a session was opened; a store may not be able to grant what was asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Terms {
    /// For how long a renewal is good.
    #[cfg_attr(
        feature = "serde",
        serde(rename = "ttl_ms", serialize_with = "crate::model::serde::millis")
    )]
    pub ttl: Duration,
    /// Extra time after the TTL for which the store keeps granted tickets.
    #[cfg_attr(
        feature = "serde",
        serde(rename = "lock_delay_ms", serialize_with = "crate::model::serde::millis")
    )]
    pub lock_delay: Duration,
    /// How much earlier than the TTL the client stops believing, for clocks that run unevenly.
    #[cfg_attr(
        feature = "serde",
        serde(rename = "margin_ms", serialize_with = "crate::model::serde::millis")
    )]
    pub margin: Duration,
}

impl Terms {
    /// These times with the margin that suits clocks of equal rate: one in a hundred.
    #[must_use]
    pub fn new(ttl: Duration, lock_delay: Duration) -> Self {
        Self { ttl, lock_delay, margin: ttl / 100 + Duration::from_millis(2) }
    }

    /// For how long after it sent a renewal the client may believe in it.
    #[must_use]
    pub fn belief(&self) -> Duration {
        self.ttl.saturating_sub(self.margin)
    }
}

/// The answer to a renewal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Renewal {
    /// The session lives for another TTL.
    Renewed {
        /// As long as this stays the same, no ticket of the session was evicted, and the same server
        /// with the same history has answered. When it changes, the core polls all tickets.
        ///
        /// A store whose failover can lose what was written last must put the identity and the history of
        /// the answering server into this number: [`TicketDigest`] does not show a lost *grant* of a ticket
        /// that is still there.
        version: u64,
        /// The session's tickets as the data has them now. If they differ from those that the core
        /// expects, it polls all tickets, whatever the version. `None`: the store does not tell.
        tickets: Option<TicketDigest>,
    },
    /// The session is over, for ever.
    Lost,
}

/// A session's tickets, held and waiting, in two numbers that a store can compute while it renews:
/// enough to notice that a ticket is missing or has come back, and cheap in SQL and Lua.
///
/// It does not say which tickets are granted: a grant by another client's release would differ from what
/// the core knows until the hint arrives, and every such renewal would poll all tickets. A grant that was
/// lost together with the server that made it is found by the version ([`Renewal::Renewed`]).
///
/// A hold that has outlived its ticket ([`Leave::keep`]) belongs to no session and does not count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct TicketDigest {
    /// How many tickets there are.
    pub count: u64,
    /// The sum of the first four bytes of each id, read as a big-endian number.
    pub sum: u64,
}

impl FromIterator<TicketId> for TicketDigest {
    fn from_iter<T: IntoIterator<Item = TicketId>>(tickets: T) -> Self {
        let add = |Self { count, sum }: Self, ticket: TicketId| {
            let [a, b, c, d, ..] = ticket.to_bytes();
            let sum = sum.wrapping_add(u32::from_be_bytes([a, b, c, d]).into());
            Self { count: count + 1, sum }
        };
        tickets.into_iter().fold(Self::default(), add)
    }
}

/// How a ticket wants to come to its grant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Manner {
    /// Stand in line.
    Queue,
    /// Take it if it is free and its line is empty; leave no ticket otherwise.
    Contend,
}

/// The wish to enter a line.
#[derive(Clone, Debug)]
pub struct Enter {
    /// The ticket, with its session and its line.
    pub place: Place,
    /// How much of the line it takes.
    pub mode: Mode,
    /// In line or not at all.
    pub manner: Manner,
    /// The ticket's label, for others to read: at most [`LABEL_MAX`](crate::LABEL_MAX) bytes.
    pub label: Vec<u8>,
}

/// The answer to an enter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Entered {
    /// The ticket is granted.
    Granted {
        /// The number of the grant.
        fence: u64,
    },
    /// The ticket waits in line.
    Queued(Wait),
    /// The lock is taken, and no ticket was left ([`Manner::Contend`]). A request to queue gets this answer
    /// only where something outside keeps the store from writing the ticket; the core then tries again. A
    /// store that fears a late copy of the request closes the ticket; the core then takes another one.
    Busy(Wait),
}

/// What a waiter is told.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Wait {
    /// How many tickets stand before this one, holders included.
    pub ahead: usize,
    /// The first holder, if the store can tell without another round trip.
    pub holder: Option<Holder>,
    /// When the line can move without a write: look again then.
    #[cfg_attr(
        feature = "serde",
        serde(rename = "recheck_ms", serialize_with = "crate::model::serde::millis")
    )]
    pub recheck: Duration,
}

impl Wait {
    /// So many tickets are ahead; look again after this time. The holder may be filled in.
    #[must_use]
    pub fn new(ahead: usize, recheck: Duration) -> Self {
        Self { ahead, holder: None, recheck }
    }

    /// How long a waiter behind so many tickets rests at most between two polls, although hints wake it:
    /// hints may be lost. Far back the grant is not near, and a line of hundreds is long to read.
    pub(crate) fn rest_most(ahead: usize) -> Duration {
        const NEAR: usize = 16;
        let far = u64::try_from(ahead / NEAR).unwrap_or(u64::MAX);
        Duration::from_secs(far.saturating_add(1).min(30))
    }
}

/// A lock's holder, as waiters are told.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Holder {
    /// The process that holds it.
    pub owner: Owner,
    /// The label of the ticket.
    #[cfg_attr(feature = "serde", serde(serialize_with = "crate::model::serde::label"))]
    pub label: Vec<u8>,
    /// For how long already; `None` if the store has not noted when the lock came to it.
    #[cfg_attr(
        feature = "serde",
        serde(rename = "held_for_ms", serialize_with = "crate::model::serde::millis_if")
    )]
    pub held_for: Option<Duration>,
}

impl Holder {
    /// A holder with the label of its ticket.
    pub fn new(owner: Owner, label: impl Into<Vec<u8>>, held_for: Option<Duration>) -> Self {
        Self { owner, label: label.into(), held_for }
    }
}

/// How a ticket stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TicketStatus {
    /// It is granted.
    Granted {
        /// The number of the grant.
        fence: u64,
    },
    /// It waits.
    Waiting(Wait),
    /// It is in no line.
    Gone,
}

/// Which tickets of a session to poll.
#[derive(Clone, Debug)]
pub enum PollScope {
    /// These, and no others.
    These(Vec<(Name, TicketId)>),
    /// All that the store has of this session, held and waiting.
    All,
}

/// The wish to leave a line.
#[derive(Clone, Debug)]
pub struct Leave {
    /// The ticket, with its session and its line.
    pub place: Place,
    /// Keep the lock closed for so long, as a hold that belongs to no session.
    pub keep: Option<Duration>,
    /// A copy of the enter may still be under way: note the ticket as closed, so that the copy is
    /// refused when it comes ([`ErrorKind::TicketClosed`](crate::ErrorKind::TicketClosed)).
    pub stray: bool,
}

/// For how long a store remembers the tickets that were left with [`Leave::stray`]. No request may
/// take effect later than this after it was sent.
pub const STRAY_MAX: Duration = Duration::from_secs(120);

/// The answer to a leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Left {
    /// The ticket was granted, and is no more.
    Released,
    /// The ticket was waiting, and is no more.
    Withdrawn,
    /// There was no such ticket.
    Gone,
}

/// Which lines to look at.
#[derive(Clone, Debug)]
pub enum ListScope {
    /// The line of this name.
    Exact(Name),
    /// The lines whose names begin so, in the order of their bytes.
    Prefix {
        /// How the names begin; empty for all.
        prefix: String,
        /// Only names after this one: where the last page ended.
        after: Option<Name>,
    },
}

/// A grant that a client claims to have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    /// The line.
    pub name: Name,
    /// The ticket.
    pub ticket: TicketId,
    /// How it is held.
    pub mode: Mode,
    /// The number of its grant.
    pub fence: u64,
}

/// A change to what belongs to a held ticket. Edits are numbered by the holder from 1 on, so that a
/// late copy of an older edit never undoes a newer one.
#[derive(Clone, Debug)]
pub struct Edit {
    /// The ticket, with its session and its line.
    pub place: Place,
    /// The number of this edit among the ticket's edits of the same kind.
    pub edit: u64,
    /// The new bytes; `None` takes the value away.
    pub bytes: Option<Vec<u8>>,
}

/// The answer to an edit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Edited {
    /// Done, now or by an earlier copy of the same request.
    Done,
    /// The ticket is not held: nothing was written.
    NotHeld,
}

/// A lock's cell: the small value that belongs to its name. [`Guard::write`](crate::Guard::write) writes
/// it, [`Keeper::read`](crate::Keeper::read) reads it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Cell {
    /// Its bytes.
    pub bytes: Vec<u8>,
    /// The fence of the grant under which it was written.
    pub fence: u64,
}

impl Cell {
    /// A cell with these bytes, written under the grant with this fence.
    #[must_use]
    pub fn new(bytes: Vec<u8>, fence: u64) -> Self {
        Self { bytes, fence }
    }
}

/// Where a store drops its hints. Every method may be called from any thread and never blocks.
///
/// Hints may be spurious and may be lost; a slow re-check stands behind each of them.
pub trait Hints: Send + Sync + 'static {
    /// This ticket was granted.
    fn granted(&self, ticket: TicketId, fence: u64);
    /// This ticket was ended by another client: evicted.
    fn ended(&self, ticket: TicketId);
    /// This line has room, and no ticket waits in it.
    fn freed(&self, name: &Name);
    /// This ticket may stand differently now, or any of them: poll.
    ///
    /// A source calls it with `None` as soon as it (again) listens: what happened before is not
    /// known to it. Until the first such call the core polls often.
    fn recheck(&self, ticket: Option<TicketId>);
}

/// A place where lines live.
///
/// Implement it with plain `async fn`. All futures are `Send`. See the [module](self) for the rules
/// that hold for every operation. Users' programs call a [`Keeper`](crate::Keeper), not a store.
pub trait Store: Send + Sync + 'static {
    /// The kind of store, as its URL scheme and error messages say it.
    fn scheme(&self) -> &'static str;

    /// What it can do.
    fn capabilities(&self) -> Capabilities;

    /// The identity of its data.
    fn id(&self) -> StoreId;

    /// Opens a session. Opening it again answers with its terms and renews nothing.
    fn open(&self, ask: Open) -> impl Future<Output = StoreResult<Terms>> + Send;

    /// Renews a session; also sweeps a few dead sessions, so that nothing is left for ever.
    fn renew(&self, session: SessionId) -> impl Future<Output = StoreResult<Renewal>> + Send;

    /// Ends a session and all its tickets at once, without lock-delay.
    fn close(&self, session: SessionId) -> impl Future<Output = StoreResult<()>> + Send;

    /// Enters a line. A ticket that stands in it already is told how it stands.
    fn enter(&self, ask: Enter) -> impl Future<Output = StoreResult<Entered>> + Send;

    /// Says how tickets of one session stand, and grants what has come free by expiry.
    /// For [`PollScope::These`] every ticket asked for is in the answer.
    fn poll(
        &self,
        session: SessionId,
        which: PollScope,
    ) -> impl Future<Output = StoreResult<Vec<(Name, TicketId, TicketStatus)>>> + Send;

    /// Drops hints for the session into `to`. Runs until its source breaks; the core starts it when
    /// the session first waits, and again, after a pause, when it has ended. A store without
    /// [`wakes`](Capabilities::wakes) never returns from here.
    fn hints(
        &self,
        session: SessionId,
        to: Arc<dyn Hints>,
    ) -> impl Future<Output = StoreError> + Send;

    /// Releases or withdraws one ticket.
    fn leave(&self, ask: Leave) -> impl Future<Output = StoreResult<Left>> + Send;

    /// Leaves at once, without awaiting, if the store can: used when the runtime is ending and
    /// nothing can be awaited any more. Says whether the ticket is gone.
    fn leave_now(&self, ask: &Leave) -> bool {
        let _ = ask;
        false
    }

    /// Changes the label of a held ticket.
    fn set_label(&self, edit: Edit) -> impl Future<Output = StoreResult<Edited>> + Send;

    /// Shows lines, at most [`LIST_MAX`] of them.
    fn list(&self, which: ListScope) -> impl Future<Output = StoreResult<Vec<Line>>> + Send;

    /// What a [`list`](Self::list) by prefix does not show, as a noun phrase for people ("locks of
    /// other libraries"); `None` if it shows every lock that excludes ours. Without it an empty
    /// listing would say that nothing is held.
    fn blind_spots(&self) -> Option<&'static str> {
        None
    }

    /// What the error says when a ticket of this mode is asked for and the store cannot have one
    /// ("read locks with raw=true; use raw=rw"); `None` for the usual words.
    fn unsupported(&self, mode: Mode) -> Option<&'static str> {
        let _ = mode;
        None
    }

    /// Is this grant held now? A linearizable read.
    fn check(&self, claim: Claim) -> impl Future<Output = StoreResult<bool>> + Send;

    /// Reads the value that belongs to a name.
    fn read(&self, name: Name) -> impl Future<Output = StoreResult<Option<Cell>>> + Send;

    /// Writes the value that belongs to the ticket's name, if the ticket is held exclusively.
    /// Check and write are one atomic step.
    fn write(&self, edit: Edit) -> impl Future<Output = StoreResult<Edited>> + Send;

    /// The same for a client that knows the grant and not its session: writes the value that belongs to the
    /// claim's name, if this exclusive grant is held now.
    ///
    /// Such a write has no number among the ticket's edits. So the store never sends a second copy of one that
    /// may have been carried out: the copy could undo a write that came later.
    fn write_under(
        &self,
        claim: Claim,
        bytes: Vec<u8>,
    ) -> impl Future<Output = StoreResult<Edited>> + Send;

    /// Ends a ticket of any session. Says whether there was one.
    fn evict(&self, name: Name, ticket: TicketId)
    -> impl Future<Output = StoreResult<bool>> + Send;

    /// Looks at the store's set-up: what could hurt locks, each with its consequence and remedy. Runs only when it
    /// is asked for ([`Keeper::advice`](crate::Keeper::advice)), never at connect.
    fn advice(&self) -> impl Future<Output = StoreResult<Vec<Advice>>> + Send {
        async { Ok(Vec::new()) }
    }

    /// What another handle needs to act for a session with one granted ticket, besides the session's id; as
    /// secret as that. Nothing, unless a session belongs to the handle that opened it.
    ///
    /// # Errors
    /// By default `Unsupported` without [`sessions_shared`](Capabilities::sessions_shared).
    fn detach(&self, session: SessionId) -> StoreResult<Vec<u8>> {
        let _ = session;
        attach::unless_shared(self).map(|()| Vec::new())
    }

    /// Takes over a session that another handle has detached. The core renews it and polls its ticket next:
    /// nothing need be asked here that these two will show.
    fn attach(&self, ask: Attach) -> impl Future<Output = StoreResult<()>> + Send {
        let _ = ask;
        async { attach::unless_shared(self) }
    }

    /// Nothing more will be sent for this session: what the store's handle knows of it can go.
    fn forget(&self, session: SessionId) {
        let _ = session;
    }

    /// How the store itself names this grant (a key, a path, a row), for use in the user's own
    /// transactions there.
    fn native(&self, claim: &Claim) -> Vec<(&'static str, String)> {
        let _ = claim;
        Vec::new()
    }
}
