//! The options that a keeper gives to all its locks, and their bounds.

use std::time::Duration;

/// The time to live of a session unless the builder, the lock or the URL says otherwise.
pub const TTL_DEFAULT: Duration = Duration::from_secs(15);
/// The shortest time to live: below it a busy machine loses its locks because its tasks are late.
pub const TTL_MIN: Duration = Duration::from_millis(100);
/// The longest time to live, lease, lock-delay or hold.
pub const TIME_MAX: Duration = Duration::from_secs(24 * 3600);

/// How a session is renewed. The defaults suit almost every program: two renewals in a row may be lost, and
/// the third one still comes in time.
///
/// ```
/// # use lockkeeper::{Keeper, Renew}; use std::time::Duration;
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> lockkeeper::Result<()> {
/// let renew = Renew { interval: Some(Duration::from_secs(2)), ..Renew::DEFAULT };
/// let keeper = Keeper::builder().renew(renew).connect("memory://doc-renew").await?;
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Renew {
    /// From one renewal to the next; a third of the TTL if not given, and half of it at most, so that one
    /// lost message does not lose the locks.
    pub interval: Option<Duration>,
    /// For how long one attempt may take before it is repeated; the interval if not given. An attempt
    /// that was given up may still succeed: renewing twice does no harm.
    pub attempt_timeout: Option<Duration>,
    /// The pause after a failed attempt; an eighth of the interval if not given. Attempts go on
    /// until the session's deadline.
    pub retry_pause: Option<Duration>,
}

impl Renew {
    /// The defaults: for a TTL of 15 s a renewal every 5 s, and a second attempt 0.3 to 0.6 s after a
    /// failed one.
    pub const DEFAULT: Self = Self { interval: None, attempt_timeout: None, retry_pause: None };

    pub(crate) fn interval(&self, ttl: Duration) -> Duration {
        self.interval.unwrap_or(ttl / 3)
    }

    pub(crate) fn attempt_timeout(&self, ttl: Duration) -> Duration {
        self.attempt_timeout.unwrap_or_else(|| self.interval(ttl))
    }

    pub(crate) fn retry_pause(&self, ttl: Duration) -> Duration {
        self.retry_pause.unwrap_or_else(|| self.interval(ttl) / 8)
    }
}

impl Default for Renew {
    fn default() -> Self {
        Self::DEFAULT
    }
}
