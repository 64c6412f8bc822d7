//! A thin client: one connection to one of the endpoints at a time, and another one when it fails.
//!
//! Every request is bounded in time, asks the server to have a leader, and carries the token of the
//! user, if there is one. A request that fails because of its endpoint is tried at the next one if it
//! may be repeated or was surely not carried out.

use super::{
    KIND,
    error::{self, Failure},
    login::{Credentials, Login},
    proto::{
        AuthenticateRequest, AuthenticateResponse, CompactionRequest, CompactionResponse, Headed,
        LeaseGrantRequest, LeaseGrantResponse, LeaseKeepAliveResponse, LeaseRequest,
        LeaseRevokeResponse, LeaseTimeToLiveRequest, LeaseTimeToLiveResponse, RangeRequest,
        RangeResponse, StatusRequest, StatusResponse, TxnRequest, TxnResponse, WatchRequest,
        WatchResponse,
    },
    wire::{Endpoint, Wire},
};
use crate::{
    clock::{Clock, Moment},
    error::{ErrorKind, Outcome, StoreError},
    store::StoreResult,
};
use http::uri::{InvalidUri, PathAndQuery};
use prost::Message;
use std::{
    future::Future,
    sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering},
    time::Duration,
};
use tokio::sync::watch;
use tokio_stream::{Stream, StreamExt as _};
use tonic::{Request, Streaming, client::Grpc, metadata::MetadataValue};
use tonic_prost::ProstCodec;

/// For how long a request may take, all attempts together.
const REQUEST: Duration = Duration::from_secs(5);
/// For how long one attempt may take when there is another endpoint to try.
const ATTEMPT: Duration = Duration::from_millis(1500);
/// A request that was given up so long after it was sent speaks against its endpoint.
const SUSPECT: Duration = Duration::from_millis(400);
/// How often a request asks for a new token.
const LOGINS: u32 = 2;
/// Listings of many lines are long.
const ANSWER_MAX: usize = 256 << 20;

/// Where all requests are linearizable.
const KV: &str = "/etcdserverpb.KV/";
const RANGE: &str = "/etcdserverpb.KV/Range";
const AUTHENTICATE: &str = "/etcdserverpb.Auth/Authenticate";

/// What repeating a request does.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Nature {
    /// Nothing, or the same once more with the same answer.
    Repeatable,
    /// Its answer would be another one.
    Once,
}

/// An answer, and whether an earlier attempt of its request got none: that one may still be carried
/// out, at any time.
pub(super) struct Told<A> {
    pub(super) answer: A,
    pub(super) stray: bool,
}

pub(super) struct Client {
    clock: Clock,
    /// The endpoints, each behind what its requests begin with.
    endpoints: Vec<Grpc<Wire>>,
    /// Which endpoint is used now; it only grows, and counts around.
    turn: watch::Sender<usize>,
    login: Login,
    /// The cluster that answered first. Zero until then.
    cluster: AtomicU64,
    /// The highest revision seen. Reads are linearizable, so no later answer is from before it.
    highest: AtomicI64,
    /// The cluster is not the one that it was. That does not pass.
    restored: AtomicBool,
}

impl Client {
    pub(super) fn new(
        endpoints: impl IntoIterator<Item = Endpoint>,
        credentials: Option<Credentials>,
        clock: Clock,
    ) -> Result<Self, InvalidUri> {
        let grpc = |endpoint: Endpoint| -> Result<_, InvalidUri> {
            let origin = endpoint.origin()?;
            let grpc = Grpc::with_origin(Wire::new(endpoint, clock.clone()), origin);
            Ok(grpc.max_decoding_message_size(ANSWER_MAX))
        };
        let endpoints = endpoints.into_iter().map(grpc).collect::<Result<_, _>>()?;
        Ok(Self {
            clock,
            endpoints,
            turn: watch::Sender::new(0),
            login: Login::new(credentials),
            cluster: AtomicU64::new(0),
            highest: AtomicI64::new(0),
            restored: AtomicBool::new(false),
        })
    }

