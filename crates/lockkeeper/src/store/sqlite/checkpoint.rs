//! Checkpoints of the log, on a thread of their own: their fsyncs would stall the caller's thread.
//!
//! A passive checkpoint alone lets the log grow without bound while processes write. So the thread first
//! does a passive one, which carries over most of the log beside the writers; then a restart, which is
//! short because little is left; then one small write, which pays for the fsync of the new log's header.
//!
//! A restart waits for readers while it holds the writers' lock. A reader that stays (a backup, an open
//! shell) would stop every writer for that time. So the restart is tried for about 10 ms, only if the
//! passive checkpoint met no reader, and after a failure not before the log has grown by a quarter.
//! Meanwhile the reader costs disk space and no lock.

use super::file::{self, Files};
use crate::{clock, sync::Mutex};
use rusqlite::Connection;
use std::{
    cell::Cell,
    sync::{
        Arc,
        atomic::{AtomicI32, Ordering},
        mpsc,
    },
    time::Duration,
};

/// The log is checkpointed when it has this many pages.
pub(super) const PAGES: i32 = 4_000;
/// How often the restart tries to get the writers' lock, and the pause between two tries. SQLite's own
/// pauses grow to 100 ms, in which the log of a busy file grows by megabytes; a writer that never rests
/// leaves gaps of microseconds. SQLite waits for readers in the same way, and holds up the writers
/// meanwhile: about 10 ms.
const TRIES: i32 = 64;
const PAUSE: Duration = Duration::from_micros(100);
/// A passive checkpoint may leave this many pages because of transactions that were running. If it leaves
/// more, a reader is in the way.
const RUNNING_PAGES: i32 = 256;

thread_local! {
    /// The length of the log after this thread's last commit. SQLite tells it to a function without
    /// state, inside the commit, so it is read right after the commit on the same thread.
    static LOG_PAGES: Cell<i32> = const { Cell::new(0) };
}

/// Has SQLite tell the length of the log after each commit.
pub(super) fn measure(c: &Connection) {
    c.wal_hook(Some(|_, pages| {
        LOG_PAGES.set(pages);
        Ok(())
    }));
}

/// The length of the log after the commit that this thread has just made.
pub(super) fn log_pages() -> i32 {
    LOG_PAGES.get()
}

/// Starts the thread when it is first needed.
pub(super) struct Checkpointer {
    files: Arc<Files>,
    work: Mutex<Option<mpsc::SyncSender<()>>>,
    /// The length of the log from which on a checkpoint is worth a try.
    next: Arc<AtomicI32>,
}

impl Checkpointer {
    pub(super) fn of(files: &Arc<Files>) -> Self {
        Self { files: Arc::clone(files), work: Mutex::new(None), next: Arc::new(PAGES.into()) }
    }

    /// A commit has left a log of this many pages: asks for a checkpoint if it is worth a try.
    pub(super) fn committed(&self, pages: i32) {
        if pages >= self.next.load(Ordering::Relaxed) {
            self.ask();
        }
    }

    /// The same at a renewal, also if a reader was in the way the last time.
    pub(super) fn renewed(&self, pages: i32) {
        if pages >= PAGES {
            self.ask();
        }
    }

    /// Never blocks: one pending request is enough.
    fn ask(&self) {
        let mut work = self.work.lock();
        let alive = work.as_ref().is_some_and(|work| {
            !matches!(work.try_send(()), Err(mpsc::TrySendError::Disconnected(())))
        });
        if !alive {
            *work = start(&self.files, &self.next);
        }
    }
}

fn start(files: &Arc<Files>, next: &Arc<AtomicI32>) -> Option<mpsc::SyncSender<()>> {
    let (work, to_do) = mpsc::sync_channel(1);
    let _ = work.try_send(());
    let (files, next) = (Arc::clone(files), Arc::clone(next));
    let thread = std::thread::Builder::new().name("lockkeeper-checkpoint".into());
    let begun = thread.spawn(move || {
        if !files.may_checkpoint() {
            return next.store(Outcome::CutOff.next(), Ordering::Relaxed);
        }
        let Ok(c) = file::connect(&files.path) else { return };
        while to_do.recv().is_ok() {
            // After a failure the next commit asks again, and the log is a little longer.
            next.store(run(&c, &files).unwrap_or(Outcome::ByAnother).next(), Ordering::Relaxed);
            // Requests that came meanwhile are dropped: the next commit knows whether one is still needed.
            while to_do.try_recv().is_ok() {}
        }
    });
    begun.is_ok().then_some(work)
}

