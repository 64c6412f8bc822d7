//! The server's clock, as this process last saw it.

use crate::{clock::Clock, store::STRAY_MAX};
use std::{
    sync::atomic::{AtomicI64, Ordering},
    time::Duration,
};

/// No request takes effect later than this after it was sent.
const REQUEST_VALID: Duration = STRAY_MAX.checked_div(2).expect("two is not zero");

/// Requests carry the moment, on the server's clock, after which they must have no effect. The client reckons
/// it from its own clock and the difference that the server's last answer has shown. All times are microseconds.
pub(in crate::store) struct ServerClock {
    clock: Clock,
    /// The server's clock less ours.
    offset: AtomicI64,
}

impl ServerClock {
    pub(in crate::store) fn new(clock: Clock) -> Self {
        Self { clock, offset: AtomicI64::new(0) }
    }

    fn local(&self) -> i64 {
        i64::try_from(self.clock.now().as_micros()).unwrap_or(0)
    }

    /// Remembers the time that the server has just told.
    pub(in crate::store) fn set(&self, server: i64) {
        self.offset.store(server - self.local(), Ordering::Relaxed);
    }

    /// The server's time, as late as its last answer was.
    pub(in crate::store) fn now(&self) -> i64 {
        self.local() + self.offset.load(Ordering::Relaxed)
    }

    /// The same once the server has told its time.
    #[cfg(feature = "http")]
    pub(in crate::store) fn request_deadline_if_known(&self) -> Option<i64> {
        (self.offset.load(Ordering::Relaxed) != 0).then(|| self.request_deadline())
    }

    /// The server's time from which on a request that is sent now must have no effect.
    pub(in crate::store) fn request_deadline(&self) -> i64 {
        self.now().saturating_add(i64::try_from(REQUEST_VALID.as_micros()).unwrap_or(i64::MAX))
    }
}
