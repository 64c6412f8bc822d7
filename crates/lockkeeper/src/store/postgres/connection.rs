//! A connection that is made again when it breaks.
//!
//! Requests are pipelined: many may be under way on one connection, and the server answers them in
//! order. When it breaks, those under way end as *unknown* and the next one connects anew.
//!
//! Not so behind a pooler that lends connections for a transaction. There an answer that is still under
//! way when the pooler takes its connection back is given to whoever has that connection next (seen
//! with pgbouncer 1.18). So one request follows the other, and a request that is given up takes its
//! connection along.

use super::{KIND, config::Plan, statements::Call};
use crate::{
    api::retry::jittered,
    clock::{Clock, Moment},
    error::{ErrorKind, Outcome, StoreError},
    store::StoreResult,
    sync::Mutex,
};
use std::{
    future::poll_fn,
    pin::pin,
    sync::{
        Arc, MutexGuard,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    sync::watch,
    task::AbortHandle,
    time::error::Elapsed,
};
use tokio_postgres::{
    AsyncMessage, Client, Connection, Notification, Row, Statement,
    error::{DbError, Severity, SqlState},
    types::{ToSql, Type},
};

/// For how long a request may take. When it is over the request may still be carried out.
pub(super) const REQUEST: Duration = Duration::from_secs(5);
/// How long requests that nobody waits for any more may have been without an answer, all together,
/// before that counts against their connection.
pub(super) const SILENCE: Duration = Duration::from_secs(1);
/// The same for renewals. Who gives one up has waited for a third of its TTL, and the next one must not be
/// lost to the same connection.
pub(super) const SILENCE_OF_RENEWALS: Duration = Duration::from_millis(100);
/// For how long connecting may take, and the least that each of several hosts is given.
const CONNECT: Duration = Duration::from_secs(3);
const CONNECT_HOST: Duration = Duration::from_secs(1);
/// For how long a request is repeated that was refused for the moment or lost with its connection.
const PERSIST: Duration = Duration::from_secs(3);
/// The pause before the first repetition, and the longest.
const PAUSE: Duration = Duration::from_millis(5);
const PAUSE_MOST: Duration = Duration::from_millis(200);

/// What the functions rely on, whatever the user's or the database's defaults are. Every statement of
/// ours finds its rows by an index and is planned once: a plan that was made while a table was small
/// must not read all of it when it has grown.
const SETTINGS: &str = "SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL READ COMMITTED; \
                        SET lock_timeout = '200ms'; SET plan_cache_mode = force_generic_plan; \
                        SET enable_seqscan = off; SET jit = off";

/// What is done with a notification.
pub(super) type Ear = Arc<dyn Fn(&Notification) + Send + Sync>;

/// The values of a call.
pub(super) type Values<'a> = &'a [&'a (dyn ToSql + Sync)];

/// May a request be sent again when nobody knows whether it was carried out?
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Repeat {
    /// Its second copy says the same as the first.
    Always,
    /// The same, but who finds a row locked for long would rather know than wait.
    Unblocked,
    /// Its second copy would say something else.
    Refused,
    /// It is not, even if it was refused: what it rests on is true of this connection only.
    Never,
}

pub(super) struct Link(Arc<State>);

struct State {
    plan: Arc<Plan>,
    clock: Clock,
    ear: Option<Ear>,
    /// For how long a connection may be silent.
    silence: Duration,
    current: Mutex<Option<Arc<Wire>>>,
    connecting: tokio::sync::Mutex<()>,
    /// How often it was tried to connect.
    tries: AtomicU64,
    /// Which host is asked first: the last one that could be used.
    first: AtomicUsize,
    /// Grows with every connection that breaks.
    breaks: watch::Sender<u64>,
}

/// A live connection.
struct Wire {
    number: u64,
    client: Client,
    /// The connection's task: it ends with the wire.
    task: AbortHandle,
    /// `None` if another client may get our server's connection for its next transaction.
    statements: Option<Mutex<Statements>>,
    /// Held while a request is under way that must be alone.
    turn: tokio::sync::Mutex<()>,
    silence: Mutex<Silence>,
}

/// What a connection has prepared, by the names of the calls. There are so few that looking through them is
/// quickest.
type Statements = Vec<(&'static str, Statement)>;

impl Drop for Wire {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl State {
    fn current(&self) -> MutexGuard<'_, Option<Arc<Wire>>> {
        self.current.lock()
    }

    fn is_current(&self, number: u64) -> bool {
        self.current().as_ref().is_some_and(|wire| wire.number == number)
    }

    fn give_up(&self, number: u64) {
        let gone = self.current().take_if(|wire| wire.number == number);
        if gone.is_some() {
            self.breaks.send_modify(|n| *n += 1);
        }
    }

    /// The connection that somebody else has made meanwhile, or a new one. What fails for one fails for
    /// all who have waited for it.
    async fn reconnect(self: Arc<Self>) -> StoreResult<Arc<Wire>> {
        let before = self.tries.load(Ordering::Relaxed);
        let _one_at_a_time = self.connecting.lock().await;
        if let Some(present) = self.current().clone() {
            return Ok(present);
        }
        if self.tries.load(Ordering::Relaxed) != before {
            return Err(unreachable("cannot connect".to_owned()));
        }
        let number = self.tries.fetch_add(1, Ordering::Relaxed) + 1;
        let wire = Arc::new(self.connect(number).await?);
        *self.current() = Some(Arc::clone(&wire));
        Ok(wire)
    }

    /// Connects to the first host that answers and can write, beginning with the one that did so last.
    /// Each has its own time: one that is silent must not hide the others.
    async fn connect(self: &Arc<Self>, number: u64) -> StoreResult<Wire> {
        let hosts = self.plan.hosts();
        let each = (CONNECT / u32::try_from(hosts.len()).unwrap_or(1)).max(CONNECT_HOST);
        let first = self.first.load(Ordering::Relaxed);
        let mut failed: Option<StoreError> = None;
        for at in (0..hosts.len()).map(|n| (first + n) % hosts.len()) {
            let (host, port) = &hosts[at];
            let made = tokio::time::timeout(each, self.connect_to(number, host, *port)).await;
            let e = match made {
                Ok(Ok(wire)) => {
                    self.first.store(at, Ordering::Relaxed);
                    return Ok(wire);
                }
                Ok(Err(e)) => e,
                Err(_) => unreachable(format!("cannot connect to {host}:{port} within {each:?}")),
            };
            failed = Some(match failed {
                None => e,
                Some(before) => {
                    StoreError { what: format!("{}; {}", before.what, e.what), ..before }
                }
            });
        }
        Err(failed.expect("a URL has at least one host"))
    }

    async fn connect_to(self: &Arc<Self>, number: u64, host: &str, port: u16) -> StoreResult<Wire> {
        let refused = |e| StoreError { outcome: Outcome::NotApplied, ..error(e) };
        let stream = self.plan.stream(host, port).await?;
        let our_port = stream.local_addr().map_or(0, |address| address.port());
        let config = self.plan.config();
        let (client, task) = match self.plan.tls(host)? {
            None => {
                let made = config.connect_raw(stream, tokio_postgres::NoTls).await;
                let (client, connection) = made.map_err(refused)?;
                (client, self.drive(number, connection))
            }
            Some(tls) => {
                let made = config.connect_raw(stream, tls).await;
                let (client, connection) = made.map_err(refused)?;
                (client, self.drive(number, connection))
            }
        };
        let (turn, silence) = (tokio::sync::Mutex::new(()), Silence::new(self.clock.now()));
        let mut wire =
            Wire { number, client, task, statements: None, turn, silence: Mutex::new(silence) };
        // The first time the schema's own words are better.
        if (self.plan.hosts().len() > 1 || number > 1) && wire.is_replica().await {
            return Err(unreachable(format!("{host}:{port} is a replica")));
        }
        let pooled = match self.plan.pooler {
            Some(pooled) => pooled,
            None => wire.seen_ports().await.map_err(refused)? != Some((our_port, port)),
        };
        if !pooled {
            wire.client.batch_execute(SETTINGS).await.map_err(refused)?;
            wire.statements = Some(Mutex::default());
        }
        Ok(wire)
    }

    /// Lets the connection's task run: it carries requests and answers, and hears notifications.
    fn drive<S, T>(self: &Arc<Self>, number: u64, mut connection: Connection<S, T>) -> AbortHandle
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
        T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        // The connection is in the state, so the state must not be kept by the connection.
        let (ear, state) = (self.ear.clone(), Arc::downgrade(self));
        let task = tokio::spawn(async move {
            while let Some(Ok(message)) = poll_fn(|cx| connection.poll_message(cx)).await {
                if let (AsyncMessage::Notification(news), Some(ear)) = (&message, &ear) {
                    ear(news);
                }
            }
            if let Some(state) = state.upgrade() {
                state.give_up(number);
            }
        });
        task.abort_handle()
    }
}

impl Link {
    pub(super) fn new(plan: Arc<Plan>, clock: Clock, silence: Duration, ear: Option<Ear>) -> Self {
        Self(Arc::new(State {
            plan,
            clock,
            ear,
            silence,
            current: Mutex::default(),
            connecting: tokio::sync::Mutex::default(),
            tries: AtomicU64::new(0),
            first: AtomicUsize::new(0),
            breaks: watch::Sender::default(),
        }))
    }

    /// Changes whenever a connection breaks: what was written before may be gone with a server.
    pub(super) fn breaks(&self) -> u64 {
        *self.0.breaks.borrow()
    }

    /// Waits for the next break after the one of this number.
    pub(super) async fn broken(&self, since: u64) {
        let mut breaks = self.0.breaks.subscribe();
        let _ = breaks.wait_for(|now| *now != since).await;
    }

    /// Leaves the present connection: there is reason to doubt it.
    pub(super) fn doubt(&self) {
        let number = self.0.current().as_ref().map(|wire| wire.number);
        number.into_iter().for_each(|number| self.0.give_up(number));
    }

    /// Connecting is a task of its own, so that callers with little patience do not cancel it for ever.
    async fn wire(&self) -> StoreResult<Arc<Wire>> {
        if let Some(present) = self.0.current().clone() {
            return Ok(present);
        }
        let made = tokio::spawn(Arc::clone(&self.0).reconnect()).await;
        made.unwrap_or_else(|_| Err(unreachable("the runtime ends".to_owned())))
    }

    /// Does somebody stand in between who lends us connections?
    pub(super) async fn is_pooled(&self) -> StoreResult<bool> {
        Ok(self.wire().await?.is_pooled())
    }

    /// Makes a call. What is refused only for the moment is tried again for a while, and what was lost
    /// with its connection too, if a second copy does no harm.
    pub(super) async fn call(
        &self,
        call: &Call,
        values: Values<'_>,
        repeat: Repeat,
    ) -> StoreResult<Vec<Row>> {
        self.call_doubting(call, values, repeat).await.0
    }

    /// The same, and whether a copy of the request that got no answer may still be carried out.
    pub(super) async fn call_doubting(
        &self,
        call: &Call,
        values: Values<'_>,
        repeat: Repeat,
    ) -> (StoreResult<Vec<Row>>, bool) {
        let clock = &self.0.clock;
        let until = clock.now() + PERSIST;
        let mut pause = PAUSE;
        // Once a copy may have been carried out, no later refusal says that nothing was.
        let mut outcome = Outcome::NotApplied;
        loop {
            let mut e = match self.once(call, values).await {
                Ok(rows) => return (Ok(rows), outcome == Outcome::Unknown),
                Err(e) => e,
            };
            if outcome == Outcome::NotApplied {
                outcome = e.outcome;
            }
            e.outcome = outcome;
            let harmless = match repeat {
                Repeat::Always => true,
                Repeat::Unblocked => !is_blocked(&e),
                Repeat::Refused => outcome == Outcome::NotApplied,
                Repeat::Never => false,
            };
            if !e.is_transient() || !harmless || clock.now() >= until {
                return (Err(e), outcome == Outcome::Unknown);
            }
            clock.sleep(jittered(pause, 2)).await;
            pause = (pause * 2).min(PAUSE_MOST);
        }
    }

    /// Makes a call once. A connection that fails is given up, so that the next one makes another.
    pub(super) async fn once(&self, call: &Call, values: Values<'_>) -> StoreResult<Vec<Row>> {
        let wire = self.wire().await?;
        let _turn = match self.turn(&wire).await {
            Ok(turn) => turn,
            // The one before has taken the connection along.
            Err(Gone) => return Box::pin(self.once(call, values)).await,
        };
        let waiting = Waiting::begin(self, &wire);
        // In its place, for it is large to move.
        let sent = pin!(wire.send(call, values));
        let answer = tokio::time::timeout(REQUEST, sent).await;
        self.heard(waiting, answer, REQUEST)
    }

    /// What came of a request. The server answers in order: behind one that had no answer in time
    /// everything else would wait, so that connection is given up.
    fn heard<T>(
        &self,
        waiting: Waiting<'_>,
        answer: Result<Result<T, tokio_postgres::Error>, Elapsed>,
        within: Duration,
    ) -> StoreResult<T> {
        let number = waiting.wire.number;
        match answer {
            Ok(answer) => {
                waiting.answered();
                answer.map_err(|e| {
                    // One that only reads was made a replica, or is reached by mistake: another may
                    // have taken over under the same name, which only a new connection finds.
                    let reads = e.code() == Some(&SqlState::READ_ONLY_SQL_TRANSACTION);
                    if e.is_closed() || e.as_db_error().is_none_or(is_fatal) || reads {
                        self.0.give_up(number);
                    }
                    error(e)
                })
            }
            Err(_) => {
                self.0.give_up(number);
                let what = format!("no answer within {within:?}");
                Err(StoreError::unknown(KIND, ErrorKind::Unavailable, what))
            }
        }
    }

    /// Waits until the connection is free for one more request; at once if it takes many.
    async fn turn<'w>(
        &self,
        wire: &'w Wire,
    ) -> Result<Option<tokio::sync::MutexGuard<'w, ()>>, Gone> {
        if !wire.is_pooled() {
            return Ok(None);
        }
        let turn = wire.turn.lock().await;
        if self.0.is_current(wire.number) { Ok(Some(turn)) } else { Err(Gone) }
    }

    /// Runs several statements as they are.
    pub(super) async fn batch(&self, sql: &str, within: Duration) -> StoreResult<()> {
        let wire = self.wire().await?;
        let Ok(_turn) = self.turn(&wire).await else {
            return Err(unreachable("the connection broke".to_owned()));
        };
        let waiting = Waiting::begin(self, &wire);
        let answer = tokio::time::timeout(within, wire.client.batch_execute(sql)).await;
        self.heard(waiting, answer, within)
    }
}

