//! What a handle knows of its sessions: their leases, their tickets, and who hears of changes.

use super::{turn::Next, watch::Ear};
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

/// A lease gets slow with many keys, so a session takes another one after so many.
pub(super) const KEYS_MAX: usize = 1_000;

/// The public part of a session's id: the name of the session in the store, and the id of its first
/// lease. The other half of the id is known to its owner alone.
pub(super) fn tag(session: SessionId) -> i64 {
    lease(session, 0)
}

/// The id of a session's lease of this number: the same whenever it is asked for, so that granting it
/// can be repeated.
pub(super) fn lease(session: SessionId, shard: usize) -> i64 {
    let bytes = session.to_bytes();
    let half = u64::from_be_bytes(bytes[..8].try_into().expect("eight bytes"));
    let spread = half.wrapping_add((shard as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    i64::try_from(spread >> 1).unwrap_or(i64::MAX).max(1)
}

#[derive(Default)]
pub(super) struct Sessions(Mutex<HashMap<SessionId, Life>>);

impl Sessions {
    pub(super) fn lives(&self) -> MutexGuard<'_, HashMap<SessionId, Life>> {
        self.0.lock()
    }

    /// Does something with what is known of a session, if it is.
    pub(super) fn with<T>(
        &self,
        session: SessionId,
        act: impl FnOnce(&mut Life) -> T,
    ) -> Option<T> {
        self.lives().get_mut(&session).map(act)
    }
}

pub(super) struct Life {
    pub(super) terms: Terms,
    pub(super) owner: Owner,
    /// How many tickets each lease has, as far as this handle knows.
    pub(super) shards: Vec<usize>,
    pub(super) tickets: HashMap<TicketId, Known>,
    /// Which of them was created at a revision.
    born: HashMap<i64, TicketId>,
    /// Was a line free when this session came last?
    free: HashMap<Name, bool>,
    pub(super) ear: Option<Ear>,
    /// When the last good renewal, or the opening, was sent. After the TTL the session is over for its
    /// owner, although the store keeps the lease for the lock-delay.
    pub(super) renewed: Moment,
}

/// Of how many lines it is remembered whether they were free.
const LINES_MAX: usize = 10_000;

/// A ticket that this handle has sent.
#[derive(Clone)]
pub(super) struct Known {
    pub(super) name: Name,
    pub(super) key: Vec<u8>,
    pub(super) mode: Mode,
    pub(super) lease: i64,
    /// When it was created, once that is known.
    pub(super) created: Option<i64>,
    /// The number of its grant, once that was seen.
    pub(super) fence: Option<u64>,
    /// Who stands right behind it, as far as it knows, once it was granted.
    pub(super) behind: Arc<[Next]>,
    /// Who stood in its way has left, as a watch has told.
    pub(super) called: bool,
    /// A copy of its enter may still come.
    pub(super) stray: bool,
    /// It stands in a long line: read no values.
    pub(super) long: bool,
    /// The last edit of its note, where the value has no place for it.
    pub(super) edit: u64,
}

impl Life {
    pub(super) fn new(terms: Terms, owner: Owner, renewed: Moment, shards: usize) -> Self {
        let (shards, tickets, free) = (vec![0; shards], HashMap::new(), HashMap::new());
        let (born, ear) = (HashMap::new(), None);
        Self { terms, owner, shards, tickets, born, free, ear, renewed }
    }

    pub(super) fn is_over(&self, now: Moment) -> bool {
        now >= self.renewed + self.terms.ttl
    }

    /// A lease with room for one more key; `None` if there has to be another one.
    pub(super) fn roomy_shard(&self) -> Option<usize> {
        self.shards.iter().position(|keys| *keys < KEYS_MAX)
    }

    pub(super) fn attach(&mut self, session: SessionId, ticket: TicketId, known: Known) {
        let lease = known.lease;
        if self.tickets.insert(ticket, known).is_none() {
            self.count(session, lease, 1);
        }
    }

    pub(super) fn detach(&mut self, session: SessionId, ticket: TicketId) {
        if let Some(known) = self.tickets.remove(&ticket) {
            known.created.map(|created| self.born.remove(&created));
            self.count(session, known.lease, -1);
            self.hear_no_more(ticket);
        }
    }

    /// A ticket stands in its line since this revision. Evicted and entered anew, it is another one.
    pub(super) fn born(&mut self, ticket: TicketId, created: i64) -> Option<&mut Known> {
        let known = self.tickets.get_mut(&ticket)?;
        if known.created != Some(created) {
            known.created.map(|before| self.born.remove(&before));
            self.born.insert(created, ticket);
            (known.created, known.fence, known.behind) = (Some(created), None, Arc::default());
        }
        Some(known)
    }

    /// The ticket that was created at this revision.
    pub(super) fn born_at(&self, created: i64) -> Option<TicketId> {
        self.born.get(&created).copied()
    }

    /// Notes a grant and its number, unless that is known already.
    pub(super) fn granted(&mut self, ticket: TicketId, created: i64, number: u64) -> Option<u64> {
        self.hear_no_more(ticket);
        let known = self.born(ticket, created)?;
        known.called = false;
        Some(*known.fence.get_or_insert(number))
    }

    /// Was the line free when this session came last, if that is known?
    pub(super) fn was_free(&self, name: &Name) -> Option<bool> {
        self.free.get(name).copied()
    }

    pub(super) fn found_free(&mut self, name: &Name, free: bool) {
        if let Some(known) = self.free.get_mut(name) {
            *known = free;
        } else {
            if self.free.len() >= LINES_MAX {
                self.free.clear();
            }
            self.free.insert(name.clone(), free);
        }
    }

    pub(super) fn hear_no_more(&self, ticket: TicketId) {
        if let Some(ear) = &self.ear {
            ear.forget(ticket);
        }
    }

    fn count(&mut self, session: SessionId, id: i64, by: isize) {
        let shard = (0..self.shards.len()).find(|shard| lease(session, *shard) == id);
        if let Some(shard) = shard {
            self.shards[shard] = self.shards[shard].saturating_add_signed(by);
        }
    }

    /// The leases that this handle knows of.
    pub(super) fn leases(&self, session: SessionId) -> Vec<i64> {
        (0..self.shards.len()).map(|shard| lease(session, shard)).collect()
    }
}
