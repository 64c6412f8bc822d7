//! Entering a line: by one plain statement if the lock is free, by the procedure `lk_enter` otherwise.

use super::{
    KIND, Shared,
    connection::{bytes, params},
    error,
    reply::{self, EnterAnswer, one},
};
use crate::{
    error::{ErrorKind, Outcome, StoreError},
    model::{line::LINE_MAX, ticket::Place},
    store::{Enter, Entered, Leave, Manner, StoreResult, common::repeat::Repeat},
};

impl Shared {
    pub(super) async fn enter(&self, ask: Enter) -> StoreResult<Entered> {
        match self.enter_first(&ask).await {
            Ok(Some(fence)) => return Ok(Entered::Granted { fence }),
            Ok(None) => {}
            // The procedure finds out what has become of the ticket.
            Err(e) if e.is_transient() && e.outcome == Outcome::Unknown => {
                self.duplicates.record(&ask.place);
            }
            Err(e) if e.is_transient() => {}
            Err(e) => return Err(e),
        }
        let entered = Box::pin(self.enter_line(&ask)).await;
        match &entered {
            Ok(Entered::Queued(_)) => self.watch.add(ask.place.session, ask.place.ticket),
            // A copy that got no answer may come when the lock is free, so the ticket is closed; the core tries
            // again with another one. If closing fails, the core is told of the copy.
            Ok(Entered::Busy(_)) if self.duplicates.may_come(ask.place.ticket) => {
                let leave = Leave { place: ask.place.clone(), keep: None, stray: true };
                if Box::pin(self.leave_line(leave)).await.is_ok() {
                    return entered;
                }
            }
            _ => {}
        }
        self.duplicates.report(KIND, ask.place.ticket, entered)
    }

    /// Takes a free lock by one plain statement. `None`: the procedure must decide.
    async fn enter_first(&self, ask: &Enter) -> StoreResult<Option<u64>> {
        let Place { session, name, ticket } = &ask.place;
        if self.fast.is_contended(name) || self.is_outdated() {
            return Ok(None);
        }
        let breaks = self.connections.breaks();
        let Some(expires) = self.fast.known_expiry(*session, self.clock.now(), breaks) else {
            return Ok(None);
        };
        let params = vec![
            bytes(ticket.to_bytes()),
            bytes(session.to_bytes()),
            ask.mode.weight().into(),
            ask.mode.capacity().into(),
            bytes(&ask.label),
            bytes(name.as_str()),
            expires.min(self.server_clock.request_deadline()).into(),
        ];
        let updated = self.connections.update(&self.statements.enter_first, params).await?;
        if updated.number.is_some() && self.connections.breaks() != breaks {
            // The ticket was granted, but perhaps by a server that does not know of the session's end.
            self.duplicates.record(&ask.place);
            return Ok(None);
        }
        Ok(updated.number)
    }

    /// Enters by the procedure, and once more with the server's new time if its clock was set or ours stood
    /// still.
    async fn enter_line(&self, ask: &Enter) -> StoreResult<Entered> {
        for _ in 0..2 {
            match self.send_enter(ask).await? {
                EnterAnswer::Entered(entered) => return Ok(entered),
                EnterAnswer::TooLate(now) => self.server_clock.set(now),
            }
        }
        let what = "the server's clock does not stand still";
        Err(StoreError::not_applied(KIND, ErrorKind::Unavailable, what))
    }

    async fn send_enter(&self, ask: &Enter) -> StoreResult<EnterAnswer> {
        let Place { session, name, .. } = &ask.place;
        let (sent, breaks) = (self.clock.now(), self.connections.breaks());
        let queue = ask.manner == Manner::Queue;
        let more = [
            ask.mode.weight().into(),
            ask.mode.capacity().into(),
            u8::from(queue).into(),
            self.server_clock.request_deadline().into(),
            LINE_MAX.into(),
            bytes(&ask.label),
        ];
        let params = params(&ask.place, more);
        let call = &self.statements.enter;
        let answer = self.connections.call_line(call, params, queue, Repeat::UnlessBlocked);
        let (rows, duplicate) = answer.await;
        let rows = match rows {
            Err(e) if error::is_blocked(&e) => {
                if duplicate {
                    self.duplicates.record(&ask.place);
                }
                return Ok(EnterAnswer::Entered(Entered::Busy(reply::blocked())));
            }
            rows => rows?,
        };
        let answer = reply::entered(&one(rows)?);
        if duplicate {
            self.duplicates.record(&ask.place);
        }
        if let Ok(EnterAnswer::Entered(entered)) = &answer {
            self.fast.confirm(*session, sent, breaks);
            self.fast.set_contended(name, !matches!(entered, Entered::Granted { .. }));
        }
        answer
    }
}
