//! Sessions: what this handle knows of them and their tickets, and their renewals.
//!
//! Sessions exist in this handle alone; the nodes know only tickets. One rule makes a deadline safe: **a
//! majority of the nodes keeps every ticket of a session at least until the session's `expires`.** The core
//! believes in a session until the send time of the last answered renewal (or the open) + TTL − margin, and
//! `expires` is never earlier than that send time + TTL: it counts from when the request came in here, after
//! the core has sent it. So a deadline moves only after all tickets were prolonged to it, and a new ticket is
//! admitted only if it lives as long as the deadline of that moment. How long a vote took plays no part: it only
//! means that there is more to prolong. The margin remains for clocks that run at uneven rates.

use super::{
    IDLE, Redlock,
    decide::{Verdict, Vote},
    nodes::{Ballot, InFlight, patience},
    votes,
};
use crate::{
    clock::Moment,
    error::StoreError,
    model::{
        name::Name,
        ticket::{Owner, Place, SessionId, TicketId},
    },
    store::{
        Attach, Claim, Open, Renewal, STRAY_MAX, StoreResult, Terms,
        common::join,
        redis::{Call, hex, micros},
    },
};
use std::{collections::HashMap, time::Duration};

/// When a session is closed, for how long slow nodes may take to get the leaves. The program may end then.
const LAST_LEAVES: Duration = Duration::from_millis(50);

/// The sessions of this handle.
#[derive(Default)]
pub(super) struct Sessions {
    local: HashMap<SessionId, LocalSession>,
    /// Sessions that are over, and until when late copies of their requests can come.
    over: HashMap<SessionId, Moment>,
}

/// One session.
#[derive(Clone)]
pub(super) struct LocalSession {
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
    /// The label with which it was entered, for nodes that have lost it.
    pub(super) label: Vec<u8>,
    /// Its enter, on the way to slow nodes.
    pub(super) enter: InFlight,
}

impl Held {
    /// Whether a copy of its enter may still reach a node.
    pub(super) fn is_stray(&self) -> bool {
        self.enter.strong_count() > 0
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
    /// The session has it.
    Admitted,
    /// The session has been renewed meanwhile: the ticket must be prolonged until then.
    Behind(Moment),
    /// The session is over.
    Over,
}

impl Sessions {
    /// Opens a session, if it is not over.
    pub(super) fn open(&mut self, ask: Open, now: Moment) -> Option<Terms> {
        self.over.retain(|_, until| *until > now);
        self.local.retain(|_, session| session.expires + STRAY_MAX > now);
        if self.over.contains_key(&ask.session) {
            return None;
        }
        let session = self.local.entry(ask.session).or_insert_with(|| LocalSession {
            expires: now + ask.ttl,
            ask,
            tickets: HashMap::new(),
            version: 0,
        });
        Some(Terms::new(session.ask.ttl, session.ask.lock_delay))
    }

    /// Takes over a session with one ticket from another handle. How long the nodes keep the ticket is not
    /// known, so the first renewal prolongs it, or finds that it is lost.
    fn attach(&mut self, ask: &Attach, now: Moment) -> Option<()> {
        let (Terms { ttl, lock_delay, .. }, owner) = (ask.terms, Owner::default());
        self.open(Open { session: ask.session, ttl, lock_delay, owner }, now)?;
        let Claim { name, ticket, fence, .. } = ask.claim.clone();
        let (till, label, enter) = (now, ask.state.clone(), InFlight::new());
        let session = self.local.get_mut(&ask.session)?;
        session.tickets.entry(ticket).or_insert(Held { name, fence, till, label, enter });
        Some(())
    }

    /// A session that is not over.
    pub(super) fn live(&mut self, session: SessionId, now: Moment) -> Option<&mut LocalSession> {
        self.local.get_mut(&session).filter(|session| session.expires > now)
    }

    /// Ends a session for ever.
    pub(super) fn end(&mut self, session: SessionId, now: Moment) -> Option<LocalSession> {
        self.over.retain(|_, until| *until > now);
        let ended = self.local.remove(&session)?;
        self.over.insert(session, now + STRAY_MAX);
        Some(ended)
    }

    /// Forgets a session for which nothing more will be sent.
    pub(super) fn forget(&mut self, session: SessionId) {
        self.local.remove(&session);
    }

    /// Moves the session to `target` if all its tickets live until then.
    pub(super) fn advance(&mut self, session: SessionId, target: Moment, now: Moment) -> Progress {
        let Some(live) = self.live(session, now) else {
            self.end(session, now);
            return Progress::Done(Renewal::Lost);
        };
        let behind = live.tickets.iter().filter(|(_, held)| held.till < target);
        let behind: Vec<_> = behind.map(|(ticket, held)| (*ticket, held.clone())).collect();
        if !behind.is_empty() {
            return Progress::Behind(behind);
        }
        live.expires = live.expires.max(target);
        // A majority has just said of each of them that it has it.
        let tickets = Some(live.tickets.keys().copied().collect());
        Progress::Done(Renewal::Renewed { version: live.version, tickets })
    }

