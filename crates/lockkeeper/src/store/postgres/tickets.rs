//! The tickets of each session, as far as this handle knows them.

use crate::{
    name::Name,
    ticket::{ById, Place, SessionId, TicketId},
};
use std::sync::{Mutex, MutexGuard, PoisonError};

struct Known {
    session: SessionId,
    name: Name,
    /// Does it stand in its line's own row?
    first: bool,
}

impl Known {
    fn is_at(&self, place: &Place) -> bool {
        self.session == place.session && self.name == place.name
    }
}

#[derive(Default)]
pub(super) struct Tickets(Mutex<ById<TicketId, Known>>);

impl Tickets {
    fn all(&self) -> MutexGuard<'_, ById<TicketId, Known>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// This ticket is about to enter.
    pub(super) fn note(&self, place: &Place) {
        let (session, name) = (place.session, place.name.clone());
        self.all().insert(place.ticket, Known { session, name, first: false });
    }

    /// It was granted when it came to an empty line.
    pub(super) fn note_first(&self, place: &Place) {
        let mut all = self.all();
        let known = all.get_mut(&place.ticket).filter(|known| known.is_at(place));
        known.into_iter().for_each(|known| known.first = true);
    }

    /// Was it so, and through this handle?
    pub(super) fn is_first(&self, place: &Place) -> bool {
        self.all().get(&place.ticket).is_some_and(|known| known.is_at(place) && known.first)
    }

    /// It is in no line any more.
    pub(super) fn forget(&self, place: &Place) {
        let mut all = self.all();
        if all.get(&place.ticket).is_some_and(|known| known.is_at(place)) {
            all.remove(&place.ticket);
        }
    }

    /// In which lines this session's tickets are.
    pub(super) fn names(&self, session: SessionId) -> Vec<Name> {
        let all = self.all();
        let own = all.values().filter(|known| known.session == session);
        own.map(|known| known.name.clone()).collect()
    }

    /// The session has ended.
    pub(super) fn forget_all(&self, session: SessionId) {
        self.all().retain(|_, known| known.session != session);
    }
}