/// The connection was given up while somebody waited for it.
struct Gone;

/// For how long a connection has let us wait without a word: the time in which somebody waited for an
/// answer, since the last one.
struct Silence {
    counted: Moment,
    lasted: Duration,
}

impl Silence {
    fn new(now: Moment) -> Self {
        Self { counted: now, lasted: Duration::ZERO }
    }

    /// Somebody who has waited since then has given up; says for how long it has been silent.
    fn add(&mut self, since: Moment, now: Moment) -> Duration {
        self.lasted += now.saturating_since(self.counted.max(since));
        self.counted = now;
        self.lasted
    }
}

/// A request without an answer. Whoever gives it up after long has given up its connection, too: it
/// may have been cut off without a word. Behind a pooler that goes for every one that is given up.
struct Waiting<'l> {
    link: &'l Link,
    wire: &'l Wire,
    since: Option<Moment>,
}

impl<'l> Waiting<'l> {
    fn begin(link: &'l Link, wire: &'l Wire) -> Self {
        Self { link, wire, since: Some(link.0.clock.now()) }
    }

    fn answered(mut self) {
        self.since = None;
        *self.wire.silence() = Silence::new(self.link.0.clock.now());
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let Some(since) = self.since else { return };
        let silent = self.wire.silence().add(since, self.link.0.clock.now());
        if self.wire.is_pooled() || silent >= self.link.0.silence {
            self.link.0.give_up(self.wire.number);
        }
    }
}

