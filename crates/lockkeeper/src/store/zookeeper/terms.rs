//! For how long a session lives, on the server and in its owner's belief.
//!
//! A server ends a session when it has not heard of it for the session's timeout. A leader, and a single
//! server, hear of every request at once. But of a session that is connected to a follower, the leader
//! hears only with the follower's next ping, even if the leader itself has just carried out a write of that
//! session. So if a follower is cut off right after it has answered a renewal, the leader counts from the
//! renewal before that one. An ensemble is therefore asked for a timeout that is longer by the greatest
//! distance between two renewals and by the distance between two pings.

use super::error::misconfigured;
use crate::store::{StoreResult, Terms};
use std::time::Duration;

/// The least time that we allow a follower between two pings: half of a usual tick.
const PING_MIN: Duration = Duration::from_secs(1);

/// What is known of the servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Servers {
    /// One server without others, which hears of everything at once.
    pub(super) alone: bool,
    /// The shortest timeout that they grant, two ticks unless configured.
    pub(super) shortest: Duration,
}

impl Servers {
    /// How much longer than TTL and lock-delay the timeout has to be.
    fn spare(self, ttl: Duration) -> Duration {
        if self.alone { Duration::ZERO } else { ttl / 2 + self.ping_interval() }
    }

    fn ping_interval(self) -> Duration {
        (self.shortest / 4).max(PING_MIN)
    }

    /// The timeout to ask for.
    pub(super) fn timeout(self, ttl: Duration, lock_delay: Duration) -> Duration {
        ttl + lock_delay + self.spare(ttl)
    }

    /// The terms under the timeout that was granted. If it is too short, TTL and lock-delay are both cut,
    /// down to a half each; if it is too long, the rest prolongs the lock-delay.
    pub(super) fn terms(
        self,
        ttl: Duration,
        lock_delay: Duration,
        granted: Duration,
    ) -> StoreResult<Terms> {
        let room = granted - lock_delay.min(granted / 2);
        let most =
            if self.alone { room } else { room.saturating_sub(self.ping_interval()) * 2 / 3 };
        if most.is_zero() {
            return Err(misconfigured(format!(
                "the server grants no longer sessions than {granted:?}"
            )));
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
    fn the_terms_are_those_asked_for_where_the_server_agrees() {
        assert_eq!(ALONE.timeout(s(10), s(2)), s(12));
        assert_eq!(ALONE.terms(s(10), s(2), s(12)).unwrap(), Terms::new(s(10), s(2)));
        assert_eq!(ENSEMBLE.timeout(s(10), s(2)), s(18));
        assert_eq!(ENSEMBLE.terms(s(10), s(2), s(18)).unwrap(), Terms::new(s(10), s(2)));
    }

    #[test]
    fn a_longer_timeout_than_asked_for_prolongs_the_lock_delay() {
        assert_eq!(ALONE.terms(s(1), s(0), s(4)).unwrap(), Terms::new(s(1), s(3)));
    }

    proptest! {
        #[test]
        fn belief_always_ends_before_the_leader_ends_the_session(
            ttl in 100u64..100_000, delay in 0u64..100_000, granted in 4_000u64..200_000,
            alone in any::<bool>(), interval in 1u32..=50,
        ) {
            let ms = Duration::from_millis;
            let servers = Servers { alone, shortest: s(4) };
            let terms = servers.terms(ms(ttl), ms(delay), ms(granted)).unwrap();
            prop_assert!(terms.ttl <= ms(ttl));
            // The leader has heard of the renewal before the last one, and of none later.
            let unheard = if alone { Duration::ZERO } else { terms.ttl * interval / 100 + s(1) };
            prop_assert!(terms.belief() + unheard + terms.lock_delay <= ms(granted));
        }
    }
}
