//! What this handle knows of sessions and their tickets.
//!
//! Sessions live here alone: the nodes know only tickets. One rule makes belief safe: **every ticket
//! in the book is kept by a majority of the nodes at least until its session's `expires`.** The core
//! believes until the send time of the last answered renewal (or the open) + TTL − margin, and
//! `expires` is never earlier than that send time + TTL: it counts from when the request came in here,
//! after the core has sent it. So a deadline moves only after all tickets were prolonged to it, and a
//! ticket comes into the book only when it lives as long as the deadline of that moment. How long a
//! vote took plays no part: it only means that there is more to prolong. The margin remains for clocks
//! that run at uneven rates.

use super::nodes::Late;
use crate::{
    clock::Moment,
    model::{
        name::Name,
        ticket::{Place, SessionId, TicketId},
    },
    store::{Open, Renewal, STRAY_MAX, Terms},
};
use std::{collections::HashMap, time::Duration};

/// The sessions of this handle.
#[derive(Default)]
pub(super) struct Book {
    lives: HashMap<SessionId, Life>,
    /// Sessions that are over, and until when late copies of their requests can come.
    over: HashMap<SessionId, Moment>,
}

/// One session.
#[derive(Clone)]
pub(super) struct Life {
    pub(super) ask: Open,
    /// When it is over unless it is renewed.
    pub(super) expires: Moment,
    pub(super) tickets: HashMap<TicketId, Held>,
    /// Counts tickets that were lost.
    version: u64,
}

/// A granted ticket.
#[derive(Clone, Debug)]
pub(super) struct Held {
    pub(super) name: Name,
    pub(super) fence: u64,
    /// A majority of the nodes keeps it at least until then (and for the lock-delay after that).
    pub(super) till: Moment,
    /// What it was entered with, for nodes that have lost it.
    pub(super) note: Vec<u8>,
    /// Its enter, on the way to slow nodes.
    pub(super) late: Late,
}

impl Held {
    /// Could a copy of its enter still come?
    pub(super) fn is_stray(&self) -> bool {
        self.late.strong_count() > 0
    }
}

/// How far a renewal has come.
#[derive(Debug)]
pub(super) enum Progress {
    /// These tickets do not live long enough yet.
    Behind(Vec<(TicketId, Held)>),
    /// The session has moved, or it is over.
    Done(Renewal),
}

/// What became of a grant.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Admission {
    /// It is in the book.
    Admitted,
    /// The session has been renewed meanwhile: the ticket must be prolonged until then.
    Behind(Moment),
    /// The session is over.
    Over,
}

impl Book {
    /// Opens a session, if it is not over.
    pub(super) fn open(&mut self, ask: Open, now: Moment) -> Option<Terms> {
        self.over.retain(|_, until| *until > now);
        self.lives.retain(|_, life| life.expires + STRAY_MAX > now);
        if self.over.contains_key(&ask.session) {
            return None;
        }
        let life = self.lives.entry(ask.session).or_insert_with(|| Life {
            expires: now + ask.ttl,
            ask,
            tickets: HashMap::new(),
            version: 0,
        });
        Some(Terms::new(life.ask.ttl, life.ask.lock_delay))
    }

    /// A session that is not over.
    pub(super) fn life(&mut self, session: SessionId, now: Moment) -> Option<&mut Life> {
        self.lives.get_mut(&session).filter(|life| life.expires > now)
    }

    /// Ends a session for ever.
    pub(super) fn end(&mut self, session: SessionId, now: Moment) -> Option<Life> {
        self.over.retain(|_, until| *until > now);
        let life = self.lives.remove(&session)?;
        self.over.insert(session, now + STRAY_MAX);
        Some(life)
    }

    /// Forgets a session of which nothing more will be heard.
    pub(super) fn forget(&mut self, session: SessionId) {
        self.lives.remove(&session);
    }

    /// Moves the session to `target` if all its tickets live until then.
    pub(super) fn advance(&mut self, session: SessionId, target: Moment, now: Moment) -> Progress {
        let Some(life) = self.life(session, now) else {
            self.end(session, now);
            return Progress::Done(Renewal::Lost);
        };
        let behind = life.tickets.iter().filter(|(_, held)| held.till < target);
        let behind: Vec<_> = behind.map(|(ticket, held)| (*ticket, held.clone())).collect();
        if !behind.is_empty() {
            return Progress::Behind(behind);
        }
        life.expires = life.expires.max(target);
        // A majority has just said of each of them that it has it.
        let tickets = Some(life.tickets.keys().copied().collect());
        Progress::Done(Renewal::Renewed { version: life.version, tickets })
    }

