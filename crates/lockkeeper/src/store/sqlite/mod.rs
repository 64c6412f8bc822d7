//! The embedded store: rows in one SQLite file, for all processes of one machine.
//!
//! | idea | here |
//! |---|---|
//! | line | the rows of a name in `ticket`, in the order of `seq` |
//! | session | a row with a deadline on the suspend-aware clock; a reboot ends all of them |
//! | hint | in the process a call; to another process a datagram (`bell.rs`); else polling |
//! | fence | one counter for the file, max(last + 1, wall clock in µs) |
//! | round trips | enter, leave, renew: one transaction each |
//!
//! SQLite runs where the caller is: a hop to another thread costs several times what the
//! transaction does. In return it never waits there. When the file is busy SQLite says so at once
//! and the task waits; what needs an fsync happens on the janitor's thread.
//!
//! The log is written without an fsync for each commit. What a power failure can take back are the
//! last moments of holders that the failure has ended too; fences go on from the wall clock.

mod bell;
mod file;
mod janitor;
mod lines;
mod show;

use super::{
    Capabilities, Cell, Claim, Edit, Edited, Enter, Entered, Hints, Leave, Left, ListScope, Open,
    PollScope, Renewal, Store, StoreId, StoreResult, Terms, TicketStatus,
};
use crate::{
    clock::{Clock, Moment},
    error::{ErrorKind, StoreError},
    model::{
        line::{Line, LineRow as _},
        name::Name,
        ticket::{Place, SessionId, TicketId},
    },
    sync::Mutex,
};
use bell::{Bell, Ringer, Tag};
use janitor::Janitor;
use lines::{News, Tx, length, micros};
use rand::RngExt as _;
use rusqlite::{Connection, ErrorCode, params};
use std::{
    collections::HashMap,
    fmt,
    path::PathBuf,
    sync::{
        Arc, MutexGuard, Weak,
        atomic::{AtomicI32, AtomicU64, Ordering},
    },
    time::Duration,
};

const KIND: &str = "sqlite";

/// How often to try again at once, and then with pauses, when another process writes.
const SPINS: u32 = 20;
const PAUSE: Duration = Duration::from_millis(1);
/// After so many pauses it tries several times at once again, lest it be unlucky for ever.
const PATIENT: u32 = 10;
/// After so long a busy file is an error. Writers hold it for microseconds.
const BUSY_MAX: Duration = Duration::from_secs(10);
/// What a transaction takes of the 128 units that a task may spend before others get their turn. It
/// lasts as long as many ordinary operations, and never pends by itself.
const BUDGET: u32 = 4;
/// For how long a file that was seen in its place is taken to be there still.
const GLANCE: Duration = Duration::from_millis(1);
/// For how long [`Store::leave_now`] waits for other writers.
const FAREWELL: Duration = Duration::from_millis(200);

/// Rows in one file.
pub struct Sqlite {
    id: StoreId,
    clock: Clock,
    /// Asynchronous, so that a task which waits for another task's transaction does not block its
    /// thread.
    connection: tokio::sync::Mutex<Connection>,
    path: PathBuf,
    identity: file::Identity,
    janitor: Janitor,
    ringer: Ringer,
    tag: Tag,
    bell: Mutex<Weak<Bell>>,
    sinks: Mutex<HashMap<SessionId, Arc<dyn Hints>>>,
    renewals: AtomicU64,
    /// How long the log was after our last commit.
    log_pages: AtomicI32,
    /// When the file was last seen where it belongs, in nanoseconds since boot.
    in_place: AtomicU64,
}

/// Does a transaction write?
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Read,
    Write,
}

impl Sqlite {
    /// Opens the file, or makes it.
    ///
    /// # Errors
    /// [`ErrorKind::Misconfigured`] if the folder does not exist, is on a network file system, or the
    /// file is somebody else's, which is then left untouched; [`ErrorKind::Corrupt`] if its data makes
    /// no sense.
    pub fn open(path: &str) -> StoreResult<Self> {
        Self::with_clock(path, Clock::system())
    }

