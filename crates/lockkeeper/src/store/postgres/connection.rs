//! A connection that is made again when it breaks.
//!
//! Requests are pipelined: many may be under way on one connection, and the server answers them in
//! order. When the connection breaks, those under way end as *unknown* and the next request connects anew.
//!
//! Behind a pooler that lends connections for one transaction, requests are not pipelined. There the pooler gives
//! an answer that is still under way when it takes its connection back to the next client of that connection (seen
//! with pgbouncer 1.18). So one request follows the other, and a request that its caller gives up takes its
//! connection along.

use super::{
    KIND,
    config::Config,
    error::{self, unreachable},
    statements::Call,
};
use crate::{
    clock::{Clock, Moment},
    error::{ErrorKind, Outcome, StoreError},
    store::{
        StoreResult,
        common::{
            reconnect::Reconnect,
            repeat::{Limits, Repeat},
        },
    },
    sync::Mutex,
};
use std::{
    future::poll_fn,
    pin::pin,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    task::AbortHandle,
    time::error::Elapsed,
};
use tokio_postgres::{
    AsyncMessage, Client, Notification, Row, Statement,
    error::SqlState,
    types::{ToSql, Type},
};

/// For how long a request may take. When it is over the request may still be carried out.
pub(super) const REQUEST: Duration = Duration::from_secs(5);
/// For how long, all together, requests that their callers gave up may have been without an answer before
/// the connection is given up.
pub(super) const SILENCE: Duration = Duration::from_secs(1);
/// The same for renewals. The session task gives one up after a third of the TTL, and the next one must not be
/// lost to the same connection.
pub(super) const SILENCE_OF_RENEWALS: Duration = Duration::from_millis(100);
/// For how long connecting may take, and the least that each of several hosts is given.
const CONNECT: Duration = Duration::from_secs(3);
const CONNECT_HOST: Duration = Duration::from_secs(1);

const LIMITS: Limits = Limits {
    total: Duration::from_secs(3),
    blocked: Duration::ZERO,
    pause: Duration::from_millis(5),
    longest_pause: Duration::from_millis(200),
    is_blocked: error::is_blocked,
};

/// What the functions rely on, whatever the user's or the database's defaults are. Every statement of
/// ours finds its rows by an index and is planned once: a plan that was made while a table was small
/// must not read all of it when it has grown.
const SETTINGS: [(&str, &str); 5] = [
    ("default_transaction_isolation", "read committed"),
    ("lock_timeout", "200ms"),
    ("plan_cache_mode", "force_generic_plan"),
    ("enable_seqscan", "off"),
    ("jit", "off"),
];

/// Gets the notifications of a connection.
pub(super) type PushHandler = Arc<dyn Fn(&Notification) + Send + Sync>;

