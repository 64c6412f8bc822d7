//! A line as it was read, and who of it may go.
//!
//! Nothing has to be written for a grant. A ticket is granted when the line up to it fits the
//! capacity; as tickets only leave, a grant that was seen once stands until its key is gone.

use super::{
    keys::{Keys, Spot},
    proto::KeyValue,
    row::{Row, State},
};
use crate::{
    model::{
        admission::Room,
        name::Name,
        ticket::{Mode, Owner, TicketId},
    },
    store::{Holder, Wait},
};
use std::{collections::HashMap, time::Duration};

/// When one who was not let in looks again.
pub(super) const RECHECK: Duration = Duration::from_secs(1);

/// The fence of a grant in raw mode that was not given a number yet; nothing has this one.
pub(super) const UNNUMBERED: u64 = 0;

/// A ticket in a line.
pub(super) struct LineRow {
    pub(super) key: Vec<u8>,
    pub(super) created: i64,
    pub(super) modified: i64,
    pub(super) lease: i64,
    pub(super) spot: Spot,
    pub(super) ticket: TicketId,
    /// `None` if the value was not read or is another client's.
    pub(super) row: Option<Row>,
    pub(super) value: Vec<u8>,
}

impl LineRow {
    pub(super) fn is_kept(&self) -> bool {
        self.row.as_ref().is_some_and(|row| row.state == State::Kept)
    }

    /// Whose it is, as far as is known.
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

    pub(super) fn note(&self) -> &[u8] {
        self.row.as_ref().map_or(&self.value, |row| &row.note)
    }
}

/// Whose leaving a waiter has to hear of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Blocker {
    /// This key's: as long as it is there, nothing else matters.
    Key(Vec<u8>),
    /// Anybody's in the line.
    Anyone,
}

/// A line, in order.
pub(super) struct Queue(pub(super) Vec<LineRow>);

impl Queue {
    pub(super) fn read(keys: &Keys, name: &Name, kvs: Vec<KeyValue>) -> Self {
        let mut line: Vec<LineRow> = kvs
            .into_iter()
            .map(|kv| {
                let spot = keys.spot(name, &kv.key);
                let row = if keys.is_raw() { None } else { Row::read(&kv.value) };
                // Whose value was not read stands in a slot and has no name.
                let named = spot.ticket.or_else(|| row.as_ref().map(|row| row.ticket));
                let ticket = named.unwrap_or(TicketId::from_bytes([0; 16]));
                LineRow {
                    created: kv.create_revision,
                    modified: kv.mod_revision,
                    lease: kv.lease,
                    spot,
                    ticket,
                    row,
                    value: kv.value,
                    key: kv.key,
                }
            })
            .collect();
        line.sort_by_key(|standing| standing.created);
        Self(line)
    }

    /// Says which ticket stands at a key, for when the values were not read.
    pub(super) fn name(&mut self, key: &[u8], created: i64, ticket: TicketId) {
        let at_key = |s: &&mut LineRow| s.key == key && s.created == created;
        if let Some(standing) = self.0.iter_mut().find(at_key) {
            standing.ticket = ticket;
        }
    }

    pub(super) fn capacity(&self) -> Option<u32> {
        self.0.first().map(|first| first.spot.mode.capacity())
    }

    /// Where a session's own ticket stands.
    pub(super) fn own(&self, ticket: TicketId, session: i64) -> Option<usize> {
        let is_it =
            |s: &LineRow| s.ticket == ticket && s.spot.session == Some(session) && !s.is_kept();
        self.0.iter().position(is_it)
    }

    /// How many are admitted.
    pub(super) fn admitted(&self) -> usize {
        let weights = self.0.iter().map(|s| s.spot.mode.weight());
        crate::model::admission::admitted(weights, self.capacity().unwrap_or(0))
    }

    /// Would one more of this mode be admitted?
    pub(super) fn fits(&self, mode: Mode) -> bool {
        let mut room = Room::of(mode.capacity());
        let weights = self.0.iter().map(|s| s.spot.mode.weight());
        weights.chain([mode.weight()]).fold(true, |_, weight| room.admit(weight))
    }

    /// Whom the ticket at this place, which has to wait, waits for.
    pub(super) fn blocker(&self, at: usize) -> Blocker {
        let mode = self.0[at].spot.mode;
        let full = |s: &&LineRow| s.spot.mode.weight() >= mode.capacity();
        match mode {
            Mode::Exclusive => self.0[..at].last(),
            // Readers go together behind the last writer before them.
            Mode::Shared => self.0[..at].iter().rev().find(full),
            Mode::Permits { .. } => None,
        }
        .map_or(Blocker::Anyone, |standing| Blocker::Key(standing.key.clone()))
    }

    /// How much must leave before the ticket at this place fits.
    pub(super) fn excess(&self, at: usize) -> u64 {
        let weights = self.0[..=at].iter().map(|s| u64::from(s.spot.mode.weight()));
        weights.sum::<u64>().saturating_sub(self.0[at].spot.mode.capacity().into())
    }

    /// Who stands before this place, and with which weight.
    pub(super) fn ahead(&self, at: usize) -> HashMap<Vec<u8>, u32> {
        self.0[..at].iter().map(|s| (s.key.clone(), s.spot.mode.weight())).collect()
    }

    /// What one who waits behind so many is told.
    pub(super) fn wait(&self, ahead: usize, wall_ms: u64) -> Wait {
        let holder = self.0.first().filter(|first| !first.is_kept() && ahead > 0);
        let holder = holder.and_then(|first| {
            let row = first.row.as_ref()?;
            // When the one before it left is written nowhere.
            let at_once = row.state == State::AtOnce;
            let held_for =
                at_once.then(|| Duration::from_millis(wall_ms.saturating_sub(row.entered)));
            Some(Holder { owner: row.owner.clone(), label: row.note.clone(), held_for })
        });
        // Nothing moves here without a write, and writes are watched.
        Wait { ahead, holder, recheck: Wait::rest_most(ahead) }
    }
}
