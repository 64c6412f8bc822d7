//! Opening the file, and running transactions on the caller's thread without ever waiting there.

use super::{
    Kind, Sqlite, checkpoint,
    checkpoint::Checkpointer,
    doorbell::{Doorbells, Tag},
    error::failure,
    file::{self, Files},
    line::Tx,
    notify::News,
};
use crate::{
    clock::{Clock, Moment},
    store::StoreResult,
    sync::Mutex,
};
use rand::RngExt as _;
use rusqlite::{Connection, ErrorCode};
use std::{
    sync::atomic::{AtomicI32, AtomicU64, Ordering},
    time::Duration,
};
use tokio::sync::MutexGuard;

/// How often a transaction is tried again at once when another process writes, and the pause after that.
const SPINS: u32 = 20;
const PAUSE: Duration = Duration::from_millis(1);
/// After this many pauses it is tried several times at once again between the pauses, so that it cannot be
/// unlucky for ever.
const PATIENT: u32 = 10;
/// After this time a busy file is an error. Writers hold it for microseconds.
const BUSY_MAX: Duration = Duration::from_secs(10);
/// What a transaction takes of the 128 units that a task may spend before tokio lets other tasks run. It
/// lasts as long as many ordinary operations, and never pends by itself.
const BUDGET: u32 = 4;
/// A file that was seen in its place is taken to be there for this long.
const SEEN: Duration = Duration::from_millis(1);

impl Sqlite {
    /// As [`open`](Self::open), on this clock.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn with_clock(path: &str, clock: Clock) -> StoreResult<Self> {
        let path = file::locate(path)?;
        let open = || {
            let connection = file::open(&path)?;
            let id = file::identify(&connection, clock.now())?;
            Ok((connection, id))
        };
        let ((connection, id), identity) = file::open_in_place(&path, open)?;
        let set_up = connection.busy_timeout(Duration::ZERO);
        set_up.map_err(|e| failure(e, "cannot set up the connection"))?;
        checkpoint::measure(&connection);
        let files = Files::new(path, identity);
        Ok(Self {
            id,
            clock,
            connection: tokio::sync::Mutex::new(connection),
            checkpointer: Checkpointer::of(&files),
            doorbells: Doorbells::beside(&files.path),
            files,
            tag: Tag::random(),
            doorbell: Mutex::default(),
            sinks: Mutex::default(),
            renewals: AtomicU64::new(0),
            log_pages: AtomicI32::new(0),
            in_place: AtomicU64::new(0),
        })
    }

    /// Whether [the files are cut off](Files::are_cut_off).
    pub(super) fn is_cut_off(&self) -> bool {
        let now = self.clock.now();
        let cut_off = self.files.are_cut_off();
        if !cut_off {
            self.in_place.store(now.as_nanos(), Ordering::Relaxed);
        }
        cut_off
    }

    /// The same, looked up at most once in [`SEEN`], for grants.
    pub(super) fn is_cut_off_cached(&self) -> bool {
        let seen = Moment::from_nanos(self.in_place.load(Ordering::Relaxed));
        self.clock.now().saturating_since(seen) > SEEN && self.is_cut_off()
    }

    /// Runs one transaction. When the file is busy the task waits, and not its thread.
    pub(super) async fn run<T>(
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
                let connection = self.free_connection().await;
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
                Err(e) => return Err(failure(e, "a transaction failed")),
            }
        }
    }

    /// Waits until no other thread is in a transaction, which lasts microseconds. Tasks do not queue for the
    /// connection: a queue would hand it to a task whose thread is busy with something else, and a renewal would wait
    /// behind that one.
    pub(super) async fn free_connection(&self) -> MutexGuard<'_, Connection> {
        loop {
            if let Ok(free) = self.connection.try_lock() {
                return free;
            }
            tokio::task::yield_now().await;
        }
    }

    pub(super) fn attempt<T>(
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
        let (doorbells, tag) = (&self.doorbells, &self.tag);
        let mut tx = Tx { c, now: self.clock.now(), wall, doorbells, tag, news: Vec::new() };
        let done = work(&mut tx).and_then(|out| {
            c.prepare_cached("COMMIT")?.execute([])?;
            Ok(out)
        });
        if done.is_err() && !c.is_autocommit() {
            // The first error is the one to report; a failed rollback shows with the next transaction.
            let _ = c.execute_batch("ROLLBACK");
        }
        if kind == Kind::Write {
            self.log_pages.store(checkpoint::log_pages(), Ordering::Relaxed);
            self.checkpointer.committed(checkpoint::log_pages());
        }
        done.map(|out| (out, tx.news))
    }

    /// Lets other processes write: first by yielding, then by short random pauses. After many tries it yields
    /// several times between the pauses.
    async fn give_way(&self, tries: u32) {
        let late = tries > SPINS + PATIENT;
        if tries < SPINS || (late && !tries.is_multiple_of(SPINS)) {
            tokio::task::yield_now().await;
        } else {
            let pause = PAUSE + PAUSE.mul_f64(2.0 * rand::rng().random::<f64>());
            self.clock.sleep(pause).await;
        }
    }
}

impl Drop for Sqlite {
    fn drop(&mut self) {
        // A short-lived process never has a long enough log to checkpoint, and leaves what it has to the next.
        if self.log_pages.load(Ordering::Relaxed) >= checkpoint::PAGES / 10 {
            let _ = checkpoint::run(self.connection.get_mut(), &self.files);
        }
    }
}

fn is_busy(e: &rusqlite::Error) -> bool {
    use ErrorCode::{DatabaseBusy, DatabaseLocked, FileLockingProtocolFailed};
    let code = e.sqlite_error_code();
    matches!(code, Some(DatabaseBusy | DatabaseLocked | FileLockingProtocolFailed))
}
