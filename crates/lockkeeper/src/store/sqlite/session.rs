//! Sessions: opening, renewing, closing, and sweeping those that are dead.

use super::{
    KIND, Kind, Sqlite,
    line::{Tx, length, micros},
    notify::News,
};
use crate::{
    clock::Moment,
    error::{ErrorKind, StoreError},
    model::ticket::{SessionId, TicketId},
    store::{Open, Renewal, StoreResult, Terms, TicketDigest},
};
use rusqlite::{OptionalExtension, Result, params};
use std::{sync::atomic::Ordering, time::Duration};

/// How many dead sessions, and how many lines of each, one renewal sweeps.
const SWEEP_SESSIONS: i64 = 4;
const SWEEP_LINES: i64 = 64;

const RENEW: &str = "UPDATE session SET expires = ?2 + ttl, dead_at = ?2 + ttl + delay \
     WHERE id = ?1 AND expires > ?2 RETURNING evictions";
const IDS: &str = "SELECT id FROM ticket WHERE session = ?1";
const END: &str = "UPDATE session SET expires = 0, dead_at = 0 WHERE id = ?1 AND dead_at <= ?2";

impl Sqlite {
    pub(super) async fn open_session(&self, ask: Open) -> StoreResult<Terms> {
        if self.is_cut_off() {
            let what =
                format!("{} was removed or replaced; connect again", self.files.path.display());
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

    pub(super) async fn renew_session(&self, session: SessionId) -> StoreResult<Renewal> {
        self.renewals.fetch_add(1, Ordering::Relaxed);
        if self.is_cut_off() {
            return Ok(Renewal::Lost);
        }
        let version = self.run(Kind::Write, |tx| tx.renew(session)).await?;
        let Some(version) = version else { return Ok(Renewal::Lost) };
        // A read of its own, so that other processes can write while many tickets are read.
        let tickets = self.run(Kind::Read, |tx| tx.digest(session)).await?;
        self.checkpointer.renewed(self.log_pages.load(Ordering::Relaxed));
        self.sweep().await;
        Ok(Renewal::Renewed { version, tickets: Some(tickets) })
    }

    pub(super) async fn close_session(&self, session: SessionId) -> StoreResult<()> {
        self.sinks().remove(&session);
        self.run(Kind::Write, |tx| tx.end(session, Moment::NEVER)).await?;
        // In several transactions, so that other processes can write in between.
        while !self.run(Kind::Write, |tx| tx.clear(session)).await? {}
        Ok(())
    }

    /// Sweeps a little, if the file is free right now: the caller must not wait for it.
    async fn sweep(&self) {
        let connection = self.free_connection().await;
        if let Ok((true, _)) = self.attempt(&connection, Kind::Read, |tx| tx.has_leftovers()) {
            let swept = self.attempt(&connection, Kind::Write, |tx| tx.sweep());
            drop(connection);
            if let Ok(((), news)) = swept {
                self.tell(news);
            }
        }
    }
}

impl Tx<'_> {
    /// One statement, however many tickets the session has. Returns the session's version, or `None` if the
    /// session is over.
    pub(super) fn renew(&self, session: SessionId) -> Result<Option<u64>> {
        let mut renew = self.c.prepare_cached(RENEW)?;
        let ids = params![session.to_bytes(), micros(self.now)];
        let version: Option<i64> = renew.query_row(ids, |r| r.get(0)).optional()?;
        Ok(version.map(i64::cast_unsigned))
    }

    /// The session's tickets in two numbers: a read of an index, about 2 ms for 10,000 tickets.
    pub(super) fn digest(&self, session: SessionId) -> Result<TicketDigest> {
        let mut ids = self.c.prepare_cached(IDS)?;
        let ids = ids.query_map([session.to_bytes()], |r| r.get(0).map(TicketId::from_bytes))?;
        ids.collect()
    }

    /// Ends a session that is dead at this moment.
    pub(super) fn end(&self, session: SessionId, at: Moment) -> Result<()> {
        self.c.prepare_cached(END)?.execute(params![session.to_bytes(), micros(at)])?;
        Ok(())
    }

    /// Whether there is anything to sweep. A read, so that most renewals write once.
    pub(super) fn has_leftovers(&self) -> Result<bool> {
        let sql = "SELECT EXISTS(SELECT 1 FROM session WHERE dead_at <= ?1) \
             OR EXISTS(SELECT 1 FROM ticket WHERE hold_until <= ?1) \
             OR EXISTS(SELECT 1 FROM closed WHERE until <= ?1)";
        self.c.prepare_cached(sql)?.query_row([micros(self.now)], |r| r.get(0))
    }

    /// Deletes some rows that no process will use again.
    pub(super) fn sweep(&mut self) -> Result<()> {
        let now = micros(self.now);
        let sql = "DELETE FROM closed WHERE (ticket, session) IN \
             (SELECT ticket, session FROM closed WHERE until <= ?1 LIMIT ?2)";
        self.c.prepare_cached(sql)?.execute(params![now, SWEEP_LINES])?;
        let sql = "SELECT name FROM ticket WHERE hold_until <= ?1 LIMIT ?2";
        for name in self.names(sql, params![now, SWEEP_LINES])? {
            self.settle_freed(&name)?;
        }
        let sql = "SELECT id FROM session WHERE dead_at <= ?1 LIMIT ?2";
        let dead: Vec<[u8; 16]> = self
            .c
            .prepare_cached(sql)?
            .query_map(params![now, SWEEP_SESSIONS], |r| r.get(0))?
            .collect::<Result<_>>()?;
        for session in dead {
            self.clear(SessionId::from_bytes(session))?;
        }
        Ok(())
    }

    /// Deletes the tickets of an ended session from some of its lines, and its own row with the last of them.
    /// Says whether that row is gone.
    pub(super) fn clear(&mut self, session: SessionId) -> Result<bool> {
        let id = session.to_bytes();
        let sql = "SELECT DISTINCT name FROM ticket WHERE session = ?1 LIMIT ?2";
        let names = self.names(sql, params![id, SWEEP_LINES])?;
        let more = i64::try_from(names.len()).is_ok_and(|n| n >= SWEEP_LINES);
        for name in names {
            let sql = "DELETE FROM ticket WHERE session = ?1 AND name = ?2";
            self.c.prepare_cached(sql)?.execute(params![id, name.as_str()])?;
            self.settle_freed(&name)?;
        }
        if more {
            return Ok(false);
        }
        self.news.extend(self.doorbell(session)?.map(News::Cleared));
        self.c.prepare_cached("DELETE FROM session WHERE id = ?1")?.execute([id])?;
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_renewal_reads_its_tickets_from_an_index_alone() {
        let c = rusqlite::Connection::open_in_memory().unwrap();
        c.execute_batch(include_str!("schema.sql")).unwrap();
        let plan = format!("EXPLAIN QUERY PLAN {IDS}");
        let plan: String = c.query_row(&plan, [[0; 16]], |r| r.get("detail")).unwrap();
        assert!(plan.contains("COVERING INDEX ticket_session"), "{plan}");
    }
}
