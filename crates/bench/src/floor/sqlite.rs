//! The bare floor under the SQLite store: what one program with rusqlite and nothing else can do.
//!
//! The floor uses the library's own schema, page size, log mode and checkpoint policy, and runs the
//! statements that the library runs for an uncontended pair, prepared and cached, with constant
//! parameters. What the library adds (ids, clocks, sessions, the gate, futures) is the difference.

use crate::{
    pair::{At, Boxed, Pair, Ready},
    source::path_of,
};
use anyhow::Result;
use rusqlite::{Connection, OptionalExtension as _, config::DbConfig, params};
use std::{
    cell::Cell,
    path::{Path, PathBuf},
    sync::mpsc,
    time::Duration,
};

const SCHEMA: &str = include_str!("../../../lockkeeper/src/store/sqlite/schema.sql");

const BEGIN: &str = "BEGIN IMMEDIATE";
const COMMIT: &str = "COMMIT";
const SESSION: &str = "SELECT expires, EXISTS(SELECT 1 FROM closed WHERE ticket = ?2 AND \
     session = ?1) FROM session WHERE id = ?1";
const LINE: &str = "SELECT t.seq, t.id, t.session, t.weight, t.capacity, t.fence, \
     coalesce(t.hold_until, iif(t.fence IS NULL, s.expires, s.dead_at), 0) \
     FROM ticket t LEFT JOIN session s ON s.id = t.session WHERE t.name = ?1 ORDER BY t.seq";
const NEXT: &str = "UPDATE meta SET last = max(last + 1, ?1) WHERE id = 1 RETURNING last";
const INSERT: &str = "INSERT INTO ticket(name, seq, id, session, weight, capacity, fence, \
     entered, granted, note) VALUES(?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)";
const LEAVE: &str =
    "DELETE FROM ticket WHERE name = ?1 AND id = ?2 AND session = ?3 RETURNING fence";

const NAME: &str = "floor";
const OWNER: [u8; 16] = [7; 16];
const PLAIN_CAPACITY: u32 = lockkeeper::store::PLAIN_CAPACITY;

/// How much of the library's work the floor does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Depth {
    /// Every statement of the library, in its order.
    Same,
    /// Only the ticket's row: one insert, one delete.
    Lean,
}

/// The statements of one pair.
pub(crate) const SAME: &str = "same statements: begin, session, line, next number, insert, commit; begin, delete, line, commit";
pub(crate) const LEAN: &str = "ticket row only: begin, insert, commit; begin, delete, commit";

pub(crate) fn same(at: At) -> Boxed<Ready> {
    Box::pin(async move { Ok(Ready::one(Floor::open(path_of(&at.url)?, Depth::Same)?)) })
}

pub(crate) fn lean(at: At) -> Boxed<Ready> {
    Box::pin(async move { Ok(Ready::one(Floor::open(path_of(&at.url)?, Depth::Lean)?)) })
}

/// A connection that takes and releases with bare statements.
struct Floor {
    c: Connection,
    depth: Depth,
    janitor: Janitor,
    /// The last ticket's number; also its id, and in the lean floor its place.
    last: u64,
}

impl Floor {
    /// Opens the file; makes it if it is not there.
    fn open(path: &Path, depth: Depth) -> Result<Self> {
        if !path.exists() {
            make(path)?;
        }
        let c = connect(path)?;
        c.busy_timeout(Duration::ZERO)?;
        c.wal_hook(Some(|_, pages| {
            LOG_PAGES.set(pages);
            Ok(())
        }));
        Ok(Self { c, depth, janitor: Janitor::begin(path.to_owned()), last: 0 })
    }

    /// One lock and its release: two transactions.
    fn both(&mut self) -> Result<()> {
        self.last += 1;
        let id = u128::from(self.last).to_be_bytes();
        match self.depth {
            Depth::Same => {
                self.transaction(|| self.enter(id))?;
                self.transaction(|| self.leave(id))
            }
            Depth::Lean => {
                self.transaction(|| self.insert(id, self.last.cast_signed()))?;
                self.transaction(|| self.delete(id))
            }
        }
    }

    fn transaction(&self, work: impl Fn() -> Result<()>) -> Result<()> {
        // Only the janitor can be in the way, and only for the moment of its own small write.
        while let Err(e) = self.c.prepare_cached(BEGIN)?.execute([]) {
            let busy = e.sqlite_error_code() == Some(rusqlite::ErrorCode::DatabaseBusy);
            anyhow::ensure!(busy, e);
            std::thread::yield_now();
        }
        work()?;
        self.c.prepare_cached(COMMIT)?.execute([])?;
        if LOG_PAGES.get() >= JANITOR_PAGES {
            self.janitor.call();
        }
        Ok(())
    }

