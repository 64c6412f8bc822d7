//! Keep-alives and watches: requests that are streams, each at one endpoint.

use super::{
    Client,
    error::Failure,
    proto::{
        HasHeader as _, LeaseKeepAliveResponse, LeaseRequest, WatchCancelRequest, WatchCommand,
        WatchCreateRequest, WatchRequest, WatchResponse,
    },
    retry::{AbandonedRequest, REQUEST},
    txn::KeyRange,
};
use crate::store::StoreResult;
use http::uri::PathAndQuery;
use prost::Message;
use tokio_stream::{Stream, StreamExt as _};
use tonic::Streaming;
use tonic_prost::ProstCodec;

/// The answer to keep-alives.
pub(crate) struct KeptAlive {
    /// All the leases live on.
    pub(crate) all: bool,
    /// The oldest term in which a server has answered.
    pub(crate) term: u64,
}

impl Client {
    /// Keeps leases alive.
    ///
    /// Each renewal has a stream of its own, so that a late answer to an earlier renewal is never taken
    /// for an answer to this one.
    pub(crate) async fn keep_alive(&self, leases: Vec<i64>) -> StoreResult<KeptAlive> {
        self.check_not_restored()?;
        let (logins, epoch) = (self.logins(), self.epoch());
        let mut abandoned = AbandonedRequest::at(self, epoch);
        let kept = tokio::select! {
            biased;
            kept = self.keep_alive_at(epoch, leases) => kept,
            // Another request has left this endpoint, so waiting for it is of no use.
            () = self.endpoint_changed(epoch) => Err(Failure::broken("the endpoint fell silent")),
        };
        abandoned.answered = true;
        match kept {
            Err(failure) if failure.token_refused && self.login.is_needed() => {
                self.log_in(logins).await?;
                Err(self.last_error(failure))
            }
            kept => self.or_leave_endpoint(epoch, kept),
        }
    }

    async fn keep_alive_at(&self, epoch: usize, leases: Vec<i64>) -> Result<KeptAlive, Failure> {
        let missing = leases.len();
        let requests = tokio_stream::iter(leases.into_iter().map(|id| LeaseRequest { id }));
        let path = "/etcdserverpb.Lease/LeaseKeepAlive";
        let mut answers =
            bounded(self.stream::<_, LeaseKeepAliveResponse>(epoch, path, requests)).await?;
        let mut kept = KeptAlive { all: true, term: u64::MAX };
        for _ in 0..missing {
            let next = async { answers.next().await.transpose().map_err(|s| Failure::from(&s)) };
            let Some(answer) = bounded(next).await? else {
                return Err(Failure::broken("the server ended the stream of keep-alives"));
            };
            self.check_cluster(&answer).map_err(Failure::refusal)?;
            kept.term = kept.term.min(answer.raft_term());
            kept.all = answer.ttl > 0;
            if !kept.all {
                break;
            }
        }
        Ok(kept)
    }

    /// Opens a stream of watches at the endpoint in use, and says at which epoch that was.
    pub(crate) async fn watch<S: Stream<Item = WatchRequest> + Send + 'static>(
        &self,
        requests: S,
    ) -> StoreResult<(usize, impl Stream<Item = StoreResult<WatchResponse>> + Unpin + use<S>)> {
        let (logins, epoch) = (self.logins(), self.epoch());
        let stream = bounded(self.stream(epoch, "/etcdserverpb.Watch/Watch", requests)).await;
        match stream {
            Err(failure) if failure.token_refused && self.login.is_needed() => {
                self.log_in(logins).await?;
                Err(failure.error)
            }
            stream => {
                let stream: Streaming<WatchResponse> = self.or_leave_endpoint(epoch, stream)?;
                Ok((epoch, stream.map(|r| r.map_err(|status| Failure::from(&status).error))))
            }
        }
    }

    /// Leaves the endpoint if a stream at it has failed.
    fn or_leave_endpoint<T>(&self, epoch: usize, result: Result<T, Failure>) -> StoreResult<T> {
        result.map_err(|failure| {
            self.leave_endpoint(epoch);
            failure.error
        })
    }

    async fn stream<Q, A>(
        &self,
        epoch: usize,
        path: &'static str,
        requests: impl Stream<Item = Q> + Send + 'static,
    ) -> Result<Streaming<A>, Failure>
    where
        Q: Message + 'static,
        A: Message + Default + 'static,
    {
        let (request, codec) = (self.request(path, requests), ProstCodec::<Q, A>::default());
        let mut endpoint = self.endpoint(epoch);
        let opened = endpoint.streaming(request, PathAndQuery::from_static(path), codec).await;
        Ok(opened.map_err(|status| Failure::from(&status))?.into_inner())
    }
}

async fn bounded<T>(answer: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    let answer = crate::clock::timeout(REQUEST, answer).await;
    answer.unwrap_or_else(|_| Err(Failure::silence(REQUEST)))
}

/// Asks for a watch of these keys under this id, from a revision on; 0 is from now on.
pub(crate) fn create_watch(
    watch_id: i64,
    keys: KeyRange,
    start_revision: i64,
    filters: &[i32],
) -> WatchRequest {
    let (KeyRange { from: key, to: range_end }, filters) = (keys, filters.to_vec());
    let create = WatchCreateRequest { key, range_end, start_revision, filters, watch_id };
    WatchRequest { command: Some(WatchCommand::Create(create)) }
}

pub(crate) fn cancel_watch(watch_id: i64) -> WatchRequest {
    WatchRequest { command: Some(WatchCommand::Cancel(WatchCancelRequest { watch_id })) }
}
