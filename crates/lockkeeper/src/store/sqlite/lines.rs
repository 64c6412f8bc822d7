//! The operations as SQL, each inside one transaction that the caller has begun.

use super::{
    KIND,
    bell::{Ringer, Tag},
};
use crate::{
    clock::Moment,
    error::{ErrorKind, StoreError},
    model::{
        line::{Front, LINE_MAX, LineRow, settle},
        name::Name,
        ticket::{Owner, Place, SessionId, TicketId},
    },
    store::{
        Edit, Edited, Enter, Entered, Holder, Leave, Left, Manner, STRAY_MAX, StoreResult,
        TicketDigest, TicketStatus, Wait,
    },
};
use rusqlite::{Connection, OptionalExtension, Result, Row as SqlRow, params};
use std::time::Duration;

/// How many dead sessions, and how many lines of each, one renewal clears away.
const SWEEP_SESSIONS: i64 = 4;
const SWEEP_LINES: i64 = 64;

const SESSION: &str = "SELECT expires, EXISTS(SELECT 1 FROM closed WHERE ticket = ?2 AND session = ?1) \
     FROM session WHERE id = ?1";
const LINE: &str = "SELECT t.seq, t.id, t.session, t.weight, t.capacity, t.fence, \
     coalesce(t.hold_until, iif(t.fence IS NULL, s.expires, s.dead_at), 0) \
     FROM ticket t LEFT JOIN session s ON s.id = t.session WHERE t.name = ?1 ORDER BY t.seq";
const NEXT: &str = "UPDATE meta SET last = max(last + 1, ?1) WHERE id = 1 RETURNING last";
const INSERT: &str = "INSERT INTO ticket(name, seq, id, session, weight, capacity, fence, \
     entered, granted, note) VALUES(?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)";
const GRANT: &str = "UPDATE ticket SET fence = ?3, granted = ?4 WHERE name = ?1 AND seq = ?2";
const LEAVE: &str =
    "DELETE FROM ticket WHERE name = ?1 AND id = ?2 AND session = ?3 RETURNING fence";
const KEEP: &str = "UPDATE ticket SET session = NULL, hold_until = ?4 \
     WHERE name = ?1 AND id = ?2 AND session = ?3 AND fence IS NOT NULL";
const RENEW: &str = "UPDATE session SET expires = ?2 + ttl, dead_at = ?2 + ttl + delay \
     WHERE id = ?1 AND expires > ?2 RETURNING evictions";
const IDS: &str = "SELECT id FROM ticket WHERE session = ?1";
const END: &str = "UPDATE session SET expires = 0, dead_at = 0 WHERE id = ?1 AND dead_at <= ?2";

/// What others are to be told once the transaction has been committed.
pub(super) enum News {
    Granted {
        session: SessionId,
        bell: Option<Tag>,
        ticket: TicketId,
        fence: u64,
    },
    Ended {
        session: SessionId,
        ticket: TicketId,
    },
    Freed(Name),
    /// A session was cleared away; its bell may hang there without a process.
    Cleared(Tag),
}

/// A ticket's row, as far as settling needs it.
pub(super) struct Row {
    seq: i64,
    id: TicketId,
    session: Option<SessionId>,
    weight: u32,
    capacity: u32,
    fence: Option<u64>,
    dead_at: Moment,
}

impl LineRow for Row {
    fn weight(&self) -> u32 {
        self.weight
    }
    fn granted(&self) -> bool {
        self.fence.is_some()
    }
    fn dead_at(&self) -> Moment {
        self.dead_at
    }
}

fn row(r: &SqlRow<'_>) -> Result<Row> {
    Ok(Row {
        seq: r.get(0)?,
        id: TicketId::from_bytes(r.get(1)?),
        session: r.get::<_, Option<[u8; 16]>>(2)?.map(SessionId::from_bytes),
        weight: r.get(3)?,
        capacity: r.get(4)?,
        fence: r.get::<_, Option<i64>>(5)?.map(i64::cast_unsigned),
        dead_at: moment(r.get(6)?),
    })
}

pub(super) fn moment(micros: i64) -> Moment {
    Moment::from_micros(u64::try_from(micros).unwrap_or(0))
}

pub(super) fn micros(moment: Moment) -> i64 {
    i64::try_from(moment.as_micros()).unwrap_or(i64::MAX)
}

