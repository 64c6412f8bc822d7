//! A line as it was read, and which of its tickets are granted.
//!
//! A grant is written nowhere. A ticket is granted when the line up to it fits the capacity. As tickets
//! only leave, a grant that was seen once stands until its key is gone.

use super::{
    client::KeyValue,
    keys::{Keys, ParsedKey},
    row::{Row, State},
};
use crate::{
    model::{
        admission::{self, Room},
        name::Name,
        ticket::{Mode, Owner, TicketId},
    },
    store::{Holder, Wait},
};
use std::{collections::HashMap, time::Duration};

/// A ticket in a line.
pub(super) struct LineEntry {
    pub(super) key: Vec<u8>,
    pub(super) created: i64,
    pub(super) modified: i64,
    pub(super) lease: i64,
    pub(super) parsed: ParsedKey,
    pub(super) ticket: TicketId,
    /// `None` if the value was not read or is another client's.
    pub(super) row: Option<Row>,
    pub(super) value: Vec<u8>,
}

impl LineEntry {
    fn read(keys: &Keys, name: &Name, kv: KeyValue) -> Self {
        let parsed = keys.parse_in(name, &kv.key);
        let row = if keys.is_raw() { None } else { Row::read(&kv.value) };
        // A ticket in a slot has no id here if its value was not read.
        let ticket = parsed.ticket.or_else(|| row.as_ref().map(|row| row.ticket));
        Self {
            created: kv.create_revision,
            modified: kv.mod_revision,
            lease: kv.lease,
            parsed,
            ticket: ticket.unwrap_or(TicketId::from_bytes([0; 16])),
            row,
            value: kv.value,
            key: kv.key,
        }
    }

    /// Was it left behind by its session, to keep the lock closed for a while?
    pub(super) fn is_kept(&self) -> bool {
        self.row.as_ref().is_some_and(|row| row.state == State::Kept)
    }

    fn weight(&self) -> u32 {
        self.parsed.mode.weight()
    }

    /// Its owner, as far as is known.
    pub(super) fn owner(&self) -> Option<Owner> {
        match &self.row {
            Some(row) if row.state == State::Kept => None,
            Some(row) => Some(row.owner.clone()),
            None => {
                let program = format!("lease {:x}", self.lease);
                Some(Owner { host: String::new(), pid: 0, program })
            }
        }
    }

    pub(super) fn label(&self) -> &[u8] {
        self.row.as_ref().map_or(&self.value, |row| &row.label)
    }
}

/// What has to leave a line before a waiting ticket can be granted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Blocker {
    /// This key: while it stands, the ticket waits, whatever else leaves.
    Key(Vec<u8>),
    /// So much weight of these keys.
    Weight { excess: u64, ahead: HashMap<Vec<u8>, u32> },
}

impl Blocker {
    /// Whether the watch of this blocker serves for the other one too. A weight is counted down by the watch that runs: a
    /// new watch at each leave would begin in the past, and lead to a poll each time.
    pub(super) fn covers(&self, other: &Self) -> bool {
        matches!((self, other), (Self::Weight { .. }, Self::Weight { .. })) || self == other
    }

    /// Notes that a key has left the line. Is that enough?
    pub(super) fn left(&mut self, key: &[u8]) -> bool {
        match self {
            Self::Key(blocker) => blocker == key,
            Self::Weight { excess, ahead } => {
                let weight = ahead.remove(key).unwrap_or(0);
                *excess = excess.saturating_sub(weight.into());
                *excess == 0
            }
        }
    }
}

/// A line's tickets in order.
pub(super) struct LineSnapshot(pub(super) Vec<LineEntry>);

impl LineSnapshot {
    pub(super) fn read(keys: &Keys, name: &Name, kvs: Vec<KeyValue>) -> Self {
        let mut line: Vec<LineEntry> =
            kvs.into_iter().map(|kv| LineEntry::read(keys, name, kv)).collect();
        line.sort_by_key(|entry| entry.created);
        Self(line)
    }

    /// Sets the id of the ticket at a key, which only the value would have told.
    pub(super) fn identify(&mut self, key: &[u8], created: i64, ticket: TicketId) {
        let at_key = |entry: &&mut LineEntry| entry.key == key && entry.created == created;
        if let Some(entry) = self.0.iter_mut().find(at_key) {
            entry.ticket = ticket;
        }
    }

    pub(super) fn capacity(&self) -> Option<u32> {
        self.0.first().map(|first| first.parsed.mode.capacity())
    }

    /// The place of a session's own ticket.
    pub(super) fn own(&self, ticket: TicketId, session: i64) -> Option<usize> {
        self.0.iter().position(|entry| {
            entry.ticket == ticket && entry.parsed.session == Some(session) && !entry.is_kept()
        })
    }

    /// A session's own ticket, if it is granted.
    pub(super) fn granted(&self, ticket: TicketId, session: i64) -> Option<&LineEntry> {
        let at = self.own(ticket, session).filter(|at| *at < self.admitted())?;
        self.0.get(at)
    }

    fn weights(&self) -> impl Iterator<Item = u32> {
        self.0.iter().map(LineEntry::weight)
    }

    /// How many tickets are granted.
    pub(super) fn admitted(&self) -> usize {
        admission::admitted(self.weights(), self.capacity().unwrap_or(0))
    }

    /// Would one more ticket of this mode be granted?
    pub(super) fn fits(&self, mode: Mode) -> bool {
        let mut room = Room::of(mode.capacity());
        self.weights().chain([mode.weight()]).fold(true, |_, weight| room.admit(weight))
    }

    /// What the waiting ticket at this place waits for.
    pub(super) fn blocker(&self, at: usize) -> Blocker {
        let (ahead, mode) = (&self.0[..at], self.0[at].parsed.mode);
        let key = match mode {
            Mode::Exclusive => ahead.last(),
            // Readers are granted together, behind the last writer before them.
            Mode::Shared => ahead.iter().rfind(|entry| entry.weight() >= mode.capacity()),
            Mode::Permits { .. } => None,
        };
        if let Some(entry) = key {
            return Blocker::Key(entry.key.clone());
        }
        let weight: u64 = self.weights().take(at + 1).map(u64::from).sum();
        Blocker::Weight {
            excess: weight.saturating_sub(mode.capacity().into()),
            ahead: ahead.iter().map(|entry| (entry.key.clone(), entry.weight())).collect(),
        }
    }

    /// What a ticket behind so many others is told.
    pub(super) fn wait(&self, ahead: usize, wall_ms: u64) -> Wait {
        let first = self.0.first().filter(|first| !first.is_kept() && ahead > 0);
        let holder = first.and_then(|first| first.row.as_ref()).map(|row| {
            // For a ticket that had to wait, the time of its grant is written nowhere.
            let at_once = row.state == State::AtOnce;
            let held_for = Duration::from_millis(wall_ms.saturating_sub(row.entered));
            let held_for = at_once.then_some(held_for);
            Holder { owner: row.owner.clone(), label: row.label.clone(), held_for }
        });
        // A line moves only by writes, and these are watched.
        Wait { ahead, holder, recheck: Wait::rest_most(ahead) }
    }
}
