//! The connection to the server, which reconnects by itself.
//!
//! Commands and push messages, which wake waiters, share one RESP3 connection. When it breaks, requests under
//! way end as *unknown* and the next request reconnects. A connection that leaves all requests unanswered for
//! 3 s is given up too: if the machine at its other end is gone, or the network drops everything, no error
//! would ever come.
//!
//! Behind Sentinel a reconnect asks for the primary again. In a cluster the client follows the slots by
//! itself, unless a node falls silent: then it reconnects to the nodes that answer.

use super::{
    KIND,
    error::{error, unconnected},
    exec::Call,
};
use crate::{
    clock::{Clock, Moment},
    error::{ErrorKind, StoreError},
    store::StoreResult,
    sync::Mutex,
};
use redis::{
    AsyncConnectionConfig, Client, Cmd, FromRedisValue, Pipeline, PushInfo, PushKind, RedisError,
    RedisFuture, RedisResult, ServerErrorKind, Value,
    aio::{ConnectionLike, MultiplexedConnection},
    cluster::{ClusterClient, ClusterConfig},
    cluster_async::ClusterConnection,
    sentinel::SentinelClient,
};
use std::{
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};
use tokio::sync::watch;

/// After this time without a reply a request ends as *unknown*.
const REQUEST: Duration = Duration::from_secs(5);
/// For how long a connection may leave all requests without a reply. It is shorter than [`REQUEST`], since
/// many callers give up earlier, and renewing at another server is worth more than a reply from this one.
const SILENCE: Duration = Duration::from_secs(3);
/// For how long connecting may take.
const CONNECT: Duration = Duration::from_secs(3);
/// For how long connecting to one node of a cluster may take. The other nodes are enough to begin with.
const CONNECT_NODE: Duration = Duration::from_secs(1);
/// When a caller drops a request to a cluster after this time, a node is taken to be silent.
const ABANDONED: Duration = Duration::from_secs(1);
/// How much later than the answer to a request the notice may come that a cluster's connection has ended and that the
/// client has sent the request again because of it.
const BREAK_NOTICE: Duration = Duration::from_millis(50);

/// Where connections come from.
pub(super) enum Source {
    Single(Box<Client>),
    Sentinel(Box<tokio::sync::Mutex<SentinelClient>>),
    Cluster(Box<ClusterClient>),
}

/// One connection until it breaks; clones share it.
#[derive(Clone)]
pub(in crate::store) enum Live {
    One(MultiplexedConnection),
    Cluster(ClusterConnection),
}

impl Live {
    async fn subscribe(&mut self, channel: &str) -> RedisResult<()> {
        match self {
            Self::One(live) => live.subscribe(channel).await,
            Self::Cluster(live) => live.subscribe(channel).await,
        }
    }
}

impl ConnectionLike for Live {
    fn req_packed_command<'a>(&'a mut self, cmd: &'a Cmd) -> RedisFuture<'a, Value> {
        match self {
            Self::One(live) => live.req_packed_command(cmd),
            Self::Cluster(live) => live.req_packed_command(cmd),
        }
    }

    fn req_packed_commands<'a>(
        &'a mut self,
        commands: &'a Pipeline,
        offset: usize,
        count: usize,
    ) -> RedisFuture<'a, Vec<Value>> {
        match self {
            Self::One(live) => live.req_packed_commands(commands, offset, count),
            Self::Cluster(live) => live.req_packed_commands(commands, offset, count),
        }
    }

    fn get_db(&self) -> i64 {
        match self {
            Self::One(live) => live.get_db(),
            Self::Cluster(live) => live.get_db(),
        }
    }
}

/// What is sent first on every new connection, and again to a server that does not know our scripts.
pub(in crate::store) type Handshake =
    Arc<dyn for<'a> Fn(&'a mut Live) -> HandshakeFuture<'a> + Send + Sync>;

type HandshakeFuture<'a> = Pin<Box<dyn Future<Output = RedisResult<()>> + Send + 'a>>;

/// Called with every push message of the server.
pub(in crate::store) type PushHandler = Arc<dyn Fn(PushInfo) + Send + Sync>;

