//! A client of etcd that knows nothing of locks: requests over one connection to one endpoint at a time.
//!
//! | file | holds |
//! |---|---|
//! | `retry` | how long a request is tried, at which endpoint, and when it may be sent again |
//! | `streams` | keep-alives and watches, which are streams |
//! | `login` | the user's token |
//! | `wire` | the HTTP/2 connection to an endpoint |
//! | `proto`, `txn` | etcd's messages, and short words for the parts of a transaction |
//! | `error` | what etcd's refusals mean, and whether the request may have been carried out |
//!
//! Every request is bounded in time, asks the server to have a leader, and carries the user's token, if
//! there is a user.

mod error;
mod login;
mod proto;
mod retry;
mod streams;
pub(crate) mod txn;
mod wire;

pub(crate) use error::{lease_gone, malformed};
pub(crate) use login::Credentials;
pub(crate) use proto::{
    Compare, HasHeader, KeyValue, NO_PUT, RangeRequest, RequestOp, StatusResponse, TxnRequest,
    WatchRequest, WatchResponse,
};
pub(crate) use retry::Retry;
pub(crate) use streams::{cancel_watch, create_watch};
pub(crate) use txn::{Answer, KeyRange};
pub(crate) use wire::Endpoint;

use super::KIND;
use crate::{clock::Clock, store::StoreResult};
use http::uri::InvalidUri;
use login::Login;
use proto::{
    CompactionRequest, CompactionResponse, LeaseGrantRequest, LeaseGrantResponse, LeaseRequest,
    LeaseRevokeResponse, LeaseTimeToLiveRequest, LeaseTimeToLiveResponse, RangeResponse,
    StatusRequest,
};
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64};
use tokio::sync::watch;
use tonic::client::Grpc;
use wire::Wire;

/// The longest response that is accepted: listings of many keys are long.
const RESPONSE_MAX: usize = 256 << 20;

const RANGE: &str = "/etcdserverpb.KV/Range";

/// Makes requests to a cluster.
pub(crate) struct Client {
    clock: Clock,
    endpoints: Vec<Grpc<Wire>>,
    /// Counts the changes of endpoint. Modulo the number of endpoints it is the one in use.
    endpoint_epoch: watch::Sender<usize>,
    login: Login,
    /// The id of the cluster that answered first; zero until then.
    cluster: AtomicU64,
    /// The highest revision seen. Requests are linearizable, so no later answer is from before it.
    highest: AtomicI64,
    /// The cluster was restored from a snapshot or replaced. That is final.
    restored: AtomicBool,
}

impl Client {
    pub(crate) fn new(
        endpoints: impl IntoIterator<Item = Endpoint>,
        credentials: Option<Credentials>,
        clock: Clock,
    ) -> Result<Self, InvalidUri> {
        let grpc = |endpoint: Endpoint| -> Result<_, InvalidUri> {
            let origin = endpoint.origin()?;
            let grpc = Grpc::with_origin(Wire::new(endpoint, clock.clone()), origin);
            Ok(grpc.max_decoding_message_size(RESPONSE_MAX))
        };
        let endpoints = endpoints.into_iter().map(grpc).collect::<Result<_, _>>()?;
        Ok(Self {
            clock,
            endpoints,
            endpoint_epoch: watch::Sender::new(0),
            login: Login::new(credentials),
            cluster: AtomicU64::new(0),
            highest: AtomicI64::new(0),
            restored: AtomicBool::new(false),
        })
    }

    pub(crate) fn endpoints(&self) -> usize {
        self.endpoints.len()
    }

    pub(crate) async fn range(&self, request: RangeRequest) -> StoreResult<RangeResponse> {
        self.call(RANGE, request, Retry::Safe).await
    }

    /// Reads several ranges at one revision, which comes first in the answer.
    pub(crate) async fn ranges(
        &self,
        mut requests: Vec<RangeRequest>,
    ) -> StoreResult<(i64, Vec<RangeResponse>)> {
        if requests.len() == 1 {
            let response = self.range(requests.remove(0)).await?;
            return Ok((response.revision(), vec![response]));
        }
        if requests.is_empty() {
            return Ok((0, Vec::new()));
        }
        let count = requests.len();
        let mut answer = self.read(requests.into_iter().map(txn::range).collect()).await?;
        Ok((answer.revision, (0..count).map(|_| answer.range()).collect::<StoreResult<_>>()?))
    }

    /// A transaction without comparisons, whose operations can be repeated.
    pub(crate) async fn read(&self, success: Vec<RequestOp>) -> StoreResult<Answer> {
        self.txn(TxnRequest { success, ..TxnRequest::default() }, Retry::Safe).await
    }

    pub(crate) async fn txn(&self, request: TxnRequest, retry: Retry) -> StoreResult<Answer> {
        Ok(self.txn_with_stray(request, retry).await?.0)
    }

    /// A transaction whose caller has to know whether a copy of it may be carried out later.
    pub(crate) async fn txn_with_stray(
        &self,
        request: TxnRequest,
        retry: Retry,
    ) -> StoreResult<(Answer, bool)> {
        let (answer, stray) = self.send("/etcdserverpb.KV/Txn", request, retry).await?;
        Ok((Answer::of(answer), stray))
    }

    /// Drops all revisions before this one from the history.
    pub(crate) async fn compact(&self, revision: i64) -> StoreResult<()> {
        let (path, request) = ("/etcdserverpb.KV/Compact", CompactionRequest { revision });
        let answer = self.call::<_, CompactionResponse>(path, request, Retry::Safe).await;
        answer.map(drop).or_else(|e| if error::is_compacted(&e) { Ok(()) } else { Err(e) })
    }

    /// Has the history been compacted beyond this revision?
    pub(crate) async fn has_compacted(&self, key: &[u8], revision: i64) -> StoreResult<bool> {
        match self.range(RangeRequest { revision, ..txn::key_of(key) }).await {
            Ok(_) => Ok(false),
            Err(e) if error::is_compacted(&e) => Ok(true),
            Err(e) => Err(e),
        }
    }

    /// Grants a lease of this id. `None` if there is one already.
    pub(crate) async fn grant(&self, id: i64, ttl: i64) -> StoreResult<Option<i64>> {
        let (path, request) = ("/etcdserverpb.Lease/LeaseGrant", LeaseGrantRequest { id, ttl });
        match self.call::<_, LeaseGrantResponse>(path, request, Retry::Safe).await {
            Ok(granted) => Ok(Some(granted.ttl)),
            Err(e) if error::lease_exists(&e) => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// Ends a lease and deletes all its keys.
    pub(crate) async fn revoke(&self, id: i64) -> StoreResult<()> {
        let (path, request) = ("/etcdserverpb.Lease/LeaseRevoke", LeaseRequest { id });
        let answer = self.call::<_, LeaseRevokeResponse>(path, request, Retry::Safe).await;
        answer.map(drop).or_else(|e| if error::lease_gone(&e) { Ok(()) } else { Err(e) })
    }

    /// The rest of a lease's time in seconds, below zero if there is no such lease; and its keys, if they are
    /// asked for.
    pub(crate) async fn time_to_live(
        &self,
        id: i64,
        keys: bool,
    ) -> StoreResult<LeaseTimeToLiveResponse> {
        let request = LeaseTimeToLiveRequest { id, keys };
        self.call("/etcdserverpb.Lease/LeaseTimeToLive", request, Retry::Safe).await
    }

    pub(crate) async fn status(&self) -> StoreResult<StatusResponse> {
        self.call("/etcdserverpb.Maintenance/Status", StatusRequest {}, Retry::Safe).await
    }
}