/// The values of a call.
pub(super) type Values<'a> = &'a [&'a (dyn ToSql + Sync)];

/// A connection that is made again when it breaks.
pub(super) struct Connection(Arc<State>);

struct State {
    config: Arc<Config>,
    clock: Clock,
    on_push: Option<PushHandler>,
    /// For how long a live connection may be silent.
    silence: Duration,
    live: Reconnect<Arc<Live>>,
}

/// A live connection.
struct Live {
    number: u64,
    client: Client,
    /// The task that carries requests and answers. It ends with the connection.
    task: AbortHandle,
    /// `None` behind a pooler: another client may get our server connection for its next transaction.
    statements: Option<Mutex<Statements>>,
    /// Behind a pooler, held while a request is under way.
    one_request: tokio::sync::Mutex<()>,
    silence: Mutex<Silence>,
}

/// What a connection has sent, by the names of the calls, with the statement once it is prepared. There are so few that
/// a linear search is quickest.
///
/// A call is prepared when it is made for the second time: that takes a round trip more, and a program that takes one
/// lock in its life makes most calls once.
type Statements = Vec<(&'static str, Option<Statement>)>;

impl Drop for Live {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl State {
    async fn reconnect(self: Arc<Self>) -> StoreResult<Arc<Live>> {
        let made = self.live.reconnect(|number| self.connect(number)).await;
        made.unwrap_or_else(|| Err(unreachable("cannot connect".to_owned())))
    }

    /// Connects to the first host that answers and can write, beginning with the one that did so last.
    /// Each has its own time: one that is silent must not hide the others.
    async fn connect(self: &Arc<Self>, number: u64) -> StoreResult<Arc<Live>> {
        let hosts = self.config.hosts();
        let each = (CONNECT / u32::try_from(hosts.len()).unwrap_or(1)).max(CONNECT_HOST);
        let first = self.config.first_host.load(Ordering::Relaxed);
        let mut failed: Option<StoreError> = None;
        for at in (0..hosts.len()).map(|n| (first + n) % hosts.len()) {
            let (host, port) = &hosts[at];
            let made = crate::clock::timeout(each, self.connect_to(number, host, *port)).await;
            let e = match made {
                Ok(Ok(live)) => {
                    self.config.first_host.store(at, Ordering::Relaxed);
                    return Ok(Arc::new(live));
                }
                Ok(Err(e)) => e,
                Err(_) => unreachable(format!("cannot connect to {host}:{port} within {each:?}")),
            };
            failed = Some(match failed {
                None => e,
                Some(first) => StoreError { what: format!("{}; {}", first.what, e.what), ..first },
            });
        }
        Err(failed.expect("a URL has at least one host"))
    }

    async fn connect_to(self: &Arc<Self>, number: u64, host: &str, port: u16) -> StoreResult<Live> {
        let refused = |e| StoreError { outcome: Outcome::NotApplied, ..error::error(e) };
        let stream = self.config.stream(host, port).await?;
        let our_port = stream.local_addr().map_or(0, |address| address.port());
        let driver = self.config.driver();
        let (client, task) = match self.config.tls(host)? {
            None => {
                let made = driver.connect_raw(stream, tokio_postgres::NoTls).await;
                let (client, connection) = made.map_err(refused)?;
                (client, self.spawn(number, connection))
            }
            Some(tls) => {
                let made = driver.connect_raw(stream, tls).await;
                let (client, connection) = made.map_err(refused)?;
                (client, self.spawn(number, connection))
            }
        };
        let one_request = tokio::sync::Mutex::new(());
        let silence = Mutex::new(Silence::new(self.clock.now()));
        let mut live = Live { number, client, task, statements: None, one_request, silence };
        // On the first connection to a single host the making of the schema reports a replica, in better words.
        if (self.config.hosts().len() > 1 || number > 1) && live.is_replica().await {
            return Err(unreachable(format!("{host}:{port} is a replica")));
        }
        let direct = match self.config.pooler {
            Some(pooled) => format!("{}", !pooled),
            // Does the server see us come from our port to this port? If not, a pooler or an address translation
            // stands in between; the first alone can be the same by chance.
            None => format!("inet_client_port() = {our_port} AND inet_server_port() = {port}"),
        };
        if live.settle(&direct).await.map_err(refused)? {
            live.statements = Some(Mutex::default());
        }
        Ok(live)
    }

    /// Runs the connection's task: it carries requests and answers, and hands notifications on.
    fn spawn<S, T>(
        self: &Arc<Self>,
        number: u64,
        mut connection: tokio_postgres::Connection<S, T>,
    ) -> AbortHandle
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
        T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        // The state owns the connection, so the connection's task must not keep the state alive.
        let (on_push, state) = (self.on_push.clone(), Arc::downgrade(self));
        let task = tokio::spawn(async move {
            while let Some(Ok(message)) = poll_fn(|cx| connection.poll_message(cx)).await {
                if let (AsyncMessage::Notification(push), Some(on_push)) = (&message, &on_push) {
                    on_push(push);
                }
            }
            if let Some(state) = state.upgrade() {
                state.live.give_up(number);
            }
        });
        task.abort_handle()
    }
}

impl Connection {
    pub(super) fn new(
        config: Arc<Config>,
        clock: Clock,
        silence: Duration,
        on_push: Option<PushHandler>,
    ) -> Self {
        let live = Reconnect::new();
        Self(Arc::new(State { config, clock, on_push, silence, live }))
    }

    /// Changes whenever a connection breaks: what was written before may be gone with a server.
    pub(super) fn breaks(&self) -> u64 {
        self.0.live.breaks()
    }

    /// Waits for the next break after the one of this number.
    pub(super) async fn broken(&self, since: u64) {
        self.0.live.broken(since).await;
    }

    /// Gives the present connection up: there is reason to doubt it.
    pub(super) fn give_up(&self) {
        if let Some((number, _)) = self.0.live.current() {
            self.0.live.give_up(number);
        }
    }

    /// Connecting is a task of its own, so that callers with little patience do not cancel it for ever.
    async fn live(&self) -> StoreResult<Arc<Live>> {
        if let Some((_, present)) = self.0.live.current() {
            return Ok(present);
        }
        let made = tokio::spawn(Arc::clone(&self.0).reconnect()).await;
        made.unwrap_or_else(|_| Err(unreachable("the runtime ends".to_owned())))
    }

    /// Does a pooler stand between us and the server?
    pub(super) async fn is_pooled(&self) -> StoreResult<bool> {
        Ok(self.live().await?.is_pooled())
    }

    /// Makes a call, and repeats it as far as `repeat` allows.
    pub(super) async fn call(
        &self,
        call: &Call,
        values: Values<'_>,
        repeat: Repeat,
    ) -> StoreResult<Vec<Row>> {
        self.call_counting(call, values, repeat).await.0
    }

    /// The same, and whether a copy of the request that got no answer may still be carried out.
    pub(super) async fn call_counting(
        &self,
        call: &Call,
        values: Values<'_>,
        repeat: Repeat,
    ) -> (StoreResult<Vec<Row>>, bool) {
        LIMITS.send(&self.0.clock, repeat, || self.once(call, values)).await
    }

    /// Makes a call once. A connection that fails is given up, so that the next call makes another.
    pub(super) async fn once(&self, call: &Call, values: Values<'_>) -> StoreResult<Vec<Row>> {
        let live = self.live().await?;
        let _alone = match self.request_permit(&live).await {
            Ok(permit) => permit,
            Err(GivenUp) => return Box::pin(self.once(call, values)).await,
        };
        let unanswered = Unanswered::new(self, &live);
        // Pinned in place, because the future is large to move.
        let sent = pin!(live.send(call, values));
        let answer = crate::clock::timeout(REQUEST, sent).await;
        self.answered(unanswered, answer, REQUEST)
    }

    /// Prepares a call, for which there is time now and perhaps none later.
    pub(super) async fn prepare(&self, call: &Call) -> StoreResult<()> {
        let live = self.live().await?;
        let Some(statements) = &live.statements else { return Ok(()) };
        let unanswered = Unanswered::new(self, &live);
        let made = pin!(live.prepare(statements, call));
        let answer = crate::clock::timeout(REQUEST, made).await;
        self.answered(unanswered, answer, REQUEST).map(drop)
    }

    /// Runs several statements as they are.
    pub(super) async fn batch(&self, sql: &str, within: Duration) -> StoreResult<()> {
        let live = self.live().await?;
        let Ok(_alone) = self.request_permit(&live).await else {
            return Err(unreachable("the connection broke".to_owned()));
        };
        let unanswered = Unanswered::new(self, &live);
        let answer = crate::clock::timeout(within, live.client.batch_execute(sql)).await;
        self.answered(unanswered, answer, within)
    }

    /// What came of a request. The server answers in order, so all later requests would wait behind one that
    /// had no answer in time: its connection is given up.
    fn answered<T>(
        &self,
        unanswered: Unanswered<'_>,
        answer: Result<Result<T, tokio_postgres::Error>, Elapsed>,
        within: Duration,
    ) -> StoreResult<T> {
        let number = unanswered.live.number;
        let Ok(answer) = answer else {
            self.0.live.give_up(number);
            let what = format!("no answer within {within:?}");
            return Err(StoreError::unknown(KIND, ErrorKind::Unavailable, what));
        };
        unanswered.answered();
        answer.map_err(|e| {
            if error::ends_connection(&e) {
                self.0.live.give_up(number);
            }
            error::error(e)
        })
    }

    /// Behind a pooler, waits until no other request is under way; returns at once otherwise.
    async fn request_permit<'l>(
        &self,
        live: &'l Live,
    ) -> Result<Option<tokio::sync::MutexGuard<'l, ()>>, GivenUp> {
        if !live.is_pooled() {
            return Ok(None);
        }
        let permit = live.one_request.lock().await;
        if self.0.live.is_current(live.number) { Ok(Some(permit)) } else { Err(GivenUp) }
    }
}

