//! A store that cannot be reached: the pauses between attempts, and the error when the wait ends.

use crate::{
    api::retry::jittered,
    clock::{Clock, Moment},
    error::{Error, ErrorKind, Result, StoreError},
    observe,
    session::local_queue::LocalTurn,
    store::{AnyStore, StoreResult},
};
use std::{pin::pin, sync::Arc, time::Duration};

/// The first pause after a failed attempt; it doubles up to the longest one.
const PAUSE_FIRST: Duration = Duration::from_millis(20);
const PAUSE_MOST: Duration = Duration::from_secs(1);
/// An attempt under way is given this time for its answer although the patience has ended. After it the
/// store counts as away.
pub(crate) const ANSWER_MOST: Duration = Duration::from_secs(1);

/// An outage of the store, as one task found it and others are told.
#[derive(Clone, Debug)]
pub(crate) struct Away {
    since: Moment,
    why: Arc<StoreError>,
}

impl Away {
    pub(crate) fn new(since: Moment, why: impl Into<Arc<StoreError>>) -> Self {
        Self { since, why: why.into() }
    }

    /// The same outage with a later reason.
    pub(crate) fn still(&self, why: impl Into<Arc<StoreError>>) -> Self {
        Self::new(self.since, why)
    }

    /// For how long it has lasted.
    pub(crate) fn lasts(&self, now: Moment) -> Duration {
        now.saturating_since(self.since)
    }

    /// The error for a task that has waited since `began`.
    pub(crate) fn error(&self, began: Moment, now: Moment) -> Error {
        let outage = now.saturating_since(self.since.max(began));
        Error::Unavailable { outage, source: StoreError::shared(&self.why) }
    }
}

/// The failed attempts of one task since the store last answered it.
pub(crate) struct Outage<'a> {
    clock: &'a Clock,
    began: Moment,
    /// The tasks behind this pass learn of the outage.
    pass: Option<&'a LocalTurn>,
    away: Option<Away>,
    pause: Option<Duration>,
}

impl<'a> Outage<'a> {
    /// None so far, for a task that has waited since `began`. It inherits the outage of the task that stood
    /// in the local queue before it.
    pub(crate) fn new(clock: &'a Clock, began: Moment, pass: Option<&'a LocalTurn>) -> Self {
        let away = pass.and_then(|pass| pass.away.clone());
        Self { clock, began, pass, away, pause: None }
    }

    pub(crate) fn is_on(&self) -> bool {
        self.away.is_some()
    }

    /// Awaits the answer to an attempt, or the end of the patience, but gives the attempt its time.
    pub(crate) async fn answer<T>(
        &mut self,
        until: Moment,
        store: &'static str,
        attempt: impl Future<Output = T>,
    ) -> Option<T> {
        let (mut attempt, clock) = (pin!(attempt), self.clock);
        tokio::select! {
            biased;
            answer = &mut attempt => return Some(answer),
            () = clock.sleep(ANSWER_MOST) => {}
        }
        let what = format!("no answer within {ANSWER_MOST:?}");
        self.set(StoreError::unknown(store, ErrorKind::Unavailable, what), ANSWER_MOST);
        tokio::select! {
            biased;
            answer = &mut attempt => Some(answer),
            () = clock.sleep_until(until) => None,
        }
    }

    /// An attempt has ended so. Any answer but that the store is away ends the outage.
    pub(crate) fn heard<T>(&mut self, answer: &StoreResult<T>) {
        if !matches!(answer, Err(e) if e.is_transient()) {
            self.answered();
        }
    }

    /// The store has answered.
    pub(crate) fn answered(&mut self) {
        self.pause = None;
        if self.away.take().is_some() {
            self.pass.inspect(|pass| pass.tell(None));
        }
    }

    /// The session that stood in line is lost. If it was lost because the store does not answer, the outage
    /// goes on.
    pub(crate) fn inherit(&mut self, away: Option<Away>) {
        if self.away.is_none() && away.is_some() {
            self.away = away;
            self.pass.inspect(|pass| pass.tell(self.away.clone()));
        }
    }

