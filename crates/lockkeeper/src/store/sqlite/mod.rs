//! The embedded store: rows in one SQLite file, for all processes of one machine.
//!
//! | idea | here |
//! |---|---|
//! | line | the rows of a name in `ticket`, in the order of `seq` |
//! | session | a row with a deadline on the suspend-aware clock; another boot gives it one more TTL |
//! | hint | within the process a call; to another process a datagram (`doorbell.rs`); else polling |
//! | fence | one counter for the file, max(last + 1, wall clock in µs) |
//!
//! | operation | transactions |
//! |---|---|
//! | open, enter, leave, set a label, write a cell, evict | 1 that writes |
//! | renew | 1 that writes, and 1 that reads the session's tickets |
//! | poll | 1 that reads for all tickets, and 1 that writes for each ticket with a change that has come due |
//! | close | 1 that writes for every 64 lines of the session, and 1 more |
//! | check, read a cell, list | 1 that reads |
//!
//! SQLite runs on the caller's thread: a hop to another thread costs several times what the transaction does.
//! In return it never waits there. When the file is busy SQLite says so at once and the task waits; what needs
//! an fsync happens on the checkpoint thread.
//!
//! **What breaks a promise:** commits are not synced one by one, so a power failure takes back the last
//! moments of holders that it has ended too. Fences go on from the wall clock.

mod advice;
mod cells;
mod checkpoint;
mod connection;
mod doorbell;
mod enter;
mod error;
mod file;
mod inspect;
mod leave;
mod line;
mod notify;
mod poll;
mod session;

use super::{
    Advice, Capabilities, Cell, Claim, Edit, Edited, Enter, Entered, Hints, Leave, Left, ListScope,
    Open, PollScope, Renewal, Store, StoreId, StoreResult, Terms, TicketStatus,
};
use crate::{
    clock::Clock,
    error::StoreError,
    model::{
        line::Line,
        name::Name,
        ticket::{SessionId, TicketId},
    },
    sync::Mutex,
};
use checkpoint::Checkpointer;
use doorbell::{Doorbell, Doorbells, Tag};
use rusqlite::Connection;
use std::{
    collections::HashMap,
    fmt,
    sync::{
        Arc, Weak,
        atomic::{AtomicI32, AtomicU64, Ordering},
    },
    time::Duration,
};

const KIND: &str = "sqlite";

/// For how long [`Store::leave_now`] waits for other writers.
const LEAVE_NOW_MAX: Duration = Duration::from_millis(200);

/// Rows in one file.
pub struct Sqlite {
    id: StoreId,
    clock: Clock,
    /// Asynchronous, so that a task which waits for another task's transaction does not block its
    /// thread.
    connection: tokio::sync::Mutex<Connection>,
    files: Arc<file::Files>,
    checkpointer: Checkpointer,
    doorbells: Doorbells,
    /// Of this process's doorbell.
    tag: Tag,
    doorbell: Mutex<Weak<Doorbell>>,
    sinks: Mutex<HashMap<SessionId, Arc<dyn Hints>>>,
    renewals: AtomicU64,
    /// The length of the log after our last commit, in pages.
    log_pages: AtomicI32,
    /// When the file was last seen in its place, in nanoseconds since boot.
    in_place: AtomicU64,
}

/// Does a transaction write?
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Read,
    Write,
}

impl Sqlite {
    /// Opens the file, or creates it.
    ///
    /// # Errors
    /// [`ErrorKind::Misconfigured`] if the folder does not exist, is on a network file system, or the
    /// file is another program's, which is then left untouched; [`ErrorKind::Corrupt`] if its data makes
    /// no sense.
    ///
    /// [`ErrorKind::Misconfigured`]: crate::ErrorKind::Misconfigured
    /// [`ErrorKind::Corrupt`]: crate::ErrorKind::Corrupt
    pub fn open(path: &str) -> StoreResult<Self> {
        Self::with_clock(path, Clock::system())
    }

