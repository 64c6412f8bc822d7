//! Tickets whose enter may still be carried out once more, though one copy of it was answered.
//!
//! The store sent the enter again because its connection broke. The server may find the first copy late,
//! perhaps after the leave. So the leave of such a ticket carries [`Leave::stray`](crate::store::Leave::stray),
//! whatever the core knows: the server then refuses the late copy.

use crate::store::{Entered, StoreResult};
use crate::{
    error::{ErrorKind, Outcome, StoreError},
    model::ticket::{ById, Place, SessionId, TicketId},
    sync::Mutex,
};

#[derive(Default)]
pub(crate) struct Duplicates(Mutex<ById<TicketId, SessionId>>);

impl Duplicates {
    /// A copy of this ticket's enter got no answer.
    pub(crate) fn record(&self, place: &Place) {
        self.0.lock().insert(place.ticket, place.session);
    }

    /// May a copy of this ticket's enter still be carried out?
    pub(crate) fn may_come(&self, ticket: TicketId) -> bool {
        self.0.lock().contains_key(&ticket)
    }

    /// The server has closed the ticket, or the caller was told of the copy. Says whether one was recorded.
    pub(crate) fn clear(&self, ticket: TicketId) -> bool {
        self.0.lock().remove(&ticket).is_some()
    }

    /// What the core is told. If the ticket is in the line, the duplicate is hidden: the leave will carry `stray`.
    /// Otherwise the outcome is *unknown*, or the core would send no leave.
    pub(crate) fn report(
        &self,
        kind: &'static str,
        ticket: TicketId,
        entered: StoreResult<Entered>,
    ) -> StoreResult<Entered> {
        match entered {
            Ok(Entered::Granted { .. } | Entered::Queued(_)) => entered,
            entered if !self.clear(ticket) => entered,
            Ok(_) => {
                let what = "a copy of this request may still come";
                Err(StoreError::unknown(kind, ErrorKind::Unavailable, what))
            }
            Err(e) => Err(StoreError { outcome: Outcome::Unknown, ..e }),
        }
    }

    /// The session has ended: the server refuses its duplicates, or they enter a ticket that is dead at once.
    pub(crate) fn forget(&self, session: SessionId) {
        self.0.lock().retain(|_, of| *of != session);
    }
}
