//! Entering a line.

use super::{
    KIND,
    line::{Tx, micros, moment},
};
use crate::{
    error::{ErrorKind, StoreError},
    model::{line::LINE_MAX, ticket::Place},
    store::{Enter, Entered, Manner, StoreResult, TicketStatus, Wait},
};
use rusqlite::{OptionalExtension, Result, params};
use std::time::Duration;

const SESSION: &str = "SELECT expires, EXISTS(SELECT 1 FROM closed WHERE ticket = ?2 AND session = ?1) \
     FROM session WHERE id = ?1";
const INSERT: &str = "INSERT INTO ticket(name, seq, id, session, weight, capacity, fence, \
     entered, granted, note) VALUES(?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)";

impl Tx<'_> {
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
        match self.status_in(&ask.place, &front)? {
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

    /// Puts the ticket at the end of its line. If it is granted at once, its place is also its fence.
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
}
