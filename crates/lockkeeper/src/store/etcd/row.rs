//! The values of a ticket's, a session's and a cell's key.
//!
//! All three are text with a first line of fields, so that `etcdctl get` shows something useful.

use crate::{
    model::ticket::{Owner, SessionId, TicketId},
    store::{
        Cell, Terms,
        common::text::{read_owner, split_head, write_owner},
    },
};
use ring::digest::{SHA256, digest};
use std::time::Duration;

/// The value of a ticket's key: `lk1 TICKET EDIT STATE ENTERED PID HOST PROGRAM`, a line's end, the
/// label.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Row {
    pub(super) ticket: TicketId,
    /// The number of the label's last edit.
    pub(super) edit: u64,
    pub(super) state: State,
    /// When it was written, in milliseconds of its writer's wall clock. Only listings show it.
    pub(super) entered: u64,
    pub(super) owner: Owner,
    pub(super) label: Vec<u8>,
}

/// What was known of the ticket's grant when the value was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// The ticket was granted by this write.
    AtOnce,
    /// The ticket had to wait; the time of its grant is written nowhere.
    Queued,
    /// The session has left the ticket behind, to keep the lock closed for a while.
    Kept,
}

impl State {
    fn word(self) -> &'static str {
        match self {
            Self::AtOnce => "held",
            Self::Queued => "queued",
            Self::Kept => "kept",
        }
    }

    fn parse(word: &str) -> Option<Self> {
        [Self::AtOnce, Self::Queued, Self::Kept].into_iter().find(|s| s.word() == word)
    }
}

impl Row {
    pub(super) fn write(&self) -> Vec<u8> {
        let Self { ticket, edit, state, entered, owner, label } = self;
        let (state, owner) = (state.word(), write_owner(owner));
        let head = format!("lk1 {ticket} {edit} {state} {entered} {owner}\n");
        [head.as_bytes(), label].concat()
    }

    pub(super) fn read(value: &[u8]) -> Option<Self> {
        let (head, label) = split_head(value)?;
        let mut words = head.strip_prefix("lk1 ")?.split(' ');
        let ticket = words.next()?.parse().ok()?;
        let (edit, state) = (words.next()?.parse().ok()?, State::parse(words.next()?)?);
        let entered = words.next()?.parse().ok()?;
        let owner = read_owner(&mut words)?;
        Some(Self { ticket, edit, state, entered, owner, label: label.to_vec() })
    }
}

/// The value of a session's keys: `lk1 TTL DELAY PROOF PID HOST PROGRAM`, times in milliseconds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Record {
    pub(super) terms: Terms,
    /// A hash of the session's whole id, of which only the first half is public. A handle that knows the
    /// other half may act for the session.
    pub(super) proof: String,
    pub(super) owner: Owner,
}

impl Record {
    pub(super) fn new(session: SessionId, terms: Terms, owner: Owner) -> Self {
        Self { terms, proof: proof(session), owner }
    }

    /// Was it written for this session, and not for another one with the same public half?
    pub(super) fn is_of(&self, session: SessionId) -> bool {
        self.proof == proof(session)
    }

    pub(super) fn write(&self) -> Vec<u8> {
        let (ttl, delay) = (self.terms.ttl.as_millis(), self.terms.lock_delay.as_millis());
        format!("lk1 {ttl} {delay} {} {}\n", self.proof, write_owner(&self.owner)).into_bytes()
    }

    pub(super) fn read(value: &[u8]) -> Option<Self> {
        let mut words = split_head(value)?.0.strip_prefix("lk1 ")?.split(' ');
        let mut time = || Some(Duration::from_millis(words.next()?.parse().ok()?));
        let terms = Terms::new(time()?, time()?);
        let proof = words.next()?.to_owned();
        Some(Self { terms, proof, owner: read_owner(&mut words)? })
    }
}

fn proof(session: SessionId) -> String {
    let hash = digest(&SHA256, &session.to_bytes());
    hash.as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The value of a cell: `FENCE EDIT` in 16 hexadecimal digits each, so that etcd can compare which of two
/// values is the later one; then `set` or `none`, a line's end, the bytes.
pub(super) struct CellRow;

impl CellRow {
    pub(super) fn stamp(fence: u64, edit: u64) -> String {
        format!("{fence:016x} {edit:016x} ")
    }

    pub(super) fn write(fence: u64, edit: u64, bytes: Option<&[u8]>) -> Vec<u8> {
        let word = if bytes.is_some() { "set" } else { "none" };
        let head = format!("{}{word}\n", Self::stamp(fence, edit));
        [head.as_bytes(), bytes.unwrap_or_default()].concat()
    }

    /// The number of the edit that wrote this value, if that was under the grant with this fence; else 0.
    pub(super) fn edit_under(value: &[u8], fence: u64) -> u64 {
        let stamp = || {
            let mut words =
                split_head(value)?.0.split(' ').map(|word| u64::from_str_radix(word, 16).ok());
            Some((words.next()??, words.next()??))
        };
        stamp().filter(|(by, _)| *by == fence).map_or(0, |(_, edit)| edit)
    }

    pub(super) fn read(value: &[u8]) -> Option<Option<Cell>> {
        let (head, bytes) = split_head(value)?;
        let mut words = head.split(' ');
        let fence = u64::from_str_radix(words.next()?, 16).ok()?;
        let set = words.nth(1)? == "set";
        Some(set.then(|| Cell { bytes: bytes.to_vec(), fence }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_value_reads_back_as_it_was_written(
            edit: u64, entered: u64, pid: u32, host in "\\PC{0,9}", program in "\\PC{0,9}",
            label: Vec<u8>, ttl in 0u64..1_000_000_000, delay in 0u64..1_000_000_000,
        ) {
            let owner = Owner { host, pid, program };
            for state in [State::AtOnce, State::Queued, State::Kept] {
                let ticket = TicketId::random();
                let row = Row { ticket, edit, state, entered, owner: owner.clone(), label: label.clone() };
                prop_assert_eq!(Row::read(&row.write()), Some(row));
            }
            let (ttl, delay) = (Duration::from_millis(ttl), Duration::from_millis(delay));
            let session = SessionId::random();
            let record = Record::new(session, Terms::new(ttl, delay), owner);
            prop_assert_eq!(Record::read(&record.write()), Some(record.clone()));
            prop_assert!(record.is_of(session) && !record.is_of(SessionId::random()));
        }

        #[test]
        fn a_later_cell_is_a_greater_value(
            a in (any::<u64>(), any::<u64>()), b in (any::<u64>(), any::<u64>()),
            bytes: Vec<u8>,
        ) {
            let value = CellRow::write(a.0, a.1, Some(&bytes));
            prop_assert_eq!(CellRow::read(&value).unwrap().unwrap(), Cell { bytes, fence: a.0 });
            let is_older = value.as_slice() < CellRow::stamp(b.0, b.1).as_bytes();
            prop_assert_eq!(is_older, a < b);
        }

        #[test]
        fn no_value_makes_the_readers_panic(value: Vec<u8>) {
            let _ = (Row::read(&value), Record::read(&value), CellRow::read(&value));
        }
    }
}
