//! Entering a line.
//!
//! One statement in most cases: `enter_first.sql` takes a free lock of a session that the server has just said to
//! live, `enter.sql` does the same and calls `lk_enter` where the line is not free. Behind a pooler, and where a
//! newer layout has been made meanwhile, `lk_enter` alone decides.

use super::{
    Shared,
    connection::Values,
    error,
    reply::{Answer, get, nonsense},
    statements::Call,
};
use crate::{
    error::{ErrorKind, Outcome, StoreError},
    model::ticket::Place,
    store::{Enter, Entered, Manner, StoreResult, common::repeat::Repeat},
};
use std::sync::Arc;
use tokio_postgres::Row;

impl Shared {
    pub(super) async fn enter(self: &Arc<Self>, ask: Enter) -> StoreResult<Entered> {
        self.tickets.entering(&ask.place);
        let entered = self.try_enter(&ask).await;
        let entered = self.duplicates.report(super::KIND, ask.place.ticket, entered);
        let nothing_left = match &entered {
            Ok(entered) => matches!(entered, Entered::Busy(_)),
            Err(e) => e.outcome == Outcome::NotApplied,
        };
        if nothing_left {
            self.tickets.forget(&ask.place);
        } else {
            self.warm_in_background();
        }
        entered
    }

    async fn try_enter(&self, ask: &Enter) -> StoreResult<Entered> {
        let contends = ask.manner == Manner::Contend;
        let name = &ask.place.name;
        if contends && let Some(wait) = self.blocked.busy(name, self.clock.now()) {
            return Ok(Entered::Busy(wait));
        }
        let rows = match self.send_in_time(ask).await {
            // Nothing was left, unless an earlier copy is still under way, which `duplicates` remembers.
            Err(e) if error::is_blocked(&e) => {
                let wait = self.blocked.record(name, !contends, self.clock.now());
                return Ok(Entered::Busy(wait));
            }
            rows => rows?,
        };
        self.blocked.forget(name);
        let Some(row) = rows.first() else {
            return Err(Box::pin(self.take_back(&ask.place)).await);
        };
        if let Some(fence) = get::<Option<i64>>(row, "o_fence")? {
            self.tickets.set_first(&ask.place);
            return Ok(Entered::Granted { fence: fence.cast_unsigned() });
        }
        let answer: Answer<'_> = get(row, "o_else")?;
        if answer.first {
            self.tickets.set_first(&ask.place);
        }
        self.tell_granted(&answer.granted).await;
        Ok(match answer.what {
            "granted" => Entered::Granted { fence: answer.fence()? },
            "queued" => Entered::Queued(answer.wait()),
            "busy" => Entered::Busy(answer.wait()),
            other => return Err(nonsense(other)),
        })
    }

    /// Sends the enter, and once more with the server's new time if its clock was set.
    async fn send_in_time(&self, ask: &Enter) -> StoreResult<Vec<Row>> {
        let answer = match self.send_enter(ask).await {
            Err(e) if let Some(now) = error::too_late(&e) => {
                self.server_clock.set(now);
                let again = Box::pin(self.send_enter(ask)).await;
                again.map_err(|again| match e.outcome {
                    Outcome::NotApplied => again,
                    outcome => StoreError { outcome, ..again },
                })
            }
            answer => answer,
        };
        answer.map_err(|e| match error::too_late(&e) {
            Some(_) => StoreError { kind: ErrorKind::Unavailable, ..e },
            None => e,
        })
    }

    async fn send_enter(&self, ask: &Enter) -> StoreResult<Vec<Row>> {
        let Place { session, name, .. } = &ask.place;
        let (sent, breaks) = (self.clock.now(), self.breaks());
        let until = self.server_clock.request_deadline();
        let send = |call| self.send_enter_by(call, ask, until, Repeat::UnlessBlocked);
        if ask.manner == Manner::Queue && self.blocked.is_blocked(name, sent) {
            return send(&self.statements.enter_briefly).await;
        }
        if self.pooled || self.is_outdated() {
            return send(&self.statements.enter_by_function).await;
        }
        if !self.fast.is_contended(name)
            && let Some(expires) = self.fast.known_expiry(*session, sent, breaks)
        {
            let (call, until) = (&self.statements.enter_first, expires.min(until));
            match self.send_enter_by(call, ask, until, Repeat::Never).await {
                Ok(rows) if !rows.is_empty() => {
                    if self.breaks() == breaks {
                        return Ok(rows);
                    }
                    // The ticket was granted, but perhaps by a server that does not know of the session's end.
                    self.duplicates.record(&ask.place);
                }
                Err(e) if error::is_blocked(&e) || !e.is_transient() => return Err(e),
                // The whole statement finds out what has become of the ticket.
                _ => {}
            }
        }
        let rows = send(&self.statements.enter).await?;
        if let Some(row) = rows.first() {
            self.fast.record_expiry(*session, get(row, "o_life")?, sent, breaks);
            // A new line counts as contended: a program that takes ever new names must not ask twice for each.
            self.fast.set_contended(name, get::<Option<i64>>(row, "o_fence")?.is_none());
        }
        Ok(rows)
    }

    async fn send_enter_by(
        &self,
        call: &Call,
        ask: &Enter,
        until: i64,
        repeat: Repeat,
    ) -> StoreResult<Vec<Row>> {
        let Place { session, name, ticket } = &ask.place;
        let (ticket, session) = (ticket.to_bytes(), session.to_bytes());
        let (weight, capacity) =
            (ask.mode.weight().cast_signed(), ask.mode.capacity().cast_signed());
        let queue = ask.manner == Manner::Queue;
        let values: Values<'_> = &[
            &name.as_str(),
            &&ticket[..],
            &&session[..],
            &weight,
            &capacity,
            &queue,
            &ask.label,
            &until,
        ];
        let (answer, duplicate) = self.requests.call_counting(call, values, repeat).await;
        if duplicate {
            self.duplicates.record(&ask.place);
        }
        answer
    }

    /// The session is over, and its ticket may have been granted all the same: takes it back.
    async fn take_back(&self, place: &Place) -> StoreError {
        let (ticket, session) = (place.ticket.to_bytes(), place.session.to_bytes());
        let values: Values<'_> = &[&place.name.as_str(), &&ticket[..], &&session[..]];
        // If that fails, a ticket of a dead session stays behind, which the next ticket takes away.
        if let Ok(rows) = self.requests.once(&self.statements.leave_first, values).await
            && let Some(row) = rows.first()
        {
            let _ = self.after_leave(&place.name, row).await;
        }
        StoreError::session_over(super::KIND)
    }
}
