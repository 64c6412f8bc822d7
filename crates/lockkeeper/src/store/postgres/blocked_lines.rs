//! Lines that somebody else's transaction sits on.
//!
//! Nobody tells us when it ends, so one has to look; and while a request waits for the row, all others who
//! send by the same connection wait behind it.

use crate::{clock::Moment, model::name::Name, store::Wait, sync::Mutex};
use std::{collections::HashMap, sync::MutexGuard, time::Duration};

/// For how long nobody who only tries need ask again, and the shortest pause of those who come again.
const BELIEVED: Duration = Duration::from_millis(50);
/// The longest pause.
const PAUSE_MOST: Duration = Duration::from_secs(1);
/// A line that nobody has found so for this long is like any other.
const FORGOTTEN: Duration = Duration::from_secs(3);
/// Of so many attempts to stand in such a line one waits for its row as long as in any other: perhaps
/// nobody sits on it, and it is only much in use.
const IN_FULL: u32 = 8;

/// Which lines were found so a moment ago.
#[derive(Default)]
pub(super) struct Blocked(Mutex<HashMap<Name, Found>>);

struct Found {
    first: Moment,
    last: Moment,
    /// How often somebody has waited for the row who would stand in line.
    waited: u32,
}

impl Found {
    /// The pause grows with the time for which the line has been blocked, so nobody comes much later than
    /// in proportion to it.
    fn wait(&self, now: Moment) -> Wait {
        let pause = now.saturating_since(self.first) / 4;
        Wait { ahead: 1, holder: None, recheck: pause.clamp(BELIEVED, PAUSE_MOST) }
    }
}

impl Blocked {
    fn lines(&self) -> MutexGuard<'_, HashMap<Name, Found>> {
        self.0.lock()
    }

    /// What one who only tries is told without asking.
    pub(super) fn known(&self, name: &Name, now: Moment) -> Option<Wait> {
        let lines = self.lines();
        let found = lines.get(name).filter(|found| found.last + BELIEVED > now);
        found.map(|found| found.wait(now))
    }

    /// Should one who would stand in this line wait for its row for a moment only?
    pub(super) fn hurries(&self, name: &Name, now: Moment) -> bool {
        let lines = self.lines();
        let found = lines.get(name).filter(|found| found.last + FORGOTTEN > now);
        found.is_some_and(|found| !found.waited.is_multiple_of(IN_FULL))
    }

    /// The row could not be had. Says when to come again.
    pub(super) fn note(&self, name: &Name, queues: bool, now: Moment) -> Wait {
        let mut lines = self.lines();
        lines.retain(|_, found| found.last + FORGOTTEN > now);
        let new = || Found { first: now, last: now, waited: 0 };
        let found = lines.entry(name.clone()).or_insert_with(new);
        found.last = now;
        found.waited += u32::from(queues);
        found.wait(now)
    }

    /// Somebody of ours has got through to this line since.
    pub(super) fn forget(&self, name: &Name) {
        let mut lines = self.lines();
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
    fn a_line_that_stays_blocked_is_asked_for_ever_more_rarely_and_now_and_then_in_full() {
        let (blocked, mut now) = (Blocked::default(), Moment::from_millis(1_000));
        let (mut pauses, mut in_full) = (Vec::new(), Vec::new());
        for attempt in 0..40 {
            if !blocked.hurries(&name(), now) {
                in_full.push(attempt);
            }
            let pause = blocked.note(&name(), true, now).recheck;
            pauses.push(pause);
            now = now + pause;
        }
        assert!(pauses.is_sorted());
        assert_eq!((pauses[0], pauses[39]), (BELIEVED, PAUSE_MOST));
        assert_eq!(in_full, [0, 8, 16, 24, 32]);
        now = now + FORGOTTEN;
        assert!(!blocked.hurries(&name(), now));
        assert_eq!(blocked.note(&name(), true, now).recheck, BELIEVED);
    }

    /// They wait for the row for so short a time that a busy line may look like a blocked one.
    #[test]
    fn those_who_only_try_hurry_nobody_who_would_stand_in_line() {
        let (blocked, now) = (Blocked::default(), Moment::from_millis(1_000));
        blocked.note(&name(), false, now);
        assert!(blocked.known(&name(), now).is_some());
        assert!(!blocked.hurries(&name(), now));
        assert!(blocked.known(&name(), now + BELIEVED).is_none());
    }
}