    /// As [`open`](Self::open), on this clock.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn with_clock(path: &str, clock: Clock) -> StoreResult<Self> {
        let path = file::locate(path)?;
        let connection = file::open(&path)?;
        let id = file::identify(&connection, clock.now())?;
        let set_up = connection.busy_timeout(Duration::ZERO);
        set_up.map_err(|e| trouble(e, "cannot set up the connection"))?;
        janitor::measure(&connection);
        Ok(Self {
            id,
            clock,
            connection: tokio::sync::Mutex::new(connection),
            identity: file::Identity::of(&path),
            janitor: Janitor::of(&path),
            ringer: Ringer::beside(&path),
            path,
            tag: Tag::random(),
            bell: Mutex::default(),
            sinks: Mutex::default(),
            renewals: AtomicU64::new(0),
            log_pages: AtomicI32::new(0),
            in_place: AtomicU64::new(0),
        })
    }

    /// Has the file, its log or the log's index been removed or replaced under us? Then other processes
    /// lock in another file, and nothing that we hold here is worth anything.
    fn is_cut_off(&self) -> bool {
        let now = self.clock.now();
        let cut_off = file::Identity::of(&self.path) != self.identity;
        if !cut_off {
            self.in_place.store(now.as_nanos(), Ordering::Relaxed);
        }
        cut_off
    }

    /// As [`is_cut_off`](Self::is_cut_off), but not looked up again for every one of many grants.
    fn is_cut_off_since_long(&self) -> bool {
        let seen = Moment::from_nanos(self.in_place.load(Ordering::Relaxed));
        self.clock.now().saturating_since(seen) > GLANCE && self.is_cut_off()
    }

    /// How many renewals this handle has sent to the file, for those who count.
    #[must_use]
    pub fn renewals(&self) -> u64 {
        self.renewals.load(Ordering::Relaxed)
    }

    /// Runs one transaction. When the file is busy the task waits, and not its thread.
    async fn run<T>(
        &self,
        kind: Kind,
        work: impl Fn(&mut Tx<'_>) -> rusqlite::Result<T> + Send + Sync,
    ) -> StoreResult<T>
    where
        T: Send,
    {
        for _ in 0..BUDGET {
            tokio::task::coop::consume_budget().await;
        }
        let began = self.clock.now();
        let mut tries = 0;
        loop {
            let done = {
                let connection = self.connection.lock().await;
                self.attempt(&connection, kind, &work)
            };
            match done {
                Ok((out, news)) => {
                    self.tell(news);
                    return Ok(out);
                }
                Err(e) if is_busy(&e) && self.clock.now().saturating_since(began) < BUSY_MAX => {
                    tries += 1;
                    self.give_way(tries).await;
                }
                Err(e) => return Err(trouble(e, "a transaction failed")),
            }
        }
    }

    fn attempt<T>(
        &self,
        c: &Connection,
        kind: Kind,
        work: impl Fn(&mut Tx<'_>) -> rusqlite::Result<T>,
    ) -> rusqlite::Result<(T, Vec<News>)> {
        if !c.is_autocommit() {
            // A panic or a failing disk has left a transaction open.
            c.execute_batch("ROLLBACK")?;
        }
        let begin = if kind == Kind::Write { "BEGIN IMMEDIATE" } else { "BEGIN" };
        c.prepare_cached(begin)?.execute([])?;
        let wall = i64::try_from(self.clock.wall_micros()).unwrap_or(0);
        let (ringer, tag) = (&self.ringer, &self.tag);
        let mut tx = Tx { c, now: self.clock.now(), wall, ringer, tag, news: Vec::new() };
        let done = work(&mut tx).and_then(|out| {
            c.prepare_cached("COMMIT")?.execute([])?;
            Ok(out)
        });
        if done.is_err() && !c.is_autocommit() {
            // The error that led here is the one to tell; a failed rollback would show next time.
            let _ = c.execute_batch("ROLLBACK");
        }
        if kind == Kind::Write {
            self.log_pages.store(janitor::log_pages(), Ordering::Relaxed);
            self.janitor.committed(janitor::log_pages());
        }
        done.map(|out| (out, tx.news))
    }

    /// Clears a few leftovers away, if the file is free right now: whoever asked must not wait.
    async fn sweep(&self) {
        let connection = self.connection.lock().await;
        if let Ok((true, _)) = self.attempt(&connection, Kind::Read, |tx| tx.has_leftovers()) {
            let swept = self.attempt(&connection, Kind::Write, |tx| tx.sweep());
            drop(connection);
            if let Ok(((), news)) = swept {
                self.tell(news);
            }
        }
    }

    /// Lets others write: first by a mere turn, then by a short random pause. Who has had no luck
    /// for long tries again and again between the pauses.
    async fn give_way(&self, tries: u32) {
        let late = tries > SPINS + PATIENT;
        if tries < SPINS || (late && !tries.is_multiple_of(SPINS)) {
            tokio::task::yield_now().await;
        } else {
            let pause = PAUSE + PAUSE.mul_f64(2.0 * rand::rng().random::<f64>());
            self.clock.sleep(pause).await;
        }
    }

    fn sinks(&self) -> MutexGuard<'_, HashMap<SessionId, Arc<dyn Hints>>> {
        self.sinks.lock()
    }

    fn all_sinks(&self) -> Vec<Arc<dyn Hints>> {
        self.sinks().values().cloned().collect()
    }

    fn tell(&self, news: Vec<News>) {
        for news in news {
            match news {
                News::Granted { session, bell, ticket, fence } => {
                    let sink = self.sinks().get(&session).cloned();
                    match (sink, bell) {
                        (Some(sink), _) => sink.granted(ticket, fence),
                        (None, Some(bell)) => self.ringer.ring(&bell, &ticket.to_bytes()),
                        (None, None) => {}
                    }
                }
                News::Ended { session, ticket } => {
                    let sink = self.sinks().get(&session).cloned();
                    if let Some(sink) = sink {
                        sink.ended(ticket);
                    }
                }
                News::Freed(name) => self.all_sinks().iter().for_each(|s| s.freed(&name)),
                News::Cleared(bell) if bell != self.tag => self.ringer.ring(&bell, &[]),
                News::Cleared(_) => {}
            }
        }
    }

    /// The bell of this process, hung up by the first session that waits.
    fn hang_bell(&self) -> std::io::Result<Arc<Bell>> {
        let mut slot = self.bell.lock();
        if let Some(bell) = slot.upgrade() {
            return Ok(bell);
        }
        let bell = Arc::new(self.ringer.hang(&self.tag)?);
        *slot = Arc::downgrade(&bell);
        Ok(bell)
    }

    /// Polls without writing; `None` if something has come due that must be written.
    fn peek(tx: &Tx<'_>, place: &Place) -> rusqlite::Result<Option<TicketStatus>> {
        let front = tx.front(&place.name)?;
        if !front.dead.is_empty() || front.admitted.iter().any(|row| !row.granted()) {
            return Ok(None);
        }
        tx.stand_in(place, &front).map(Some)
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
        if self.is_cut_off() {
            let what = format!("{} was removed or replaced; connect again", self.path.display());
            return Err(StoreError::not_applied(KIND, ErrorKind::Misconfigured, what));
        }
        let insert = "INSERT INTO session(id, ttl, delay, expires, dead_at, bell, host, pid, program) \
             VALUES(?1, ?2, ?3, ?4 + ?2, ?4 + ?2 + ?3, ?5, ?6, ?7, ?8) ON CONFLICT DO NOTHING";
        let terms = "SELECT ttl, delay FROM session WHERE id = ?1";
        let id = ask.session.to_bytes();
        let micros_of = |v: i64| Duration::from_micros(v.cast_unsigned());
        self.sweep().await;
        self.run(Kind::Write, |tx| {
            let (ttl, delay, now) = (length(ask.ttl), length(ask.lock_delay), micros(tx.now));
            let owner = &ask.owner;
            let row = params![
                id,
                ttl,
                delay,
                now,
                self.tag.as_str(),
                owner.host,
                owner.pid,
                owner.program
            ];
            tx.c.prepare_cached(insert)?.execute(row)?;
            tx.c.prepare_cached(terms)?
                .query_row([id], |r| Ok(Terms::new(micros_of(r.get(0)?), micros_of(r.get(1)?))))
        })
        .await
    }

    async fn renew(&self, session: SessionId) -> StoreResult<Renewal> {
        self.renewals.fetch_add(1, Ordering::Relaxed);
        if self.is_cut_off() {
            return Ok(Renewal::Lost);
        }
        let version = self.run(Kind::Write, |tx| tx.renew(session)).await?;
        let Some(version) = version else { return Ok(Renewal::Lost) };
        // A read of its own, so that other processes can write while many tickets are read.
        let tickets = self.run(Kind::Read, |tx| tx.digest(session)).await?;
        self.janitor.renewed(self.log_pages.load(Ordering::Relaxed));
        self.sweep().await;
        Ok(Renewal::Renewed { version, tickets: Some(tickets) })
    }

    async fn close(&self, session: SessionId) -> StoreResult<()> {
        self.sinks().remove(&session);
        self.run(Kind::Write, |tx| tx.end(session, Moment::NEVER)).await?;
        // A session with many tickets goes piece by piece, so that others get their turn.
        while !self.run(Kind::Write, |tx| tx.clear(session)).await? {}
        Ok(())
    }

    async fn enter(&self, ask: Enter) -> StoreResult<Entered> {
        let entered = self.run(Kind::Write, |tx| tx.enter(&ask)).await?;
        // A grant in a file that is not there any more is none.
        if matches!(entered, Ok(Entered::Granted { .. })) && self.is_cut_off_since_long() {
            return Err(StoreError::session_over(KIND));
        }
        entered
    }

    async fn poll(
        &self,
        session: SessionId,
        which: PollScope,
    ) -> StoreResult<Vec<(Name, TicketId, TicketStatus)>> {
        let mut held = Vec::new();
        let tickets = match which {
            PollScope::These(tickets) => tickets,
            PollScope::All => {
                let mut waiting = Vec::new();
                for (name, ticket, fence) in
                    self.run(Kind::Read, |tx| tx.tickets_of(session)).await?
                {
                    match fence {
                        Some(fence) => held.push((name, ticket, TicketStatus::Granted { fence })),
                        None => waiting.push((name, ticket)),
                    }
                }
                waiting
            }
        };
        let place = |(name, ticket)| Place { session, name, ticket };
        let places: Vec<Place> = tickets.into_iter().map(place).collect();
        let peek = |tx: &mut Tx<'_>| places.iter().map(|p| Self::peek(tx, p)).collect();
        let peeks: Vec<Option<TicketStatus>> = self.run(Kind::Read, peek).await?;
        let mut stands = held;
        for (place, peek) in places.iter().zip(peeks) {
            let stand = match peek {
                Some(stand) => stand,
                None => self.run(Kind::Write, |tx| tx.stand(place)).await?,
            };
            stands.push((place.name.clone(), place.ticket, stand));
        }
        Ok(stands)
    }

    async fn hints(&self, session: SessionId, to: Arc<dyn Hints>) -> StoreError {
        let no_bell = |e| {
            let what = "cannot listen for other processes";
            StoreError::not_applied(KIND, ErrorKind::Unavailable, what).because(e)
        };
        self.sinks().insert(session, Arc::clone(&to));
        let _sink = Sink { store: self, session };
        let bell = match self.hang_bell() {
            Ok(bell) => bell,
            Err(e) => return no_bell(e),
        };
        to.recheck(None);
        loop {
            match bell.rung().await {
                Ok(rings) => {
                    let sinks = self.all_sinks();
                    for ticket in rings.into_iter().map(|ring| ring.map(TicketId::from_bytes)) {
                        sinks.iter().for_each(|sink| sink.recheck(ticket));
                    }
                }
                Err(e) => return no_bell(e),
            }
        }
    }

    async fn leave(&self, ask: Leave) -> StoreResult<Left> {
        self.run(Kind::Write, |tx| tx.leave(&ask)).await
    }

    fn leave_now(&self, ask: &Leave) -> bool {
        let Ok(connection) = self.connection.try_lock() else { return false };
        let patient = connection.busy_timeout(FAREWELL);
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
        self.run(Kind::Write, |tx| tx.annotate(&edit)).await
    }

    async fn list(&self, which: ListScope) -> StoreResult<Vec<Line>> {
        self.run(Kind::Read, |tx| show::look(tx.c, &which, tx.now)).await
    }

    async fn check(&self, claim: Claim) -> StoreResult<bool> {
        self.run(Kind::Read, |tx| show::check(tx.c, &claim, tx.now)).await
    }

    async fn read(&self, name: Name) -> StoreResult<Option<Cell>> {
        self.run(Kind::Read, |tx| show::read(tx.c, &name)).await
    }

    async fn write(&self, edit: Edit) -> StoreResult<Edited> {
        self.run(Kind::Write, |tx| tx.write(&edit)).await
    }

    async fn evict(&self, name: Name, ticket: TicketId) -> StoreResult<bool> {
        self.run(Kind::Write, |tx| tx.evict(&name, ticket)).await
    }

    fn native(&self, claim: &Claim) -> Vec<(&'static str, String)> {
        vec![
            ("table", "ticket".to_owned()),
            ("name", claim.name.to_string()),
            ("id", claim.ticket.to_string()),
            ("fence", claim.fence.to_string()),
        ]
    }
}