pub(super) fn micros_after(now: i64, duration: Duration) -> i64 {
    now.saturating_add(length(duration))
}

pub(super) fn length(duration: Duration) -> i64 {
    i64::try_from(duration.as_micros()).unwrap_or(i64::MAX)
}

/// One transaction: the connection, the time at which it began, and what it gives rise to.
pub(super) struct Tx<'c> {
    pub(super) c: &'c Connection,
    pub(super) now: Moment,
    /// The wall clock in microseconds, under which no number falls.
    pub(super) wall: i64,
    pub(super) ringer: &'c Ringer,
    /// Of our own bell.
    pub(super) tag: &'c Tag,
    pub(super) news: Vec<News>,
}

impl Tx<'_> {
    fn next_number(&self) -> Result<i64> {
        self.c.prepare_cached(NEXT)?.query_row([self.wall], |r| r.get(0))
    }

    /// Reads the head of a line and changes nothing.
    pub(super) fn front(&self, name: &Name) -> Result<Front<Row>> {
        let mut line = self.c.prepare_cached(LINE)?;
        let mut rows = line.query_map([name.as_str()], row)?.peekable();
        let capacity = match rows.peek() {
            Some(Ok(first)) => first.capacity,
            _ => 0,
        };
        settle(rows, capacity, self.now)
    }

    /// Brings a line up to date: ends sessions whose time has passed, grants what is admitted.
    pub(super) fn settle(&mut self, name: &Name) -> Result<Front<Row>> {
        let mut front = self.front(name)?;
        for dead in &front.dead {
            let sql = "DELETE FROM ticket WHERE name = ?1 AND seq = ?2";
            self.c.prepare_cached(sql)?.execute(params![name.as_str(), dead.seq])?;
            if let Some(session) = dead.session {
                // Not that of a waiter whose session is only expired: its held tickets have their
                // lock-delay.
                self.end(session, self.now)?;
            }
        }
        while self.withdraw_deserted(name, &front)? {
            front = self.front(name)?;
        }
        for row in front.admitted.iter_mut().filter(|r| r.fence.is_none()) {
            let fence = self.next_number()?;
            let now = micros(self.now);
            self.c.prepare_cached(GRANT)?.execute(params![name.as_str(), row.seq, fence, now])?;
            row.fence = Some(fence.cast_unsigned());
            if let Some(session) = row.session {
                let (bell, ticket) = (self.bell(session)?, row.id);
                let fence = fence.cast_unsigned();
                self.news.push(News::Granted { session, bell, ticket, fence });
            }
        }
        Ok(front)
    }

    /// Withdraws tickets that are about to be granted to processes that were killed while they waited.
    /// Says whether there were any.
    ///
    /// If the session lives on in another process, that process finds its ticket gone and enters again:
    /// it loses its place and nothing else.
    fn withdraw_deserted(&self, name: &Name, front: &Front<Row>) -> Result<bool> {
        let mut withdrawn = false;
        for row in front.admitted.iter().filter(|r| r.fence.is_none()) {
            let Some(session) = row.session else { continue };
            let bell = self.bell(session)?.filter(|bell| bell != self.tag);
            if bell.is_some_and(|bell| self.ringer.is_deserted(&bell)) {
                let sql = "DELETE FROM ticket WHERE name = ?1 AND seq = ?2 AND fence IS NULL";
                self.c.prepare_cached(sql)?.execute(params![name.as_str(), row.seq])?;
                withdrawn = true;
            }
        }
        Ok(withdrawn)
    }

    /// Settles a line that somebody has left; contenders hear of it if nobody waits.
    fn settle_freed(&mut self, name: &Name) -> Result<()> {
        if self.settle(name)?.next.is_none() {
            self.news.push(News::Freed(name.clone()));
        }
        Ok(())
    }

    fn bell(&self, session: SessionId) -> Result<Option<Tag>> {
        let sql = "SELECT bell FROM session WHERE id = ?1";
        let mut bell = self.c.prepare_cached(sql)?;
        let tag: Option<String> = bell.query_row([session.to_bytes()], |r| r.get(0)).optional()?;
        Ok(tag.as_deref().and_then(Tag::parse))
    }

    pub(super) fn enter(&mut self, ask: &Enter) -> Result<StoreResult<Entered>> {
        let Place { session, name, ticket } = &ask.place;
        let ids = params![session.to_bytes(), ticket.to_bytes()];
        let standing: Option<(i64, bool)> = {
            let mut known = self.c.prepare_cached(SESSION)?;
            known.query_row(ids, |r| Ok((r.get(0)?, r.get(1)?))).optional()?
        };
        let Some((_, closed)) = standing.filter(|(expires, _)| moment(*expires) > self.now) else {
            return Ok(Err(StoreError::session_over(KIND)));
        };
        if closed {
            let what = "the ticket was closed before this request came";
            return Ok(Err(StoreError::not_applied(KIND, ErrorKind::TicketClosed, what)));
        }
        let front = self.settle(name)?;
        let Some(first) = front.admitted.first() else { return self.insert(ask, true, 0).map(Ok) };
        match self.stand_in(&ask.place, &front)? {
            TicketStatus::Granted { fence } => return Ok(Ok(Entered::Granted { fence })),
            TicketStatus::Waiting(wait) => return Ok(Ok(Entered::Queued(wait))),
            TicketStatus::Gone => {}
        }
        let (line, capacity) = (first.capacity, ask.mode.capacity());
        if line != capacity {
            let what = format!("the line has capacity {line}, not {capacity}");
            return Ok(Err(StoreError::not_applied(KIND, ErrorKind::Capacity(line), what)));
        }
        let fits = front.fits(ask.mode.weight());
        if fits {
            return self.insert(ask, true, front.admitted.len()).map(Ok);
        }
        let ahead = self.ahead(name, i64::MAX)?;
        if ask.manner == Manner::Contend {
            return Ok(Ok(Entered::Busy(self.wait(name, ahead, &front)?)));
        }
        if ahead >= LINE_MAX {
            let what = format!("{LINE_MAX} tickets stand in the line already");
            return Ok(Err(StoreError::not_applied(KIND, ErrorKind::Full, what)));
        }
        self.insert(ask, false, ahead)?;
        Ok(Ok(Entered::Queued(self.wait(name, ahead, &front)?)))
    }

    /// Puts the ticket at the end of its line. Granted at once, its place is also its fence.
    fn insert(&mut self, ask: &Enter, granted: bool, ahead: usize) -> Result<Entered> {
        let Place { session, name, ticket } = &ask.place;
        let (number, now) = (self.next_number()?, micros(self.now));
        self.c.prepare_cached(INSERT)?.execute(params![
            name.as_str(),
            number,
            ticket.to_bytes(),
            session.to_bytes(),
            ask.mode.weight(),
            ask.mode.capacity(),
            granted.then_some(number),
            now,
            granted.then_some(now),
            ask.label,
        ])?;
        if granted {
            return Ok(Entered::Granted { fence: number.cast_unsigned() });
        }
        Ok(Entered::Queued(Wait { ahead, holder: None, recheck: Duration::ZERO }))
    }

    /// How many tickets stand before this place.
    fn ahead(&self, name: &Name, seq: i64) -> Result<usize> {
        let sql = "SELECT count(*) FROM ticket WHERE name = ?1 AND seq < ?2";
        let ahead: i64 =
            self.c.prepare_cached(sql)?.query_row(params![name.as_str(), seq], |r| r.get(0))?;
        Ok(usize::try_from(ahead).unwrap_or(0))
    }

    fn wait(&self, name: &Name, ahead: usize, front: &Front<Row>) -> Result<Wait> {
        let holder = self.holder(name)?;
        Ok(Wait { ahead, holder, recheck: front.recheck(self.now) })
    }

    fn holder(&self, name: &Name) -> Result<Option<Holder>> {
        let sql = "SELECT s.host, s.pid, s.program, t.note, t.granted FROM ticket t \
             JOIN session s ON s.id = t.session WHERE t.name = ?1 AND t.fence IS NOT NULL \
             ORDER BY t.seq LIMIT 1";
        let now = self.now;
        let holder = |r: &SqlRow<'_>| {
            let owner = Owner { host: r.get(0)?, pid: r.get(1)?, program: r.get(2)? };
            let held_for = Some(now.saturating_since(moment(r.get(4)?)));
            Ok(Holder { owner, label: r.get(3)?, held_for })
        };
        self.c.prepare_cached(sql)?.query_row([name.as_str()], holder).optional()
    }

    /// How a ticket stands in a line that was just settled, or needed no settling.
    pub(super) fn stand_in(&self, place: &Place, front: &Front<Row>) -> Result<TicketStatus> {
        let Place { session, name, ticket } = place;
        let sql = "SELECT seq, fence FROM ticket WHERE name = ?1 AND id = ?2 AND session = ?3";
        let ids = params![name.as_str(), ticket.to_bytes(), session.to_bytes()];
        let found: Option<(i64, Option<i64>)> = {
            let mut find = self.c.prepare_cached(sql)?;
            find.query_row(ids, |r| Ok((r.get(0)?, r.get(1)?))).optional()?
        };
        Ok(match found {
            None => TicketStatus::Gone,
            Some((_, Some(fence))) => TicketStatus::Granted { fence: fence.cast_unsigned() },
            Some((seq, None)) => {
                TicketStatus::Waiting(self.wait(name, self.ahead(name, seq)?, front)?)
            }
        })
    }

    /// Settles a ticket's line and says how it stands.
    pub(super) fn stand(&mut self, place: &Place) -> Result<TicketStatus> {
        let front = self.settle(&place.name)?;
        self.stand_in(place, &front)
    }

    pub(super) fn leave(&mut self, ask: &Leave) -> Result<Left> {
        let Place { session, name, ticket } = &ask.place;
        let (session, id) = (session.to_bytes(), ticket.to_bytes());
        if ask.stray {
            let until = micros(self.now + STRAY_MAX);
            let sql = "INSERT OR REPLACE INTO closed VALUES(?1, ?2, ?3)";
            self.c.prepare_cached(sql)?.execute(params![id, session, until])?;
        }
        if let Some(keep) = ask.keep {
            let until = micros(self.now + keep);
            let mut hold = self.c.prepare_cached(KEEP)?;
            if hold.execute(params![name.as_str(), id, session, until])? > 0 {
                return Ok(Left::Released);
            }
        }
        let fence: Option<Option<i64>> = {
            let mut delete = self.c.prepare_cached(LEAVE)?;
            delete.query_row(params![name.as_str(), id, session], |r| r.get(0)).optional()?
        };
        let Some(fence) = fence else { return Ok(Left::Gone) };
        self.settle_freed(name)?;
        Ok(if fence.is_some() { Left::Released } else { Left::Withdrawn })
    }

    /// One statement, however many tickets the session has. Answers with the session's version, or `None`
    /// if the session is over.
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

    /// Is there anything that nobody will come back for? A read, so that a renewal need not write
    /// twice.
    pub(super) fn has_leftovers(&self) -> Result<bool> {
        let sql = "SELECT EXISTS(SELECT 1 FROM session WHERE dead_at <= ?1) \
             OR EXISTS(SELECT 1 FROM ticket WHERE hold_until <= ?1) \
             OR EXISTS(SELECT 1 FROM closed WHERE until <= ?1)";
        self.c.prepare_cached(sql)?.query_row([micros(self.now)], |r| r.get(0))
    }

    /// Clears a few leftovers away.
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

    /// Takes tickets of an ended session out of some of its lines, and the session itself with the
    /// last of them. Says whether it is gone.
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
        self.news.extend(self.bell(session)?.map(News::Cleared));
        self.c.prepare_cached("DELETE FROM session WHERE id = ?1")?.execute([id])?;
        Ok(true)
    }

    fn names(&self, sql: &str, params: impl rusqlite::Params) -> Result<Vec<Name>> {
        let mut names = self.c.prepare_cached(sql)?;
        let names = names.query_map(params, |r| r.get::<_, String>(0))?;
        // A name that is none was written by nobody of ours; it is left alone.
        names.filter_map(|name| name.map(|n| Name::new(&n).ok()).transpose()).collect()
    }

    pub(super) fn tickets_of(
        &self,
        session: SessionId,
    ) -> Result<Vec<(Name, TicketId, Option<u64>)>> {
        let sql = "SELECT name, id, fence FROM ticket WHERE session = ?1";
        let mut tickets = self.c.prepare_cached(sql)?;
        let read = |r: &SqlRow<'_>| {
            let fence = r.get::<_, Option<i64>>(2)?.map(i64::cast_unsigned);
            Ok((r.get::<_, String>(0)?, TicketId::from_bytes(r.get(1)?), fence))
        };
        let tickets = tickets.query_map([session.to_bytes()], read)?;
        let valid = |(n, t, f): (String, TicketId, Option<u64>)| Some((Name::new(&n).ok()?, t, f));
        tickets.filter_map(|row| row.map(valid).transpose()).collect()
    }

    pub(super) fn evict(&mut self, name: &Name, ticket: TicketId) -> Result<bool> {
        self.settle(name)?;
        let sql = "DELETE FROM ticket WHERE name = ?1 AND id = ?2 RETURNING session";
        let evicted: Option<Option<[u8; 16]>> = {
            let mut delete = self.c.prepare_cached(sql)?;
            delete.query_row(params![name.as_str(), ticket.to_bytes()], |r| r.get(0)).optional()?
        };
        let Some(session) = evicted else { return Ok(false) };
        if let Some(session) = session {
            let sql = "UPDATE session SET evictions = evictions + 1 WHERE id = ?1";
            self.c.prepare_cached(sql)?.execute([session])?;
            let session = SessionId::from_bytes(session);
            self.news.push(News::Ended { session, ticket });
        }
        self.settle_freed(name)?;
        Ok(true)
    }

    pub(super) fn annotate(&self, edit: &Edit) -> Result<Edited> {
        let Some(held) = self.held(&edit.place)? else { return Ok(Edited::NotHeld) };
        if edit.edit > held.note_edit {
            let sql = "UPDATE ticket SET note = ?3, note_edit = ?4 WHERE name = ?1 AND seq = ?2";
            let bytes = edit.bytes.as_deref().unwrap_or_default();
            let (name, number) = (edit.place.name.as_str(), edit.edit.cast_signed());
            self.c.prepare_cached(sql)?.execute(params![name, held.seq, bytes, number])?;
        }
        Ok(Edited::Done)
    }

    pub(super) fn write(&self, edit: &Edit) -> Result<Edited> {
        let held = self.held(&edit.place)?;
        let Some(held) = held.filter(|h| h.exclusive) else { return Ok(Edited::NotHeld) };
        if edit.edit <= held.cell_edit {
            return Ok(Edited::Done);
        }
        let name = edit.place.name.as_str();
        match &edit.bytes {
            Some(bytes) => {
                let sql = "INSERT OR REPLACE INTO cell VALUES(?1, ?2, ?3)";
                self.c.prepare_cached(sql)?.execute(params![name, bytes, held.fence])?;
            }
            None => {
                self.c.prepare_cached("DELETE FROM cell WHERE name = ?1")?.execute([name])?;
            }
        }
        let sql = "UPDATE ticket SET cell_edit = ?3 WHERE name = ?1 AND seq = ?2";
        let number = edit.edit.cast_signed();
        self.c.prepare_cached(sql)?.execute(params![name, held.seq, number])?;
        Ok(Edited::Done)
    }

    /// The ticket, if its session holds it now.
    fn held(&self, place: &Place) -> Result<Option<Held>> {
        let sql = "SELECT t.seq, t.fence, t.weight = t.capacity, t.note_edit, t.cell_edit \
             FROM ticket t JOIN session s ON s.id = t.session \
             WHERE t.name = ?1 AND t.id = ?2 AND t.session = ?3 AND t.fence IS NOT NULL \
             AND s.dead_at > ?4";
        let held = |r: &SqlRow<'_>| {
            Ok(Held {
                seq: r.get(0)?,
                fence: r.get(1)?,
                exclusive: r.get(2)?,
                note_edit: r.get::<_, i64>(3)?.cast_unsigned(),
                cell_edit: r.get::<_, i64>(4)?.cast_unsigned(),
            })
        };
        let Place { session, name, ticket } = place;
        let (session, ticket, now) = (session.to_bytes(), ticket.to_bytes(), micros(self.now));
        let params = params![name.as_str(), ticket, session, now];
        self.c.prepare_cached(sql)?.query_row(params, held).optional()
    }
}

struct Held {
    seq: i64,
    fence: i64,
    exclusive: bool,
    note_edit: u64,
    cell_edit: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_renewal_reads_its_tickets_from_an_index_alone() {
        let c = Connection::open_in_memory().unwrap();
        c.execute_batch(include_str!("schema.sql")).unwrap();
        let plan = format!("EXPLAIN QUERY PLAN {IDS}");
        let plan: String = c.query_row(&plan, [[0; 16]], |r| r.get("detail")).unwrap();
        assert!(plan.contains("COVERING INDEX ticket_session"), "{plan}");
    }
}