/// How a checkpoint ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// The log starts anew.
    Done,
    /// Another process is doing it.
    ByAnother,
    /// The log or its file was removed or replaced: it must never be carried over.
    CutOff,
    /// A reader, or writers without a gap, kept a log of this many pages from starting anew.
    Blocked(i32),
}

impl Outcome {
    /// The length of the log from which on the next one is worth a try.
    fn next(self) -> i32 {
        match self {
            Self::Done | Self::ByAnother => PAGES,
            Self::CutOff => i32::MAX,
            Self::Blocked(pages) => pages.max(PAGES).saturating_add(pages / 4),
        }
    }
}

/// Carries the log over into the file and lets it start anew, if other processes still use the same files.
pub(super) fn run(c: &Connection, files: &Files) -> rusqlite::Result<Outcome> {
    if !files.may_checkpoint() {
        return Ok(Outcome::CutOff);
    }
    c.busy_handler(Some(|tries| {
        clock::pause_thread(PAUSE);
        tries < TRIES
    }))?;
    let passive = checkpoint(c, "PASSIVE")?;
    if passive.busy {
        return Ok(Outcome::ByAnother);
    }
    if !files.may_checkpoint() {
        return Ok(Outcome::CutOff);
    }
    if passive.log - passive.carried_over > RUNNING_PAGES || checkpoint(c, "RESTART")?.busy {
        return Ok(Outcome::Blocked(passive.log));
    }
    // SQLite writes no page that an update leaves as it was.
    c.execute("UPDATE meta SET last = last + 1 WHERE id = 1", [])?;
    Ok(Outcome::Done)
}

/// What SQLite says of a checkpoint.
struct Checkpoint {
    /// Another connection was in the way.
    busy: bool,
    /// The length of the log, in pages.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::sqlite::file::Identity;

    const PATIENCE: Duration = Duration::from_secs(30);

    /// Waits for the checkpointer's thread.
    fn until(done: impl Fn() -> bool) {
        let mut waited = Duration::ZERO;
        while !done() {
            assert!(waited < PATIENCE, "the thread takes far too long");
            clock::pause_thread(Duration::from_millis(1));
            waited += Duration::from_millis(1);
        }
    }

    fn write(c: &Connection, first: i64) {
        for i in first..first + 100 {
            c.execute("INSERT INTO cell VALUES(?1, ?2, 1)", (i.to_string(), [0x5a; 2_000]))
                .unwrap();
        }
    }

    /// The next process reads the log from its beginning, all of it if it does not begin anew.
    #[test]
    fn a_log_that_was_carried_over_is_not_read_again() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("locks.db");
        let c = file::open(&path).unwrap();
        write(&c, 0);
        let files = Files::new(path.clone(), Identity::of(&path));
        assert_eq!(run(&c, &files).unwrap(), Outcome::Done);
        drop(c);
        let c = file::open(&path).unwrap();
        measure(&c);
        c.execute("UPDATE meta SET last = last + 1 WHERE id = 1", []).unwrap();
        assert!(log_pages() < 10, "{} pages", log_pages());
    }

    /// Other processes have a new log then, and no lock of theirs keeps the old one's pages out.
    #[test]
    fn a_log_that_was_removed_is_not_carried_over() {
        for removed in [&["-wal", "-shm"][..], &["-wal"], &["-shm"]] {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("locks.db");
            let c = file::open(&path).unwrap();
            write(&c, 0);
            let files = Files::new(path.clone(), Identity::of(&path));
            let checkpointer = Checkpointer::of(&files);
            let database = || std::fs::read(&path).unwrap();
            let before = database();
            // The thread writes it when the checkpoint is over, not only begun.
            checkpointer.next.store(0, Ordering::Relaxed);
            checkpointer.committed(PAGES);
            until(|| checkpointer.next.load(Ordering::Relaxed) == PAGES);
            assert!(database() != before, "the first checkpoint carried nothing over");
            write(&c, 100);

            let mut kept = Vec::new();
            for suffix in removed {
                let path = folder.path().join(format!("locks.db{suffix}"));
                let aside = folder.path().join(format!("aside{suffix}"));
                std::fs::rename(&path, &aside).unwrap();
                kept.push((path, aside));
            }
            let before = database();
            checkpointer.committed(PAGES);
            until(|| checkpointer.next.load(Ordering::Relaxed) == i32::MAX || database() != before);
            assert_eq!(run(&c, &files).unwrap(), Outcome::CutOff, "{removed:?}");
            for (path, aside) in kept {
                std::fs::rename(aside, path).unwrap();
            }
            assert_eq!(run(&c, &files).unwrap(), Outcome::CutOff, "others may have been here");
            assert!(database() == before, "the database was written to: {removed:?}");
        }
    }
}