    /// The nodes keep this ticket until then.
    pub(super) fn prolonged(&mut self, session: SessionId, ticket: TicketId, till: Moment) {
        let life = self.lives.get_mut(&session);
        if let Some(held) = life.and_then(|life| life.tickets.get_mut(&ticket)) {
            held.till = held.till.max(till);
        }
    }

    /// The session's own ticket goes, if it has it; says what TTL the session has, if it is not over.
    pub(super) fn leave(&mut self, place: &Place, now: Moment) -> Option<(Duration, Option<Held>)> {
        let life = self.life(place.session, now)?;
        let is_it = life.tickets.get(&place.ticket).is_some_and(|held| held.name == place.name);
        let held = if is_it { life.tickets.remove(&place.ticket) } else { None };
        Some((life.ask.ttl, held))
    }

    /// The grant of this fence is gone from the nodes.
    pub(super) fn lost(&mut self, session: SessionId, ticket: TicketId, fence: u64) {
        let Some(life) = self.lives.get_mut(&session) else { return };
        if life.tickets.get(&ticket).is_some_and(|held| held.fence == fence) {
            life.tickets.remove(&ticket);
            life.version += 1;
        }
    }

    /// Writes down a grant, if it lives as long as its session does.
    pub(super) fn admit(
        &mut self,
        session: SessionId,
        ticket: TicketId,
        held: &Held,
        now: Moment,
    ) -> Admission {
        match self.life(session, now) {
            None => Admission::Over,
            Some(life) if life.expires > held.till => Admission::Behind(life.expires),
            Some(life) => {
                life.tickets.insert(ticket, held.clone());
                Admission::Admitted
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::ticket::Owner;

    const TTL: Duration = Duration::from_secs(10);

    fn at(seconds: u64) -> Moment {
        Moment::from_millis(seconds * 1_000)
    }

    fn open(book: &mut Book, session: SessionId, now: Moment) -> Option<Terms> {
        let owner = Owner::default();
        book.open(Open { session, ttl: TTL, lock_delay: Duration::ZERO, owner }, now)
    }

    fn held(till: Moment) -> Held {
        let name = Name::new("a").expect("a name");
        Held { name, fence: 1, till, note: Vec::new(), late: Late::new() }
    }

    #[test]
    fn a_deadline_moves_only_with_all_tickets() {
        let (mut book, session) = (Book::default(), SessionId::random());
        let ticket = TicketId::random();
        open(&mut book, session, at(0)).unwrap();
        assert_eq!(book.admit(session, ticket, &held(at(10)), at(1)), Admission::Admitted);
        let Progress::Behind(behind) = book.advance(session, at(13), at(3)) else {
            panic!("the ticket lives until 10 only")
        };
        assert_eq!(behind.len(), 1);
        assert_eq!(book.life(session, at(3)).unwrap().expires, at(10));
        book.prolonged(session, ticket, at(13));
        let done = book.advance(session, at(13), at(4));
        let tickets = Some([ticket].into_iter().collect());
        let renewed = Renewal::Renewed { version: 0, tickets };
        assert!(matches!(done, Progress::Done(done) if done == renewed), "{done:?}");
        assert_eq!(book.life(session, at(3)).unwrap().expires, at(13));
    }

    #[test]
    fn a_grant_that_a_renewal_has_overtaken_is_prolonged_first() {
        let (mut book, session) = (Book::default(), SessionId::random());
        let ticket = TicketId::random();
        open(&mut book, session, at(0)).unwrap();
        // The vote began before the renewal and ends after it.
        book.advance(session, at(15), at(5));
        let behind = book.admit(session, ticket, &held(at(10)), at(6));
        assert_eq!(behind, Admission::Behind(at(15)));
        assert_eq!(book.admit(session, ticket, &held(at(15)), at(6)), Admission::Admitted);
        assert_eq!(book.admit(session, ticket, &held(at(15)), at(15)), Admission::Over);
    }

    #[test]
    fn what_is_over_stays_over() {
        let (mut book, session) = (Book::default(), SessionId::random());
        open(&mut book, session, at(0)).unwrap();
        assert!(matches!(book.advance(session, at(20), at(10)), Progress::Done(Renewal::Lost)));
        assert!(open(&mut book, session, at(11)).is_none(), "a late copy");
        open(&mut book, SessionId::random(), at(11)).unwrap();
        assert!(open(&mut book, session, at(11) + STRAY_MAX).is_some(), "nothing comes so late");
    }
}
