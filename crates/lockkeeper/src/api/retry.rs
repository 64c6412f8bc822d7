//! When a contender, which does not stand in line, tries again.

use rand::RngExt as _;
use std::{fmt, sync::Arc, time::Duration};

/// How a contender ([`unfair`](crate::Acquire::unfair)) goes on after it found the lock taken.
///
/// Contending is for locks that are nearly always free, and for stores without lines. It costs a request for
/// each attempt, and which contender gets a freed lock is chance: a lock that is really contended is better
/// waited for in line, which is what [`Acquire`](crate::Acquire) does without `unfair`.
///
/// The pause is an upper bound: a contender also tries again when the store tells it that the lock
/// was freed, and when the holder's lease can have run out.
///
/// ```
/// # use lockkeeper::Retry;
/// # use std::time::Duration;
/// let ten_times = Retry::limited(10, Duration::from_millis(50));
/// let patient = Retry::exponential(Duration::from_millis(5), Duration::from_secs(1));
/// let own = Retry::custom(|attempt| (attempt < 3).then_some(Duration::from_millis(20)));
/// ```
#[derive(Clone)]
pub struct Retry(Policy);

#[derive(Clone)]
enum Policy {
    None,
    Limited { times: u32, pause: Duration },
    Exponential { first: Duration, most: Duration },
    Custom(Arc<dyn Fn(u32) -> Option<Duration> + Send + Sync>),
}

impl Retry {
    /// Never again: the first attempt is the only one. Unlike [`try_now`](crate::Acquire::try_now) this ends
    /// with an error when the lock is taken.
    ///
    /// ```
    /// # use lockkeeper::{Keeper, Retry};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> lockkeeper::Result<()> {
    /// # let keeper = Keeper::connect("memory://doc-retry-none").await?;
    /// let held = keeper.lock("a").await?;
    /// let missed = keeper.lock("a").unfair().retry(Retry::none()).await;
    /// assert!(missed.unwrap_err().is_not_acquired());
    /// # drop(held); keeper.close().await; Ok(()) }
    /// ```
    #[must_use]
    pub fn none() -> Self {
        Self(Policy::None)
    }

    /// So many times, with this pause between them, a quarter of it random so that contenders do not
    /// meet again and again.
    #[must_use]
    pub fn limited(times: u32, pause: Duration) -> Self {
        Self(Policy::Limited { times, pause })
    }

    /// As often as the wait allows, with pauses that double from `first` to `most`. Half of each
    /// pause is random, so that contenders do not meet again and again.
    #[must_use]
    pub fn exponential(first: Duration, most: Duration) -> Self {
        Self(Policy::Exponential { first, most })
    }

    /// As `policy` says: the pause after this many failed attempts (1, 2, …), or `None` to give up.
    ///
    /// ```
    /// # use lockkeeper::{Keeper, Retry}; use std::time::Duration;
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> lockkeeper::Result<()> {
    /// # let keeper = Keeper::connect("memory://doc-custom").await?;
    /// # let held = keeper.lock("a").await?;
    /// let twice = Retry::custom(|failed| (failed <= 2).then_some(Duration::from_millis(5)));
    /// let missed = keeper.lock("a").unfair().retry(twice).await;
    /// assert!(missed.unwrap_err().is_not_acquired());
    /// # drop(held); keeper.close().await; Ok(()) }
    /// ```
    ///
    /// It is called in the task that awaits the lock. It must not block.
    pub fn custom(policy: impl Fn(u32) -> Option<Duration> + Send + Sync + 'static) -> Self {
        Self(Policy::Custom(Arc::new(policy)))
    }

    /// The pause after so many failed attempts; `None` to give up.
    pub(crate) fn pause(&self, failed: u32) -> Option<Duration> {
        match &self.0 {
            Policy::None => None,
            Policy::Limited { times, .. } if failed > *times => None,
            Policy::Limited { pause, .. } => Some(jittered(*pause, 4)),
            Policy::Exponential { first, most } => {
                let doubled = first.saturating_mul(1 << (failed - 1).min(20));
                Some(jittered(doubled.min(*most), 2))
            }
            Policy::Custom(policy) => policy(failed),
        }
    }
}

/// `pause` with one part in `parts` of it random.
pub(crate) fn jittered(pause: Duration, parts: u32) -> Duration {
    let random = pause / parts;
    pause - random + random.mul_f64(rand::rng().random::<f64>())
}

impl Default for Retry {
    fn default() -> Self {
        Self::exponential(Duration::from_millis(5), Duration::from_secs(1))
    }
}

impl fmt::Debug for Retry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Policy::None => f.write_str("none"),
            Policy::Limited { times, pause } => write!(f, "{times} times every {pause:?}"),
            Policy::Exponential { first, most } => write!(f, "{first:?} doubling to {most:?}"),
            Policy::Custom(_) => f.write_str("custom"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn a_limited_policy_gives_up_after_its_number_of_retries() {
        let retry = Retry::limited(2, 100 * MS);
        assert!(retry.pause(1).is_some_and(|p| p >= 75 * MS && p <= 100 * MS));
        assert!(retry.pause(2).is_some());
        assert_eq!(retry.pause(3), None);
        assert_eq!(Retry::none().pause(1), None);
    }

    #[test]
    fn exponential_pauses_double_up_to_the_most() {
        let retry = Retry::exponential(8 * MS, 100 * MS);
        assert!(retry.pause(1).is_some_and(|p| p >= 4 * MS && p <= 8 * MS));
        assert!(retry.pause(3).is_some_and(|p| p >= 16 * MS && p <= 32 * MS));
        assert!(retry.pause(40).is_some_and(|p| p >= 50 * MS && p <= 100 * MS));
    }
}
