//! What this handle remembers of its sessions: their tickets, and their stream of watches.

use super::{handoff::Successor, watch::Watches};
use crate::{
    clock::Moment,
    model::{
        name::Name,
        ticket::{Mode, Owner, SessionId, TicketId},
    },
    store::Terms,
    sync::Mutex,
};
use std::{
    collections::HashMap,
    sync::{Arc, MutexGuard},
};

/// The public half of a session's id: the session's name in the store, and the id of its lease. It is derived
/// from the session's id, so that granting the lease can be repeated and other handles find it. Only the
/// session's owner knows the other half.
pub(super) fn public_id(session: SessionId) -> i64 {
    let half: [u8; 8] = session.to_bytes()[..8].try_into().expect("eight bytes");
    i64::try_from(u64::from_be_bytes(half) >> 1).unwrap_or(i64::MAX).max(1)
}

#[derive(Default)]
pub(super) struct Sessions(Mutex<HashMap<SessionId, LocalSession>>);

impl Sessions {
    pub(super) fn lock(&self) -> MutexGuard<'_, HashMap<SessionId, LocalSession>> {
        self.0.lock()
    }

    /// Works with what is known of a session, if anything is.
    pub(super) fn with<T>(
        &self,
        session: SessionId,
        act: impl FnOnce(&mut LocalSession) -> T,
    ) -> Option<T> {
        self.lock().get_mut(&session).map(act)
    }

    /// Works with what is known of a ticket, if anything is.
    pub(super) fn with_ticket<T>(
        &self,
        session: SessionId,
        ticket: TicketId,
        act: impl FnOnce(&mut LocalTicket) -> T,
    ) -> Option<T> {
        self.with(session, |local| local.tickets.get_mut(&ticket).map(act)).flatten()
    }

    /// What is known of a ticket now.
    pub(super) fn ticket(&self, session: SessionId, ticket: TicketId) -> Option<LocalTicket> {
        self.with_ticket(session, ticket, |local| local.clone())
    }
}

/// What this handle knows of a session.
pub(super) struct LocalSession {
    pub(super) terms: Terms,
    pub(super) owner: Owner,
    pub(super) tickets: HashMap<TicketId, LocalTicket>,
    pub(super) watches: Option<Watches>,
    /// When the opening or the last good renewal was sent. After the TTL the session is over for its
    /// owner, although the server keeps the lease for the lock-delay.
    pub(super) renewed: Moment,
}

/// What this handle knows of a ticket that it has entered.
#[derive(Clone)]
pub(super) struct LocalTicket {
    pub(super) name: Name,
    pub(super) key: Vec<u8>,
    pub(super) mode: Mode,
    /// The create revision of its key, once known.
    pub(super) created: Option<i64>,
    /// The number of its grant, once seen.
    pub(super) fence: Option<u64>,
    /// The tickets right behind it that are known, once it is granted.
    pub(super) successors: Arc<[Successor]>,
    /// A watch has told that the ticket's blocker has left the line.
    pub(super) unblocked: bool,
    /// A duplicate of its enter may still be carried out.
    pub(super) stray: bool,
    /// The number of the label's last edit, in raw mode, where the value has no place for it.
    pub(super) edit: u64,
}

impl LocalTicket {
    pub(super) fn new(name: Name, key: Vec<u8>, mode: Mode) -> Self {
        let (created, fence, successors, edit) = Default::default();
        let (unblocked, stray) = Default::default();
        Self { name, key, mode, created, fence, successors, unblocked, stray, edit }
    }
}

impl LocalSession {
    pub(super) fn new(terms: Terms, owner: Owner, renewed: Moment) -> Self {
        Self { terms, owner, tickets: HashMap::new(), watches: None, renewed }
    }

    pub(super) fn is_over(&self, now: Moment) -> bool {
        now >= self.renewed + self.terms.ttl
    }

    pub(super) fn remove(&mut self, ticket: TicketId) {
        self.tickets.remove(&ticket);
        self.stop_watching(ticket);
    }

    /// Notes at which revision a ticket's key was created. With another revision than before, it was evicted
    /// and entered anew, and is another ticket.
    pub(super) fn record_created(
        &mut self,
        ticket: TicketId,
        created: i64,
    ) -> Option<&mut LocalTicket> {
        let local = self.tickets.get_mut(&ticket)?;
        if local.created != Some(created) {
            (local.created, local.fence) = (Some(created), None);
            local.successors = Arc::default();
        }
        Some(local)
    }

    /// Notes a grant and its fence, and returns the fence that was noted first.
    pub(super) fn record_grant(
        &mut self,
        ticket: TicketId,
        created: i64,
        fence: u64,
    ) -> Option<u64> {
        self.stop_watching(ticket);
        let local = self.record_created(ticket, created)?;
        local.unblocked = false;
        Some(*local.fence.get_or_insert(fence))
    }

    fn stop_watching(&mut self, ticket: TicketId) {
        if let Some(watches) = &mut self.watches {
            watches.stop(ticket);
        }
    }
}