    /// The cluster that we speak with.
    pub(super) fn cluster(&self) -> u64 {
        self.cluster.load(Ordering::Acquire)
    }

    pub(super) fn endpoints(&self) -> usize {
        self.endpoints.len()
    }

    /// This endpoint failed: the next ones may do better.
    fn turn_from(&self, turn: usize) {
        self.turn.send_if_modified(|now| {
            let ours = *now == turn;
            *now += usize::from(ours);
            ours
        });
    }

    /// Which endpoint is used, and its connection.
    fn current(&self) -> (usize, Grpc<Wire>) {
        let turn = *self.turn.borrow();
        (turn, self.grpc(turn))
    }

    fn grpc(&self, turn: usize) -> Grpc<Wire> {
        self.endpoints[turn % self.endpoints.len()].clone()
    }

    /// Ends when another endpoint is used than the one of this turn.
    pub(super) async fn turned(&self, turn: usize) {
        let mut turns = self.turn.subscribe();
        let _ = turns.wait_for(|now| *now != turn).await;
    }

    fn request<T>(&self, path: &str, message: T) -> Request<T> {
        let mut request = Request::new(message);
        request.metadata_mut().insert("hasleader", MetadataValue::from_static("true"));
        if let Some(token) = self.login.token().filter(|_| path != AUTHENTICATE) {
            request.metadata_mut().insert("token", token);
        }
        request
    }