/// A connection that is made anew when it breaks.
pub(in crate::store) struct Connection(Arc<State>);

struct State {
    source: Source,
    /// The addresses in the URL, for error messages.
    addresses: String,
    on_push: PushHandler,
    handshake: Option<Handshake>,
    clock: Clock,
    /// The present connection and its number.
    current: Mutex<Option<(u64, Live)>>,
    unanswered: Mutex<Unanswered>,
    connecting: tokio::sync::Mutex<()>,
    /// The number of attempts to connect.
    attempts: AtomicU64,
    /// Grows with every connection that breaks.
    breaks: watch::Sender<u64>,
}

impl State {
    /// The present connection, unless it has been silent for too long.
    fn present(&self) -> Option<(u64, Live)> {
        let present = self.current.lock().clone()?;
        if self.is_cluster() || !self.unanswered.lock().sent(self.clock.now()) {
            return Some(present);
        }
        self.give_up(present.0);
        None
    }

    /// Whether messages that come by this connection count.
    fn heeds(&self, number: u64) -> bool {
        self.is_cluster() || self.current.lock().as_ref().is_some_and(|(now, _)| *now == number)
    }

    /// Drops this connection, so that the next request reconnects.
    fn give_up(&self, number: u64) {
        let was_in_use = self.current.lock().take_if(|(present, _)| *present == number).is_some();
        if was_in_use || self.is_cluster() {
            self.breaks.send_modify(|n| *n += 1);
        }
    }

    /// The connection that another task has made meanwhile, or a new one. When an attempt fails, it fails
    /// for all tasks that have waited for it, instead of each trying in turn.
    async fn reconnect(self: Arc<Self>) -> StoreResult<(u64, Live)> {
        let before = self.attempts.load(Ordering::Relaxed);
        let _one_at_a_time = self.connecting.lock().await;
        if let Some(present) = self.current.lock().clone() {
            return Ok(present);
        }
        if self.attempts.load(Ordering::Relaxed) != before {
            return Err(unreachable(format!("cannot connect to {}", self.addresses)));
        }
        let number = self.attempts.fetch_add(1, Ordering::Relaxed) + 1;
        let live = match crate::clock::timeout(CONNECT, self.connect(number)).await {
            Ok(Ok(live)) => live,
            Ok(Err(e)) => return Err(unconnected(&e, &self.addresses)),
            Err(_) => {
                let what = format!("cannot connect to {} within {CONNECT:?}", self.addresses);
                return Err(unreachable(what));
            }
        };
        self.unanswered.lock().answered();
        *self.current.lock() = Some((number, live.clone()));
        Ok((number, live))
    }

    async fn connect(self: &Arc<Self>, number: u64) -> RedisResult<Live> {
        let mut live = self.live(number).await?;
        self.shake_hands(&mut live).await?;
        Ok(live)
    }

    async fn shake_hands(&self, live: &mut Live) -> RedisResult<()> {
        match &self.handshake {
            Some(handshake) => handshake(live).await,
            None => Ok(()),
        }
    }

    async fn live(self: &Arc<Self>, number: u64) -> RedisResult<Live> {
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(CONNECT))
            .set_response_timeout(Some(REQUEST))
            .set_push_sender(self.push_sender(number));
        Ok(match &self.source {
            Source::Single(client) => {
                Live::One(client.get_multiplexed_async_connection_with_config(&config).await?)
            }
            Source::Sentinel(client) => {
                let mut client = client.lock().await;
                Live::One(client.get_async_connection_with_config(&config).await?)
            }
            Source::Cluster(client) => {
                let config = ClusterConfig::new()
                    .set_connection_timeout(CONNECT_NODE)
                    .set_response_timeout(REQUEST)
                    .set_push_sender(self.push_sender(number));
                Live::Cluster(client.get_async_connection_with_config(config).await?)
            }
        })
    }

    /// Passes push messages on, and notices the end of the connection that they came by. A message that still comes
    /// by a connection that was given up may be older than what a new primary has said since: it is ignored, for
    /// all tickets are polled again over the new connection.
    fn push_sender(
        self: &Arc<Self>,
        number: u64,
    ) -> impl Fn(PushInfo) -> Result<(), ()> + Send + Sync + use<> {
        // The state owns the connection, so the connection must not own the state.
        let (on_push, state) = (Arc::clone(&self.on_push), Arc::downgrade(self));
        // A cluster's connection repairs itself: only the connection to one of its nodes was lost.
        let number = if self.is_cluster() { 0 } else { number };
        move |info| {
            let Some(state) = state.upgrade() else { return Ok(()) };
            match info.kind {
                PushKind::Disconnection => state.give_up(number),
                _ if !state.heeds(number) => {}
                _ => {
                    state.unanswered.lock().answered();
                    on_push(info);
                }
            }
            Ok(())
        }
    }

    fn is_cluster(&self) -> bool {
        matches!(self.source, Source::Cluster(_))
    }
}

