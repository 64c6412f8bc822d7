//! Entering a line: by one plain statement if it is empty, by a procedure otherwise.

use super::KIND;
use super::{
    Enter, Entered, Manner, Mysql, PATIENCE, bytes,
    connection::Text,
    error, micros,
    reply::{self, Answer, one},
};
use crate::{
    error::{ErrorKind, Outcome, StoreError},
    model::{line::LINE_MAX, ticket::Place},
    store::StoreResult,
};
use std::sync::atomic::Ordering;

impl Mysql {
    /// Enters an empty line by one plain statement. `None` if the whole procedure is needed.
    pub(super) async fn enter_first(&self, ask: &Enter) -> StoreResult<Option<u64>> {
        let Place { session, name, ticket } = &ask.place;
        if self.fast.is_crowded(name) || self.outdated.load(Ordering::Acquire) {
            return Ok(None);
        }
        let breaks = self.link.breaks();
        let Some(life) = self.fast.known_life(*session, self.clock.now(), breaks) else {
            return Ok(None);
        };
        let deadline = self.server_micros().saturating_add(micros(PATIENCE));
        let params = vec![
            bytes(ticket.to_bytes()),
            bytes(session.to_bytes()),
            ask.mode.weight().into(),
            ask.mode.capacity().into(),
            bytes(&ask.label),
            bytes(name.as_str()),
            life.min(deadline).into(),
        ];
        let wrote = self.link.write(self.link.lines(), &self.sql.enter_first, params).await?;
        if wrote.number.is_some() && self.link.breaks() != breaks {
            // It stands in a line, and perhaps by the word of another server.
            self.doubts.note(&ask.place);
            return Ok(None);
        }
        Ok(wrote.number)
    }

    /// Enters a line by the whole procedure.
    pub(super) async fn enter_line(&self, ask: &Enter) -> StoreResult<Entered> {
        let mut answer = self.try_enter(ask).await?;
        if let Answer::Late(now) = answer {
            // The server's clock was set, or ours stood still: once more, with the clock it has now.
            self.set_clock(now);
            answer = self.try_enter(ask).await?;
        }
        match answer {
            Answer::Entered(entered) => Ok(entered),
            Answer::Late(now) => {
                self.set_clock(now);
                let what = "the server's clock does not stand still";
                Err(StoreError::not_applied(KIND, ErrorKind::Unavailable, what))
            }
        }
    }

    async fn try_enter(&self, ask: &Enter) -> StoreResult<Answer> {
        let Place { session, name, ticket } = &ask.place;
        let (sent, breaks) = (self.clock.now(), self.link.breaks());
        let deadline = self.server_micros().saturating_add(micros(PATIENCE));
        let params = vec![
            bytes(name.as_str()),
            bytes(ticket.to_bytes()),
            bytes(session.to_bytes()),
            ask.mode.weight().into(),
            ask.mode.capacity().into(),
            u8::from(ask.manner == Manner::Queue).into(),
            deadline.into(),
            LINE_MAX.into(),
            bytes(&ask.label),
        ];
        let sql = match ask.manner {
            Manner::Queue => Text::from(&self.sql.enter),
            // A request that only tries waits for no row.
            Manner::Contend => Text::at_once(&self.sql.enter),
        };
        let reply = match self.link.insist_briefly(self.link.lines(), sql, params).await {
            Err(e) if error::is_blocked(&e) => {
                if e.outcome == Outcome::Unknown {
                    self.doubts.note(&ask.place);
                }
                return Ok(Answer::Entered(Entered::Busy(reply::blocked())));
            }
            reply => reply?,
        };
        let answer = reply::entered(&one(reply.rows)?);
        if reply.doubled {
            self.doubts.note(&ask.place);
        }
        if let Ok(Answer::Entered(entered)) = &answer {
            self.fast.lives_on(*session, sent, breaks);
            self.fast.set_crowded(name, !matches!(entered, Entered::Granted { .. }));
        }
        answer
    }
}
