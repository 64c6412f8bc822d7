//! Repeating a request, and what its outcome is then: MySQL and PostgreSQL.
//!
//! A request that the server refused for the moment, or that was lost with its connection, is sent again
//! for a while. Once one copy may have been carried out, no later refusal can say that nothing was: the
//! outcome stays *unknown*.

use crate::{
    api::retry::jittered,
    clock::Clock,
    error::{Outcome, StoreError},
    store::StoreResult,
};
use std::time::Duration;

/// When a request may be sent again after a transient failure.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(in crate::store) enum Repeat {
    /// Always: a second copy has the effect of one and the same answer.
    Always,
    /// The same, but after a short time the caller wants to know that another transaction has the row.
    UnlessBlocked,
    /// Only if the server has surely not carried it out: a second copy would be answered differently.
    IfNotApplied,
    /// Not even then: the request relies on something that is true of this connection only.
    #[cfg(feature = "postgres")]
    Never,
}

/// A store's times for repeating.
pub(in crate::store) struct Limits {
    /// For how long requests are repeated.
    pub(in crate::store) total: Duration,
    /// For how long a request with [`Repeat::UnlessBlocked`] is repeated while a row is locked.
    pub(in crate::store) blocked: Duration,
    /// The pause before the first repetition. Each further one is twice as long, up to `longest_pause`.
    pub(in crate::store) pause: Duration,
    pub(in crate::store) longest_pause: Duration,
    /// Whether an error says that another transaction has had a row for too long.
    pub(in crate::store) is_blocked: fn(&StoreError) -> bool,
}

impl Limits {
    /// Sends the request until it is answered for good. Says also whether an earlier copy got no answer and may
    /// still be carried out.
    pub(in crate::store) async fn send<T, F>(
        &self,
        clock: &Clock,
        repeat: Repeat,
        mut send_once: impl FnMut() -> F,
    ) -> (StoreResult<T>, bool)
    where
        F: Future<Output = StoreResult<T>>,
    {
        let begun = clock.now();
        let mut pause = self.pause;
        let mut outcome = Outcome::NotApplied;
        loop {
            let mut e = match send_once().await {
                Ok(answer) => return (Ok(answer), outcome == Outcome::Unknown),
                Err(e) => e,
            };
            if outcome == Outcome::NotApplied {
                outcome = e.outcome;
            }
            e.outcome = outcome;
            let limit = match repeat {
                Repeat::UnlessBlocked if (self.is_blocked)(&e) => self.blocked,
                Repeat::Always | Repeat::UnlessBlocked => self.total,
                Repeat::IfNotApplied if outcome == Outcome::NotApplied => self.total,
                _ => Duration::ZERO,
            };
            if !e.is_transient() || clock.now() >= begun + limit {
                return (Err(e), outcome == Outcome::Unknown);
            }
            clock.sleep(jittered(pause, 2)).await;
            pause = (pause * 2).min(self.longest_pause);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;
    use std::future::ready;

    const LIMITS: Limits = Limits {
        total: Duration::from_secs(3),
        blocked: Duration::ZERO,
        pause: Duration::from_millis(1),
        longest_pause: Duration::from_millis(1),
        is_blocked: |e| e.kind == ErrorKind::Unavailable && e.what == "blocked",
    };

    fn refused(what: &str) -> StoreError {
        StoreError::not_applied("test", ErrorKind::Unavailable, what)
    }

    fn lost() -> StoreError {
        StoreError::unknown("test", ErrorKind::Unavailable, "lost")
    }

    async fn send(repeat: Repeat, answers: Vec<StoreResult<u8>>) -> (StoreResult<u8>, bool, usize) {
        let (mut answers, mut sent) = (answers.into_iter(), 0);
        let (answer, doubled) = LIMITS
            .send(&Clock::system(), repeat, || {
                sent += 1;
                ready(answers.next().expect("not sent more often"))
            })
            .await;
        (answer, doubled, sent)
    }

    #[tokio::test]
    async fn a_copy_without_an_answer_makes_the_outcome_unknown() {
        let (answer, doubled, sent) = send(Repeat::Always, vec![Err(lost()), Ok(7)]).await;
        assert_eq!((answer.unwrap(), doubled, sent), (7, true, 2));
        let (answer, doubled, sent) =
            send(Repeat::IfNotApplied, vec![Err(refused("busy")), Err(lost())]).await;
        assert_eq!((answer.unwrap_err().outcome, doubled, sent), (Outcome::Unknown, true, 2));
        let denied = || StoreError::not_applied("test", ErrorKind::Denied, "no");
        let (answer, doubled, _) = send(Repeat::Always, vec![Err(lost()), Err(denied())]).await;
        assert_eq!((answer.unwrap_err().outcome, doubled), (Outcome::Unknown, true));
    }

    #[tokio::test]
    async fn a_blocked_row_ends_a_request_that_will_not_wait_for_it() {
        let blocked = || vec![Err(refused("blocked")), Ok(7)];
        let (answer, _, sent) = send(Repeat::UnlessBlocked, blocked()).await;
        assert_eq!((answer.is_err(), sent), (true, 1));
        assert_eq!(send(Repeat::IfNotApplied, blocked()).await.2, 2);
    }
}
