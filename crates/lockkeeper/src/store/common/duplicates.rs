//! Tickets of which a copy of the enter may still be under way, though another copy was answered.
//!
//! The request was sent again because its connection broke, and the server may find the first copy late,
//! perhaps behind the leave. So such a ticket is left as a stray one, whatever the caller knows.

use crate::store::{Entered, StoreResult};
use crate::{
    error::{ErrorKind, Outcome, StoreError},
    model::ticket::{ById, Place, SessionId, TicketId},
    sync::Mutex,
};
use std::sync::MutexGuard;

#[derive(Default)]
pub(crate) struct Duplicates(Mutex<ById<TicketId, SessionId>>);

impl Duplicates {
    fn tickets(&self) -> MutexGuard<'_, ById<TicketId, SessionId>> {
        self.0.lock()
    }

    /// A copy of this ticket's enter got no answer.
    pub(crate) fn note(&self, place: &Place) {
        self.tickets().insert(place.ticket, place.session);
    }

    /// Is such a copy to be feared?
    pub(crate) fn has(&self, ticket: TicketId) -> bool {
        self.tickets().contains_key(&ticket)
    }

    /// The ticket is closed now, or the caller knows of the copy. Says whether there was a doubt.
    pub(crate) fn settle(&self, ticket: TicketId) -> bool {
        self.tickets().remove(&ticket).is_some()
    }

    /// What the caller is told. One whose ticket stands need not know: it is left as a stray one. The others
    /// must, for they would not leave it.
    pub(crate) fn tell(
        &self,
        kind: &'static str,
        ticket: TicketId,
        entered: StoreResult<Entered>,
    ) -> StoreResult<Entered> {
        match entered {
            Ok(Entered::Granted { .. } | Entered::Queued(_)) => entered,
            entered if !self.settle(ticket) => entered,
            Ok(_) => {
                let what = "a copy of this request may still come";
                Err(StoreError::unknown(kind, ErrorKind::Unavailable, what))
            }
            Err(e) => Err(StoreError { outcome: Outcome::Unknown, ..e }),
        }
    }

    /// An ended session's copies are refused, or leave what is dead to all.
    pub(crate) fn forget(&self, session: SessionId) {
        self.tickets().retain(|_, of| *of != session);
    }
}
