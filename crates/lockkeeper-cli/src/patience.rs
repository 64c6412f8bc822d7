//! For how long a store is asked that does not answer.

use crate::{duration, exit_code, failure, failure::Failure};
use std::{
    future::pending,
    time::{Duration, Instant},
};

/// What an attempt is given for its answer, however short `-w` is.
pub(crate) const ANSWER_MIN: Duration = Duration::from_secs(1);
/// What the one attempt of `-n` is given.
const ONCE_MAX: Duration = Duration::from_secs(5);
/// How much later than the library the command itself ends a wait.
const OWN_END: Duration = Duration::from_millis(100);

/// The patience that the flags ask for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Patience {
    /// `-n`, or `-w 0`.
    pub(crate) impatient: bool,
    /// `-w`.
    pub(crate) wait: Option<Duration>,
}

impl Patience {
    /// For how long the store may be asked, if there is a limit.
    pub(crate) fn limit(self) -> Option<Duration> {
        if self.impatient { Some(ONCE_MAX) } else { self.wait }
    }

    /// Waits until the time for asking is over, but for so long at least from the beginning on.
    pub(crate) async fn over(self, began: Instant, least: Duration) {
        let Some(limit) = self.limit() else { return pending().await };
        // The library's own end of the wait, which knows more of the reason, comes first.
        let time = limit.max(least).saturating_add(OWN_END);
        tokio::time::sleep(time.saturating_sub(began.elapsed())).await;
    }

    /// The same for a wait for the lock: an attempt that is under way when the patience ends is given its time by
    /// the library.
    pub(crate) async fn wait_is_over(self, began: Instant) {
        self.over(began, self.wait.unwrap_or_default().saturating_add(ANSWER_MIN)).await;
    }
}

/// The failure of a store that has not answered at all.
pub(crate) fn silent(began: Instant) -> Failure {
    let waited = duration::exact(began.elapsed());
    let what = format!("the store has not answered within {waited}");
    Failure::new(exit_code::UNAVAILABLE, anyhow::Error::msg(what)).hint(failure::NO_STORE)
}