/// Since when the present connection has answered no request, and when the last request was sent. Requests
/// that their callers have dropped count too.
#[derive(Default)]
struct Unanswered(Option<(Moment, Moment)>);

impl Unanswered {
    /// Notes a request; says whether the connection has been silent for too long.
    fn sent(&mut self, now: Moment) -> bool {
        // After a pause old requests prove nothing: the replies may have come when no task read them.
        let recent = self.0.filter(|(_, last)| now.saturating_since(*last) < REQUEST * 2);
        let since = recent.map_or(now, |(since, _)| since);
        self.0 = Some((since, now));
        now.saturating_since(since) > SILENCE
    }

    fn answered(&mut self) {
        self.0 = None;
    }
}

impl Connection {
    /// To one server, with a handshake of the caller's. Push messages are ignored.
    pub(in crate::store) fn to_node(client: Client, handshake: Option<Handshake>) -> Self {
        let addresses = client.get_connection_info().addr().to_string();
        Self::new(Source::Single(Box::new(client)), addresses, Arc::new(|_| ()), handshake)
    }

    pub(super) fn new(
        source: Source,
        addresses: String,
        on_push: PushHandler,
        handshake: Option<Handshake>,
    ) -> Self {
        Self(Arc::new(State {
            source,
            addresses,
            on_push,
            handshake,
            clock: Clock::system(),
            current: Mutex::default(),
            unanswered: Mutex::default(),
            connecting: tokio::sync::Mutex::default(),
            attempts: AtomicU64::new(0),
            breaks: watch::Sender::default(),
        }))
    }

    /// Changes whenever a connection breaks, and with it the subscription to push messages.
    pub(super) fn breaks(&self) -> u64 {
        *self.0.breaks.borrow()
    }

    /// Waits for the next break after the one of this number.
    pub(super) async fn broken(&self, since: u64) {
        let mut breaks = self.0.breaks.subscribe();
        let _ = breaks.wait_for(|now| *now != since).await;
    }

    /// The connection and its number, made anew if there is none that answers. Connecting is a task of its
    /// own: if callers of little patience cancelled it, a slow server would never be connected to.
    async fn live(&self) -> StoreResult<(u64, Live)> {
        if let Some(present) = self.0.present() {
            return Ok(present);
        }
        let made = tokio::spawn(Arc::clone(&self.0).reconnect()).await;
        made.unwrap_or_else(|_| Err(unreachable("the runtime is shutting down")))
    }

    pub(super) fn is_cluster(&self) -> bool {
        self.0.is_cluster()
    }

    /// Whether a request that was sent after so many breaks may have been carried out twice: a cluster's client
    /// sends a request again if the connection ends before the answer.
    pub(super) async fn may_have_resent(&self, breaks: u64) -> bool {
        self.is_cluster() && crate::clock::timeout(BREAK_NOTICE, self.broken(breaks)).await.is_ok()
    }

    /// Connects, if there is no connection yet.
    pub(in crate::store) async fn ready(&self) -> StoreResult<()> {
        self.live().await.map(drop)
    }

