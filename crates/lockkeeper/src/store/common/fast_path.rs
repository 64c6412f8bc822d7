//! When one plain statement is enough to take a lock in a database.
//!
//! A lock that no other ticket wants is taken by one `UPDATE` of one row. The statement reads that row and
//! nothing else, so it does not see the session. The store therefore uses it only within a second after the
//! server has said that the session lives, over connections that have not broken since, and never after the
//! session's end on the server's clock. If another handle ends the session within that second, the lock is
//! granted to a dead session, as are all locks that the session already has: the next ticket takes it away,
//! and the holder hears of the end with the next renewal.

use crate::{
    clock::Moment,
    model::{
        name::Name,
        ticket::{ById, SessionId},
    },
    sync::Mutex,
};
use foldhash::fast::RandomState;
use std::{
    hash::BuildHasher as _,
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

/// For how long the server's word that a session lives is relied on.
const FRESH: Duration = Duration::from_secs(1);
const SLOTS: usize = 1024;

/// What the server has said about a session.
#[derive(Clone, Copy)]
struct LocalSession {
    /// On the server's clock.
    expires: i64,
    /// When the request was sent that the server answered with that.
    confirmed: Moment,
    /// How many connections had broken then: a new one may lead to another server.
    breaks: u64,
}

/// What this process knows about sessions and lines.
pub(crate) struct FastPath {
    sessions: Mutex<ById<SessionId, LocalSession>>,
    /// By the hash of a name: whether other tickets were met in its line lately. There the plain statement would
    /// be sent in vain. Two names that share a slot cost each other a little time.
    contended: Box<[AtomicBool]>,
    hasher: RandomState,
}

impl Default for FastPath {
    fn default() -> Self {
        let contended = (0..SLOTS).map(|_| AtomicBool::new(false)).collect();
        Self { sessions: Mutex::default(), contended, hasher: RandomState::default() }
    }
}

impl FastPath {
    fn slot(&self, name: &Name) -> &AtomicBool {
        let hash = self.hasher.hash_one(name.as_str());
        let at = usize::try_from(hash % SLOTS as u64).unwrap_or(0);
        &self.contended[at]
    }

    pub(crate) fn set_contended(&self, name: &Name, contended: bool) {
        self.slot(name).store(contended, Ordering::Relaxed);
    }

    pub(crate) fn is_contended(&self, name: &Name) -> bool {
        self.slot(name).load(Ordering::Relaxed)
    }

    pub(crate) fn forget(&self, session: SessionId) {
        self.sessions.lock().remove(&session);
    }

    /// The server has answered a request that was sent at this moment with the session's end.
    pub(crate) fn record_expiry(
        &self,
        session: SessionId,
        expires: i64,
        sent: Moment,
        breaks: u64,
    ) {
        let mut sessions = self.sessions.lock();
        // The core need not tell the store that a session has ended.
        if sessions.len() >= SLOTS {
            sessions.retain(|_, known| sent.saturating_since(known.confirmed) < FRESH);
        }
        sessions.insert(session, LocalSession { expires, confirmed: sent, breaks });
    }

    /// The server has said that the session lives, and not until when.
    #[cfg(feature = "mysql")]
    pub(crate) fn confirm(&self, session: SessionId, sent: Moment, breaks: u64) {
        if let Some(known) = self.sessions.lock().get_mut(&session) {
            (known.confirmed, known.breaks) = (sent, breaks);
        }
    }

    /// The session's end on the server's clock, if the server has told it lately and over these connections.
    pub(crate) fn known_expiry(&self, session: SessionId, now: Moment, breaks: u64) -> Option<i64> {
        let known = *self.sessions.lock().get(&session)?;
        let fresh = now.saturating_since(known.confirmed) < FRESH;
        (fresh && known.breaks == breaks).then_some(known.expires)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_is_relied_on_for_a_second_and_over_the_same_connections() {
        let (fast, session) = (FastPath::default(), SessionId::random());
        let said = Moment::from_millis(1_000);
        assert_eq!(fast.known_expiry(session, said, 0), None);
        fast.record_expiry(session, 7, said, 0);
        assert_eq!(fast.known_expiry(session, said + FRESH / 2, 0), Some(7));
        assert_eq!(fast.known_expiry(session, said + FRESH / 2, 1), None, "a connection broke");
        assert_eq!(fast.known_expiry(session, said + FRESH, 0), None, "too long ago");
        fast.record_expiry(session, 8, said + FRESH, 1);
        assert_eq!(fast.known_expiry(session, said + FRESH, 1), Some(8));
        fast.forget(session);
        assert_eq!(fast.known_expiry(session, said + FRESH, 1), None);
    }
}
