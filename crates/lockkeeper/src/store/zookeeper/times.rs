//! How long sessions live, on the server and in their owners' belief.
//!
//! A server lets a session live for its timeout after it has heard of it. A leader, and a server that
//! stands alone, hears every request at once. But of a session that is connected to a follower, the
//! leader hears only with the follower's next sign of life, also if the leader itself has just carried
//! out a write of that session. So when a follower is cut off right after it has answered a renewal,
//! the leader counts from the renewal before that. An ensemble is therefore asked for a timeout that
//! is longer by the greatest distance of two renewals and that sign of life.

use super::KIND;
use crate::{
    error::{ErrorKind, StoreError},
    store::{StoreResult, Terms},
};
use std::time::Duration;

/// At least so long a follower may take to tell its leader of a session: half of a usual tick.
const TELLING_MIN: Duration = Duration::from_secs(1);

/// What is known of the servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Servers {
    /// One server without others, which hears everything at once.
    pub(super) alone: bool,
    /// The shortest timeout that they grant, two ticks as a rule.
    pub(super) shortest: Duration,
}

impl Servers {
    /// How much longer than TTL and lock-delay the timeout has to be.
    fn spare(self, ttl: Duration) -> Duration {
        if self.alone { Duration::ZERO } else { ttl / 2 + self.telling() }
    }

    fn telling(self) -> Duration {
        (self.shortest / 4).max(TELLING_MIN)
    }

    /// The timeout to ask for.
    pub(super) fn timeout(self, ttl: Duration, lock_delay: Duration) -> Duration {
        ttl + lock_delay + self.spare(ttl)
    }

    /// What a session has of the timeout that was granted. If that is too short, TTL and lock-delay both
    /// give way, down to a half each; what is too much keeps tickets for longer.
    pub(super) fn terms(
        self,
        ttl: Duration,
        lock_delay: Duration,
        granted: Duration,
    ) -> StoreResult<Terms> {
        let room = granted - lock_delay.min(granted / 2);
        let most = if self.alone { room } else { room.saturating_sub(self.telling()) * 2 / 3 };
        if most.is_zero() {
            let what = format!("the server grants no longer sessions than {granted:?}");
            return Err(StoreError::not_applied(KIND, ErrorKind::Misconfigured, what));
        }
        let ttl = ttl.min(most);
        Ok(Terms::new(ttl, granted - ttl - self.spare(ttl)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const fn s(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    const ALONE: Servers = Servers { alone: true, shortest: s(4) };
    const ENSEMBLE: Servers = Servers { alone: false, shortest: s(4) };

    #[test]
    fn what_is_asked_for_is_had_where_the_server_agrees() {
        assert_eq!(ALONE.timeout(s(10), s(2)), s(12));
        assert_eq!(ALONE.terms(s(10), s(2), s(12)).unwrap(), Terms::new(s(10), s(2)));
        assert_eq!(ENSEMBLE.timeout(s(10), s(2)), s(18));
        assert_eq!(ENSEMBLE.terms(s(10), s(2), s(18)).unwrap(), Terms::new(s(10), s(2)));
    }

    #[test]
    fn a_server_that_grants_more_keeps_tickets_for_longer() {
        assert_eq!(ALONE.terms(s(1), s(0), s(4)).unwrap(), Terms::new(s(1), s(3)));
    }

    proptest! {
        #[test]
        fn belief_always_ends_before_the_leaders_patience(
            ttl in 100u64..100_000, delay in 0u64..100_000, granted in 4_000u64..200_000,
            alone in any::<bool>(), interval in 1u32..=50,
        ) {
            let ms = Duration::from_millis;
            let servers = Servers { alone, shortest: s(4) };
            let terms = servers.terms(ms(ttl), ms(delay), ms(granted)).unwrap();
            prop_assert!(terms.ttl <= ms(ttl));
            // The leader has heard of the renewal before the last one, and no later.
            let unheard = if alone { Duration::ZERO } else { terms.ttl * interval / 100 + s(1) };
            prop_assert!(terms.belief() + unheard + terms.lock_delay <= ms(granted));
        }
    }
}
