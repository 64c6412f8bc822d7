//! The connection: one for commands and messages, made again when it breaks.
//!
//! Commands and the messages that wake waiters share one RESP3 connection. When it breaks, requests
//! under way end as *unknown* and the next one connects anew. So it does when the connection has been
//! silent for too long: a machine that is gone, or a network that drops everything, breaks nothing.
//! Behind Sentinel a new connection asks for the primary again; in a cluster the client follows the
//! slots itself, unless a node falls silent: then it begins anew with the nodes that answer.

use super::{
    KIND,
    error::{error, unconnected},
};
use crate::{
    clock::{Clock, Moment},
    error::{ErrorKind, StoreError},
    store::StoreResult,
    sync::Mutex,
};
use redis::{
    AsyncConnectionConfig, Client, Cmd, FromRedisValue, Pipeline, PushInfo, PushKind, RedisError,
    RedisFuture, RedisResult, Script, ScriptInvocation, ServerErrorKind, Value,
    aio::{ConnectionLike, MultiplexedConnection},
    cluster::ClusterClient,
    cluster_async::ClusterConnection,
    sentinel::SentinelClient,
};
use std::{
    pin::Pin,
    sync::{
        Arc, MutexGuard,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};
use tokio::sync::watch;

/// For how long a request may take. When it is over the request may still be carried out.
const REQUEST: Duration = Duration::from_secs(5);
/// For how long a connection may leave all requests without an answer. Shorter, since many give up
/// their requests earlier, and a renewal at another server is worth more than an answer from this one.
const SILENCE: Duration = Duration::from_secs(3);
/// For how long connecting may take.
const CONNECT: Duration = Duration::from_secs(3);
/// For how long one node of a cluster may take to be connected: the others are enough to begin with.
const CONNECT_NODE: Duration = Duration::from_secs(1);
/// A request to a cluster that its asker has given up after so long has met a node that is silent.
const ABANDONED: Duration = Duration::from_secs(1);

/// Where connections come from.
pub(super) enum Source {
    Single(Box<Client>),
    Sentinel(Box<tokio::sync::Mutex<SentinelClient>>),
    Cluster(Box<ClusterClient>),
}

/// A live connection; clones share it.
#[derive(Clone)]
pub(in crate::store) enum Wire {
    One(MultiplexedConnection),
    Cluster(ClusterConnection),
}

impl Wire {
    pub(super) async fn subscribe(&mut self, channel: &str) -> RedisResult<()> {
        match self {
            Self::One(wire) => wire.subscribe(channel).await,
            Self::Cluster(wire) => wire.subscribe(channel).await,
        }
    }
}

impl ConnectionLike for Wire {
    fn req_packed_command<'a>(&'a mut self, cmd: &'a Cmd) -> RedisFuture<'a, Value> {
        match self {
            Self::One(wire) => wire.req_packed_command(cmd),
            Self::Cluster(wire) => wire.req_packed_command(cmd),
        }
    }

    fn req_packed_commands<'a>(
        &'a mut self,
        commands: &'a Pipeline,
        offset: usize,
        count: usize,
    ) -> RedisFuture<'a, Vec<Value>> {
        match self {
            Self::One(wire) => wire.req_packed_commands(commands, offset, count),
            Self::Cluster(wire) => wire.req_packed_commands(commands, offset, count),
        }
    }

    fn get_db(&self) -> i64 {
        match self {
            Self::One(wire) => wire.get_db(),
            Self::Cluster(wire) => wire.get_db(),
        }
    }
}

/// What is said first on every new connection, and again to a server that does not know our scripts.
pub(in crate::store) type Greeting = Arc<dyn for<'a> Fn(&'a mut Wire) -> Greeted<'a> + Send + Sync>;

type Greeted<'a> = Pin<Box<dyn Future<Output = RedisResult<()>> + Send + 'a>>;

/// What is done with a message from the server.
pub(in crate::store) type Ear = Arc<dyn Fn(PushInfo) + Send + Sync>;

