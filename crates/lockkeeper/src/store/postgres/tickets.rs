//! The tickets of each session, as far as this handle knows them.

use crate::{
    model::{
        name::Name,
        ticket::{ById, Place, SessionId, TicketId},
    },
    store::TicketDigest,
    sync::Mutex,
};
use foldhash::HashSet;
use std::sync::MutexGuard;

struct Known {
    name: Name,
    /// Does it stand in its line's own row?
    first: bool,
    /// Was it entered through another handle, and found in a line?
    found: bool,
}

/// What is known of a session.
#[derive(Default)]
struct Of {
    tickets: ById<TicketId, Known>,
    /// Was it opened through this handle?
    opened: bool,
    /// The version that its last renewal told, and the one for which its tickets were looked for in all lines.
    version: Option<u64>,
    searched: Option<u64>,
    /// The tickets that its last renewal has shown.
    shown: Option<TicketDigest>,
}

#[derive(Default)]
pub(super) struct Tickets(Mutex<ById<SessionId, Of>>);

impl Tickets {
    fn all(&self) -> MutexGuard<'_, ById<SessionId, Of>> {
        self.0.lock()
    }

    /// This session was opened through this handle.
    pub(super) fn opened(&self, session: SessionId) {
        self.all().entry(session).or_default().opened = true;
    }

    /// This ticket is about to enter.
    pub(super) fn note(&self, place: &Place) {
        let known = Known { name: place.name.clone(), first: false, found: false };
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

    /// A renewal was answered. It shows no tickets if their table was locked.
    pub(super) fn renewed(&self, session: SessionId, version: u64, shown: Option<TicketDigest>) {
        if let Some(of) = self.all().get_mut(&session) {
            (of.version, of.shown) = (Some(version), shown);
        }
    }

    /// The version that the session's last renewal told.
    pub(super) fn version(&self, session: SessionId) -> u64 {
        self.all().get(&session).and_then(|of| of.version).unwrap_or_default()
    }

    /// Does this handle know where the session's tickets are? Then all lines were searched for this version, and the
    /// session was opened here, so that it is hardly served through other handles.
    pub(super) fn knows(&self, session: SessionId) -> bool {
        let all = self.all();
        let of = all.get(&session);
        of.is_some_and(|of| of.opened && of.version.is_some() && of.version == of.searched)
    }

    /// Are these the tickets that the last renewal has shown, if it has shown any? Then the caller, who asks for all
    /// of them, may expect others, which another handle has entered.
    pub(super) fn were_shown(&self, session: SessionId, tickets: &[(Name, TicketId)]) -> bool {
        let tickets: TicketDigest = tickets.iter().map(|(_, ticket)| *ticket).collect();
        let shown = self.all().get(&session).and_then(|of| of.shown);
        shown.is_none_or(|shown| shown == tickets)
    }

    /// All lines were searched, and these are the session's tickets. Those that other handles have entered
    /// are noted, too: the next renewal shows what stands at their names.
    pub(super) fn searched(&self, session: SessionId, version: u64, tickets: &[(Name, TicketId)]) {
        let mut all = self.all();
        if tickets.is_empty() && !all.contains_key(&session) {
            return;
        }
        let of = all.entry(session).or_default();
        of.searched = Some(version);
        let there: HashSet<TicketId> = tickets.iter().map(|(_, ticket)| *ticket).collect();
        of.tickets.retain(|ticket, known| !known.found || there.contains(ticket));
        for (name, ticket) in tickets {
            let found = || Known { name: name.clone(), first: false, found: true };
            of.tickets.entry(*ticket).or_insert_with(found);
        }
    }

    /// The session has ended.
    pub(super) fn forget_all(&self, session: SessionId) {
        self.all().remove(&session);
    }
}
