//! The options that a keeper gives to all its locks, and their bounds.

use crate::error::{Error, Result};
use humantime::format_duration;
use std::time::Duration;

/// The time to live of a session unless the builder, the lock or the URL says otherwise.
pub const TTL_DEFAULT: Duration = Duration::from_secs(15);
/// The shortest time to live: below it a busy machine loses its locks by its own noise.
pub const TTL_MIN: Duration = Duration::from_millis(100);
/// The longest time to live, lease, lock-delay or hold.
pub const TIME_MAX: Duration = Duration::from_secs(24 * 3600);

/// The shortest pause of a renewal.
const PAUSE_MIN: Duration = Duration::from_millis(1);

/// How a session is renewed. The defaults suit almost every program.
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
    /// From one renewal to the next; a third of the TTL if not given.
    pub interval: Option<Duration>,
    /// For how long one attempt may take before it is repeated; the interval if not given.
    pub attempt_timeout: Option<Duration>,
    /// The pause after a failed attempt; an eighth of the interval if not given. Attempts go on
    /// until the session's deadline.
    pub retry_pause: Option<Duration>,
}

impl Renew {
    /// The defaults.
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

/// The times that a session is opened with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Times {
    pub(crate) ttl: Duration,
    pub(crate) lock_delay: Duration,
}

impl Times {
    pub(crate) fn check(&self, renew: &Renew) -> Result<()> {
        at_least("ttl", self.ttl, TTL_MIN)?;
        at_most("ttl", self.ttl, TIME_MAX)?;
        at_most("lock_delay", self.lock_delay, TIME_MAX)?;
        if renew.interval(self.ttl).is_zero() || renew.interval(self.ttl) > self.ttl / 2 {
            let (interval, ttl) = (renew.interval(self.ttl), self.ttl);
            let what = format!(
                "a renewal every {interval:?} is too slow for a ttl of {ttl:?}: \
                 one lost message would lose the locks; use at most half the ttl"
            );
            return Err(Error::option("renew.interval", what));
        }
        at_least("renew.attempt_timeout", renew.attempt_timeout(self.ttl), PAUSE_MIN)?;
        at_least("renew.retry_pause", renew.retry_pause(self.ttl), PAUSE_MIN)
    }
}

pub(crate) fn at_least(option: &'static str, value: Duration, least: Duration) -> Result<()> {
    if value < least {
        let (least, value) = (format_duration(least), format_duration(value));
        let what = format!("{option} must be at least {least}, not {value}");
        return Err(Error::option(option, what));
    }
    Ok(())
}

pub(crate) fn at_most(option: &'static str, value: Duration, most: Duration) -> Result<()> {
    if value > most {
        let (most, value) = (format_duration(most), format_duration(value));
        let what = format!("{option} must be at most {most}, not {value}");
        return Err(Error::option(option, what));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn times(ttl_ms: u64) -> Times {
        Times { ttl: Duration::from_millis(ttl_ms), lock_delay: Duration::ZERO }
    }

    #[test]
    fn a_ttl_out_of_bounds_is_refused_with_the_bound() {
        let e = times(5).check(&Renew::DEFAULT).unwrap_err().to_string();
        assert_eq!(e, "ttl must be at least 100ms, not 5ms");
        assert!(times(100_000_000).check(&Renew::DEFAULT).is_err());
        assert!(times(100).check(&Renew::DEFAULT).is_ok());
    }

    #[test]
    fn a_renewal_that_cannot_fail_once_is_refused() {
        let renew = Renew { interval: Some(Duration::from_millis(600)), ..Renew::DEFAULT };
        assert!(times(1000).check(&renew).is_err());
        assert!(times(1200).check(&renew).is_ok());
    }
}
