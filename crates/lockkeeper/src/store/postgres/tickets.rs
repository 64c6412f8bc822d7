//! The tickets of each session, as far as this handle knows them.

use crate::{
    name::Name,
    ticket::{Place, SessionId, TicketId},
};
use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard, PoisonError},
};

/// With each ticket: does it stand in its line's own row?
type Of = HashMap<(Name, TicketId), bool>;

#[derive(Default)]
pub(super) struct Tickets(Mutex<HashMap<SessionId, Of>>);

impl Tickets {
    fn all(&self) -> MutexGuard<'_, HashMap<SessionId, Of>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// This ticket is about to enter.
    pub(super) fn note(&self, place: &Place) {
        self.all().entry(place.session).or_default().insert(key(place), false);
    }

    /// It was granted when it came to an empty line.
    pub(super) fn note_first(&self, place: &Place) {
        let mut all = self.all();
        let known = all.get_mut(&place.session).and_then(|known| known.get_mut(&key(place)));
        known.into_iter().for_each(|first| *first = true);
    }

    /// Was it so, and through this handle?
    pub(super) fn is_first(&self, place: &Place) -> bool {
        let all = self.all();
        all.get(&place.session).and_then(|known| known.get(&key(place))).is_some_and(|first| *first)
    }

    /// It is in no line any more.
    pub(super) fn forget(&self, place: &Place) {
        if let Some(known) = self.all().get_mut(&place.session) {
            known.remove(&key(place));
        }
    }

    /// In which lines this session's tickets are.
    pub(super) fn names(&self, session: SessionId) -> Vec<Name> {
        let all = self.all();
        let known = all.get(&session).into_iter().flat_map(HashMap::keys);
        known.map(|(name, _)| name.clone()).collect()
    }

    /// The session has ended.
    pub(super) fn forget_all(&self, session: SessionId) {
        self.all().remove(&session);
    }
}

fn key(place: &Place) -> (Name, TicketId) {
    (place.name.clone(), place.ticket)
}