    /// Notes a failed attempt; answers with the pause before the next one.
    pub(crate) fn failed(&mut self, e: StoreError) -> Duration {
        self.set(e, Duration::ZERO);
        let pause = self.pause.map_or(PAUSE_FIRST, |p| (p * 2).min(PAUSE_MOST));
        self.pause = Some(pause);
        jittered(pause, 2)
    }

    fn set(&mut self, e: StoreError, ago: Duration) {
        let now = self.clock.now();
        let since = self.away.as_ref().map(|away| away.since);
        observe::store_unavailable(&e, since.map_or(ago, |since| now.saturating_since(since)));
        let away = match &self.away {
            Some(away) => away.still(e),
            None => Away::new(now.before(ago), e),
        };
        self.pass.inspect(|pass| pass.tell(Some(away.clone())));
        self.away = Some(away);
    }

    /// How the wait has ended: with `answer` if the store has answered, and with the outage otherwise.
    pub(crate) fn or<T>(&self, answer: T) -> Result<T> {
        match &self.away {
            Some(away) => Err(away.error(self.began, self.clock.now())),
            None => Ok(answer),
        }
    }
}

/// Connects, and again while the store cannot be reached, until the time given for that is over.
pub(crate) async fn reach<F>(
    clock: &Clock,
    wait: Duration,
    mut connect: impl FnMut() -> F,
) -> Result<AnyStore>
where
    F: Future<Output = Result<AnyStore>>,
{
    let end = clock.now() + wait;
    let mut outage = Outage::new(clock, clock.now(), None);
    let mut until = Moment::NEVER;
    loop {
        let answer = tokio::select! {
            biased;
            answer = connect() => answer,
            () = clock.sleep_until(until) => break,
        };
        let pause = match answer {
            Err(Error::Store(e)) if e.is_transient() && !wait.is_zero() => outage.failed(e),
            answer => return answer,
        };
        until = end;
        tokio::select! {
            biased;
            () = clock.sleep_until(until) => break,
            () = clock.sleep(pause) => {}
        }
    }
    Err(outage.or(()).expect_err("the first attempt is not cut off"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::memory::Memory;
    use std::sync::atomic::{AtomicU32, Ordering};

    /// Connects with this patience to a store that answers from the third attempt on, or refuses for ever
    /// with another error than being unreachable. Says how often it was tried.
    async fn connect(wait: Duration, kind: ErrorKind) -> (Result<AnyStore>, u32) {
        let attempts = AtomicU32::new(0);
        let attempt = async || match attempts.fetch_add(1, Ordering::Relaxed) {
            2.. if kind == ErrorKind::Unavailable => Ok(AnyStore::new(Memory::new())),
            _ => Err(StoreError::not_applied("late", kind, "not yet").into()),
        };
        let connected = reach(&Clock::system(), wait, attempt).await;
        (connected, attempts.into_inner())
    }

    #[tokio::test]
    async fn a_store_that_is_not_there_yet_is_waited_for() {
        let (connected, attempts) = connect(Duration::from_secs(60), ErrorKind::Unavailable).await;
        assert!(connected.is_ok() && attempts == 3, "{attempts}: {connected:?}");
    }

    #[tokio::test]
    async fn without_patience_the_first_error_is_the_answer() {
        let (connected, attempts) = connect(Duration::ZERO, ErrorKind::Unavailable).await;
        assert!(matches!(connected, Err(Error::Store(_))), "{connected:?}");
        assert_eq!(attempts, 1);
    }

    #[tokio::test]
    async fn what_trying_again_cannot_mend_is_said_at_once() {
        let (connected, attempts) = connect(Duration::from_secs(60), ErrorKind::Denied).await;
        assert!(matches!(connected, Err(Error::Store(_))), "{connected:?}");
        assert_eq!(attempts, 1);
    }

    #[tokio::test]
    async fn a_store_that_stays_away_is_unavailable_when_the_time_is_over() {
        let (connected, attempts) = connect(Duration::from_millis(1), ErrorKind::Unavailable).await;
        assert!(matches!(connected, Err(Error::Unavailable { .. })), "{connected:?}");
        assert_eq!(attempts, 1);
    }
}