    fn enter(&self, id: [u8; 16]) -> Result<()> {
        let known: (i64, bool) = self
            .c
            .prepare_cached(SESSION)?
            .query_row(params![OWNER, id], |r| Ok((r.get(0)?, r.get(1)?)))?;
        anyhow::ensure!(known.0 > 0 && !known.1, "the session is not there");
        anyhow::ensure!(self.line()? == 0, "the line is not empty");
        let number = self.c.prepare_cached(NEXT)?.query_row([1], |r| r.get(0))?;
        self.insert(id, number)
    }

    fn insert(&self, id: [u8; 16], number: i64) -> Result<()> {
        let note: &[u8] = &[];
        let row =
            params![NAME, number, id, OWNER, PLAIN_CAPACITY, PLAIN_CAPACITY, number, 1, 1, note];
        self.c.prepare_cached(INSERT)?.execute(row)?;
        Ok(())
    }

    fn leave(&self, id: [u8; 16]) -> Result<()> {
        self.delete(id)?;
        self.line().map(drop)
    }

    fn delete(&self, id: [u8; 16]) -> Result<()> {
        let mut delete = self.c.prepare_cached(LEAVE)?;
        let fence: Option<i64> =
            delete.query_row(params![NAME, id, OWNER], |r| r.get(0)).optional()?;
        anyhow::ensure!(fence.is_some(), "the ticket is gone");
        Ok(())
    }

    /// Reads the line; says how many stand in it.
    fn line(&self) -> Result<usize> {
        let mut line = self.c.prepare_cached(LINE)?;
        let rows = line.query_map([NAME], |r| r.get::<_, i64>(0))?;
        Ok(rows.count())
    }
}

impl Pair for Floor {
    async fn pair(&mut self) -> Result<()> {
        self.both()
    }
}

/// Makes the file as the library does.
fn make(path: &Path) -> Result<()> {
    let c = Connection::open(path)?;
    c.pragma_update(None, "page_size", 1024)?;
    c.execute_batch(SCHEMA)?;
    c.execute("INSERT INTO meta VALUES(1, x'00', '', 0)", [])?;
    let session = "INSERT INTO session VALUES(?1, 1, 0, 1 << 60, 1 << 60, 0, '', '', 1, '')";
    c.execute(session, [OWNER])?;
    c.pragma_update(None, "journal_mode", "WAL")?;
    Ok(())
}

fn connect(path: &Path) -> rusqlite::Result<Connection> {
    let c = Connection::open(path)?;
    c.pragma_update(None, "wal_autocheckpoint", 0)?;
    c.pragma_update(None, "synchronous", "NORMAL")?;
    c.pragma_update(None, "journal_size_limit", 8 << 20)?;
    c.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true)?;
    c.set_prepared_statement_cache_capacity(64);
    Ok(c)
}

/// As in the library: checkpoints happen on a thread of their own, else the floor would pay for
/// fsyncs that the library does not pay for on the caller's thread.
const JANITOR_PAGES: i32 = 4_000;

thread_local! {
    static LOG_PAGES: Cell<i32> = const { Cell::new(0) };
}

struct Janitor(mpsc::SyncSender<()>);

impl Janitor {
    fn begin(path: PathBuf) -> Self {
        let (work, to_do) = mpsc::sync_channel(1);
        std::thread::spawn(move || {
            let Ok(c) = connect(&path) else { return };
            while to_do.recv().is_ok() {
                // What fails now is done next time.
                let _ = clean(&c);
            }
        });
        Self(work)
    }

    fn call(&self) {
        let _ = self.0.try_send(());
    }
}

fn clean(c: &Connection) -> rusqlite::Result<()> {
    c.busy_handler(Some(|tries| {
        std::thread::sleep(Duration::from_micros(100));
        tries < 2_000
    }))?;
    for mode in ["PASSIVE", "RESTART"] {
        c.query_row(&format!("PRAGMA wal_checkpoint({mode})"), [], |_| Ok(()))?;
    }
    c.execute("UPDATE meta SET last = last WHERE id = 1", [])?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The source with every run of blanks and line continuations as one blank.
    fn squeezed(source: &str) -> String {
        source.replace("\\\n", " ").split_whitespace().collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn the_floor_runs_the_statements_of_the_library() {
        let library = squeezed(concat!(
            include_str!("../../../lockkeeper/src/store/sqlite/enter.rs"),
            include_str!("../../../lockkeeper/src/store/sqlite/leave.rs"),
            include_str!("../../../lockkeeper/src/store/sqlite/line.rs"),
            include_str!("../../../lockkeeper/src/store/sqlite/session.rs"),
        ));
        for statement in [SESSION, LINE, NEXT, INSERT, LEAVE] {
            assert!(library.contains(&squeezed(statement)), "not in the library: {statement}");
        }
    }

    #[test]
    fn both_floors_take_and_release() {
        let folder = tempfile::tempdir().unwrap();
        for (depth, file) in [(Depth::Same, "same.db"), (Depth::Lean, "lean.db")] {
            let mut floor = Floor::open(&folder.path().join(file), depth).unwrap();
            for _ in 0..10 {
                floor.both().unwrap();
            }
            assert_eq!(floor.line().unwrap(), 0);
        }
    }
}