pub(in crate::store) struct Link(Arc<State>);

struct State {
    source: Source,
    /// The addresses in the URL, for people.
    to: String,
    ear: Ear,
    greeting: Option<Greeting>,
    clock: Clock,
    /// The present connection and its number.
    current: Mutex<Option<(u64, Wire)>>,
    debt: Mutex<Debt>,
    connecting: tokio::sync::Mutex<()>,
    /// How often it was tried to connect.
    tries: AtomicU64,
    /// Grows with every connection that breaks.
    breaks: watch::Sender<u64>,
}

impl State {
    fn current(&self) -> MutexGuard<'_, Option<(u64, Wire)>> {
        self.current.lock()
    }

    fn debt(&self) -> MutexGuard<'_, Debt> {
        self.debt.lock()
    }

    /// The present connection, if it answers.
    fn present(&self) -> Option<(u64, Wire)> {
        let present = self.current().clone()?;
        if self.is_cluster() || !self.debt().ask(self.clock.now()) {
            return Some(present);
        }
        self.give_up(present.0);
        None
    }

    /// This connection is good for nothing any more.
    fn give_up(&self, number: u64) {
        let was_in_use = self.current().take_if(|(present, _)| *present == number).is_some();
        if was_in_use || self.is_cluster() {
            self.breaks.send_modify(|n| *n += 1);
        }
    }

    /// The connection that somebody else has made meanwhile, or a new one. What fails for one fails for
    /// all who have waited for it.
    async fn reconnect(self: Arc<Self>) -> StoreResult<(u64, Wire)> {
        let before = self.tries.load(Ordering::Relaxed);
        let _one_at_a_time = self.connecting.lock().await;
        if let Some(present) = self.current().clone() {
            return Ok(present);
        }
        if self.tries.load(Ordering::Relaxed) != before {
            return Err(unreachable(format!("cannot connect to {}", self.to)));
        }
        let number = self.tries.fetch_add(1, Ordering::Relaxed) + 1;
        let made = tokio::time::timeout(CONNECT, self.connect(number)).await;
        let wire = match made {
            Ok(Ok(wire)) => wire,
            Ok(Err(e)) => return Err(unconnected(&e, &self.to)),
            Err(_) => {
                let what = format!("cannot connect to {} within {CONNECT:?}", self.to);
                return Err(unreachable(what));
            }
        };
        self.debt().settle();
        *self.current() = Some((number, wire.clone()));
        Ok((number, wire))
    }

    async fn connect(self: &Arc<Self>, number: u64) -> RedisResult<Wire> {
        let mut wire = self.wire(number).await?;
        self.greet(&mut wire).await?;
        Ok(wire)
    }

    async fn greet(&self, wire: &mut Wire) -> RedisResult<()> {
        match &self.greeting {
            Some(greeting) => greeting(wire).await,
            None => Ok(()),
        }
    }

    async fn wire(self: &Arc<Self>, number: u64) -> RedisResult<Wire> {
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(CONNECT))
            .set_response_timeout(Some(REQUEST))
            .set_push_sender(self.listener(number));
        match &self.source {
            Source::Single(client) => {
                let wire = client.get_multiplexed_async_connection_with_config(&config).await?;
                Ok(Wire::One(wire))
            }
            Source::Sentinel(client) => {
                let mut client = client.lock().await;
                Ok(Wire::One(client.get_async_connection_with_config(&config).await?))
            }
            Source::Cluster(client) => {
                let config = redis::cluster::ClusterConfig::new()
                    .set_connection_timeout(CONNECT_NODE)
                    .set_response_timeout(REQUEST)
                    .set_push_sender(self.listener(number));
                Ok(Wire::Cluster(client.get_async_connection_with_config(config).await?))
            }
        }
    }

    /// Passes messages on, and notices the end of the connection that they came by.
    fn listener(
        self: &Arc<Self>,
        number: u64,
    ) -> impl Fn(PushInfo) -> Result<(), ()> + Send + Sync + use<> {
        // The connection is in the state, so the state must not be kept by the connection.
        let (ear, state) = (Arc::clone(&self.ear), Arc::downgrade(self));
        // A cluster's connection mends itself: only one of its nodes was lost.
        let number = if self.is_cluster() { 0 } else { number };
        move |info| {
            let Some(state) = state.upgrade() else { return Ok(()) };
            match info.kind {
                PushKind::Disconnection => state.give_up(number),
                _ => {
                    state.debt().settle();
                    ear(info);
                }
            }
            Ok(())
        }
    }

    fn is_cluster(&self) -> bool {
        matches!(self.source, Source::Cluster(_))
    }
}

