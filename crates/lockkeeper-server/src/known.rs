//! The sessions that this instance has seen, for what the store's handle keeps of them and for terms that no later
//! answer of the store repeats. A hint beside the data: another instance knows nothing of it, and needs nothing of it,
//! unless the store binds a session to the handle that opened it.

use crate::{problem::Problem, service::Service, session_id::Session};
use lockkeeper::{
    Store as _, Terms,
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
    /// The session was opened by the request that took its one lock, and ends with it.
    single: bool,
}

impl Entry {
    fn keep(&self) -> Duration {
        self.terms
            .map_or(FORGET_AFTER, |terms| (terms.ttl + terms.lock_delay) * 2 + FORGET_AFTER / 10)
    }
}

impl Known {
    pub(crate) fn new(store: &AnyStore) -> Self {
        let table = Table { sessions: HashMap::new(), swept: Instant::now() };
        Self { bound: !store.capabilities().sessions_shared, table: Mutex::new(table) }
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Service {
    /// A session was opened here.
    pub(crate) fn opened(&self, session: &Session, terms: Terms, single: bool) {
        self.hub.session_opened(&session.public, &terms);
        let entry = Entry { seen: Instant::now(), terms: Some(terms), single };
        self.known.table().sessions.insert(session.id, entry);
        self.sweep();
    }

    /// A request for this session has come.
    pub(crate) fn seen(&self, session: SessionId) -> Result<(), Problem> {
        let bound = self.known.bound;
        {
            let mut table = self.known.table();
            match table.sessions.get_mut(&session) {
                Some(entry) => entry.seen = Instant::now(),
                None if bound => return Err(self.elsewhere()),
                None => {
                    let entry = Entry { seen: Instant::now(), terms: None, single: false };
                    table.sessions.insert(session, entry);
                }
            }
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
            entry.single = false;
        }
    }

    /// Does the session end with its ticket?
    pub(crate) fn is_single(&self, session: SessionId) -> bool {
        self.known.table().sessions.get(&session).is_some_and(|entry| entry.single)
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

    /// The session is over: nothing more will be sent for it.
    fn over(&self, session: SessionId) {
        if !self.known.bound {
            self.known.table().sessions.remove(&session);
        }
        self.store.forget(session);
    }

    /// Forgets sessions that no client has asked about for long.
    fn sweep(&self) {
        let now = Instant::now();
        let gone: Vec<SessionId> = {
            let mut table = self.known.table();
            if now - table.swept < SWEEP_EVERY {
                return;
            }
            table.swept = now;
            let old = table.sessions.extract_if(|_, entry| now - entry.seen > entry.keep());
            old.map(|(session, _)| session).collect()
        };
        for session in gone {
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
