//! Tickets of which a copy of the enter may still be under way, though another copy was answered.
//!
//! The request was sent again because its connection broke, and the server may find the first copy late,
//! perhaps behind the leave. So such a ticket is left as a stray one, whatever the caller knows.

use crate::ticket::{Place, SessionId, TicketId};
use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard, PoisonError},
};

#[derive(Default)]
pub(super) struct Doubts(Mutex<HashMap<TicketId, SessionId>>);

impl Doubts {
    fn tickets(&self) -> MutexGuard<'_, HashMap<TicketId, SessionId>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A copy of this ticket's enter got no answer.
    pub(super) fn note(&self, place: &Place) {
        self.tickets().insert(place.ticket, place.session);
    }

    pub(super) fn has(&self, ticket: TicketId) -> bool {
        self.tickets().contains_key(&ticket)
    }

    /// The ticket is closed now.
    pub(super) fn settle(&self, ticket: TicketId) {
        self.tickets().remove(&ticket);
    }

    /// An ended session's copies are refused anyway.
    pub(super) fn forget(&self, session: SessionId) {
        self.tickets().retain(|_, of| *of != session);
    }
}