    /// How many renewals this handle has sent to the file, for tests and benchmarks.
    #[doc(hidden)]
    #[must_use]
    pub fn renewals(&self) -> u64 {
        self.renewals.load(Ordering::Relaxed)
    }
}

impl fmt::Debug for Sqlite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Sqlite({})", self.id)
    }
}

impl Store for Sqlite {
    fn scheme(&self) -> &'static str {
        KIND
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            durable: true,
            renewal_shows_tickets: true,
            waiters_end_at_ttl: true,
            ..Capabilities::LINES
        }
    }

    fn id(&self) -> StoreId {
        self.id
    }

    async fn open(&self, ask: Open) -> StoreResult<Terms> {
        self.open_session(ask).await
    }

    async fn renew(&self, session: SessionId) -> StoreResult<Renewal> {
        self.renew_session(session).await
    }

    async fn close(&self, session: SessionId) -> StoreResult<()> {
        self.close_session(session).await
    }

    async fn enter(&self, ask: Enter) -> StoreResult<Entered> {
        let entered = self.run(Kind::Write, |tx| tx.enter(&ask)).await?;
        // A grant in a file that was removed is none.
        if matches!(entered, Ok(Entered::Granted { .. })) && self.is_cut_off_cached() {
            return Err(StoreError::session_over(KIND));
        }
        entered
    }

    async fn poll(
        &self,
        session: SessionId,
        which: PollScope,
    ) -> StoreResult<Vec<(Name, TicketId, TicketStatus)>> {
        self.poll_session(session, which).await
    }

    async fn hints(&self, session: SessionId, to: Arc<dyn Hints>) -> StoreError {
        self.session_hints(session, to).await
    }

    async fn leave(&self, ask: Leave) -> StoreResult<Left> {
        self.run(Kind::Write, |tx| tx.leave(&ask)).await
    }

    fn leave_now(&self, ask: &Leave) -> bool {
        let Ok(connection) = self.connection.try_lock() else { return false };
        let patient = connection.busy_timeout(LEAVE_NOW_MAX);
        let done = self.attempt(&connection, Kind::Write, |tx| tx.leave(ask));
        let hasty = connection.busy_timeout(Duration::ZERO);
        drop(connection);
        match done {
            Ok((_, news)) if patient.is_ok() && hasty.is_ok() => {
                self.tell(news);
                true
            }
            _ => false,
        }
    }

    async fn set_label(&self, edit: Edit) -> StoreResult<Edited> {
        self.run(Kind::Write, |tx| tx.set_label(&edit)).await
    }

    async fn list(&self, which: ListScope) -> StoreResult<Vec<Line>> {
        self.run(Kind::Read, |tx| inspect::list(tx.c, &which, tx.now)).await
    }

    async fn check(&self, claim: Claim) -> StoreResult<bool> {
        self.run(Kind::Read, |tx| inspect::check(tx.c, &claim, tx.now)).await
    }

    async fn read(&self, name: Name) -> StoreResult<Option<Cell>> {
        self.run(Kind::Read, |tx| inspect::read(tx.c, &name)).await
    }

    async fn write(&self, edit: Edit) -> StoreResult<Edited> {
        self.run(Kind::Write, |tx| tx.write(&edit)).await
    }

    async fn write_under(&self, claim: Claim, bytes: Vec<u8>) -> StoreResult<Edited> {
        self.run(Kind::Write, |tx| tx.write_under(&claim, &bytes)).await
    }

    async fn evict(&self, name: Name, ticket: TicketId) -> StoreResult<bool> {
        self.run(Kind::Write, |tx| tx.evict(&name, ticket)).await
    }

    async fn advice(&self) -> StoreResult<Vec<Advice>> {
        Ok(self.setup_advice())
    }

    fn native(&self, claim: &Claim) -> Vec<(&'static str, String)> {
        inspect::native(claim)
    }
}
