//! Hearing of a lock's loss without its guard.

use crate::{
    api::guard::Health,
    error::Loss,
    model::name::Name,
    session::{hold_state::HoldState, state::SessionState},
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

    /// Why the lock is held no more; `None` while it is held. For a loop that does not await:
    ///
    /// ```
    /// # use lockkeeper::Keeper;
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> lockkeeper::Result<()> {
    /// # let keeper = Keeper::connect("memory://doc-why").await?;
    /// let guard = keeper.lock("a").await?;
    /// let token = guard.loss();
    /// let rows = std::thread::spawn(move || {
    ///     let sure = (0..1000).take_while(|_| token.why().is_none());
    ///     sure.count()                               // stops within a row of the loss
    /// });
    /// assert_eq!(rows.join().unwrap(), 1000);
    /// # drop(guard); keeper.close().await; Ok(()) }
    /// ```
    #[must_use]
    pub fn why(&self) -> Option<Loss> {
        match self.hold.health(&self.session) {
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
        self.hold.lost(&self.session).await
    }
}

impl fmt::Debug for LossToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LossToken").field("name", self.name()).field("why", &self.why()).finish()
    }
}
