//! Leaving a line, by the ticket's owner or by an eviction: by one plain statement if the lock has no waiters, by
//! the procedure `lk_leave` otherwise.

use super::{
    Shared,
    connection::{bytes, params},
    reply::{self, micros, nonsense, one, what},
};
use crate::{
    model::{
        name::Name,
        ticket::{Place, TicketId},
    },
    store::{Leave, Left, STRAY_MAX, StoreResult, common::repeat::Repeat},
};

impl Shared {
    pub(super) async fn leave(&self, ask: Leave) -> StoreResult<Left> {
        self.watch.remove(ask.place.ticket);
        let ask = Leave { stray: ask.stray || self.duplicates.may_come(ask.place.ticket), ..ask };
        if self.leave_first(&ask).await? {
            return Ok(Left::Released);
        }
        Box::pin(self.leave_line(ask)).await
    }

    /// Releases a lock without waiters by one plain statement. Says whether it did.
    async fn leave_first(&self, ask: &Leave) -> StoreResult<bool> {
        let plain = ask.keep.is_none() && !ask.stray && !self.is_outdated();
        if !plain || self.fast.is_contended(&ask.place.name) {
            return Ok(false);
        }
        let sql = &self.statements.leave_first;
        Ok(self.connections.update(sql, params(&ask.place, [])).await?.changed)
    }

    /// Leaves by the procedure.
    pub(super) async fn leave_line(&self, ask: Leave) -> StoreResult<Left> {
        let Place { name, ticket, .. } = &ask.place;
        let stray = if ask.stray { micros(STRAY_MAX) } else { 0 };
        let more = [micros(ask.keep.unwrap_or_default()).into(), stray.into()];
        let params = params(&ask.place, more);
        let call = &self.statements.leave;
        let (rows, _) = self.connections.call_line(call, params, true, Repeat::IfNotApplied).await;
        let row = one(rows?)?;
        if reply::fence(&row)? > 0 {
            self.fast.set_contended(name, true);
            self.watch.handed_over();
        }
        let what = what(&row)?;
        if ask.stray && what != "pinned" {
            self.duplicates.clear(*ticket);
        }
        match what.as_str() {
            "released" => Ok(Left::Released),
            "withdrawn" => Ok(Left::Withdrawn),
            "gone" => Ok(Left::Gone),
            "pinned" => Err(reply::pinned()),
            other => Err(nonsense(other)),
        }
    }

    pub(super) async fn evict(&self, name: Name, ticket: TicketId) -> StoreResult<bool> {
        let params = vec![bytes(name.as_str()), bytes(ticket.to_bytes())];
        let call = &self.statements.evict;
        let sent = self.connections.call_line(call, params, true, Repeat::Always);
        let (rows, duplicate) = sent.await;
        match what(&one(rows?)?)?.as_str() {
            "evicted" => Ok(true),
            // If a copy got no answer, that copy may have evicted the ticket.
            "gone" => Ok(duplicate),
            "pinned" => Err(reply::pinned()),
            other => Err(nonsense(other)),
        }
    }
}
