//! Lines that somebody else's transaction sits on.

use crate::{
    clock::{Clock, Moment},
    name::Name,
};
use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

/// When a contender looks again whose line somebody else's transaction sits on, and for how long nobody
/// else need try.
pub(super) const BLOCKED: Duration = Duration::from_millis(50);

/// Which lines were found so a moment ago, and until when that is believed.
#[derive(Default)]
pub(super) struct Blocked(Mutex<HashMap<Name, Moment>>);

impl Blocked {
    fn lines(&self) -> MutexGuard<'_, HashMap<Name, Moment>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn has(&self, name: &Name, clock: &Clock) -> bool {
        let lines = self.lines();
        !lines.is_empty() && lines.get(name).is_some_and(|until| *until > clock.now())
    }

    pub(super) fn note(&self, name: &Name, clock: &Clock) {
        let now = clock.now();
        let mut lines = self.lines();
        lines.retain(|_, until| *until > now);
        lines.insert(name.clone(), now + BLOCKED);
    }

    /// Somebody of ours has got through to this line since.
    pub(super) fn forget(&self, name: &Name) {
        let mut lines = self.lines();
        if !lines.is_empty() {
            lines.remove(name);
        }
    }
}
