//! A lock that passes from hand to hand.
//!
//! Who looks whether its turn has come also sees who stands right behind it: nobody can come between
//! them any more, since a line is in the order in which its keys were created. When it leaves, the same
//! transaction tells the next one, if that still stands. So the next one knows, without looking, that
//! it is there and the first; and it is told who comes after it, so that it can do the same. Whoever
//! leaves without such knowledge just leaves, and the next one looks.

use super::{
    keys::Keys,
    ops,
    proto::{RequestOp, TxnRequest},
    standing::Queue,
};
use crate::model::{name::Name, ticket::Mode};
use std::sync::Arc;

/// Of how many who stand behind is known.
const KNOWN_MAX: usize = 16;

/// How much of a line is read to know that, by the first in it.
pub(super) const READ: i64 = KNOWN_MAX as i64 + 1;

/// One who stands in the line of the one who knows of it, and wants it alone. All who will ever stand
/// between them are known too.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Next {
    /// What its key ends with, after all that is common to the exclusive tickets of the line.
    seat: String,
    session: i64,
    created: i64,
}

/// Those who stand right behind the first of a line, of which the beginning was read.
pub(super) fn behind(keys: &Keys, name: &Name, queue: &Queue) -> Arc<[Next]> {
    let ours = queue.0.iter().skip(1).map_while(|s| {
        let session = s.spot.session.filter(|_| s.spot.mode == Mode::Exclusive)?;
        Some(Next { seat: keys.seat(name, &s.key)?.to_owned(), session, created: s.created })
    });
    if keys.is_raw() { Arc::default() } else { ours.take(KNOWN_MAX).collect() }
}

/// Tells the next one that its turn has come, if it stands where it stood.
pub(super) fn pass_on(keys: &Keys, name: &Name, behind: &[Next]) -> Option<RequestOp> {
    let (next, rest) = behind.split_first()?;
    let key = keys.at_seat(name, &next.seat);
    let letter = Letter { created: next.created, behind: rest.into() }.write();
    Some(ops::txn(TxnRequest {
        compare: vec![
            ops::created(&key, next.created),
            // The letter belongs to the session's first lease, so that has to be there.
            ops::exists(&keys.shard(next.session, 0)),
        ],
        success: vec![ops::put(&keys.turn(next.session), letter, next.session)],
        failure: Vec::new(),
    }))
}

/// Tells a ticket that its turn has come.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Letter {
    /// Which ticket: a transaction creates one at most.
    pub(super) created: i64,
    pub(super) behind: Arc<[Next]>,
}

impl Letter {
    fn write(&self) -> Vec<u8> {
        let behind = self.behind.iter().map(|next| format!(" {}@{:x}", next.seat, next.created));
        format!("{:x}{}", self.created, behind.collect::<String>()).into_bytes()
    }

    pub(super) fn read(text: &[u8]) -> Option<Self> {
        let mut words = std::str::from_utf8(text).ok()?.split(' ');
        let created = i64::from_str_radix(words.next()?, 16).ok()?;
        let next = |word: &str| {
            let (seat, created) = word.split_once('@')?;
            let session = i64::from_str_radix(seat.split_once('-')?.0, 16).ok()?;
            let created = i64::from_str_radix(created, 16).ok()?;
            Some(Next { seat: seat.to_owned(), session, created })
        };
        Some(Self { created, behind: words.map(next).collect::<Option<_>>()? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::ticket::TicketId;
    use crate::store::etcd::proto::KeyValue;
    use proptest::prelude::*;

    fn line(keys: &Keys, name: &Name, modes: &[Mode]) -> Queue {
        let tickets = modes.iter().enumerate().map(|(at, mode)| {
            let ticket = TicketId::from_bytes([at as u8; 16]);
            let key = keys.seats(name, *mode, ticket, at as i64 + 1).slot;
            KeyValue { key, create_revision: 10 + at as i64, ..KeyValue::default() }
        });
        Queue::read(keys, name, tickets.collect())
    }

    fn created(behind: &[Next]) -> Vec<i64> {
        behind.iter().map(|next| next.created).collect()
    }

    #[test]
    fn only_who_wants_the_line_alone_right_behind_its_like_is_told() {
        let (keys, name) = (Keys::new("/r", false), Name::new("a b").unwrap());
        let (alone, shared) = (Mode::Exclusive, Mode::Shared);
        let found = |modes: &[Mode]| created(&behind(&keys, &name, &line(&keys, &name, modes)));
        assert_eq!(found(&[alone]), Vec::<i64>::new());
        assert_eq!(found(&[alone, alone, alone]), [11, 12]);
        assert_eq!(found(&[alone, alone, shared, alone]), [11]);
        assert_eq!(found(&[alone, shared, alone]), Vec::<i64>::new());
        assert_eq!(found(&[alone; 40]).len(), KNOWN_MAX);
    }

    #[test]
    fn among_other_clients_tickets_nobody_is_told() {
        let (keys, name) = (Keys::new("/r", true), Name::new("a").unwrap());
        let queue = line(&keys, &name, &[Mode::Exclusive; 3]);
        assert!(behind(&keys, &name, &queue).is_empty());
    }

    #[test]
    fn a_seat_leads_back_to_its_key() {
        let (keys, name) = (Keys::new("/r", false), Name::new("a b").unwrap());
        let queue = line(&keys, &name, &[Mode::Exclusive; 2]);
        let next = &behind(&keys, &name, &queue)[0];
        assert_eq!(keys.at_seat(&name, &next.seat), queue.0[1].key);
        assert_eq!(Some(next.session), queue.0[1].spot.session);
    }

    proptest! {
        #[test]
        fn a_letter_is_read_as_it_was_written(
            created in 1..i64::MAX,
            behind in prop::collection::vec((1..i64::MAX, 0..64_u8, 1..i64::MAX), 0..KNOWN_MAX),
        ) {
            let next = |(session, slot, created)| {
                Next { seat: format!("{session:016x}-{slot:02x}"), session, created }
            };
            let letter = Letter { created, behind: behind.into_iter().map(next).collect() };
            prop_assert_eq!(Letter::read(&letter.write()), Some(letter));
        }

        #[test]
        fn what_is_no_letter_is_not_taken_for_one(text in "[ -~]{0,40}") {
            let letter = Letter::read(text.as_bytes());
            prop_assert!(letter.is_none_or(|letter| text.split(' ').count() == letter.behind.len() + 1));
        }
    }
}