/// The request before ours has given the connection up while ours waited for it.
struct GivenUp;

/// For how long a connection has been silent while requests waited for an answer, since the last answer.
struct Silence {
    counted: Moment,
    lasted: Duration,
}

impl Silence {
    fn new(now: Moment) -> Self {
        Self { counted: now, lasted: Duration::ZERO }
    }

    /// A caller has given up a request that it sent at `since`. Says how long the silence lasts by now.
    fn add(&mut self, since: Moment, now: Moment) -> Duration {
        self.lasted += now.saturating_since(self.counted.max(since));
        self.counted = now;
        self.lasted
    }
}

/// A request without an answer. When its caller drops it after a long silence, the connection is given up too:
/// it may have been cut off without a word. Behind a pooler every dropped request does that.
struct Unanswered<'c> {
    connection: &'c Connection,
    live: &'c Live,
    since: Option<Moment>,
}

impl<'c> Unanswered<'c> {
    fn new(connection: &'c Connection, live: &'c Live) -> Self {
        Self { connection, live, since: Some(connection.0.clock.now()) }
    }

    fn answered(mut self) {
        self.since = None;
        *self.live.silence.lock() = Silence::new(self.connection.0.clock.now());
    }
}

impl Drop for Unanswered<'_> {
    fn drop(&mut self) {
        let (Some(since), state) = (self.since, &self.connection.0) else { return };
        let silent = self.live.silence.lock().add(since, state.clock.now());
        if self.live.is_pooled() || silent >= state.silence {
            state.live.give_up(self.live.number);
        }
    }
}

