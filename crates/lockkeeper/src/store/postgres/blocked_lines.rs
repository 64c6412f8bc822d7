//! Lines whose row a transaction of others has locked: backing off from them.
//!
//! The server does not say when such a transaction ends, so waiters have to ask again. And while a request waits
//! for the row, all requests behind it on the same connection wait too. So contenders are told *busy* for
//! 50 ms without asking the server, and queueing enters wait for the row only briefly and ask ever more rarely.

use crate::{clock::Moment, model::name::Name, store::Wait, sync::Mutex};
use std::{collections::HashMap, time::Duration};

/// For how long contenders are not sent to the server, and the shortest pause between two attempts.
const PAUSE: Duration = Duration::from_millis(50);
/// The longest pause.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// A line that no request has found blocked for this long is like any other.
const FORGOTTEN: Duration = Duration::from_secs(3);
/// One queueing enter of so many waits for the row as long as in any other line: perhaps the row is not held at
/// all, but only much in use.
const WAITS_FULLY: u32 = 8;

/// The lines that requests have found blocked a moment ago.
#[derive(Default)]
pub(super) struct BlockedLines(Mutex<HashMap<Name, Blocked>>);

struct Blocked {
    first: Moment,
    last: Moment,
    /// How many queueing enters have waited for the row.
    waited: u32,
}

impl Blocked {
    /// The pause is a quarter of the time for which the line has been blocked, so a waiter comes late at most in
    /// proportion to it.
    fn wait(&self, now: Moment) -> Wait {
        let pause = now.saturating_since(self.first) / 4;
        Wait { ahead: 1, holder: None, recheck: pause.clamp(PAUSE, LONGEST_PAUSE) }
    }
}

impl BlockedLines {
    /// What a contender is told without asking the server.
    pub(super) fn busy(&self, name: &Name, now: Moment) -> Option<Wait> {
        let lines = self.0.lock();
        let blocked = lines.get(name).filter(|blocked| blocked.last + PAUSE > now);
        blocked.map(|blocked| blocked.wait(now))
    }

    /// Should a queueing enter wait for the row only briefly?
    pub(super) fn is_blocked(&self, name: &Name, now: Moment) -> bool {
        let lines = self.0.lock();
        let blocked = lines.get(name).filter(|blocked| blocked.last + FORGOTTEN > now);
        blocked.is_some_and(|blocked| !blocked.waited.is_multiple_of(WAITS_FULLY))
    }

    /// A request could not get the row. Says when to ask again.
    pub(super) fn record(&self, name: &Name, queues: bool, now: Moment) -> Wait {
        let mut lines = self.0.lock();
        lines.retain(|_, blocked| blocked.last + FORGOTTEN > now);
        let new = || Blocked { first: now, last: now, waited: 0 };
        let blocked = lines.entry(name.clone()).or_insert_with(new);
        blocked.last = now;
        blocked.waited += u32::from(queues);
        blocked.wait(now)
    }

    /// A request of this process has got the row.
    pub(super) fn forget(&self, name: &Name) {
        let mut lines = self.0.lock();
        if !lines.is_empty() {
            lines.remove(name);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name() -> Name {
        Name::new("a").expect("a good name")
    }

    #[test]
    fn a_blocked_line_is_asked_for_ever_more_rarely_and_now_and_then_in_full() {
        let (blocked, mut now) = (BlockedLines::default(), Moment::from_millis(1_000));
        let (mut pauses, mut in_full) = (Vec::new(), Vec::new());
        for attempt in 0..40 {
            if !blocked.is_blocked(&name(), now) {
                in_full.push(attempt);
            }
            let pause = blocked.record(&name(), true, now).recheck;
            pauses.push(pause);
            now = now + pause;
        }
        assert!(pauses.is_sorted());
        assert_eq!((pauses[0], pauses[39]), (PAUSE, LONGEST_PAUSE));
        assert_eq!(in_full, [0, 8, 16, 24, 32]);
        now = now + FORGOTTEN;
        assert!(!blocked.is_blocked(&name(), now));
        assert_eq!(blocked.record(&name(), true, now).recheck, PAUSE);
    }

    /// Contenders wait for the row for so short a time that a busy line may look like a blocked one.
    #[test]
    fn contenders_do_not_shorten_the_wait_of_queueing_enters() {
        let (blocked, now) = (BlockedLines::default(), Moment::from_millis(1_000));
        blocked.record(&name(), false, now);
        assert!(blocked.busy(&name(), now).is_some());
        assert!(!blocked.is_blocked(&name(), now));
        assert!(blocked.busy(&name(), now + PAUSE).is_none());
    }
}
