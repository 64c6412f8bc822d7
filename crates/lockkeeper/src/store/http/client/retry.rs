//! How long a request is tried, at which instance, and when it may be sent again.
//!
//! One instance is in use at a time. When it fails, the client moves to the next one, and the request is sent there
//! too if that is safe or the failed instance surely did nothing.

use super::{
    super::{KIND, error, wire},
    Ask, Client, Reply,
    endpoint::{Broken, Endpoint},
};
use crate::{
    clock::{Moment, timeout},
    error::{ErrorKind, Outcome, StoreError},
    store::{StoreResult, common::tls::late},
};
use http_body_util::{BodyExt as _, Limited};
use hyper::body::Incoming;
use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

/// How long a request may take, all attempts together: a little longer than the stores behind the service take, so
/// that their own answers arrive.
const REQUEST: Duration = Duration::from_secs(6);
/// How long the first attempt may take when there is another instance to try and a second copy does no harm. Each
/// further one may take twice as long: a slow store must be able to answer at last.
const ATTEMPT: Duration = Duration::from_millis(1500);
/// The same when a second copy would be answered differently.
const ONLY_ATTEMPT: Duration = Duration::from_secs(3);
/// A request that its caller gave up so long after it was sent speaks against its instance.
const SUSPECT: Duration = Duration::from_millis(400);
/// The pause after every instance has failed once.
const PAUSE: Duration = Duration::from_millis(50);
/// The longest answer that is accepted: listings are long.
const ANSWER_MAX: usize = 64 << 20;

/// May a request be sent again after an attempt without an answer?
#[derive(Clone, Copy, PartialEq, Eq)]
pub(in crate::store::http) enum Retry {
    /// Yes: the second copy does nothing, or does the same and gets the same answer.
    Safe,
    /// No: the second copy would get another answer, or the caller must know that there were two.
    Never,
}

/// A request that failed, and whether another instance may do better.
pub(super) struct Failure {
    pub(super) error: StoreError,
    pub(super) try_next: bool,
}

impl Failure {
    fn not_now(outcome: Outcome, what: String) -> Self {
        let error =
            StoreError { outcome, ..StoreError::unknown(KIND, ErrorKind::Unavailable, what) };
        Self { error, try_next: true }
    }
}

impl From<Broken> for Failure {
    fn from(broken: Broken) -> Self {
        match broken {
            Broken::Unsent(what) => Self::not_now(Outcome::NotApplied, what),
            Broken::Sent(what) => Self::not_now(Outcome::Unknown, what),
        }
    }
}

impl Client {
    /// Moves on to the next instance, if there is one, unless another request has done so since this epoch.
    pub(super) fn leave_endpoint(&self, epoch: usize) {
        if self.endpoints.len() == 1 {
            return;
        }
        self.epoch.send_if_modified(|now| {
            let current = *now == epoch;
            *now += usize::from(current);
            current
        });
    }

    pub(super) fn epoch(&self) -> usize {
        *self.epoch.borrow()
    }

    /// The instance in use at this epoch.
    pub(super) fn endpoint(&self, epoch: usize) -> &Endpoint {
        &self.endpoints[epoch % self.endpoints.len()]
    }

    /// Ends when the client uses another instance than at this epoch.
    pub(super) async fn endpoint_changed(&self, epoch: usize) {
        let _ = self.epoch.subscribe().wait_for(|now| *now != epoch).await;
    }

    /// Sends a request until it is answered, its time is over, or another attempt is of no use. An answer that
    /// refuses for good is an answer too; one that says *not now* is an error.
    pub(in crate::store::http) async fn call(&self, ask: &Ask) -> StoreResult<Reply> {
        let end = self.clock.now() + REQUEST;
        let _place = match ask.is_urgent {
            true => None,
            false => match timeout(REQUEST, self.places.acquire()).await {
                Ok(place) => place.ok(),
                Err(_) => {
                    let what = "too many requests are under way and none is answered".to_owned();
                    return Err(Failure::not_now(Outcome::NotApplied, what).error);
                }
            },
        };
        let (mut was_sent, mut has_new_token) = (false, false);
        let (mut failures, mut quick_failures) = (0_usize, 0);
        loop {
            let (began, token) = (self.clock.now(), self.token.header());
            let failure = match self.attempt(ask, end, failures).await {
                Ok(reply)
                    if reply.status == 401
                        && !has_new_token
                        && self.token.reload(token.as_ref()) =>
                {
                    has_new_token = true;
                    continue;
                }
                Ok(reply) => return Ok(Reply { was_sent_before: was_sent, ..reply }),
                Err(failure) => failure,
            };
            was_sent |= failure.error.outcome == Outcome::Unknown;
            let outcome = if was_sent { Outcome::Unknown } else { Outcome::NotApplied };
            failures += 1;
            let again = failure.try_next && (ask.retry == Retry::Safe || !was_sent);
            let now = self.clock.now();
            // Slow failures end with the time, and quick ones, such as refused connections, after two
            // rounds through the instances.
            quick_failures += usize::from(now.saturating_since(began) < SUSPECT);
            if !again || now >= end || quick_failures >= 2 * self.endpoints.len() {
                return Err(StoreError { outcome, ..failure.error });
            }
            if failures.is_multiple_of(self.endpoints.len()) {
                self.clock.sleep(PAUSE).await;
            }
        }
    }