impl Live {
    fn is_pooled(&self) -> bool {
        self.statements.is_none()
    }

    /// Makes our [`SETTINGS`] if this condition holds, and says whether it does. Behind a pooler other clients would
    /// get them.
    async fn settle(&self, condition: &str) -> Result<bool, tokio_postgres::Error> {
        let set = SETTINGS.map(|(name, value)| format!("set_config('{name}', '{value}', false)"));
        let set = set.join(" || ");
        let sql = format!(
            "SELECT coalesce(direct, false), CASE WHEN direct THEN {set} END \
               FROM (SELECT {condition} AS direct) AS seen"
        );
        let rows = self.client.query_typed(&sql, &[]).await?;
        Ok(rows.first().is_some_and(|row| row.get(0)))
    }

    async fn is_replica(&self) -> bool {
        let answer = self.client.query_typed("SELECT pg_is_in_recovery()", &[]).await;
        answer.is_ok_and(|rows| rows.first().is_some_and(|row| row.get(0)))
    }

    async fn send(
        &self,
        call: &Call,
        values: Values<'_>,
    ) -> Result<Vec<Row>, tokio_postgres::Error> {
        let statements = match &self.statements {
            Some(statements) if !is_first(&mut statements.lock(), call) => statements,
            _ => {
                let typed: Vec<(&(dyn ToSql + Sync), Type)> =
                    values.iter().copied().zip(call.types.iter().cloned()).collect();
                return Box::pin(self.client.query_typed(&call.sql, &typed)).await;
            }
        };
        let (statement, fresh) = self.prepare(statements, call).await?;
        match self.client.query(&statement, values).await {
            // The function answers with other columns now: the schema was brought up to date.
            Err(e) if !fresh && e.code() == Some(&SqlState::FEATURE_NOT_SUPPORTED) => {
                statements.lock().retain(|(name, _)| *name != call.name);
                let (statement, _) = Box::pin(self.prepare(statements, call)).await?;
                Box::pin(self.client.query(&statement, values)).await
            }
            answer => answer,
        }
    }

    /// The call's statement, and whether it was prepared just now.
    async fn prepare(
        &self,
        statements: &Mutex<Statements>,
        call: &Call,
    ) -> Result<(Statement, bool), tokio_postgres::Error> {
        let prepared = |statements: &Statements| {
            let mut sent = statements.iter().filter(|(name, _)| *name == call.name);
            sent.find_map(|(_, statement)| statement.clone())
        };
        if let Some(statement) = prepared(&statements.lock()) {
            return Ok((statement, false));
        }
        let made = Box::pin(self.client.prepare_typed(&call.sql, call.types)).await?;
        let mut statements = statements.lock();
        // Another request may have prepared it meanwhile, and one is enough.
        if let Some(first) = prepared(&statements) {
            return Ok((first, true));
        }
        statements.retain(|(name, _)| *name != call.name);
        statements.push((call.name, Some(made.clone())));
        Ok((made, true))
    }
}

/// Was the call never made over this connection? From now on it was.
fn is_first(statements: &mut Statements, call: &Call) -> bool {
    let first = statements.iter().all(|(name, _)| *name != call.name);
    if first {
        statements.push((call.name, None));
    }
    first
}
