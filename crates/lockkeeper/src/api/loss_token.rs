//! Hearing of a lock's loss without its guard.

use crate::{
    api::guard::Health,
    clock::Moment,
    error::Loss,
    model::name::Name,
    session::{
        hold_state::HoldState,
        state::{Lease, SessionState},
    },
};
use std::{fmt, sync::Arc};

/// Tells that a lock is held no more, to code that does not have its [`Guard`](crate::Guard).
///
/// A token is cheap to clone and borrows nothing, so a spawned task or another thread can keep one. It
/// keeps neither the lock nor its session alive: when the guard is released or dropped, the token says
/// [`Loss::Released`].
///
/// ```
/// # use lockkeeper::{Keeper, Loss};
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> lockkeeper::Result<()> {
/// # let keeper = Keeper::connect("memory://doc-loss-token").await?;
/// let guard = keeper.lock("a").await?;
/// let token = guard.loss();
/// let worker = tokio::spawn(async move {
///     tokio::select! {
///         why = token.lost() => why,      // stop: the lock is gone
///         () = std::future::pending() => unreachable!("the work"),
///     }
/// });
/// # tokio::task::yield_now().await;
/// guard.release().await?;
/// assert_eq!(worker.await.unwrap(), Loss::Released);
/// # keeper.close().await; Ok(()) }
/// ```
#[derive(Clone)]
pub struct LossToken {
    session: Arc<SessionState>,
    hold: Arc<HoldState>,
}

impl LossToken {
    pub(crate) fn new(session: &Arc<SessionState>, hold: &Arc<HoldState>) -> Self {
        Self { session: Arc::clone(session), hold: Arc::clone(hold) }
    }

    /// The lock's name.
    #[must_use]
    pub fn name(&self) -> &Name {
        &self.hold.name
    }

    /// Is the lock held no more? Exact at the moment of the call, as
    /// [`Guard::is_held`](crate::Guard::is_held).
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.why().is_some()
    }

    /// Why the lock is held no more; `None` while it is held.
    #[must_use]
    pub fn why(&self) -> Option<Loss> {
        match health(&self.session, &self.hold) {
            Health::Lost(why) => Some(why),
            Health::Held | Health::Jeopardy => None,
        }
    }

    /// Waits until the lock is held no more, and says why. It returns at the session's deadline at the
    /// latest, which is before the store can grant the lock to another client.
    ///
    /// # Cancel safety
    /// Can be dropped and called again as often as wanted.
    pub async fn lost(&self) -> Loss {
        lost(&self.session, &self.hold).await
    }
}

impl fmt::Debug for LossToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LossToken").field("name", self.name()).field("why", &self.why()).finish()
    }
}

/// How a granted ticket stands now. The deadlines are compared with the clock at every call.
pub(crate) fn health(session: &SessionState, hold: &HoldState) -> Health {
    let overheld = |at: &Moment| *at <= session.clock.now();
    match (hold.why(), session.lease()) {
        (Some(why), _) | (None, Lease::Lost(why)) => Health::Lost(why),
        _ if hold.max_hold.as_ref().is_some_and(overheld) => Health::Lost(Loss::MaxHold),
        (None, Lease::Jeopardy) => Health::Jeopardy,
        (None, Lease::Held) => Health::Held,
    }
}

pub(crate) async fn lost(session: &SessionState, hold: &HoldState) -> Loss {
    tokio::select! {
        biased;
        why = hold.ended() => why,
        why = session.lost() => why,
    }
}
