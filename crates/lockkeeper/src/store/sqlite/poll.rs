//! The status of tickets.

use super::{
    KIND, Kind, Sqlite,
    line::{Row, Tx},
};
use crate::{
    error::StoreError,
    model::{
        line::{Front, LineRow as _},
        name::Name,
        ticket::{Place, SessionId, TicketId},
    },
    store::{PollScope, StoreResult, TicketStatus},
};
use rusqlite::{OptionalExtension, Result, Row as SqlRow, params};

impl Sqlite {
    pub(super) async fn poll_session(
        &self,
        session: SessionId,
        which: PollScope,
    ) -> StoreResult<Vec<(Name, TicketId, TicketStatus)>> {
        let mut held = Vec::new();
        let tickets = match which {
            PollScope::These(tickets) => tickets,
            PollScope::All => {
                let mut waiting = Vec::new();
                for (name, ticket, fence) in
                    self.run(Kind::Read, |tx| tx.tickets_of(session)).await?
                {
                    match fence {
                        Some(fence) => held.push((name, ticket, TicketStatus::Granted { fence })),
                        None => waiting.push((name, ticket)),
                    }
                }
                waiting
            }
        };
        let place = |(name, ticket)| Place { session, name, ticket };
        let places: Vec<Place> = tickets.into_iter().map(place).collect();
        let read = |tx: &mut Tx<'_>| places.iter().map(|p| peek(tx, p)).collect();
        let peeks: Vec<Option<TicketStatus>> = self.run(Kind::Read, read).await?;
        let mut statuses = held;
        for (place, peek) in places.iter().zip(peeks) {
            let status = match peek {
                Some(status) => status,
                None => self.run(Kind::Write, |tx| tx.status(place)).await?,
            };
            statuses.push((place.name.clone(), place.ticket, status));
        }
        let is_granted = |status: &TicketStatus| matches!(status, TicketStatus::Granted { .. });
        if statuses.iter().any(|(_, _, status)| is_granted(status)) && self.is_cut_off_cached() {
            return Err(StoreError::session_over(KIND));
        }
        Ok(statuses)
    }
}

/// Polls without writing; `None` if a change has come due that must be written.
fn peek(tx: &Tx<'_>, place: &Place) -> Result<Option<TicketStatus>> {
    let front = tx.front(&place.name)?;
    if !front.dead.is_empty() || front.admitted.iter().any(|row| !row.granted()) {
        return Ok(None);
    }
    tx.status_in(place, &front).map(Some)
}

impl Tx<'_> {
    /// The status of a ticket in a line that was just settled, or needed no settling.
    pub(super) fn status_in(&self, place: &Place, front: &Front<Row>) -> Result<TicketStatus> {
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

    /// Settles the line first.
    pub(super) fn status(&mut self, place: &Place) -> Result<TicketStatus> {
        let front = self.settle(&place.name)?;
        self.status_in(place, &front)
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
}