impl Wire {
    fn is_pooled(&self) -> bool {
        self.statements.is_none()
    }

    fn silence(&self) -> MutexGuard<'_, Silence> {
        self.silence.lock()
    }

    /// The ports from which and at which the server sees us come. If they are not ours, somebody stands in
    /// between; the first alone can be the same by chance.
    async fn seen_ports(&self) -> Result<Option<(u16, u16)>, tokio_postgres::Error> {
        let sql = "SELECT inet_client_port(), inet_server_port()";
        let rows = self.client.query_typed(sql, &[]).await?;
        let Some(row) = rows.first() else { return Ok(None) };
        let port = |at: usize| -> Result<Option<u16>, tokio_postgres::Error> {
            Ok(row.try_get::<_, Option<i32>>(at)?.and_then(|port| u16::try_from(port).ok()))
        };
        Ok(port(0)?.zip(port(1)?))
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
        let Some(statements) = &self.statements else {
            let typed: Vec<(&(dyn ToSql + Sync), Type)> =
                values.iter().copied().zip(call.types.iter().cloned()).collect();
            return Box::pin(self.client.query_typed(&call.sql, &typed)).await;
        };
        let (statement, fresh) = self.statement(statements, call).await?;
        match self.client.query(&statement, values).await {
            // What it calls answers with other columns now: the schema was brought up to date.
            Err(e) if !fresh && e.code() == Some(&SqlState::FEATURE_NOT_SUPPORTED) => {
                lock(statements).retain(|(name, _)| *name != call.name);
                let (statement, _) = Box::pin(self.statement(statements, call)).await?;
                Box::pin(self.client.query(&statement, values)).await
            }
            answer => answer,
        }
    }

    /// The call's statement, and whether it was prepared just now.
    async fn statement(
        &self,
        statements: &Mutex<Statements>,
        call: &Call,
    ) -> Result<(Statement, bool), tokio_postgres::Error> {
        let known = |(name, _): &&(&str, Statement)| *name == call.name;
        let found = lock(statements).iter().find(known).map(|(_, statement)| statement.clone());
        if let Some(statement) = found {
            return Ok((statement, false));
        }
        let made = Box::pin(self.client.prepare_typed(&call.sql, call.types)).await?;
        let mut statements = lock(statements);
        Ok(match statements.iter().find(known) {
            // Others were as quick, and one is enough.
            Some((_, first)) => (first.clone(), true),
            None => {
                statements.push((call.name, made.clone()));
                (made, true)
            }
        })
    }
}

