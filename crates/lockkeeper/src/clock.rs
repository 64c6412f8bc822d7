//! The one place that reads clocks, sleeps and sets timers.
//!
//! Leases are measured on a clock that goes on while the machine is suspended
//! (`CLOCK_BOOTTIME`): a laptop that wakes up must not believe in a lock that others have taken
//! over meanwhile. The wall clock serves only as a floor for fences and is never compared with a
//! deadline.

use std::{
    fmt,
    ops::Add,
    sync::{Arc, Mutex},
    time::{Duration, SystemTime, UNIX_EPOCH},
};
use tokio::sync::Notify;

/// A point in time on a clock that counts suspend, in nanoseconds since boot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Moment(u64);

impl Moment {
    /// Later than every other moment.
    pub const NEVER: Self = Self(u64::MAX);

    /// A moment from nanoseconds since boot.
    #[must_use]
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// A moment from milliseconds since boot.
    #[must_use]
    pub const fn from_millis(millis: u64) -> Self {
        Self(millis.saturating_mul(1_000_000))
    }

    /// A moment from microseconds since boot.
    #[must_use]
    pub const fn from_micros(micros: u64) -> Self {
        Self(micros.saturating_mul(1_000))
    }

    /// Nanoseconds since boot.
    #[must_use]
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// Microseconds since boot.
    #[must_use]
    pub const fn as_micros(self) -> u64 {
        self.0 / 1_000
    }

    /// The moment so long before this one.
    pub(crate) fn before(self, by: Duration) -> Self {
        Self(self.0.saturating_sub(u64::try_from(by.as_nanos()).unwrap_or(u64::MAX)))
    }

    /// How long after `earlier` this is; zero if it is not.
    #[must_use]
    pub const fn saturating_since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl Add<Duration> for Moment {
    type Output = Self;
    fn add(self, rhs: Duration) -> Self {
        Self(self.0.saturating_add(u64::try_from(rhs.as_nanos()).unwrap_or(u64::MAX)))
    }
}

/// Where the core gets its time from: the system, or a hand-moved clock in a test.
#[derive(Clone, Default)]
pub struct Clock(Option<Arc<Manual>>);

#[derive(Default)]
struct Manual {
    /// How far the clock was moved ahead of the system's.
    ahead: Mutex<Duration>,
    moved: Notify,
}

impl Clock {
    /// The system's clock.
    #[must_use]
    pub fn system() -> Self {
        Self(None)
    }

    /// A clock that runs with the system's and can be moved ahead of it, as a suspend would.
    #[cfg(any(test, feature = "_test"))]
    #[must_use]
    pub fn movable() -> Self {
        Self(Some(Arc::default()))
    }

    /// Moves a [`movable`](Self::movable) clock ahead, and wakes its sleepers.
    ///
    /// # Panics
    /// On the system's clock, which is not ours to move.
    #[cfg(any(test, feature = "_test"))]
    pub fn advance(&self, by: Duration) {
        let manual = self.0.as_ref().expect("only a movable clock can be advanced");
        *manual.ahead.lock().expect("the clock's lock is never poisoned") += by;
        manual.moved.notify_waiters();
    }

    /// Now, on the clock that counts suspend.
    #[must_use]
    pub fn now(&self) -> Moment {
        let system = boottime();
        match &self.0 {
            None => system,
            Some(m) => system + *m.ahead.lock().expect("the clock's lock is never poisoned"),
        }
    }

    /// Microseconds of the wall clock since 1970: a floor for fences, nothing else.
    #[must_use]
    pub fn wall_micros(&self) -> u64 {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
    }

    /// Sleeps until `deadline`, also across a suspend: wakes at once if it has passed meanwhile.
    ///
    /// # Cancel safety
    /// Dropping the future ends the sleep and nothing else.
    pub async fn sleep_until(&self, deadline: Moment) {
        if deadline == Moment::NEVER {
            return std::future::pending().await;
        }
        loop {
            // Listening before the clock is read, so that no move falls between the two.
            let mut moved = self.0.as_ref().map(|m| Box::pin(m.moved.notified()));
            if let Some(moved) = &mut moved {
                moved.as_mut().enable();
            }
            let moved = async {
                match moved {
                    None => std::future::pending().await,
                    Some(moved) => moved.await,
                }
            };
            let now = self.now();
            if now >= deadline {
                return;
            }
            tokio::select! {
                () = moved => {}
                () = nap(deadline.saturating_since(now)) => {}
            }
        }
    }

    /// Sleeps for `duration`, measured on the clock that counts suspend.
    ///
    /// # Cancel safety
    /// As [`sleep_until`](Self::sleep_until).
    pub async fn sleep(&self, duration: Duration) {
        self.sleep_until(self.now() + duration).await;
    }
}

impl fmt::Debug for Clock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "Clock(movable)" } else { "Clock(system)" })
    }
}

/// Runtime timers stop during a suspend. No nap is longer than this, so a sleeper notices within a
/// second of waking up that its time has come. Code that must know at once reads the clock.
const NAP_MAX: Duration = Duration::from_secs(1);

/// Holds up the calling thread: for threads of our own, never for a task.
#[cfg(feature = "sqlite")]
pub(crate) fn pause_thread(duration: Duration) {
    std::thread::sleep(duration);
}

async fn nap(duration: Duration) {
    tokio::time::sleep(duration.min(NAP_MAX)).await;
}

/// Limits the wait for an answer, by the runtime's timer, which stands still during a suspend. The end of a lease is never
/// measured by it: that is a [`Moment`].
#[cfg(feature = "_network")]
pub(crate) fn timeout<F: Future>(patience: Duration, answer: F) -> tokio::time::Timeout<F> {
    tokio::time::timeout(patience, answer)
}

#[cfg(any(target_os = "linux", target_os = "android"))]
const SUSPEND_AWARE: rustix::time::ClockId = rustix::time::ClockId::Boottime;
/// On Apple's systems the monotonic clock goes on during sleep.
#[cfg(not(any(target_os = "linux", target_os = "android")))]
const SUSPEND_AWARE: rustix::time::ClockId = rustix::time::ClockId::Monotonic;

fn boottime() -> Moment {
    let t = rustix::time::clock_gettime(SUSPEND_AWARE);
    let seconds = u64::try_from(t.tv_sec).unwrap_or(0);
    let nanos = u64::try_from(t.tv_nsec).unwrap_or(0);
    Moment(seconds.saturating_mul(1_000_000_000).saturating_add(nanos))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn moving_the_clock_wakes_its_sleepers() {
        let clock = Clock::movable();
        let until = clock.now() + Duration::from_secs(3600);
        let sleeper = tokio::spawn({
            let clock = clock.clone();
            async move { clock.sleep_until(until).await }
        });
        tokio::task::yield_now().await;
        clock.advance(Duration::from_secs(3601));
        sleeper.await.unwrap();
        assert!(clock.now() >= until);
    }

    #[test]
    fn the_clock_never_goes_back() {
        let clock = Clock::system();
        let first = clock.now();
        assert!(clock.now() >= first);
    }
}
