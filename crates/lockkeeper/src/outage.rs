//! A store that cannot be reached: the pauses between attempts, and what is said when the patience ends.

use crate::{
    clock::Moment,
    error::{Error, Result, StoreError},
    observe,
    retry::jittered,
};
use std::time::Duration;

/// The first pause after a failed attempt; it doubles up to the longest one.
const PAUSE_FIRST: Duration = Duration::from_millis(20);
const PAUSE_MOST: Duration = Duration::from_secs(1);

/// The failed attempts since the store last answered.
#[derive(Default)]
pub(crate) struct Outage {
    since: Option<Moment>,
    pause: Option<Duration>,
    last: Option<StoreError>,
}

impl Outage {
    /// Notes a failed attempt; answers with the pause before the next one.
    pub(crate) fn pause(&mut self, now: Moment, e: StoreError) -> Duration {
        let since = *self.since.get_or_insert(now);
        observe::store_trouble(&e, now.saturating_since(since));
        let pause = self.pause.map_or(PAUSE_FIRST, |p| (p * 2).min(PAUSE_MOST));
        (self.pause, self.last) = (Some(pause), Some(e));
        jittered(pause, 2)
    }

    /// `answer` if the store has answered, else the error to end with.
    pub(crate) fn or<T>(&mut self, answer: T, now: Moment) -> Result<T> {
        self.ended(now).map_or(Ok(answer), Err)
    }

    /// The error to end with, if the last attempt failed.
    pub(crate) fn ended(&mut self, now: Moment) -> Option<Error> {
        let for_ = now.saturating_since(self.since.unwrap_or(now));
        self.last.take().map(|source| Error::Unavailable { for_, source })
    }
}