    /// Runs a script. A server that does not know it yet, as after a restart, gets the handshake before
    /// it learns the script.
    pub(in crate::store) async fn run<T: FromRedisValue>(&self, call: &Call) -> StoreResult<T> {
        let (number, mut live) = self.live().await?;
        let request = async {
            match call.command.query_async(&mut live).await {
                Err(e) if is_unknown_script(&e) => {
                    self.0.shake_hands(&mut live).await?;
                    call.script.load_async(&mut live).await?;
                    call.command.query_async(&mut live).await
                }
                reply => reply,
            }
        };
        self.reply(number, request).await
    }

    /// Runs a command.
    pub(in crate::store) async fn query<T: FromRedisValue>(&self, command: &Cmd) -> StoreResult<T> {
        let (number, mut live) = self.live().await?;
        self.reply(number, command.query_async(&mut live)).await
    }

    pub(super) async fn subscribe(&self, channel: &str) -> StoreResult<()> {
        let (number, mut live) = self.live().await?;
        self.reply(number, live.subscribe(channel)).await
    }

    /// Awaits the reply to a request. In a cluster one node can be silent while others answer, and the
    /// client goes on asking it; so there every request has a time limit of its own.
    async fn reply<T>(
        &self,
        number: u64,
        request: impl Future<Output = RedisResult<T>>,
    ) -> StoreResult<T> {
        if !self.is_cluster() {
            return self.replied(number, request.await);
        }
        let sent = self.0.clock.now();
        let mut pending = PendingRequest { connection: self, number, sent, is_over: false };
        let reply = crate::clock::timeout(SILENCE, request).await;
        pending.is_over = true;
        reply.map_or_else(
            |_| {
                self.0.give_up(number);
                let what = format!("a node of the cluster has been silent for {SILENCE:?}");
                Err(StoreError::unknown(KIND, ErrorKind::Unavailable, what))
            },
            |reply| self.replied(number, reply),
        )
    }

    /// Gives the connection up if the reply shows that it is of no use: also when the primary has become a
    /// replica, since another server is the one to talk to.
    fn replied<T>(&self, number: u64, reply: RedisResult<T>) -> StoreResult<T> {
        if reply.as_ref().map_or_else(|e| e.code().is_some(), |_| true) {
            self.0.unanswered.lock().answered();
        }
        reply.map_err(|e| {
            let is_replica = is_server_error(&e, ServerErrorKind::ReadOnly);
            let is_useless = e.is_unrecoverable_error() || e.is_timeout() || is_replica;
            if is_useless && !self.is_cluster() {
                self.0.give_up(number);
            }
            error(&e)
        })
    }
}

/// A request to a cluster that is under way. A caller that drops it after a while has met a silent node.
struct PendingRequest<'a> {
    connection: &'a Connection,
    number: u64,
    sent: Moment,
    is_over: bool,
}

impl Drop for PendingRequest<'_> {
    fn drop(&mut self) {
        let state = &self.connection.0;
        if !self.is_over && state.clock.now().saturating_since(self.sent) >= ABANDONED {
            state.give_up(self.number);
        }
    }
}

fn unreachable(what: impl Into<String>) -> StoreError {
    StoreError::not_applied(KIND, ErrorKind::Unavailable, what)
}

fn is_server_error(e: &RedisError, kind: ServerErrorKind) -> bool {
    e.kind() == redis::ErrorKind::Server(kind)
}

/// The server does not know a script that was called by its hash.
pub(in crate::store) fn is_unknown_script(e: &RedisError) -> bool {
    is_server_error(e, ServerErrorKind::NoScript)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_that_leaves_requests_unanswered_for_too_long_is_given_up() {
        let (clock, mut unanswered) = (Clock::movable(), Unanswered::default());
        let mut sent_after = |wait: Duration| {
            clock.advance(wait);
            unanswered.sent(clock.now())
        };
        assert!(!sent_after(Duration::ZERO));
        assert!(!sent_after(SILENCE / 2));
        assert!(sent_after(SILENCE * 2 / 3), "the first request has waited for too long");
        assert!(!sent_after(REQUEST * 2), "no task has read replies for a while");
        assert!(!sent_after(SILENCE / 2));
        unanswered.answered();
        clock.advance(SILENCE * 2 / 3);
        assert!(!unanswered.sent(clock.now()), "there was a reply in between");
    }
}