/// A session's place among those who are told; given up when its task ends.
struct Sink<'a> {
    store: &'a Sqlite,
    session: SessionId,
}

impl Drop for Sink<'_> {
    fn drop(&mut self) {
        self.store.sinks().remove(&self.session);
    }
}

impl Drop for Sqlite {
    fn drop(&mut self) {
        // Short-lived processes never call the janitor, and the next one reads the log they leave.
        if self.log_pages.load(Ordering::Relaxed) >= janitor::PAGES / 10 {
            let _ = janitor::clean(self.connection.get_mut());
        }
    }
}

impl fmt::Debug for Sqlite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Sqlite({})", self.id)
    }
}

fn is_busy(e: &rusqlite::Error) -> bool {
    use ErrorCode::{DatabaseBusy, DatabaseLocked, FileLockingProtocolFailed};
    let code = e.sqlite_error_code();
    matches!(code, Some(DatabaseBusy | DatabaseLocked | FileLockingProtocolFailed))
}

/// What SQLite's error means to us. A transaction that fails is rolled back, so nothing was written,
/// except that a failing disk leaves it open.
fn trouble(e: rusqlite::Error, what: &str) -> StoreError {
    let (trouble, hint) = match e.sqlite_error_code() {
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => {
            (ErrorKind::Unavailable, "; another process holds the file for too long")
        }
        // Said at once: waiting makes no room.
        Some(ErrorCode::DiskFull) => (ErrorKind::Full, "; the disk is full"),
        Some(ErrorCode::SystemIoFailure) => (ErrorKind::Unavailable, "; the disk fails"),
        Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => {
            (ErrorKind::Corrupt, "; the file is corrupt: move it away, a new one will be made")
        }
        Some(ErrorCode::ReadOnly | ErrorCode::PermissionDenied | ErrorCode::CannotOpen) => {
            (ErrorKind::Denied, "; the file and its folder must be writable")
        }
        _ => (ErrorKind::Other, ""),
    };
    let what = format!("{what}{hint}");
    let error = match e.sqlite_error_code() {
        Some(ErrorCode::SystemIoFailure) => StoreError::unknown(KIND, trouble, what),
        _ => StoreError::not_applied(KIND, trouble, what),
    };
    error.because(e)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Outcome;

    #[test]
    fn a_full_disk_is_said_at_once() {
        let full = rusqlite::ffi::Error::new(rusqlite::ffi::SQLITE_FULL);
        let e = trouble(rusqlite::Error::SqliteFailure(full, None), "a transaction failed");
        assert!(!e.is_transient(), "a waiter would wait for room");
        assert_eq!((e.kind, e.outcome), (ErrorKind::Full, Outcome::NotApplied));
        assert!(e.to_string().contains("the disk is full"), "{e}");
    }
}