    /// Sends a request once, to the instance in use.
    async fn attempt(&self, ask: &Ask, end: Moment, failures: usize) -> Result<Reply, Failure> {
        let epoch = self.epoch();
        let endpoint = self.endpoint(epoch);
        let mut abandoned = AbandonedRequest::at(self, epoch);
        let left = end.saturating_since(abandoned.began);
        let patience = match ask.retry {
            _ if self.endpoints.len() == 1 => left,
            Retry::Safe => left.min(ATTEMPT * (1 << failures.min(2))),
            Retry::Never => left.min(ONLY_ATTEMPT),
        };
        let sent = AtomicBool::new(false);
        let answer = timeout(patience, self.exchange(ask, endpoint, &sent)).await;
        abandoned.is_over = true;
        let answer = answer.unwrap_or_else(|_| {
            endpoint.drop_idle();
            let outcome = match sent.load(Ordering::Relaxed) {
                true => Outcome::Unknown,
                false => Outcome::NotApplied,
            };
            Err(Failure::not_now(outcome, format!("{endpoint}: {}", late(patience))))
        });
        if answer.as_ref().is_err_and(|failure| failure.try_next) {
            self.leave_endpoint(epoch);
        }
        answer
    }

    async fn exchange(
        &self,
        ask: &Ask,
        endpoint: &Endpoint,
        sent: &AtomicBool,
    ) -> Result<Reply, Failure> {
        let request = self.request(ask, endpoint);
        let request = request.map_err(|error| Failure { error, try_next: false })?;
        let (answer, sender) = endpoint.send(request, sent).await?;
        let (head, body) = answer.into_parts();
        let body = read(body).await.map_err(|e| Broken::Sent(format!("{endpoint}: {e}")))?;
        endpoint.done(sender);
        let (status, headers) = (head.status, head.headers);
        let reply = Reply { status, headers, body, was_sent_before: false };
        self.note_clock(&reply);
        match error::not_now(&reply) {
            None => Ok(reply),
            Some(error) => Err(Failure { error, try_next: status != 429 }),
        }
    }

    fn note_clock(&self, reply: &Reply) {
        let millis = reply.header(wire::CLOCK).and_then(|text| text.parse::<i64>().ok());
        if let Some(micros) = millis.and_then(|ms| ms.checked_mul(1_000)) {
            self.server_clock.set(micros);
        }
    }
}

type BoxError = Box<dyn std::error::Error + Send + Sync>;

async fn read(body: Incoming) -> Result<bytes::Bytes, BoxError> {
    Ok(Limited::new(body, ANSWER_MAX).collect().await?.to_bytes())
}

/// Notices that a caller dropped a request which was unanswered for a while, and leaves the instance.
/// A caller with less patience than ours would otherwise never get away from a dead one.
struct AbandonedRequest<'a> {
    client: &'a Client,
    epoch: usize,
    began: Moment,
    is_over: bool,
}

impl<'a> AbandonedRequest<'a> {
    fn at(client: &'a Client, epoch: usize) -> Self {
        Self { client, epoch, began: client.clock.now(), is_over: false }
    }
}

impl Drop for AbandonedRequest<'_> {
    fn drop(&mut self) {
        let waited = self.client.clock.now().saturating_since(self.began);
        if !self.is_over && waited >= SUSPECT {
            self.client.endpoint(self.epoch).drop_idle();
            self.client.leave_endpoint(self.epoch);
        }
    }
}
