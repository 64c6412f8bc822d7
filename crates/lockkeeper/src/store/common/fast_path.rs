//! When one plain statement will do, in a database.
//!
//! A lock that nobody else wants is taken by one `UPDATE` of one row, which sees that row and
//! nothing else. It does not see the session, so it is used only within a moment after the server
//! has said that the session lives, by the same connections, and not for longer than it will live. If
//! another handle ends the session within that moment, the grant is one to a dead session, and what is
//! true of all that the session holds is true of it: the holder hears of it with the next renewal.

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
    sync::{
        MutexGuard,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

/// For how long after the server has said so a session is taken to live.
const FRESH: Duration = Duration::from_secs(1);
const PLACES: usize = 1024;

/// What the server has said about a session.
#[derive(Clone, Copy)]
struct Life {
    /// On the server's clock.
    until: i64,
    said: Moment,
    /// The number of broken connections then: behind another one there may be another server.
    breaks: u64,
}

/// What is known about sessions and lines.
pub(crate) struct FastPath {
    sessions: Mutex<ById<SessionId, Life>>,
    /// Names, by their hash, in whose lines others have been met lately. There the plain statements would
    /// be sent in vain. Two names that share a place cost each other a little time.
    crowded: Box<[AtomicBool]>,
    hasher: RandomState,
}

impl Default for FastPath {
    fn default() -> Self {
        let crowded = (0..PLACES).map(|_| AtomicBool::new(false)).collect();
        Self { sessions: Mutex::default(), crowded, hasher: RandomState::default() }
    }
}

impl FastPath {
    fn sessions(&self) -> MutexGuard<'_, ById<SessionId, Life>> {
        self.sessions.lock()
    }

    fn place(&self, name: &Name) -> &AtomicBool {
        let hash = self.hasher.hash_one(name.as_str());
        let at = usize::try_from(hash % PLACES as u64).unwrap_or(0);
        &self.crowded[at]
    }

    pub(crate) fn set_crowded(&self, name: &Name, crowded: bool) {
        self.place(name).store(crowded, Ordering::Relaxed);
    }

    pub(crate) fn is_crowded(&self, name: &Name) -> bool {
        self.place(name).load(Ordering::Relaxed)
    }

    pub(crate) fn forget(&self, session: SessionId) {
        self.sessions().remove(&session);
    }

    /// The server has said, to a request sent at this moment, until when the session lives.
    pub(crate) fn lives(&self, session: SessionId, until: i64, sent: Moment, breaks: u64) {
        let mut sessions = self.sessions();
        // Nobody need tell us that a session has ended.
        if sessions.len() >= PLACES {
            sessions.retain(|_, life| sent.saturating_since(life.said) < FRESH);
        }
        sessions.insert(session, Life { until, said: sent, breaks });
    }

    /// The server has said that the session lives, and not for how long.
    #[cfg(feature = "mysql")]
    pub(crate) fn lives_on(&self, session: SessionId, sent: Moment, breaks: u64) {
        if let Some(life) = self.sessions().get_mut(&session) {
            (life.said, life.breaks) = (sent, breaks);
        }
    }

    /// Until when, on the server's clock, the session lives, if that is known well enough.
    pub(crate) fn known_life(&self, session: SessionId, now: Moment, breaks: u64) -> Option<i64> {
        let life = *self.sessions().get(&session)?;
        let fresh = now.saturating_since(life.said) < FRESH;
        (fresh && life.breaks == breaks).then_some(life.until)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_is_believed_in_for_a_moment_and_on_the_same_connections() {
        let (fast, session) = (FastPath::default(), SessionId::random());
        let said = Moment::from_millis(1_000);
        assert_eq!(fast.known_life(session, said, 0), None);
        fast.lives(session, 7, said, 0);
        assert_eq!(fast.known_life(session, said + FRESH / 2, 0), Some(7));
        assert_eq!(fast.known_life(session, said + FRESH / 2, 1), None, "a connection broke");
        assert_eq!(fast.known_life(session, said + FRESH, 0), None, "too long ago");
        fast.lives(session, 8, said + FRESH, 1);
        assert_eq!(fast.known_life(session, said + FRESH, 1), Some(8));
        fast.forget(session);
        assert_eq!(fast.known_life(session, said + FRESH, 1), None);
    }
}
