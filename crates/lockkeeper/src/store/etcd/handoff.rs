//! Hand-off notices: a release tells the next ticket that it is granted, and which tickets follow it.
//!
//! A poll that finds its ticket granted also reads the tickets right behind it. No ticket can come between
//! them any more, since a line is in the order in which its keys were created. When the holder leaves, the
//! same transaction puts a notice into the inbox of the next ticket's session, if that ticket still stands.
//! So the next holder needs no read to know that it is granted, and it passes the rest of the list on.
//! A holder without such a list just leaves, and the watch of the next ticket tells.
//!
//! Without notices a hand-over takes 1.87 times as long with 100 waiters (see `docs/design/etcd.md`). Test:
//! `in_a_line_a_lock_passes_on_without_a_read`.

use super::{
    client::{RequestOp, TxnRequest, txn},
    keys::Keys,
    line::LineSnapshot,
};
use crate::model::{name::Name, ticket::Mode};
use std::sync::Arc;

/// How many successors a holder knows.
const SUCCESSORS_MAX: usize = 16;

/// How many keys of a line a poll reads to learn of them.
pub(super) const READ: i64 = SUCCESSORS_MAX as i64 + 1;

/// An exclusive ticket behind the holder. Every ticket between the two is known as well.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Successor {
    /// The end of its key, `SESSION-SLOT`: the rest is common to all exclusive tickets of the line.
    key_suffix: String,
    session: i64,
    created: i64,
}

/// The exclusive tickets right behind the first of a line, of which the beginning was read.
pub(super) fn successors(keys: &Keys, name: &Name, line: &LineSnapshot) -> Arc<[Successor]> {
    let ours = line.0.iter().skip(1).map_while(|entry| {
        let session = entry.parsed.session.filter(|_| entry.parsed.mode == Mode::Exclusive)?;
        let key_suffix = keys.exclusive_suffix(name, &entry.key)?.to_owned();
        Some(Successor { key_suffix, session, created: entry.created })
    });
    if keys.is_raw() { Arc::default() } else { ours.take(SUCCESSORS_MAX).collect() }
}

/// Notifies the first of the successors, if its key still stands.
pub(super) fn notify_next(keys: &Keys, name: &Name, successors: &[Successor]) -> Option<RequestOp> {
    let (next, rest) = successors.split_first()?;
    let key = keys.with_exclusive_suffix(name, &next.key_suffix);
    let notice = HandoffNotice { created: next.created, successors: rest.into() }.write();
    Some(txn::txn(TxnRequest {
        compare: vec![
            txn::created(&key, next.created),
            // The notice belongs to the session's lease, so the put would fail without it.
            txn::exists(&keys.record(next.session)),
        ],
        success: vec![txn::put(&keys.handoff(next.session), notice, next.session)],
        failure: Vec::new(),
    }))
}

/// Tells a session that one of its tickets is granted.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct HandoffNotice {
    /// The create revision of the ticket's key. A transaction creates one ticket at most.
    pub(super) created: i64,
    pub(super) successors: Arc<[Successor]>,
}

impl HandoffNotice {
    fn write(&self) -> Vec<u8> {
        let next = self.successors.iter().map(|s| format!(" {}@{:x}", s.key_suffix, s.created));
        format!("{:x}{}", self.created, next.collect::<String>()).into_bytes()
    }

    pub(super) fn read(text: &[u8]) -> Option<Self> {
        let mut words = std::str::from_utf8(text).ok()?.split(' ');
        let created = i64::from_str_radix(words.next()?, 16).ok()?;
        let successor = |word: &str| {
            let (key_suffix, created) = word.split_once('@')?;
            let session = i64::from_str_radix(key_suffix.split_once('-')?.0, 16).ok()?;
            let created = i64::from_str_radix(created, 16).ok()?;
            Some(Successor { key_suffix: key_suffix.to_owned(), session, created })
        };
        Some(Self { created, successors: words.map(successor).collect::<Option<_>>()? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::ticket::TicketId;
    use crate::store::etcd::client::KeyValue;
    use proptest::prelude::*;

    fn line(keys: &Keys, name: &Name, modes: &[Mode]) -> LineSnapshot {
        let tickets = modes.iter().enumerate().map(|(at, mode)| {
            let ticket = TicketId::from_bytes([at as u8; 16]);
            let key = keys.of_ticket(name, *mode, ticket, at as i64 + 1).slot;
            KeyValue { key, create_revision: 10 + at as i64, ..KeyValue::default() }
        });
        LineSnapshot::read(keys, name, tickets.collect())
    }

    fn created(successors: &[Successor]) -> Vec<i64> {
        successors.iter().map(|next| next.created).collect()
    }

    #[test]
    fn only_exclusive_tickets_right_behind_an_exclusive_holder_are_successors() {
        let (keys, name) = (Keys::new("/r", false), Name::new("a b").unwrap());
        let (alone, shared) = (Mode::Exclusive, Mode::Shared);
        let found = |modes: &[Mode]| created(&successors(&keys, &name, &line(&keys, &name, modes)));
        assert_eq!(found(&[alone]), Vec::<i64>::new());
        assert_eq!(found(&[alone, alone, alone]), [11, 12]);
        assert_eq!(found(&[alone, alone, shared, alone]), [11]);
        assert_eq!(found(&[alone, shared, alone]), Vec::<i64>::new());
        assert_eq!(found(&[alone; 40]).len(), SUCCESSORS_MAX);
    }

    #[test]
    fn in_raw_mode_a_holder_knows_no_successors() {
        let (keys, name) = (Keys::new("/r", true), Name::new("a").unwrap());
        let queue = line(&keys, &name, &[Mode::Exclusive; 3]);
        assert!(successors(&keys, &name, &queue).is_empty());
    }

    #[test]
    fn a_key_suffix_leads_back_to_its_key() {
        let (keys, name) = (Keys::new("/r", false), Name::new("a b").unwrap());
        let queue = line(&keys, &name, &[Mode::Exclusive; 2]);
        let next = &successors(&keys, &name, &queue)[0];
        assert_eq!(keys.with_exclusive_suffix(&name, &next.key_suffix), queue.0[1].key);
        assert_eq!(Some(next.session), queue.0[1].parsed.session);
    }

    proptest! {
        #[test]
        fn a_notice_is_read_as_it_was_written(
            created in 1..i64::MAX,
            successors in prop::collection::vec((1..i64::MAX, 0..64_u8, 1..i64::MAX), 0..SUCCESSORS_MAX),
        ) {
            let next = |(session, slot, created)| {
                Successor { key_suffix: format!("{session:016x}-{slot:02x}"), session, created }
            };
            let notice = HandoffNotice { created, successors: successors.into_iter().map(next).collect() };
            prop_assert_eq!(HandoffNotice::read(&notice.write()), Some(notice));
        }

        #[test]
        fn no_other_text_is_read_as_a_notice(text in "[ -~]{0,40}") {
            let notice = HandoffNotice::read(text.as_bytes());
            let words = text.split(' ').count();
            prop_assert!(notice.is_none_or(|notice| words == notice.successors.len() + 1));
        }
    }
}
