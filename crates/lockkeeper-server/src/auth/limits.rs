//! What one principal may take of the service, so that the others get their share.

use crate::problem::Problem;
use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU32, Ordering},
    },
    time::{Duration, Instant},
};

/// Limits per principal; `None` is no limit.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Quota {
    /// Requests per second, in the long run; twice as many at once.
    pub requests_per_second: Option<u32>,
    /// Sessions opened per minute, in the long run and at once.
    pub sessions_per_minute: Option<u32>,
    /// Requests at the same time. A long poll is a request for as long as it waits.
    pub waiters: Option<u32>,
    /// Streams of events and hints at the same time.
    pub streams: Option<u32>,
}

impl Default for Quota {
    fn default() -> Self {
        Self {
            requests_per_second: Some(2_000),
            sessions_per_minute: Some(6_000),
            waiters: Some(5_000),
            streams: Some(1_000),
        }
    }
}

impl Quota {
    /// No limits: for the only user of a service on loopback.
    #[must_use]
    pub fn unlimited() -> Self {
        Self { requests_per_second: None, sessions_per_minute: None, waiters: None, streams: None }
    }
}

/// What all principals use now, by their names: no more entries than names that a file of principals ever had.
#[derive(Debug, Default)]
pub(crate) struct Usages(Mutex<HashMap<String, Arc<Usage>>>);

impl Usages {
    /// What this principal uses.
    pub(crate) fn of(&self, principal: &str) -> Arc<Usage> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match all.get(principal) {
            Some(usage) => Arc::clone(usage),
            None => Arc::clone(all.entry(principal.to_owned()).or_default()),
        }
    }
}

/// What one principal uses now.
#[derive(Debug, Default)]
pub(crate) struct Usage {
    requests: Mutex<Bucket>,
    sessions: Mutex<Bucket>,
    waiters: AtomicU32,
    streams: AtomicU32,
}

/// A place among a principal's waiters or streams. Dropping it gives the place back.
#[derive(Debug)]
pub(crate) struct Place {
    usage: Arc<Usage>,
    counter: fn(&Usage) -> &AtomicU32,
}

impl Drop for Place {
    fn drop(&mut self) {
        (self.counter)(&self.usage).fetch_sub(1, Ordering::Relaxed);
    }
}

impl Usage {
    /// One more request.
    pub(crate) fn request(&self, quota: &Quota, now: Instant) -> Result<(), Problem> {
        let Some(rate) = quota.requests_per_second else { return Ok(()) };
        let rate = f64::from(rate);
        take(&self.requests, rate, rate * 2.0, now)
            .map_err(|wait| reached("requests_per_second", rate, wait))
    }

    /// One more session.
    pub(crate) fn session(&self, quota: &Quota, now: Instant) -> Result<(), Problem> {
        let Some(rate) = quota.sessions_per_minute else { return Ok(()) };
        let rate = f64::from(rate);
        take(&self.sessions, rate / 60.0, rate, now)
            .map_err(|wait| reached("sessions_per_minute", rate, wait))
    }

    /// One more request that may wait.
    pub(crate) fn waiter(self: &Arc<Self>, quota: &Quota) -> Result<Place, Problem> {
        self.place(quota.waiters, "waiters", |usage| &usage.waiters)
    }

    /// One more stream.
    pub(crate) fn stream(self: &Arc<Self>, quota: &Quota) -> Result<Place, Problem> {
        self.place(quota.streams, "streams", |usage| &usage.streams)
    }

    fn place(
        self: &Arc<Self>,
        most: Option<u32>,
        name: &str,
        counter: fn(&Self) -> &AtomicU32,
    ) -> Result<Place, Problem> {
        let place = Place { usage: Arc::clone(self), counter };
        let before = counter(self).fetch_add(1, Ordering::Relaxed);
        match most {
            Some(most) if before >= most => {
                Err(reached(name, f64::from(most), Duration::from_secs(1)))
            }
            _ => Ok(place),
        }
    }
}

fn reached(name: &str, most: f64, wait: Duration) -> Problem {
    let what = format!(
        "the limit {name} ({most}) of this principal is reached; send the same request again after the time \
         in Retry-After"
    );
    let seconds = u32::try_from(wait.as_millis().div_ceil(1_000)).unwrap_or(u32::MAX).max(1);
    Problem::new("limit", what).not_applied().with_retry_after(seconds)
}

/// A bucket of tokens: full at first, refilled at a steady rate.
#[derive(Debug, Default)]
struct Bucket {
    /// What was taken and is not refilled yet.
    taken: f64,
    at: Option<Instant>,
}

/// Takes one, or says how long until there is one.
fn take(bucket: &Mutex<Bucket>, per_second: f64, size: f64, now: Instant) -> Result<(), Duration> {
    let mut bucket = bucket.lock().unwrap_or_else(PoisonError::into_inner);
    let passed = bucket.at.map_or(0.0, |at| now.saturating_duration_since(at).as_secs_f64());
    bucket.taken = (bucket.taken - passed * per_second).max(0.0);
    bucket.at = Some(now);
    let over = bucket.taken + 1.0 - size.max(1.0);
    if over > 0.0 {
        return Err(Duration::try_from_secs_f64(over / per_second).unwrap_or(Duration::MAX));
    }
    bucket.taken += 1.0;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_is_refilled_at_its_rate() {
        let usage = Usage::default();
        let quota = Quota { requests_per_second: Some(2), ..Quota::unlimited() };
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        for _ in 0..4 {
            assert!(usage.request(&quota, at(0)).is_ok());
        }
        assert_eq!(usage.request(&quota, at(0)).unwrap_err().kind(), "limit");
        assert!(usage.request(&quota, at(499)).is_err());
        assert!(usage.request(&quota, at(500)).is_ok() && usage.request(&quota, at(501)).is_err());
        assert!((0..4).all(|_| usage.request(&quota, at(60_000)).is_ok()));
        assert!(usage.request(&quota, at(60_000)).is_err(), "it never holds more than its size");
    }

    #[test]
    fn a_place_is_given_back_when_it_is_dropped() {
        let usages = Usages::default();
        let quota = Quota { waiters: Some(1), streams: Some(1), ..Quota::unlimited() };
        let place = usages.of("ci").waiter(&quota).unwrap();
        assert!(usages.of("ci").waiter(&quota).is_err() && usages.of("web").waiter(&quota).is_ok());
        assert!(usages.of("ci").stream(&quota).is_ok(), "another limit");
        drop(place);
        assert!(usages.of("ci").waiter(&quota).is_ok());
    }
}
