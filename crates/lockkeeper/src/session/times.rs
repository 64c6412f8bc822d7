//! The times that a session is opened with, and their bounds.

use crate::{
    api::options::{Renew, TIME_MAX, TTL_MIN},
    error::{Error, Result},
};
use humantime::format_duration;
use std::time::Duration;

/// The shortest pause of a renewal.
const PAUSE_MIN: Duration = Duration::from_millis(1);

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
