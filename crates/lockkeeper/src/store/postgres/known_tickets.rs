//! The tickets of each session, as far as this handle knows them.
//!
//! A first ticket stands in its line's row, which has no index by session: the index would make every lock dearer.
//! So the handle remembers under which names its tickets are, and each renewal carries these names.

use crate::{
    model::{
        name::Name,
        ticket::{ById, Place, SessionId, TicketId},
    },
    store::TicketDigest,
    sync::Mutex,
};
use foldhash::HashSet;

struct Known {
    name: Name,
    /// Was it granted in a free line, so that it stands in the line's own row?
    first: bool,
    /// Was it found in a line, because another handle has entered it?
    found: bool,
}

#[derive(Default)]
struct LocalSession {
    tickets: ById<TicketId, Known>,
    /// Was it opened through this handle?
    opened: bool,
    /// The version in its last renewal's answer, and the one at which all lines were searched for its tickets.
    version: Option<u64>,
    searched: Option<u64>,
    /// The tickets in its last renewal's answer.
    shown: Option<TicketDigest>,
}

#[derive(Default)]
pub(super) struct KnownTickets(Mutex<ById<SessionId, LocalSession>>);

impl KnownTickets {
    fn with<T>(&self, session: SessionId, act: impl FnOnce(&mut LocalSession) -> T) -> Option<T> {
        self.0.lock().get_mut(&session).map(act)
    }

    /// This session was opened through this handle.
    pub(super) fn opened(&self, session: SessionId) {
        self.0.lock().entry(session).or_default().opened = true;
    }

    /// This ticket is about to enter.
    pub(super) fn entering(&self, place: &Place) {
        let known = Known { name: place.name.clone(), first: false, found: false };
        self.0.lock().entry(place.session).or_default().tickets.insert(place.ticket, known);
    }

    /// The ticket was granted in a free line.
    pub(super) fn set_first(&self, place: &Place) {
        self.with(place.session, |session| {
            let known = session.tickets.get_mut(&place.ticket);
            let here = known.filter(|known| known.name == place.name);
            here.into_iter().for_each(|known| known.first = true);
        });
    }

    /// Was the ticket granted in a free line, through this handle?
    pub(super) fn is_first(&self, place: &Place) -> bool {
        let first = self.with(place.session, |session| {
            let known = session.tickets.get(&place.ticket);
            known.is_some_and(|known| known.first && known.name == place.name)
        });
        first.unwrap_or(false)
    }

    /// The ticket is in no line any more.
    pub(super) fn forget(&self, place: &Place) {
        self.with(place.session, |session| {
            if session.tickets.get(&place.ticket).is_some_and(|known| known.name == place.name) {
                session.tickets.remove(&place.ticket);
            }
        });
    }

    /// The lines in which this session's tickets are.
    pub(super) fn names(&self, session: SessionId) -> Vec<Name> {
        let names = |known: &mut LocalSession| {
            known.tickets.values().map(|known| known.name.clone()).collect()
        };
        self.with(session, names).unwrap_or_default()
    }

    /// A renewal was answered. It shows no tickets if their table was locked.
    pub(super) fn renewed(&self, session: SessionId, version: u64, shown: Option<TicketDigest>) {
        self.with(session, |known| (known.version, known.shown) = (Some(version), shown));
    }

    /// The version in the session's last renewal's answer.
    pub(super) fn version(&self, session: SessionId) -> u64 {
        self.with(session, |known| known.version).flatten().unwrap_or_default()
    }

    /// Does this handle know where the session's tickets are? It does if all lines were searched at this
    /// version, and if the session was opened here: then other handles are unlikely to enter tickets for it.
    pub(super) fn knows(&self, session: SessionId) -> bool {
        let knows =
            |s: &mut LocalSession| s.opened && s.version.is_some() && s.version == s.searched;
        self.with(session, knows).unwrap_or(false)
    }

    /// Are these the tickets that the last renewal has shown, or has it shown none?
    pub(super) fn were_shown(&self, session: SessionId, tickets: &[(Name, TicketId)]) -> bool {
        let tickets: TicketDigest = tickets.iter().map(|(_, ticket)| *ticket).collect();
        let shown = self.with(session, |known| known.shown).flatten();
        shown.is_none_or(|shown| shown == tickets)
    }

    /// All lines were searched, and these are the session's tickets. Those of other handles are remembered, too,
    /// so that the next renewal shows what stands under their names.
    pub(super) fn searched(&self, session: SessionId, version: u64, tickets: &[(Name, TicketId)]) {
        let mut sessions = self.0.lock();
        if tickets.is_empty() && !sessions.contains_key(&session) {
            return;
        }
        let session = sessions.entry(session).or_default();
        session.searched = Some(version);
        let there: HashSet<TicketId> = tickets.iter().map(|(_, ticket)| *ticket).collect();
        session.tickets.retain(|ticket, known| !known.found || there.contains(ticket));
        for (name, ticket) in tickets {
            let found = || Known { name: name.clone(), first: false, found: true };
            session.tickets.entry(*ticket).or_insert_with(found);
        }
    }

    /// The session has ended.
    pub(super) fn forget_all(&self, session: SessionId) {
        self.0.lock().remove(&session);
    }
}