    async fn call<Q, A>(&self, path: &'static str, ask: Q, nature: Nature) -> StoreResult<A>
    where
        Q: Message + Clone + 'static,
        A: Message + Default + Headed + 'static,
    {
        Ok(self.tell(path, ask, nature).await?.answer)
    }

    /// Sends a request until it is answered, its time is over, or nothing can be hoped for.
    async fn tell<Q, A>(&self, path: &'static str, ask: Q, nature: Nature) -> StoreResult<Told<A>>
    where
        Q: Message + Clone + 'static,
        A: Message + Default + Headed + 'static,
    {
        let end = self.clock.now() + REQUEST;
        let (mut stray, mut doubted) = (false, false);
        let (mut logins, mut failures, mut quick) = (0, 0_usize, 0);
        let highest = self.highest.load(Ordering::Acquire);
        loop {
            self.is_the_same()?;
            let (seen, turn) = (self.login.asked(), *self.turn.borrow());
            let sent = self.clock.now();
            let failure = match self.attempt(path, ask.clone(), end).await {
                Ok(answer) => {
                    self.same_cluster(&answer)?;
                    if !path.starts_with(KV) || self.goes_on(&answer, highest) {
                        return Ok(Told { answer, stray });
                    }
                    // A member may be old for a moment; a second look, at another one, tells.
                    if doubted || nature == Nature::Once {
                        return Err(self.restored("it answers from a time before its last answer"));
                    }
                    doubted = true;
                    self.turn_from(turn);
                    continue;
                }
                Err(failure) => failure,
            };
            stray |= failure.error.outcome == Outcome::Unknown;
            let outcome = if stray { Outcome::Unknown } else { Outcome::NotApplied };
            if failure.token && self.login.is_needed() && logins < LOGINS {
                logins += 1;
                self.log_in(seen).await.map_err(|e| StoreError { outcome, ..e })?;
                continue;
            }
            failures += 1;
            let again = failure.endpoint && (nature == Nature::Repeatable || !stray);
            let now = self.clock.now();
            // What takes long ends with the time; what is refused at once, after a few rounds.
            quick += usize::from(now.saturating_since(sent) < SUSPECT);
            if !again || now >= end || quick > 2 * self.endpoints.len() {
                return Err(StoreError { outcome, ..self.final_error(failure) });
            }
            // One round through the endpoints without a pause; after that they need one.
            if failures.is_multiple_of(self.endpoints.len()) {
                self.clock.sleep(Duration::from_millis(50)).await;
            }
        }
    }

    /// A token that was refused, although it is new, is no verdict on the user.
    fn final_error(&self, failure: Failure) -> StoreError {
        if failure.token && self.login.is_needed() {
            return StoreError { kind: ErrorKind::Unavailable, ..failure.error };
        }
        failure.error
    }

    /// One request to the present endpoint.
    async fn attempt<Q, A>(&self, path: &'static str, ask: Q, end: Moment) -> Result<A, Failure>
    where
        Q: Message + 'static,
        A: Message + Default + 'static,
    {
        let (turn, mut grpc) = self.current();
        let mut watch = Watchman { client: self, turn, sent: self.clock.now(), done: false };
        let left = end.saturating_since(watch.sent);
        let patience = if self.endpoints.len() > 1 { left.min(ATTEMPT) } else { left };
        let (request, codec) = (self.request(path, ask), ProstCodec::<Q, A>::default());
        let answer = grpc.unary(request, PathAndQuery::from_static(path), codec);
        let answer = match tokio::time::timeout(patience, answer).await {
            Ok(Ok(answer)) => Ok(answer.into_inner()),
            Ok(Err(status)) => Err(error::of(&status)),
            Err(_) => Err(error::silence(patience)),
        };
        watch.done = true;
        if answer.as_ref().is_err_and(|failure| failure.endpoint) {
            self.turn_from(turn);
        }
        answer
    }

    /// After a restore from a snapshot the cluster is another one, and the revisions may begin anew; if
    /// it has its old name, it is known by its revisions, which have gone back.
    fn same_cluster(&self, answer: &impl Headed) -> StoreResult<()> {
        let Some(header) = answer.header() else { return Ok(()) };
        let (id, known) = (header.cluster_id, self.cluster());
        if known == 0 {
            self.cluster.store(id, Ordering::Release);
        } else if known != id {
            return Err(self.restored("another cluster answers than before"));
        }
        Ok(())
    }

    fn goes_on(&self, answer: &impl Headed, highest: i64) -> bool {
        self.highest.fetch_max(answer.revision(), Ordering::AcqRel);
        answer.revision() >= highest
    }

    fn restored(&self, seen: &str) -> StoreError {
        self.restored.store(true, Ordering::Release);
        StoreError::unknown(KIND, ErrorKind::Misconfigured, format!("{seen}: {RESTORED}"))
    }

    /// Was the cluster restored or replaced since we know it?
    pub(super) fn is_restored(&self) -> bool {
        self.restored.load(Ordering::Acquire)
    }

    fn is_the_same(&self) -> StoreResult<()> {
        match self.is_restored() {
            true => Err(StoreError::not_applied(KIND, ErrorKind::Misconfigured, RESTORED)),
            false => Ok(()),
        }
    }

    /// How often a token was asked for: see [`log_in`](Self::log_in).
    pub(super) fn logins(&self) -> u64 {
        self.login.asked()
    }

    /// Gets a token for the user, if there is one, unless somebody has tried since `seen`.
    pub(super) async fn log_in(&self, seen: u64) -> StoreResult<()> {
        let Some(Credentials { user, password }) = &self.login.credentials else { return Ok(()) };
        let _alone = self.login.door.lock().await;
        if self.login.asked() != seen {
            return Ok(());
        }
        let ask = AuthenticateRequest { name: user.clone(), password: password.clone() };
        let token = self.ask_for_a_token(ask).await;
        self.login.answered(token.as_ref().ok().cloned());
        token.map(drop)
    }

    async fn ask_for_a_token(
        &self,
        ask: AuthenticateRequest,
    ) -> StoreResult<MetadataValue<tonic::metadata::Ascii>> {
        let mut tries = 0;
        loop {
            let end = self.clock.now() + REQUEST;
            tries += 1;
            match self.attempt::<_, AuthenticateResponse>(AUTHENTICATE, ask.clone(), end).await {
                Ok(answer) => {
                    return answer.token.parse().map_err(|_| error::nonsense("the token"));
                }
                Err(failure) if failure.endpoint && tries <= self.endpoints.len() => {}
                Err(failure) => return Err(failure.error),
            }
        }
    }

    pub(super) async fn range(&self, ask: RangeRequest) -> StoreResult<RangeResponse> {
        self.call(RANGE, ask, Nature::Repeatable).await
    }

    /// Reads what the present member has, which may be old; one attempt.
    pub(super) async fn glance(&self, ask: RangeRequest) -> StoreResult<RangeResponse> {
        self.is_the_same()?;
        let ask = RangeRequest { serializable: true, ..ask };
        let end = self.clock.now() + ATTEMPT;
        let answer = self.attempt(RANGE, ask, end).await.map_err(|failure| failure.error)?;
        self.same_cluster(&answer)?;
        Ok(answer)
    }

    pub(super) async fn txn(&self, ask: TxnRequest, nature: Nature) -> StoreResult<TxnResponse> {
        Ok(self.told(ask, nature).await?.answer)
    }

    /// A transaction whose sender has to know whether a copy of it may come late.
    pub(super) async fn told(
        &self,
        ask: TxnRequest,
        nature: Nature,
    ) -> StoreResult<Told<TxnResponse>> {
        self.tell("/etcdserverpb.KV/Txn", ask, nature).await
    }

    /// Forgets all revisions before this one.
    pub(super) async fn compact(&self, revision: i64) -> StoreResult<()> {
        let (path, ask) = ("/etcdserverpb.KV/Compact", CompactionRequest { revision });
        let answer = self.call::<_, CompactionResponse>(path, ask, Nature::Repeatable).await;
        answer.map(drop).or_else(|e| if error::is_compacted(&e) { Ok(()) } else { Err(e) })
    }

    /// Has the cluster forgotten this revision?
    pub(super) async fn has_compacted(&self, key: &[u8], revision: i64) -> StoreResult<bool> {
        let ask =
            RangeRequest { key: key.to_vec(), revision, keys_only: true, ..Default::default() };
        match self.range(ask).await {
            Ok(_) => Ok(false),
            Err(e) if error::is_compacted(&e) => Ok(true),
            Err(e) => Err(e),
        }
    }

    /// Grants a lease. `None` if there is one of this id.
    pub(super) async fn grant(&self, id: i64, ttl: i64) -> StoreResult<Option<i64>> {
        let ask = LeaseGrantRequest { id, ttl };
        let path = "/etcdserverpb.Lease/LeaseGrant";
        match self.call::<_, LeaseGrantResponse>(path, ask, Nature::Repeatable).await {
            Ok(granted) => Ok(Some(granted.ttl)),
            Err(e) if error::lease_exists(&e) => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// Ends a lease and all its keys.
    pub(super) async fn revoke(&self, id: i64) -> StoreResult<()> {
        let (path, ask) = ("/etcdserverpb.Lease/LeaseRevoke", LeaseRequest { id });
        match self.call::<_, LeaseRevokeResponse>(path, ask, Nature::Repeatable).await {
            Ok(_) => Ok(()),
            Err(e) if error::lease_gone(&e) => Ok(()),
            Err(e) => Err(e),
        }
    }

    pub(super) async fn time_to_live(
        &self,
        id: i64,
        keys: bool,
    ) -> StoreResult<LeaseTimeToLiveResponse> {
        let ask = LeaseTimeToLiveRequest { id, keys };
        self.call("/etcdserverpb.Lease/LeaseTimeToLive", ask, Nature::Repeatable).await
    }

    pub(super) async fn status(&self) -> StoreResult<StatusResponse> {
        self.call("/etcdserverpb.Maintenance/Status", StatusRequest {}, Nature::Repeatable).await
    }

    /// Keeps leases alive.
    ///
    /// A stream of its own for each renewal, so that an answer to an earlier one, come late, is never
    /// taken for an answer to this one.
    pub(super) async fn keep_alive(&self, leases: Vec<i64>) -> StoreResult<Alive> {
        self.is_the_same()?;
        let (seen, turn) = (self.login.asked(), *self.turn.borrow());
        let mut watch = Watchman { client: self, turn, sent: self.clock.now(), done: false };
        let alive = tokio::select! {
            biased;
            alive = self.keep_alive_at(turn, leases) => alive,
            // Something is wrong with this endpoint: no use in waiting for it.
            () = self.turned(turn) => Err(error::broken("the endpoint fell silent")),
        };
        watch.done = true;
        match alive {
            Ok(alive) => Ok(alive),
            Err(failure) if failure.token && self.login.is_needed() => {
                self.log_in(seen).await?;
                Err(self.final_error(failure))
            }
            Err(failure) => {
                self.turn_from(turn);
                Err(failure.error)
            }
        }
    }

    async fn keep_alive_at(&self, turn: usize, leases: Vec<i64>) -> Result<Alive, Failure> {
        let mut missing = leases.len();
        let asks = tokio_stream::iter(leases.into_iter().map(|id| LeaseRequest { id }));
        let path = "/etcdserverpb.Lease/LeaseKeepAlive";
        let answers = self.stream::<_, LeaseKeepAliveResponse>(turn, path, asks);
        let mut answers = self.bounded(answers).await?;
        let mut alive = Alive { all: true, term: u64::MAX };
        while missing > 0 {
            let next =
                async { answers.next().await.transpose().map_err(|status| error::of(&status)) };
            let Some(answer) = self.bounded(next).await? else {
                return Err(error::broken("the server ended the stream of keep-alives"));
            };
            self.same_cluster(&answer).map_err(Failure::final_)?;
            alive.term = alive.term.min(answer.header().map_or(0, |header| header.raft_term));
            if answer.ttl <= 0 {
                alive.all = false;
                return Ok(alive);
            }
            missing -= 1;
        }
        Ok(alive)
    }

    async fn bounded<T>(
        &self,
        answer: impl Future<Output = Result<T, Failure>>,
    ) -> Result<T, Failure> {
        let answer = tokio::time::timeout(REQUEST, answer).await;
        answer.unwrap_or_else(|_| Err(error::silence(REQUEST)))
    }

    /// Opens a stream of watches at the present endpoint; says which turn that was.
    pub(super) async fn watch(
        &self,
        asks: impl Stream<Item = WatchRequest> + Send + 'static,
    ) -> StoreResult<(usize, Streaming<WatchResponse>)> {
        let (seen, turn) = (self.login.asked(), *self.turn.borrow());
        let stream = self.stream(turn, "/etcdserverpb.Watch/Watch", asks);
        match self.bounded(stream).await {
            Ok(stream) => Ok((turn, stream)),
            Err(failure) if failure.token && self.login.is_needed() => {
                self.log_in(seen).await?;
                Err(failure.error)
            }
            Err(failure) => {
                self.turn_from(turn);
                Err(failure.error)
            }
        }
    }

    async fn stream<Q, A>(
        &self,
        turn: usize,
        path: &'static str,
        asks: impl Stream<Item = Q> + Send + 'static,
    ) -> Result<Streaming<A>, Failure>
    where
        Q: Message + 'static,
        A: Message + Default + 'static,
    {
        let mut grpc = self.grpc(turn);
        let (request, codec) = (self.request(path, asks), ProstCodec::<Q, A>::default());
        let opened = grpc.streaming(request, PathAndQuery::from_static(path), codec);
        Ok(opened.await.map_err(|status| error::of(&status))?.into_inner())
    }
}

/// How leases were found.
pub(super) struct Alive {
    /// All of them live on.
    pub(super) all: bool,
    /// The oldest term in which a server has said so.
    pub(super) term: u64,
}

const RESTORED: &str = "the cluster was restored or replaced, and what was locked before is not \
                        locked any more; connect anew";

/// Notices that a request was dropped unanswered after a while, and turns to the next endpoint: who
/// waits with less patience than ours would otherwise never get away from a dead one.
struct Watchman<'a> {
    client: &'a Client,
    turn: usize,
    sent: Moment,
    done: bool,
}

impl Drop for Watchman<'_> {
    fn drop(&mut self) {
        let waited = self.client.clock.now().saturating_since(self.sent);
        if !self.done && waited >= SUSPECT {
            self.client.turn_from(self.turn);
        }
    }
}
