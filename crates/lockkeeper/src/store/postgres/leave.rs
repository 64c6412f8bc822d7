//! Leaving a line, by the ticket's owner or by an eviction.
//!
//! A ticket that was granted in a free line stands in the line's own row: one plain update releases it, and hands the
//! lock on if another ticket waits. All others, and what a plain update refuses, are left by `lk_leave`.

use super::{
    Shared, error,
    reply::{Departure, get, micros, one},
};
use crate::{
    model::{
        name::Name,
        ticket::{Place, TicketId},
    },
    store::{Leave, Left, STRAY_MAX, StoreResult, common::repeat::Repeat},
};
use tokio_postgres::{Row, types::ToSql};

impl Shared {
    pub(super) async fn leave(&self, ask: Leave) -> StoreResult<Left> {
        let Place { session, name, ticket } = &ask.place;
        let is_stray = ask.stray || self.duplicates.may_come(*ticket);
        let (ticket_id, session_id) = (ticket.to_bytes(), session.to_bytes());
        let keep = micros(ask.keep.unwrap_or_default());
        let stray = if is_stray { micros(STRAY_MAX) } else { 0 };
        let values: [&(dyn ToSql + Sync); 5] =
            [&name.as_str(), &&ticket_id[..], &&session_id[..], &keep, &stray];
        let Self { requests, statements, .. } = self;
        let plain = !self.pooled && !self.is_outdated() && self.tickets.is_first(&ask.place);
        let mut rows = Vec::new();
        if plain && keep == 0 && !is_stray {
            let call = &statements.leave_first;
            rows = match requests.call(call, &values[..3], Repeat::IfNotApplied).await {
                // An older schema was restored while we were connected.
                Err(e) if error::is_missing(&e) => Vec::new(),
                rows => rows?,
            };
        }
        // The ticket may be gone, or kept by a transaction that has checked its fence.
        if rows.is_empty() {
            let call = requests.call(&statements.leave, &values, Repeat::IfNotApplied);
            rows = Box::pin(call).await?;
        }
        self.tickets.forget(&ask.place);
        self.duplicates.clear(*ticket);
        self.after_leave(name, one(&rows)?).await
    }

    /// A ticket has left: tells the tickets that were granted, or that the line is free.
    pub(super) async fn after_leave(&self, name: &Name, row: &Row) -> StoreResult<Left> {
        let Some(departure) = get::<Option<Departure<'_>>>(row, "o_else")? else {
            self.tell_freed(name);
            return Ok(Left::Released);
        };
        self.tell_granted(&departure.granted).await;
        if departure.freed {
            self.tell_freed(name);
        }
        Ok(match departure.what {
            "released" => Left::Released,
            "withdrawn" => Left::Withdrawn,
            _ => Left::Gone,
        })
    }

    pub(super) async fn evict(&self, name: Name, ticket: TicketId) -> StoreResult<bool> {
        let (id, name_text) = (ticket.to_bytes(), name.as_str());
        let values: [&(dyn ToSql + Sync); 2] = [&name_text, &&id[..]];
        let call = self.requests.call(&self.statements.evict, &values, Repeat::IfNotApplied);
        let rows = call.await?;
        let row = one(&rows)?;
        if let Some(channel) = get::<Option<&str>>(row, "o_channel")? {
            self.tell_ended(channel, ticket).await;
        }
        self.tell_granted(&super::notify::grants(row)?).await;
        if get::<bool>(row, "o_freed")? {
            self.tell_freed(&name);
        }
        get(row, "o_found")
    }
}
