//! A held ticket's own end, apart from its session's: evicted, missing in the store, or held too long.

use crate::{
    api::guard::Health,
    clock::Moment,
    error::Loss,
    model::name::Name,
    session::state::{Lease, SessionState},
};
use std::sync::{Arc, OnceLock};
use tokio::sync::Notify;

/// What a guard and its session's task share of a held ticket.
pub(crate) struct HoldState {
    pub(crate) name: Name,
    pub(crate) fence: u64,
    pub(crate) max_hold: Option<Moment>,
    why: OnceLock<Loss>,
    ended: Notify,
}

impl HoldState {
    pub(crate) fn new(name: Name, fence: u64, max_hold: Option<Moment>) -> Arc<Self> {
        Arc::new(Self { name, fence, max_hold, why: OnceLock::new(), ended: Notify::new() })
    }

    pub(crate) fn end(&self, why: Loss) {
        if self.set(why) {
            crate::observe::lost(&self.name, why);
        }
    }

    /// The last guard is gone. From now on tokens say that the lock was released, or why it was lost before.
    pub(crate) fn let_go(&self, session: &SessionState) {
        let why = match self.health(session) {
            Health::Lost(why) => why,
            Health::Held | Health::Jeopardy => Loss::Released,
        };
        self.set(why);
    }

    fn set(&self, why: Loss) -> bool {
        let first = self.why.set(why).is_ok();
        if first {
            self.ended.notify_waiters();
        }
        first
    }

    pub(crate) fn why(&self) -> Option<Loss> {
        self.why.get().copied()
    }

    pub(crate) async fn ended(&self) -> Loss {
        let mut ended = std::pin::pin!(self.ended.notified());
        loop {
            ended.as_mut().enable();
            if let Some(why) = self.why() {
                return why;
            }
            ended.as_mut().await;
            ended.set(self.ended.notified());
        }
    }

    /// How the ticket stands now. The deadlines are compared with the clock at every call.
    pub(crate) fn health(&self, session: &SessionState) -> Health {
        let overheld = |at: &Moment| *at <= session.clock.now();
        match (self.why(), session.lease()) {
            (Some(why), _) | (None, Lease::Lost(why)) => Health::Lost(why),
            _ if self.max_hold.as_ref().is_some_and(overheld) => Health::Lost(Loss::MaxHold),
            (None, Lease::Jeopardy) => Health::Jeopardy,
            (None, Lease::Held) => Health::Held,
        }
    }

    /// Waits until the ticket is lost, by its own end or its session's.
    pub(crate) async fn lost(&self, session: &SessionState) -> Loss {
        tokio::select! {
            biased;
            why = self.ended() => why,
            why = session.lost() => why,
        }
    }

    /// Waits until the ticket is in jeopardy or lost.
    pub(crate) async fn jeopardy(&self, session: &SessionState) -> Health {
        tokio::select! {
            why = self.ended() => Health::Lost(why),
            lease = session.lease_where(|lease| *lease != Lease::Held) => match lease {
                Lease::Lost(why) => Health::Lost(why),
                Lease::Held | Lease::Jeopardy => Health::Jeopardy,
            },
        }
    }
}
