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

/// What is known of a session.
#[derive(Default)]
struct Of {
    tickets: ById<TicketId, Known>,
    /// The version that its last renewal told, and the one for which its tickets were looked for in all lines.
    version: Option<u64>,
    searched: Option<u64>,
}

#[derive(Default)]
pub(super) struct Tickets(Mutex<ById<SessionId, Of>>);

impl Tickets {
    fn all(&self) -> MutexGuard<'_, ById<SessionId, Of>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// This ticket is about to enter.
    pub(super) fn note(&self, place: &Place) {
        let known = Known { name: place.name.clone(), first: false };
        self.all().entry(place.session).or_default().tickets.insert(place.ticket, known);
    }

    /// It was granted when it came to an empty line.
    pub(super) fn note_first(&self, place: &Place) {
        let mut all = self.all();
        let known = all.get_mut(&place.session).and_then(|of| of.tickets.get_mut(&place.ticket));
        let here = known.filter(|known| known.name == place.name);
        here.into_iter().for_each(|known| known.first = true);
    }

    /// Was it so, and through this handle?
    pub(super) fn is_first(&self, place: &Place) -> bool {
        let all = self.all();
        let known = all.get(&place.session).and_then(|of| of.tickets.get(&place.ticket));
        known.is_some_and(|known| known.first && known.name == place.name)
    }

    /// It is in no line any more.
    pub(super) fn forget(&self, place: &Place) {
        if let Some(of) = self.all().get_mut(&place.session)
            && of.tickets.get(&place.ticket).is_some_and(|known| known.name == place.name)
        {
            of.tickets.remove(&place.ticket);
        }
    }

    /// In which lines this session's tickets are.
    pub(super) fn names(&self, session: SessionId) -> Vec<Name> {
        let all = self.all();
        let known = all.get(&session).into_iter().flat_map(|of| of.tickets.values());
        known.map(|known| known.name.clone()).collect()
    }

    /// A renewal was answered.
    pub(super) fn renewed(&self, session: SessionId, version: u64) {
        if let Some(of) = self.all().get_mut(&session) {
            of.version = Some(version);
        }
    }

    /// The version for which this session's tickets have to be looked for in all lines; `None` if they were,
    /// so that looking where this handle has entered is enough.
    pub(super) fn to_search(&self, session: SessionId) -> Option<u64> {
        let all = self.all();
        match all.get(&session) {
            Some(of) if of.version.is_some() && of.version == of.searched => None,
            known => Some(known.and_then(|of| of.version).unwrap_or_default()),
        }
    }

    /// They were looked for there.
    pub(super) fn searched(&self, session: SessionId, version: u64) {
        if let Some(of) = self.all().get_mut(&session) {
            of.searched = Some(version);
        }
    }

    /// The session has ended.
    pub(super) fn forget_all(&self, session: SessionId) {
        self.all().remove(&session);
    }
}
