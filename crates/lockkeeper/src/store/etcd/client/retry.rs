//! How long a request is tried, at which endpoint, and when it may be sent again.
//!
//! One endpoint is in use at a time. When it fails, the client moves to the next one, and the request is
//! sent there too if that is safe or the failed endpoint surely did nothing.

use super::{
    Client, KIND, RANGE,
    error::Failure,
    login::{AUTHENTICATE, LOGINS_MAX},
    proto::{HasHeader, RangeRequest, RangeResponse},
    wire::Wire,
};
use crate::{
    clock::Moment,
    error::{ErrorKind, Outcome, StoreError},
    store::StoreResult,
};
use http::uri::PathAndQuery;
use prost::Message;
use std::{sync::atomic::Ordering, time::Duration};
use tonic::{Request, client::Grpc, metadata::MetadataValue};
use tonic_prost::ProstCodec;

/// How long a request may take, all attempts together.
pub(super) const REQUEST: Duration = Duration::from_secs(5);
/// How long one attempt may take when there is another endpoint to try.
const ATTEMPT: Duration = Duration::from_millis(1500);
/// A request that its caller gave up so long after it was sent speaks against its endpoint.
const SUSPECT: Duration = Duration::from_millis(400);
/// The pause after every endpoint has failed once.
const PAUSE: Duration = Duration::from_millis(50);

/// The service whose requests are all linearizable.
const KV: &str = "/etcdserverpb.KV/";

const RESTORED: &str = "the cluster was restored or replaced, and what was locked before is not \
                        locked any more; connect anew";

/// May a request be sent again after an attempt without an answer?
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Retry {
    /// Yes: the second copy does nothing, or does the same and gets the same answer.
    Safe,
    /// No: the second copy would get another answer.
    Never,
}

impl Client {
    /// Moves on to the next endpoint, unless another request has done so since this epoch.
    pub(super) fn leave_endpoint(&self, epoch: usize) {
        self.endpoint_epoch.send_if_modified(|now| {
            let current = *now == epoch;
            *now += usize::from(current);
            current
        });
    }

    pub(super) fn epoch(&self) -> usize {
        *self.endpoint_epoch.borrow()
    }

    /// The endpoint in use at this epoch.
    pub(super) fn endpoint(&self, epoch: usize) -> Grpc<Wire> {
        self.endpoints[epoch % self.endpoints.len()].clone()
    }

    /// Ends when the client uses another endpoint than at this epoch.
    pub(crate) async fn endpoint_changed(&self, epoch: usize) {
        let _ = self.endpoint_epoch.subscribe().wait_for(|now| *now != epoch).await;
    }

    pub(super) fn request<T>(&self, path: &str, message: T) -> Request<T> {
        let mut request = Request::new(message);
        request.metadata_mut().insert("hasleader", MetadataValue::from_static("true"));
        if let Some(token) = self.login.token().filter(|_| path != AUTHENTICATE) {
            request.metadata_mut().insert("token", token);
        }
        request
    }

    pub(super) async fn call<Q, A>(
        &self,
        path: &'static str,
        request: Q,
        retry: Retry,
    ) -> StoreResult<A>
    where
        Q: Message + Clone + 'static,
        A: Message + Default + HasHeader + 'static,
    {
        Ok(self.send(path, request, retry).await?.0)
    }

    /// Sends a request until it is answered, its time is over, or another attempt is of no use. `true`
    /// beside the answer: an earlier attempt got none, and may still be carried out, at any time.
    pub(super) async fn send<Q, A>(
        &self,
        path: &'static str,
        request: Q,
        retry: Retry,
    ) -> StoreResult<(A, bool)>
    where
        Q: Message + Clone + 'static,
        A: Message + Default + HasHeader + 'static,
    {
        let end = self.clock.now() + REQUEST;
        let (mut stray, mut was_old) = (false, false);
        let (mut logins, mut failures, mut quick_failures) = (0, 0_usize, 0);
        let highest = self.highest.load(Ordering::Acquire);
        loop {
            self.check_not_restored()?;
            let (logins_before, epoch, sent) = (self.logins(), self.epoch(), self.clock.now());
            let failure = match self.attempt(path, request.clone(), end).await {
                Ok(answer) => {
                    self.check_cluster(&answer)?;
                    if !path.starts_with(KV) || self.is_recent(&answer, highest) {
                        return Ok((answer, stray));
                    }
                    // One member may lag behind for a moment; a second answer, by another member, tells.
                    if was_old || retry == Retry::Never {
                        return Err(self.restored("it answers from a time before its last answer"));
                    }
                    was_old = true;
                    self.leave_endpoint(epoch);
                    continue;
                }
                Err(failure) => failure,
            };
            stray |= failure.error.outcome == Outcome::Unknown;
            let outcome = if stray { Outcome::Unknown } else { Outcome::NotApplied };
            if failure.token_refused && self.login.is_needed() && logins < LOGINS_MAX {
                logins += 1;
                self.log_in(logins_before).await.map_err(|e| StoreError { outcome, ..e })?;
                continue;
            }
            failures += 1;
            let again = failure.try_next_endpoint && (retry == Retry::Safe || !stray);
            let now = self.clock.now();
            // Slow failures end with the time, and quick ones, such as refused connections, after two
            // rounds through the endpoints.
            quick_failures += usize::from(now.saturating_since(sent) < SUSPECT);
            if !again || now >= end || quick_failures > 2 * self.endpoints.len() {
                return Err(StoreError { outcome, ..self.last_error(failure) });
            }
            if failures.is_multiple_of(self.endpoints.len()) {
                self.clock.sleep(PAUSE).await;
            }
        }
    }