fn lock(statements: &Mutex<Statements>) -> MutexGuard<'_, Statements> {
    statements.lock()
}

/// Does the server end the connection with this? The severity's text may be a translation.
fn is_fatal(e: &DbError) -> bool {
    e.parsed_severity().map_or(e.severity() != "ERROR", |severity| severity != Severity::Error)
}

fn unreachable(what: String) -> StoreError {
    StoreError::not_applied(KIND, ErrorKind::Unavailable, what)
}

/// Did somebody else's transaction sit on a row for too long?
pub(super) fn is_blocked(e: &StoreError) -> bool {
    let source = e.source.as_ref().and_then(|s| s.downcast_ref::<tokio_postgres::Error>());
    source.and_then(|e| e.code()) == Some(&SqlState::LOCK_NOT_AVAILABLE)
}

/// What the server's or the client's error means to us.
pub(super) fn error(e: tokio_postgres::Error) -> StoreError {
    let Some(db) = e.as_db_error() else {
        let what = "the connection broke or cannot be made";
        return StoreError::unknown(KIND, ErrorKind::Unavailable, what).because(e);
    };
    let (kind, hint) = kind(db);
    let what = format!("{}{hint}", db.message());
    // The server has undone what it refuses. Only when it ends the connection meanwhile, the message
    // may be about that and not about the request.
    let error = if is_fatal(db) {
        StoreError::unknown(KIND, kind, what)
    } else {
        StoreError::not_applied(KIND, kind, what)
    };
    error.because(e)
}

