//! A line as rows: reading it, and bringing it up to date inside a transaction.

use super::{
    doorbell::{Doorbells, Tag},
    notify::News,
};
use crate::{
    clock::Moment,
    model::{
        line::{Front, LineRow, settle},
        name::Name,
        ticket::{Owner, SessionId, TicketId},
    },
    store::{Holder, Wait},
};
use rusqlite::{Connection, OptionalExtension, Result, Row as SqlRow, params};
use std::time::Duration;

const LINE: &str = "SELECT t.seq, t.id, t.session, t.weight, t.capacity, t.fence, \
     coalesce(t.hold_until, iif(t.fence IS NULL, s.expires, s.dead_at), 0) \
     FROM ticket t LEFT JOIN session s ON s.id = t.session WHERE t.name = ?1 ORDER BY t.seq";
const NEXT: &str = "UPDATE meta SET last = max(last + 1, ?1) WHERE id = 1 RETURNING last";
const GRANT: &str = "UPDATE ticket SET fence = ?3, granted = ?4 WHERE name = ?1 AND seq = ?2";

/// A ticket's row, as far as settling needs it.
pub(super) struct Row {
    seq: i64,
    id: TicketId,
    session: Option<SessionId>,
    weight: u32,
    pub(super) capacity: u32,
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
    /// The wall clock in microseconds: no number is lower.
    pub(super) wall: i64,
    pub(super) doorbells: &'c Doorbells,
    /// Of this process's doorbell.
    pub(super) tag: &'c Tag,
    pub(super) news: Vec<News>,
}

impl Tx<'_> {
    pub(super) fn next_number(&self) -> Result<i64> {
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
                // Ends nothing if the session is only expired and not dead: a waiter has no lock-delay,
                // but the session's held tickets have.
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
                let (doorbell, ticket) = (self.doorbell(session)?, row.id);
                let fence = fence.cast_unsigned();
                self.news.push(News::Granted { session, doorbell, ticket, fence });
            }
        }
        Ok(front)
    }

    /// Withdraws tickets that are about to be granted to processes that were killed while they waited. Says
    /// whether there were any.
    ///
    /// If another process has taken the session over, it finds its ticket gone and enters again: it loses its
    /// place and nothing else.
    fn withdraw_deserted(&self, name: &Name, front: &Front<Row>) -> Result<bool> {
        let mut withdrawn = false;
        for row in front.admitted.iter().filter(|r| r.fence.is_none()) {
            let Some(session) = row.session else { continue };
            let doorbell = self.doorbell(session)?.filter(|tag| tag != self.tag);
            if doorbell.is_some_and(|tag| self.doorbells.is_deserted(&tag)) {
                let sql = "DELETE FROM ticket WHERE name = ?1 AND seq = ?2 AND fence IS NULL";
                self.c.prepare_cached(sql)?.execute(params![name.as_str(), row.seq])?;
                withdrawn = true;
            }
        }
        Ok(withdrawn)
    }

    /// Settles a line that a ticket has left. Contenders are told if no ticket waits.
    pub(super) fn settle_freed(&mut self, name: &Name) -> Result<()> {
        if self.settle(name)?.next.is_none() {
            self.news.push(News::Freed(name.clone()));
        }
        Ok(())
    }

    /// The tag of the doorbell of the process that opened a session.
    pub(super) fn doorbell(&self, session: SessionId) -> Result<Option<Tag>> {
        let sql = "SELECT bell FROM session WHERE id = ?1";
        let mut tag = self.c.prepare_cached(sql)?;
        let tag: Option<String> = tag.query_row([session.to_bytes()], |r| r.get(0)).optional()?;
        Ok(tag.as_deref().and_then(Tag::parse))
    }

    /// How many tickets are before this place.
    pub(super) fn ahead(&self, name: &Name, seq: i64) -> Result<usize> {
        let sql = "SELECT count(*) FROM ticket WHERE name = ?1 AND seq < ?2";
        let ahead: i64 =
            self.c.prepare_cached(sql)?.query_row(params![name.as_str(), seq], |r| r.get(0))?;
        Ok(usize::try_from(ahead).unwrap_or(0))
    }

    pub(super) fn wait(&self, name: &Name, ahead: usize, front: &Front<Row>) -> Result<Wait> {
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

    pub(super) fn names(&self, sql: &str, params: impl rusqlite::Params) -> Result<Vec<Name>> {
        let mut names = self.c.prepare_cached(sql)?;
        let names = names.query_map(params, |r| r.get::<_, String>(0))?;
        // Another program may have written what is no name; it is left alone.
        names.filter_map(|name| name.map(|n| Name::new(&n).ok()).transpose()).collect()
    }
}