    /// The error that ends a request. A new token that is refused proves nothing about the user.
    pub(super) fn last_error(&self, failure: Failure) -> StoreError {
        match failure.token_refused && self.login.is_needed() {
            true => StoreError { kind: ErrorKind::Unavailable, ..failure.error },
            false => failure.error,
        }
    }

    /// Sends a request once, to the endpoint in use.
    pub(super) async fn attempt<Q, A>(
        &self,
        path: &'static str,
        request: Q,
        end: Moment,
    ) -> Result<A, Failure>
    where
        Q: Message + 'static,
        A: Message + Default + 'static,
    {
        let epoch = self.epoch();
        let mut abandoned = AbandonedRequest::at(self, epoch);
        let left = end.saturating_since(abandoned.sent);
        let patience = if self.endpoints.len() > 1 { left.min(ATTEMPT) } else { left };
        let (request, codec) = (self.request(path, request), ProstCodec::<Q, A>::default());
        let mut endpoint = self.endpoint(epoch);
        let answer = endpoint.unary(request, PathAndQuery::from_static(path), codec);
        let answer = match crate::clock::timeout(patience, answer).await {
            Ok(Ok(answer)) => Ok(answer.into_inner()),
            Ok(Err(status)) => Err(Failure::from(&status)),
            Err(_) => Err(Failure::silence(patience)),
        };
        abandoned.answered = true;
        if answer.as_ref().is_err_and(|failure| failure.try_next_endpoint) {
            self.leave_endpoint(epoch);
        }
        answer
    }

    /// Reads what the member in use has, which may be old; sent once.
    pub(crate) async fn serializable_range(
        &self,
        request: RangeRequest,
    ) -> StoreResult<RangeResponse> {
        self.check_not_restored()?;
        let request = RangeRequest { serializable: true, ..request };
        let end = self.clock.now() + ATTEMPT;
        let answer = self.attempt(RANGE, request, end).await.map_err(|failure| failure.error)?;
        self.check_cluster(&answer)?;
        Ok(answer)
    }

    /// The id of the cluster that answered first.
    pub(crate) fn cluster(&self) -> u64 {
        self.cluster.load(Ordering::Acquire)
    }

    /// Refuses answers of another cluster. After a restore from a snapshot the cluster has another id
    /// and its revisions may begin anew; with its old id, its revisions have gone back.
    pub(super) fn check_cluster(&self, answer: &impl HasHeader) -> StoreResult<()> {
        let Some(header) = answer.header() else { return Ok(()) };
        let (id, known) = (header.cluster_id, self.cluster());
        if known == 0 {
            self.cluster.store(id, Ordering::Release);
        } else if known != id {
            return Err(self.restored("another cluster answers than before"));
        }
        Ok(())
    }

    fn is_recent(&self, answer: &impl HasHeader, highest: i64) -> bool {
        self.highest.fetch_max(answer.revision(), Ordering::AcqRel);
        answer.revision() >= highest
    }

    fn restored(&self, seen: &str) -> StoreError {
        self.restored.store(true, Ordering::Release);
        StoreError::unknown(KIND, ErrorKind::Misconfigured, format!("{seen}: {RESTORED}"))
    }

    /// Was the cluster restored or replaced since this client first saw it?
    pub(crate) fn is_restored(&self) -> bool {
        self.restored.load(Ordering::Acquire)
    }

    pub(super) fn check_not_restored(&self) -> StoreResult<()> {
        match self.is_restored() {
            true => Err(StoreError::not_applied(KIND, ErrorKind::Misconfigured, RESTORED)),
            false => Ok(()),
        }
    }
}

/// Notices that a caller dropped a request which was unanswered for a while, and leaves the endpoint.
/// A caller with less patience than ours would otherwise never get away from a dead endpoint.
pub(super) struct AbandonedRequest<'a> {
    client: &'a Client,
    epoch: usize,
    sent: Moment,
    pub(super) answered: bool,
}

impl<'a> AbandonedRequest<'a> {
    pub(super) fn at(client: &'a Client, epoch: usize) -> Self {
        Self { client, epoch, sent: client.clock.now(), answered: false }
    }
}

impl Drop for AbandonedRequest<'_> {
    fn drop(&mut self) {
        let waited = self.client.clock.now().saturating_since(self.sent);
        if !self.answered && waited >= SUSPECT {
            self.client.leave_endpoint(self.epoch);
        }
    }
}
