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
use crate::{error::StoreError, store::StoreResult};
use http::uri::PathAndQuery;
use prost::Message;
use tokio_stream::{Stream, StreamExt as _};
use tonic::Streaming;
use tonic_prost::ProstCodec;

impl Client {
    /// Keeps a lease alive. Says in which term the server has answered; `None` if there is no such lease.
    ///
    /// Each renewal has a stream of its own, so that a late answer to an earlier renewal is never taken
    /// for an answer to this one.
    pub(crate) async fn keep_alive(&self, lease: i64) -> StoreResult<Option<u64>> {
        self.check_not_restored()?;
        let (logins, epoch) = (self.logins(), self.epoch());
        let mut abandoned = AbandonedRequest::at(self, epoch);
        let kept = tokio::select! {
            biased;
            kept = self.keep_alive_at(epoch, lease) => kept,
            // Another request has left this endpoint, so waiting for it is of no use.
            () = self.endpoint_changed(epoch) => Err(Failure::broken("the endpoint fell silent")),
        };
        abandoned.answered = true;
        match kept {
            Ok(term) => Ok(term),
            Err(failure) => Err(self.stream_failed(epoch, logins, failure).await),
        }
    }

    async fn keep_alive_at(&self, epoch: usize, lease: i64) -> Result<Option<u64>, Failure> {
        bounded(async {
            let path = "/etcdserverpb.Lease/LeaseKeepAlive";
            let request = tokio_stream::once(LeaseRequest { id: lease });
            let mut answers =
                self.stream::<_, LeaseKeepAliveResponse>(epoch, path, request).await?;
            let answer = answers.next().await.transpose().map_err(|s| Failure::from(&s))?;
            let ended = || Failure::broken("the server ended the stream of keep-alives");
            let answer = answer.ok_or_else(ended)?;
            self.check_cluster(&answer).map_err(Failure::refusal)?;
            Ok((answer.ttl > 0).then(|| answer.raft_term()))
        })
        .await
    }

    /// Opens a stream of watches at the endpoint in use, and says at which epoch that was.
    pub(crate) async fn watch<S: Stream<Item = WatchRequest> + Send + 'static>(
        &self,
        requests: S,
    ) -> StoreResult<(usize, impl Stream<Item = StoreResult<WatchResponse>> + Unpin + use<S>)> {
        let (logins, epoch) = (self.logins(), self.epoch());
        let opened = self.stream::<_, WatchResponse>(epoch, "/etcdserverpb.Watch/Watch", requests);
        match bounded(opened).await {
            Ok(stream) => {
                Ok((epoch, stream.map(|r| r.map_err(|status| Failure::from(&status).error))))
            }
            Err(failure) => Err(self.stream_failed(epoch, logins, failure).await),
        }
    }

    /// Gets a new token if the old one was refused, and otherwise leaves the endpoint.
    async fn stream_failed(&self, epoch: usize, logins: u64, failure: Failure) -> StoreError {
        if failure.token_refused && self.login.is_needed() {
            return self.log_in(logins).await.err().unwrap_or_else(|| self.last_error(failure));
        }
        self.leave_endpoint(epoch);
        failure.error
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