/// What the present connection owes us: since when requests have had no answer, and when the last of
/// them was made. Those that their askers have given up count too.
#[derive(Default)]
struct Debt(Option<(Moment, Moment)>);

impl Debt {
    /// Notes a request; says whether the connection has been silent for too long.
    fn ask(&mut self, now: Moment) -> bool {
        // After a pause an old debt says nothing: the answer may have come when nobody listened.
        let recent = self.0.filter(|(_, last)| now.saturating_since(*last) < REQUEST * 2);
        let since = recent.map_or(now, |(since, _)| since);
        self.0 = Some((since, now));
        now.saturating_since(since) > SILENCE
    }

    fn settle(&mut self) {
        self.0 = None;
    }
}

impl Link {
    /// A link to one server.
    pub(in crate::store) fn single(client: Client, ear: Ear, greeting: Option<Greeting>) -> Self {
        let to = client.get_connection_info().addr().to_string();
        Self::greeted(Source::Single(Box::new(client)), to, ear, greeting)
    }

    pub(super) fn new(source: Source, to: String, ear: Ear) -> Self {
        Self::greeted(source, to, ear, None)
    }

    fn greeted(source: Source, to: String, ear: Ear, greeting: Option<Greeting>) -> Self {
        Self(Arc::new(State {
            source,
            to,
            ear,
            greeting,
            clock: Clock::system(),
            current: Mutex::default(),
            debt: Mutex::default(),
            connecting: tokio::sync::Mutex::default(),
            tries: AtomicU64::new(0),
            breaks: watch::Sender::default(),
        }))
    }

    /// Changes whenever a connection breaks, and with it the subscription to hints.
    pub(super) fn breaks(&self) -> u64 {
        *self.0.breaks.borrow()
    }

    /// Waits for the next break after the one of this number.
    pub(super) async fn broken(&self, since: u64) {
        let mut breaks = self.0.breaks.subscribe();
        let _ = breaks.wait_for(|now| *now != since).await;
    }

    /// The connection and its number, made anew if there is none that answers. Connecting goes on when
    /// nobody waits for it any more: a caller of little patience would never get a connection to a slow
    /// server.
    async fn wire(&self) -> StoreResult<(u64, Wire)> {
        if let Some(present) = self.0.present() {
            return Ok(present);
        }
        let made = tokio::spawn(Arc::clone(&self.0).reconnect()).await;
        made.unwrap_or_else(|_| Err(unreachable("the runtime is shutting down")))
    }

    pub(super) fn is_cluster(&self) -> bool {
        self.0.is_cluster()
    }

    /// Runs a script. A connection that fails is given up, so that the next request makes another.
    pub(in crate::store) async fn run<T: FromRedisValue>(
        &self,
        script: &ScriptInvocation<'_>,
    ) -> StoreResult<T> {
        let (number, mut wire) = self.wire().await?;
        self.answer(number, script.invoke_async(&mut wire)).await
    }

    /// Connects, if there is no connection yet.
    pub(in crate::store) async fn ready(&self) -> StoreResult<()> {
        self.wire().await.map(drop)
    }