    /// Notes that the nodes keep this ticket until then.
    fn prolonged(&mut self, session: SessionId, ticket: TicketId, till: Moment) {
        let local = self.local.get_mut(&session);
        if let Some(held) = local.and_then(|local| local.tickets.get_mut(&ticket)) {
            held.till = held.till.max(till);
        }
    }

    /// Takes the session's own ticket out, if it has it; returns the TTL of a session that is not over.
    pub(super) fn leave(&mut self, place: &Place, now: Moment) -> Option<(Duration, Option<Held>)> {
        let live = self.live(place.session, now)?;
        let is_it = live.tickets.get(&place.ticket).is_some_and(|held| held.name == place.name);
        let held = if is_it { live.tickets.remove(&place.ticket) } else { None };
        Some((live.ask.ttl, held))
    }

    /// Notes that the grant of this fence is gone from the nodes.
    pub(super) fn lost(&mut self, session: SessionId, ticket: TicketId, fence: u64) {
        let Some(local) = self.local.get_mut(&session) else { return };
        if local.tickets.get(&ticket).is_some_and(|held| held.fence == fence) {
            local.tickets.remove(&ticket);
            local.version += 1;
        }
    }

    /// Adds a grant to its session, if the grant lives as long as the session does.
    pub(super) fn admit(
        &mut self,
        session: SessionId,
        ticket: TicketId,
        held: &Held,
        now: Moment,
    ) -> Admission {
        match self.live(session, now) {
            None => Admission::Over,
            Some(live) if live.expires > held.till => Admission::Behind(live.expires),
            Some(live) => {
                live.tickets.insert(ticket, held.clone());
                Admission::Admitted
            }
        }
    }
}

impl Redlock {
    /// A session that is not over, as this handle knows it now.
    pub(super) fn session(&self, session: SessionId) -> StoreResult<LocalSession> {
        let session = self.sessions.lock().live(session, self.nodes.clock.now()).cloned();
        session.ok_or_else(|| StoreError::session_over(self.nodes.kind))
    }

    /// The label of the session's ticket: nodes that have lost the ticket get it again with it.
    pub(super) fn detach_session(&self, session: SessionId) -> StoreResult<Vec<u8>> {
        let tickets = self.session(session)?.tickets;
        Ok(tickets.into_values().next().map(|held| held.label).unwrap_or_default())
    }

    pub(super) fn attach_session(&self, ask: &Attach) -> StoreResult<()> {
        let attached = self.sessions.lock().attach(ask, self.nodes.clock.now());
        attached.ok_or_else(|| StoreError::session_over(self.nodes.kind))
    }

    pub(super) async fn renew_session(&self, session: SessionId) -> StoreResult<Renewal> {
        let now = self.nodes.clock.now();
        let Ok(LocalSession { ask, .. }) = self.session(session) else {
            self.sessions.lock().end(session, now);
            return Ok(Renewal::Lost);
        };
        let target = now + ask.ttl;
        loop {
            let progress = self.sessions.lock().advance(session, target, self.nodes.clock.now());
            match progress {
                Progress::Done(renewal) => return Ok(renewal),
                Progress::Behind(tickets) => {
                    let prolong = |(ticket, held)| self.renew_ticket(&ask, ticket, held, target);
                    let prolonged = join::all(tickets.into_iter().map(prolong)).await;
                    prolonged.into_iter().collect::<StoreResult<()>>()?;
                }
            }
        }
    }

    async fn renew_ticket(
        &self,
        ask: &Open,
        ticket: TicketId,
        held: Held,
        target: Moment,
    ) -> StoreResult<()> {
        let place = Place { session: ask.session, name: held.name.clone(), ticket };
        let ballot = self.prolong(&place, ask, target).await;
        let lack = ballot.nodes_that_said(Vote::No);
        if self.nodes.decision(ballot)? {
            self.sessions.lock().prolonged(ask.session, ticket, target);
            self.repair(place, ask, &held, &lack, target).await;
        } else {
            self.sessions.lock().lost(ask.session, ticket, held.fence);
        }
        Ok(())
    }

