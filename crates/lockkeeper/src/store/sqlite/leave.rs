//! Leaving a line, and ending other processes' tickets.

use super::{
    line::{Tx, micros},
    notify::News,
};
use crate::{
    model::{
        name::Name,
        ticket::{Place, SessionId, TicketId},
    },
    store::{Leave, Left, STRAY_MAX},
};
use rusqlite::{OptionalExtension, Result, params};

const LEAVE: &str =
    "DELETE FROM ticket WHERE name = ?1 AND id = ?2 AND session = ?3 RETURNING fence";
const KEEP: &str = "UPDATE ticket SET session = NULL, hold_until = ?4 \
     WHERE name = ?1 AND id = ?2 AND session = ?3 AND fence IS NOT NULL";

impl Tx<'_> {
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
}