    /// Runs a script by a command that is made already: for those that are called all the time. A server
    /// that does not know the script yet, as after a start, is greeted before it learns it.
    pub(in crate::store) async fn call<T: FromRedisValue>(
        &self,
        script: &Script,
        call: &Cmd,
    ) -> StoreResult<T> {
        let (number, mut wire) = self.wire().await?;
        let request = async {
            match call.query_async(&mut wire).await {
                Err(e) if is_unknown_script(&e) => {
                    self.0.greet(&mut wire).await?;
                    script.load_async(&mut wire).await?;
                    call.query_async(&mut wire).await
                }
                answer => answer,
            }
        };
        self.answer(number, request).await
    }

    /// Runs a command.
    pub(in crate::store) async fn query<T: FromRedisValue>(&self, cmd: &Cmd) -> StoreResult<T> {
        let (number, mut wire) = self.wire().await?;
        self.answer(number, cmd.query_async(&mut wire)).await
    }

    pub(super) async fn subscribe(&self, channel: &str) -> StoreResult<()> {
        let (number, mut wire) = self.wire().await?;
        self.answer(number, wire.subscribe(channel)).await
    }

    /// Awaits the answer to a request. In a cluster one node can be silent while others answer, and the
    /// client goes on asking it; so there every request is watched by itself.
    async fn answer<T>(
        &self,
        number: u64,
        request: impl Future<Output = RedisResult<T>>,
    ) -> StoreResult<T> {
        if !self.is_cluster() {
            return self.answered(number, request.await);
        }
        let mut watch = Watch { link: self, number, sent: self.0.clock.now(), over: false };
        let answer = tokio::time::timeout(SILENCE, request).await;
        watch.over = true;
        answer.map_or_else(
            |_| {
                self.0.give_up(number);
                let what = format!("a node of the cluster has been silent for {SILENCE:?}");
                Err(StoreError::unknown(KIND, ErrorKind::Unavailable, what))
            },
            |answer| self.answered(number, answer),
        )
    }

    fn answered<T>(&self, number: u64, answer: RedisResult<T>) -> StoreResult<T> {
        if answer.as_ref().map_or_else(|e| e.code().is_some(), |_| true) {
            self.0.debt().settle();
        }
        answer.map_err(|e| {
            let useless = e.is_unrecoverable_error() || e.is_timeout() || is_replica(&e);
            if useless && !self.is_cluster() {
                self.0.give_up(number);
            }
            error(&e)
        })
    }
}

/// A request to a cluster that is under way.
struct Watch<'a> {
    link: &'a Link,
    number: u64,
    sent: Moment,
    over: bool,
}

impl Drop for Watch<'_> {
    fn drop(&mut self) {
        let waited = self.link.0.clock.now().saturating_since(self.sent);
        if !self.over && waited >= ABANDONED {
            self.link.0.give_up(self.number);
        }
    }
}

fn unreachable(what: impl Into<String>) -> StoreError {
    StoreError::not_applied(KIND, ErrorKind::Unavailable, what)
}

fn is_unknown_script(e: &RedisError) -> bool {
    e.kind() == redis::ErrorKind::Server(ServerErrorKind::NoScript)
}

/// The primary has become a replica: another server is the one to talk to.
fn is_replica(e: &RedisError) -> bool {
    e.kind() == redis::ErrorKind::Server(ServerErrorKind::ReadOnly)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_that_owes_answers_for_too_long_is_dead() {
        let (clock, mut debt) = (Clock::movable(), Debt::default());
        let mut ask_after = |wait: Duration| {
            clock.advance(wait);
            debt.ask(clock.now())
        };
        assert!(!ask_after(Duration::ZERO));
        assert!(!ask_after(SILENCE / 2));
        assert!(ask_after(SILENCE * 2 / 3), "the first request has waited for too long");
        assert!(!ask_after(REQUEST * 2), "nobody has listened for a while");
        assert!(!ask_after(SILENCE / 2));
        debt.settle();
        clock.advance(SILENCE * 2 / 3);
        assert!(!debt.ask(clock.now()), "there was an answer in between");
    }
}
