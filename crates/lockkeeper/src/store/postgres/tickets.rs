//! The tickets of each session, as far as this handle knows them.

use crate::{
    name::Name,
    ticket::{ById, Place, SessionId, TicketId},
};
use std::sync::{Mutex, MutexGuard, PoisonError};

struct Known {
    name: Name,
    /// Does it stand in its line's own row?
    first: bool,
}

type Of = ById<TicketId, Known>;

#[derive(Default)]
pub(super) struct Tickets(Mutex<ById<SessionId, Of>>);

impl Tickets {
    fn all(&self) -> MutexGuard<'_, ById<SessionId, Of>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// This ticket is about to enter.
    pub(super) fn note(&self, place: &Place) {
        let known = Known { name: place.name.clone(), first: false };
        self.all().entry(place.session).or_default().insert(place.ticket, known);
    }

    /// It was granted when it came to an empty line.
    pub(super) fn note_first(&self, place: &Place) {
        let mut all = self.all();
        let known = all.get_mut(&place.session).and_then(|of| of.get_mut(&place.ticket));
        let here = known.filter(|known| known.name == place.name);
        here.into_iter().for_each(|known| known.first = true);
    }

    /// Was it so, and through this handle?
    pub(super) fn is_first(&self, place: &Place) -> bool {
        let all = self.all();
        let known = all.get(&place.session).and_then(|of| of.get(&place.ticket));
        known.is_some_and(|known| known.first && known.name == place.name)
    }

    /// It is in no line any more.
    pub(super) fn forget(&self, place: &Place) {
        if let Some(of) = self.all().get_mut(&place.session)
            && of.get(&place.ticket).is_some_and(|known| known.name == place.name)
        {
            of.remove(&place.ticket);
        }
    }

    /// In which lines this session's tickets are.
    pub(super) fn names(&self, session: SessionId) -> Vec<Name> {
        let all = self.all();
        let known = all.get(&session).into_iter().flat_map(ById::values);
        known.map(|known| known.name.clone()).collect()
    }

    /// The session has ended.
    pub(super) fn forget_all(&self, session: SessionId) {
        self.all().remove(&session);
    }
}