    /// Has the nodes keep a ticket until then. All nodes that answer in time are heard, since those that
    /// lack the ticket get it again; but none is waited for once the ticket is lost.
    pub(super) async fn prolong(&self, place: &Place, ask: &Open, till: Moment) -> Ballot {
        let Place { session, name, ticket } = place;
        let mut call = Call::new(&self.scripts.renew, &[self.key(name), self.index()]);
        call.arg(ticket.to_string()).arg(hex(*session));
        call.arg(self.length(till, ask)).arg(micros(IDLE)).arg(name.as_str());
        let is_lost = |so_far| so_far == Verdict::Failed;
        self.nodes.vote(patience(ask.ttl), call, votes::yes_or_no, is_lost).await
    }

    /// Puts a ticket back on nodes that have said that they lack it, in the very round in which a majority
    /// has prolonged it. That is no vote: otherwise a ticket that had lapsed would come back.
    async fn repair(&self, place: Place, ask: &Open, held: &Held, lack: &[usize], till: Moment) {
        // The ticket may have been left meanwhile; a leave that comes now is sent behind this repair.
        let is_held =
            || self.session(place.session).is_ok_and(|s| s.tickets.contains_key(&place.ticket));
        if !lack.is_empty() && is_held() {
            let call = self.proposal(&place, ask, held.fence, till, &held.label, true);
            self.nodes.tell_some(lack, patience(ask.ttl), &call).await;
        }
    }

    pub(super) async fn close_session(&self, session: SessionId) -> StoreResult<()> {
        let ended = self.sessions.lock().end(session, self.nodes.clock.now());
        let Some(ended) = ended else { return Ok(()) };
        let patience = patience(ended.ask.ttl);
        let leave = |(ticket, held): (TicketId, Held)| async move {
            let stray = held.is_stray();
            let place = Place { session, name: held.name, ticket };
            self.take_away(&place, stray, patience).await.map(drop)
        };
        let left = join::all(ended.tickets.into_iter().map(leave)).await;
        self.nodes.finished(LAST_LEAVES).await;
        left.into_iter().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TTL: Duration = Duration::from_secs(10);

    fn at(seconds: u64) -> Moment {
        Moment::from_millis(seconds * 1_000)
    }

    fn open(sessions: &mut Sessions, session: SessionId, now: Moment) -> Option<Terms> {
        let owner = Owner::default();
        sessions.open(Open { session, ttl: TTL, lock_delay: Duration::ZERO, owner }, now)
    }

    fn held(till: Moment) -> Held {
        let name = Name::new("a").expect("a name");
        Held { name, fence: 1, till, label: Vec::new(), enter: InFlight::new() }
    }

    #[test]
    fn a_deadline_moves_only_with_all_tickets() {
        let (mut sessions, session) = (Sessions::default(), SessionId::random());
        let ticket = TicketId::random();
        open(&mut sessions, session, at(0)).unwrap();
        assert_eq!(sessions.admit(session, ticket, &held(at(10)), at(1)), Admission::Admitted);
        let Progress::Behind(behind) = sessions.advance(session, at(13), at(3)) else {
            panic!("the ticket lives until 10 only")
        };
        assert_eq!(behind.len(), 1);
        assert_eq!(sessions.live(session, at(3)).unwrap().expires, at(10));
        sessions.prolonged(session, ticket, at(13));
        let done = sessions.advance(session, at(13), at(4));
        let tickets = Some([ticket].into_iter().collect());
        let renewed = Renewal::Renewed { version: 0, tickets };
        assert!(matches!(done, Progress::Done(done) if done == renewed), "{done:?}");
        assert_eq!(sessions.live(session, at(3)).unwrap().expires, at(13));
    }

    #[test]
    fn a_grant_that_a_renewal_has_overtaken_is_prolonged_first() {
        let (mut sessions, session) = (Sessions::default(), SessionId::random());
        let ticket = TicketId::random();
        open(&mut sessions, session, at(0)).unwrap();
        // The vote began before the renewal and ends after it.
        sessions.advance(session, at(15), at(5));
        let behind = sessions.admit(session, ticket, &held(at(10)), at(6));
        assert_eq!(behind, Admission::Behind(at(15)));
        assert_eq!(sessions.admit(session, ticket, &held(at(15)), at(6)), Admission::Admitted);
        assert_eq!(sessions.admit(session, ticket, &held(at(15)), at(15)), Admission::Over);
    }

    #[test]
    fn what_is_over_stays_over() {
        let (mut sessions, session) = (Sessions::default(), SessionId::random());
        open(&mut sessions, session, at(0)).unwrap();
        assert!(matches!(sessions.advance(session, at(20), at(10)), Progress::Done(Renewal::Lost)));
        assert!(open(&mut sessions, session, at(11)).is_none(), "a late copy");
        open(&mut sessions, SessionId::random(), at(11)).unwrap();
        assert!(
            open(&mut sessions, session, at(11) + STRAY_MAX).is_some(),
            "nothing comes so late"
        );
    }
}
