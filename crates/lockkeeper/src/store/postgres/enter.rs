//! Entering a line.

use super::{
    Shared,
    connection::{self, Repeat, Values},
    reply::{Answer, get, nonsense},
    statements::Call,
};
use crate::{
    error::{ErrorKind, Outcome, StoreError},
    model::ticket::Place,
    store::{Enter, Entered, Manner, StoreResult},
};
use tokio_postgres::Row;

impl Shared {
    pub(super) async fn try_enter(&self, ask: &Enter) -> StoreResult<Entered> {
        let contends = ask.manner == Manner::Contend;
        let name = &ask.place.name;
        if contends && let Some(wait) = self.blocked.known(name, self.clock.now()) {
            return Ok(Entered::Busy(wait));
        }
        let answer = match self.send_enter(ask).await {
            // The server's clock may have jumped since we last heard of it.
            Err(e) if let Some(now) = too_late(&e) => {
                self.set_clock(now);
                let again = Box::pin(self.send_enter(ask)).await;
                again.map_err(|again| match e.outcome {
                    Outcome::NotApplied => again,
                    outcome => StoreError { outcome, ..again },
                })
            }
            answer => answer,
        };
        let rows = match answer {
            Ok(rows) => rows,
            Err(e) if too_late(&e).is_some() => {
                return Err(StoreError { kind: ErrorKind::Unavailable, ..e });
            }
            // Nothing was left, unless an earlier copy is still under way, of which `doubts` knows.
            Err(e) if connection::is_blocked(&e) => {
                let wait = self.blocked.note(name, !contends, self.clock.now());
                return Ok(Entered::Busy(wait));
            }
            Err(e) => return Err(e),
        };
        self.blocked.forget(name);
        let Some(row) = rows.first() else {
            return Err(Box::pin(self.take_back(&ask.place)).await);
        };
        if let Some(fence) = get::<Option<i64>>(row, "o_fence")? {
            self.tickets.note_first(&ask.place);
            return Ok(Entered::Granted { fence: fence.cast_unsigned() });
        }
        let answer: Answer<'_> = get(row, "o_else")?;
        if answer.first {
            self.tickets.note_first(&ask.place);
        }
        self.tell(&answer.news).await;
        Ok(match answer.what {
            "granted" => Entered::Granted { fence: answer.fence()? },
            "queued" => Entered::Queued(answer.wait()),
            "busy" => Entered::Busy(answer.wait()),
            other => return Err(nonsense(other)),
        })
    }

    async fn send_enter(&self, ask: &Enter) -> StoreResult<Vec<Row>> {
        let Place { session, name, .. } = &ask.place;
        let (sent, breaks, until) = (self.clock.now(), self.breaks(), self.deadline());
        let send = |call| self.send_enter_by(call, ask, until, Repeat::Unblocked);
        if ask.manner == Manner::Queue && self.blocked.hurries(name, sent) {
            return send(&self.calls.enter_hurrying).await;
        }
        if self.pooled || self.is_outdated() {
            return send(&self.calls.enter_pooled).await;
        }
        if !self.fast.is_crowded(name)
            && let Some(life) = self.fast.known_life(*session, sent, breaks)
        {
            let (call, until) = (&self.calls.enter_first, life.min(until));
            match self.send_enter_by(call, ask, until, Repeat::Never).await {
                Ok(rows) if !rows.is_empty() => {
                    if self.breaks() == breaks {
                        return Ok(rows);
                    }
                    // It stands in a line, and perhaps by the word of another server.
                    self.doubts.note(&ask.place);
                }
                Err(e) if connection::is_blocked(&e) || !e.is_transient() => return Err(e),
                // The whole statement finds out what has become of it.
                _ => {}
            }
        }
        let rows = send(&self.calls.enter).await?;
        if let Some(row) = rows.first() {
            self.fast.lives(*session, get(row, "o_life")?, sent, breaks);
            // A line that is new counts as crowded: who takes ever new names must not ask twice for each.
            self.fast.set_crowded(name, get::<Option<i64>>(row, "o_fence")?.is_none());
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
        let (answer, doubted) = self.requests.call_doubting(call, values, repeat).await;
        if doubted {
            self.doubts.note(&ask.place);
        }
        answer
    }
}

/// The server's clock, in a refusal of what came too late.
fn too_late(e: &StoreError) -> Option<i64> {
    let source = e.source.as_ref()?.downcast_ref::<tokio_postgres::Error>()?.as_db_error()?;
    (source.code().code() == "LK105").then(|| source.detail()?.parse().ok())?
}
