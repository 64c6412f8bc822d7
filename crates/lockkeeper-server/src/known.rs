//! The sessions that this instance has seen, for what the store's handle keeps of them and for terms that no later
//! answer of the store repeats. A hint beside the data: another instance knows nothing of it, and needs nothing of it,
//! unless the store binds a session to the handle that opened it.

use crate::{problem::Problem, service::Service, session_id::Session};
use lockkeeper::{
    Store as _, Terms, TicketId,
    store::{AnyStore, SessionId},
};
use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use tokio::time::Instant;

/// How long after the last request for it a session is forgotten that was not opened here.
const FORGET_AFTER: Duration = Duration::from_secs(600);
/// How often the sessions are looked through.
const SWEEP_EVERY: Duration = Duration::from_secs(10);

/// What this instance knows of sessions.
#[derive(Debug)]
pub(crate) struct Known {
    /// Must a session be known, because the store binds it to the handle that opened it?
    bound: bool,
    table: Mutex<Table>,
}

#[derive(Debug)]
struct Table {
    sessions: HashMap<SessionId, Entry>,
    swept: Instant,
}

#[derive(Debug)]
struct Entry {
    seen: Instant,
    terms: Option<Terms>,
    /// The one ticket of the session, which was opened by the request that took it, and ends with it.
    single: Option<TicketId>,
}

impl Entry {
    fn keep(&self) -> Duration {
        self.terms
            .map_or(FORGET_AFTER, |terms| (terms.ttl + terms.lock_delay) * 2 + FORGET_AFTER / 10)
    }
}

impl Known {
    pub(crate) fn new(store: &AnyStore) -> Self {
        Self::bound(!store.capabilities().sessions_shared)
    }

    fn bound(bound: bool) -> Self {
        let table = Table { sessions: HashMap::new(), swept: Instant::now() };
        Self { bound, table: Mutex::new(table) }
    }

    fn opened(&self, session: SessionId, terms: Terms, single: Option<TicketId>) {
        let mut table = self.table();
        // What has become a session of many tickets stays one, also if its first request is sent again.
        let known = table.sessions.get(&session);
        let single = single.filter(|_| known.is_none_or(|entry| entry.single == single));
        let entry = Entry { seen: Instant::now(), terms: Some(terms), single };
        table.sessions.insert(session, entry);
    }

    /// May a request for this session be served here?
    fn seen(&self, session: SessionId) -> bool {
        let mut table = self.table();
        match table.sessions.get_mut(&session) {
            Some(entry) => entry.seen = Instant::now(),
            None if self.bound => return false,
            None => {
                let entry = Entry { seen: Instant::now(), terms: None, single: None };
                table.sessions.insert(session, entry);
            }
        }
        true
    }

    /// A bound session stays known, so that a second close is not sent elsewhere.
    fn over(&self, session: SessionId) {
        if !self.bound {
            self.table().sessions.remove(&session);
        }
    }

    /// Takes out the sessions that no client has asked about for long.
    fn sweep(&self) -> Vec<SessionId> {
        let (now, mut table) = (Instant::now(), self.table());
        if now - table.swept < SWEEP_EVERY {
            return Vec::new();
        }
        table.swept = now;
        let old = table.sessions.extract_if(|_, entry| now - entry.seen > entry.keep());
        old.map(|(session, _)| session).collect()
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Service {
    /// A session was opened here.
    pub(crate) fn opened(&self, session: &Session, terms: Terms, single: Option<TicketId>) {
        self.hub.session_opened(&session.public, &terms);
        self.known.opened(session.id, terms, single);
        self.sweep();
    }

    /// A request for this session has come.
    pub(crate) fn seen(&self, session: SessionId) -> Result<(), Problem> {
        if !self.known.seen(session) {
            return Err(self.elsewhere());
        }
        self.sweep();
        Ok(())
    }

    /// The session's terms, if it was opened here.
    pub(crate) fn terms(&self, session: SessionId) -> Option<Terms> {
        self.known.table().sessions.get(&session)?.terms
    }

    /// Another ticket joins the session: it does not end with the first one any more.
    pub(crate) fn joined(&self, session: SessionId) {
        if let Some(entry) = self.known.table().sessions.get_mut(&session) {
            entry.single = None;
        }
    }

    /// Does the session end with this ticket?
    pub(crate) fn ends_with(&self, session: SessionId, ticket: TicketId) -> bool {
        let table = self.known.table();
        table.sessions.get(&session).is_some_and(|entry| entry.single == Some(ticket))
    }

    /// The session was closed.
    pub(crate) fn closed(&self, session: &Session) {
        self.over(session.id);
        self.hub.session_closed(&session.public);
    }

    /// The client is told that its session is over.
    pub(crate) fn lost(&self, session: &Session) {
        self.over(session.id);
        self.hub.session_lost(&session.public);
    }

    /// Nothing more will be sent for the session.
    fn over(&self, session: SessionId) {
        self.known.over(session);
        self.store.forget(session);
    }

    fn sweep(&self) {
        for session in self.known.sweep() {
            self.store.forget(session);
        }
    }

    fn elsewhere(&self) -> Problem {
        let what = format!(
            "this instance does not know the session. On the {} store a session belongs to the instance that \
             opened it, until that instance ends: ask there, or open another session",
            self.store.scheme()
        );
        Problem::new("other_instance", what).not_applied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn terms() -> Terms {
        Terms::new(Duration::from_secs(15), Duration::ZERO)
    }

    #[test]
    fn a_session_that_another_instance_has_opened_is_served_only_if_the_store_shares_it() {
        let (shared, bound) = (Known::bound(false), Known::bound(true));
        let session = SessionId::random();
        assert!(shared.seen(session) && !bound.seen(session));
        bound.opened(session, terms(), None);
        assert!(bound.seen(session));
        bound.over(session);
        assert!(bound.seen(session), "a second close is answered, too");
    }

    #[test]
    fn a_session_that_others_have_joined_does_not_end_with_its_first_ticket() {
        let (known, session) = (Known::bound(false), SessionId::random());
        let [first, second] = [(); 2].map(|()| TicketId::random());
        let single = || known.table().sessions[&session].single;
        known.opened(session, terms(), Some(first));
        known.opened(session, terms(), Some(first));
        assert_eq!(single(), Some(first));
        known.opened(session, terms(), Some(second));
        known.opened(session, terms(), Some(first));
        assert_eq!(single(), None);
    }

    #[tokio::test(start_paused = true)]
    async fn sessions_without_requests_are_forgotten() {
        let (known, [opened, seen]) = (Known::bound(false), [(); 2].map(|()| SessionId::random()));
        known.opened(opened, terms(), None);
        known.seen(seen);
        tokio::time::advance(Duration::from_secs(120)).await;
        assert!(known.sweep() == [opened], "after its TTL and a while");
        tokio::time::advance(FORGET_AFTER).await;
        assert!(known.sweep() == [seen]);
        assert!(known.table().sessions.is_empty());
    }
}
