//! The thread that does what would stall a caller: checkpoints, with their fsyncs.
//!
//! A passive checkpoint alone lets the log grow without bound while others write. So: passive first,
//! which does most of the work beside the writers; then restart, which is short because little is
//! left; then one small write of our own, which pays for the fsync of the new log's header.
//!
//! A restart waits for readers with the writers' lock in its hand. A reader that stays (a backup, an
//! open shell) would stop every writer of the file for as long as the restart is patient, so the
//! restart is tried briefly, only if the passive checkpoint met no reader, and after a failure not
//! before the log has grown by a quarter. Meanwhile the reader costs disk space and no lock.

use super::file;
use crate::{clock, sync::Mutex};
use rusqlite::Connection;
use std::{
    cell::Cell,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicI32, Ordering},
        mpsc,
    },
    time::Duration,
};

/// Clean up when the log has this many pages.
pub(super) const PAGES: i32 = 4_000;
/// How often the restart asks for its moment between two writers, and how long it rests before it
/// asks again, on this thread only. SQLite's own pauses grow to 100 ms, in which the log of a busy
/// file grows by megabytes; a writer that never rests leaves gaps of microseconds. SQLite asks in the
/// same way for the readers to go, and holds up the writers meanwhile: about 10 ms.
const TRIES: i32 = 64;
const PAUSE: Duration = Duration::from_micros(100);
/// So many pages may stay behind a passive checkpoint because of transactions that were under way.
/// If more do, a reader stands on them.
const UNDER_WAY: i32 = 256;

thread_local! {
    /// How long the log was after this thread's last commit. SQLite tells it to a bare function,
    /// inside the commit, so it is read right after the commit on the same thread.
    static LOG_PAGES: Cell<i32> = const { Cell::new(0) };
}

/// Has SQLite tell us how long the log is after each commit.
pub(super) fn measure(c: &Connection) {
    c.wal_hook(Some(|_, pages| {
        LOG_PAGES.set(pages);
        Ok(())
    }));
}

/// How long the log was after the commit that this thread has just made.
pub(super) fn log_pages() -> i32 {
    LOG_PAGES.get()
}

/// The thread, begun when it is first needed.
pub(super) struct Janitor {
    path: PathBuf,
    work: Mutex<Option<mpsc::SyncSender<()>>>,
    /// How long the log must be before a clean-up is worth a try.
    next: Arc<AtomicI32>,
}

impl Janitor {
    pub(super) fn of(path: &Path) -> Self {
        Self { path: path.to_owned(), work: Mutex::new(None), next: Arc::new(PAGES.into()) }
    }

    /// A commit has left a log of so many pages: asks for a clean-up if it is worth one.
    pub(super) fn committed(&self, pages: i32) {
        if pages >= self.next.load(Ordering::Relaxed) {
            self.call();
        }
    }

    /// Asks for a clean-up of a log of so many pages, also if a reader was in the way the last time.
    pub(super) fn renewed(&self, pages: i32) {
        if pages >= PAGES {
            self.call();
        }
    }

    /// Never blocks: a clean-up that is asked for already will do.
    fn call(&self) {
        let mut work = self.work.lock();
        let alive = work.as_ref().is_some_and(|work| {
            !matches!(work.try_send(()), Err(mpsc::TrySendError::Disconnected(())))
        });
        if !alive {
            *work = begin(&self.path, &self.next);
        }
    }
}

fn begin(path: &Path, next: &Arc<AtomicI32>) -> Option<mpsc::SyncSender<()>> {
    let (work, to_do) = mpsc::sync_channel(1);
    let _ = work.try_send(());
    let (path, next) = (path.to_owned(), Arc::clone(next));
    let thread = std::thread::Builder::new().name("lockkeeper-janitor".into());
    let begun = thread.spawn(move || {
        let Ok(c) = file::connect(&path) else { return };
        while to_do.recv().is_ok() {
            // What fails now is done next time: the log only grows a little longer.
            next.store(clean(&c).unwrap_or(Cleaned::Elsewhere).next(), Ordering::Relaxed);
            // Asked for meanwhile: the next commit knows better whether it is still needed.
            while to_do.try_recv().is_ok() {}
        }
    });
    begun.is_ok().then_some(work)
}

/// How a clean-up ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cleaned {
    /// The log starts anew.
    Done,
    /// Another process is at it; its janitor does all there is to do.
    Elsewhere,
    /// A reader, or writers without a gap, kept a log of so many pages from starting anew.
    Blocked(i32),
}

impl Cleaned {
    /// How long the log must be before the next try.
    fn next(self) -> i32 {
        match self {
            Self::Done | Self::Elsewhere => PAGES,
            Self::Blocked(pages) => pages.max(PAGES).saturating_add(pages / 4),
        }
    }
}

/// Carries the log over into the file and lets it start anew.
pub(super) fn clean(c: &Connection) -> rusqlite::Result<Cleaned> {
    c.busy_handler(Some(|tries| {
        clock::pause_thread(PAUSE);
        tries < TRIES
    }))?;
    let passive = checkpoint(c, "PASSIVE")?;
    if passive.busy {
        return Ok(Cleaned::Elsewhere);
    }
    if passive.log - passive.carried_over > UNDER_WAY || checkpoint(c, "RESTART")?.busy {
        return Ok(Cleaned::Blocked(passive.log));
    }
    c.execute("UPDATE meta SET last = last WHERE id = 1", [])?;
    Ok(Cleaned::Done)
}

/// What SQLite says of a checkpoint.
struct Checkpoint {
    /// Another connection was in the way.
    busy: bool,
    /// How many pages the log has.
    log: i32,
    /// How many of them are in the file now.
    carried_over: i32,
}

fn checkpoint(c: &Connection, mode: &str) -> rusqlite::Result<Checkpoint> {
    let read = |r: &rusqlite::Row<'_>| {
        Ok(Checkpoint { busy: r.get(0)?, log: r.get(1)?, carried_over: r.get(2)? })
    };
    c.query_row(&format!("PRAGMA wal_checkpoint({mode})"), [], read)
}