fn kind(e: &DbError) -> (ErrorKind, &'static str) {
    let code = e.code();
    match code.code() {
        "LK101" => return (ErrorKind::SessionOver, ""),
        "LK102" => return (ErrorKind::TicketClosed, ""),
        "LK103" => {
            let capacity = e.detail().and_then(|d| d.parse().ok()).unwrap_or(0);
            return (ErrorKind::Capacity(capacity), "");
        }
        "LK104" => return (ErrorKind::Full, ""),
        // Serialization, deadlock and lock_timeout; no memory, too many connections; shutting down,
        // starting, idle for too long; kind with a disk.
        "40001" | "40P01" | "55P03" | "53200" | "53300" | "57P01" | "57P02" | "57P03" | "57P05"
        | "57014" | "58030" => {
            return (ErrorKind::Unavailable, "");
        }
        "53100" => return (ErrorKind::Full, "; the server's disk is full"),
        "25006" => {
            return (ErrorKind::Unavailable, "; the server is a replica: connect to the primary");
        }
        "26000" | "42P05" => {
            return (ErrorKind::Misconfigured, "; behind a connection pooler, say pooler=true");
        }
        _ => {}
    }
    if *code == SqlState::INSUFFICIENT_PRIVILEGE {
        return (ErrorKind::Denied, "; `lockkeeper migrate --print` shows which rights are needed");
    }
    match &code.code()[..2] {
        "28" => (ErrorKind::Denied, "; check the user and its password"),
        "3D" => (ErrorKind::Misconfigured, ""),
        "08" => (ErrorKind::Unavailable, ""),
        _ => (ErrorKind::Other, ""),
    }
}
