//! The thread that does what would stall a caller: checkpoints, with their fsyncs.
//!
//! A passive checkpoint alone lets the log grow without bound while others write. So: passive first,
//! which does most of the work beside the writers; then restart, which is short because little is
//! left; then one small write of our own, which pays for the fsync of the new log's header.

use super::file;
use crate::clock;
use rusqlite::Connection;
use std::{
    cell::Cell,
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError, mpsc},
    time::Duration,
};

/// Clean up when the log has this many pages.
pub(super) const PAGES: i32 = 4_000;
/// How often the restart asks for its moment between two writers, and how long it rests before it
/// asks again, on this thread only. SQLite's own pauses grow to 100 ms, in which the log of a busy
/// file grows by megabytes; a writer that never rests leaves gaps of microseconds.
const TRIES: i32 = 2_000;
const PAUSE: Duration = Duration::from_micros(100);

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
}

impl Janitor {
    pub(super) fn of(path: &Path) -> Self {
        Self { path: path.to_owned(), work: Mutex::new(None) }
    }

    /// Asks for a clean-up. Never blocks: one that is asked for already will do.
    pub(super) fn call(&self) {
        let mut work = self.work.lock().unwrap_or_else(PoisonError::into_inner);
        let alive = work.as_ref().is_some_and(|work| {
            !matches!(work.try_send(()), Err(mpsc::TrySendError::Disconnected(())))
        });
        if !alive {
            *work = begin(&self.path);
        }
    }
}

fn begin(path: &Path) -> Option<mpsc::SyncSender<()>> {
    let (work, to_do) = mpsc::sync_channel(1);
    let _ = work.try_send(());
    let path = path.to_owned();
    let thread = std::thread::Builder::new().name("lockkeeper-janitor".into());
    let begun = thread.spawn(move || {
        let Ok(c) = file::connect(&path) else { return };
        while to_do.recv().is_ok() {
            // What fails now is done next time: the log only grows a little longer.
            let _ = clean(&c);
            // Asked for meanwhile: the next commit knows better whether it is still needed.
            while to_do.try_recv().is_ok() {}
        }
    });
    begun.is_ok().then_some(work)
}

/// Carries the log over into the file and lets it start anew.
pub(super) fn clean(c: &Connection) -> rusqlite::Result<()> {
    c.busy_handler(Some(|tries| {
        clock::pause_thread(PAUSE);
        tries < TRIES
    }))?;
    // If another process is at it, its janitor does all there is to do.
    if checkpoint(c, "PASSIVE")? && checkpoint(c, "RESTART")? {
        c.execute("UPDATE meta SET last = last WHERE id = 1", [])?;
    }
    Ok(())
}

/// Says whether nobody was in the way.
fn checkpoint(c: &Connection, mode: &str) -> rusqlite::Result<bool> {
    let busy: bool = c.query_row(&format!("PRAGMA wal_checkpoint({mode})"), [], |r| r.get(0))?;
    Ok(!busy)
}
