//! A connection that is made again when it breaks.
//!
//! Requests are pipelined: many may be under way on one connection, and the server answers them in
//! order. When it breaks, those under way end as *unknown* and the next one connects anew.
//!
//! Not so behind a pooler that lends connections for a transaction. There an answer that is still under
//! way when the pooler takes its connection back is given to whoever has that connection next (seen
//! with pgbouncer 1.18). So one request follows the other, and a request that is given up takes its
//! connection along.

use super::{KIND, calls::Call, connect::Plan};
use crate::{
    clock::{Clock, Moment},
    error::{Outcome, StoreError, Trouble},
    retry::jittered,
    store::StoreResult,
};
use std::{
    collections::HashMap,
    future::poll_fn,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    sync::watch,
    task::AbortHandle,
};
use tokio_postgres::{
    AsyncMessage, Client, Connection, Notification, Row, Statement,
    error::{DbError, SqlState},
    types::{ToSql, Type},
};

/// For how long a request may take. When it is over the request may still be carried out.
const REQUEST: Duration = Duration::from_secs(5);
/// After how long a request that nobody waits for any more counts against its connection.
const SILENCE: Duration = Duration::from_secs(1);
/// For how long connecting may take.
const CONNECT: Duration = Duration::from_secs(3);
/// For how long a request is repeated that was refused for the moment or lost with its connection.
const PERSIST: Duration = Duration::from_secs(3);
/// The pause before the first repetition, and the longest.
const PAUSE: Duration = Duration::from_millis(5);
const PAUSE_MOST: Duration = Duration::from_millis(200);

/// What the functions rely on, whatever the user's or the database's defaults are.
const SETTINGS: &str = "SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL READ COMMITTED; \
                        SET lock_timeout = '200ms'";

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
}

pub(super) struct Link {
    plan: Arc<Plan>,
    clock: Clock,
    ear: Option<Ear>,
    state: Arc<State>,
    connecting: tokio::sync::Mutex<()>,
    made: AtomicU64,
}

#[derive(Default)]
struct State {
    current: Mutex<Option<Arc<Wire>>>,
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
    statements: Option<Mutex<HashMap<&'static str, Statement>>>,
    /// Held while a request is under way that must be alone.
    turn: tokio::sync::Mutex<()>,
}

impl Drop for Wire {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl State {
    fn current(&self) -> MutexGuard<'_, Option<Arc<Wire>>> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
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
}

impl Link {
    pub(super) fn new(plan: Arc<Plan>, clock: Clock, ear: Option<Ear>) -> Self {
        let connecting = tokio::sync::Mutex::new(());
        Self { plan, clock, ear, state: Arc::default(), connecting, made: AtomicU64::new(0) }
    }

    /// Changes whenever a connection breaks: what was written before may be gone with a server.
    pub(super) fn breaks(&self) -> u64 {
        *self.state.breaks.borrow()
    }

    /// Waits for the next break after the one of this number.
    pub(super) async fn broken(&self, since: u64) {
        let mut breaks = self.state.breaks.subscribe();
        let _ = breaks.wait_for(|now| *now != since).await;
    }

    async fn wire(&self) -> StoreResult<Arc<Wire>> {
        if let Some(present) = self.state.current().clone() {
            return Ok(present);
        }
        let _one_at_a_time = self.connecting.lock().await;
        if let Some(present) = self.state.current().clone() {
            return Ok(present);
        }
        let number = self.made.fetch_add(1, Ordering::Relaxed) + 1;
        let wire = match tokio::time::timeout(CONNECT, self.connect(number)).await {
            Ok(made) => Arc::new(made?),
            Err(_) => {
                let what = format!("cannot connect within {CONNECT:?}");
                return Err(StoreError::not_applied(KIND, Trouble::Unavailable, what));
            }
        };
        *self.state.current() = Some(Arc::clone(&wire));
        Ok(wire)
    }

    /// Connects to the first host that answers and can write.
    async fn connect(&self, number: u64) -> StoreResult<Wire> {
        let mut failed = None;
        let hosts = self.plan.hosts();
        for (host, port) in hosts {
            match self.connect_to(number, host, *port).await {
                Ok(wire) if hosts.len() == 1 || !wire.is_replica().await => return Ok(wire),
                Ok(_) => {
                    let what = format!("{host}:{port} is a replica");
                    let e = StoreError::not_applied(KIND, Trouble::Unavailable, what);
                    failed.get_or_insert(e);
                }
                Err(e) => failed = Some(e),
            }
        }
        Err(failed.expect("a URL has at least one host"))
    }

    async fn connect_to(&self, number: u64, host: &str, port: u16) -> StoreResult<Wire> {
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
        let turn = tokio::sync::Mutex::new(());
        let mut wire = Wire { number, client, task, statements: None, turn };
        let pooled = match self.plan.pooler {
            Some(pooled) => pooled,
            None => wire.seen_port().await.map_err(refused)? != Some(i32::from(our_port)),
        };
        if !pooled {
            wire.client.batch_execute(SETTINGS).await.map_err(refused)?;
            wire.statements = Some(Mutex::default());
        }
        Ok(wire)
    }

    /// Does somebody stand in between who lends us connections?
    pub(super) async fn is_pooled(&self) -> StoreResult<bool> {
        Ok(self.wire().await?.is_pooled())
    }

    /// Lets the connection's task run: it carries requests and answers, and hears notifications.
    fn drive<S, T>(&self, number: u64, mut connection: Connection<S, T>) -> AbortHandle
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
        T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let (ear, state) = (self.ear.clone(), Arc::clone(&self.state));
        let task = tokio::spawn(async move {
            while let Some(Ok(message)) = poll_fn(|cx| connection.poll_message(cx)).await {
                if let (AsyncMessage::Notification(news), Some(ear)) = (&message, &ear) {
                    ear(news);
                }
            }
            state.give_up(number);
        });
        task.abort_handle()
    }

    /// Makes a call. What is refused only for the moment is tried again for a while, and what was lost
    /// with its connection too, if a second copy does no harm.
    pub(super) async fn call(
        &self,
        call: &Call,
        values: Values<'_>,
        repeat: Repeat,
    ) -> StoreResult<Vec<Row>> {
        let until = self.clock.now() + PERSIST;
        let mut pause = PAUSE;
        loop {
            let e = match self.once(call, values).await {
                Ok(rows) => return Ok(rows),
                Err(e) => e,
            };
            let harmless = repeat != Repeat::Refused || e.outcome == Outcome::NotApplied;
            let harmless = harmless && !(repeat == Repeat::Unblocked && is_blocked(&e));
            if !e.is_transient() || !harmless || self.clock.now() >= until {
                return Err(e);
            }
            self.clock.sleep(jittered(pause, 2)).await;
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
        let mut waiting = Waiting::begin(self, &wire);
        let answer = tokio::time::timeout(REQUEST, wire.send(call, values)).await;
        waiting.since = None;
        match answer {
            Ok(Ok(rows)) => Ok(rows),
            Ok(Err(e)) => {
                if e.is_closed() || e.as_db_error().is_none_or(is_fatal) {
                    self.state.give_up(wire.number);
                }
                Err(error(e))
            }
            Err(_) => {
                // The server answers in order: what comes next would wait behind it.
                self.state.give_up(wire.number);
                let what = format!("no answer within {REQUEST:?}");
                Err(StoreError::unknown(KIND, Trouble::Unavailable, what))
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
        if self.state.is_current(wire.number) { Ok(Some(turn)) } else { Err(Gone) }
    }

    /// Runs several statements as they are.
    pub(super) async fn batch(&self, sql: &str) -> StoreResult<()> {
        let wire = self.wire().await?;
        let Ok(_turn) = self.turn(&wire).await else {
            return Err(StoreError::not_applied(
                KIND,
                Trouble::Unavailable,
                "the connection broke",
            ));
        };
        let mut waiting = Waiting::begin(self, &wire);
        let answer = wire.client.batch_execute(sql).await;
        waiting.since = None;
        answer.map_err(error)
    }
}

/// The connection was given up while somebody waited for it.
struct Gone;

/// A request without an answer. Whoever gives it up after long has given up its connection, too: it
/// may have been cut off without a word. Behind a pooler that goes for every one that is given up.
struct Waiting<'l> {
    link: &'l Link,
    wire: u64,
    patience: Duration,
    since: Option<Moment>,
}

impl<'l> Waiting<'l> {
    fn begin(link: &'l Link, wire: &Wire) -> Self {
        let patience = if wire.is_pooled() { Duration::ZERO } else { SILENCE };
        Self { link, wire: wire.number, patience, since: Some(link.clock.now()) }
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let waited = self.since.map(|since| self.link.clock.now().saturating_since(since));
        if waited.is_some_and(|waited| waited >= self.patience) {
            self.link.state.give_up(self.wire);
        }
    }
}

impl Wire {
    fn is_pooled(&self) -> bool {
        self.statements.is_none()
    }

    /// The port from which the server sees us come. If it is not ours, somebody stands in between.
    async fn seen_port(&self) -> Result<Option<i32>, tokio_postgres::Error> {
        let rows = self.client.query_typed("SELECT inet_client_port()", &[]).await?;
        rows.first().map_or(Ok(None), |row| row.try_get(0))
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
            return self.client.query_typed(&call.sql, &typed).await;
        };
        let known =
            statements.lock().unwrap_or_else(PoisonError::into_inner).get(call.name).cloned();
        let statement = match known {
            Some(statement) => statement,
            None => {
                let made = self.client.prepare_typed(&call.sql, call.types).await?;
                let mut statements = statements.lock().unwrap_or_else(PoisonError::into_inner);
                statements.entry(call.name).or_insert(made).clone()
            }
        };
        self.client.query(&statement, values).await
    }
}

fn is_fatal(e: &DbError) -> bool {
    e.severity() != "ERROR"
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
        return StoreError::unknown(KIND, Trouble::Unavailable, what).because(e);
    };
    let (trouble, hint) = kind(db);
    let what = format!("{}{hint}", db.message());
    // The server has undone what it refuses. Only when it ends the connection meanwhile, the message
    // may be about that and not about the request.
    let error = if is_fatal(db) {
        StoreError::unknown(KIND, trouble, what)
    } else {
        StoreError::not_applied(KIND, trouble, what)
    };
    error.because(e)
}

fn kind(e: &DbError) -> (Trouble, &'static str) {
    let code = e.code();
    match code.code() {
        "LK101" => return (Trouble::SessionOver, ""),
        "LK102" => return (Trouble::TicketClosed, ""),
        "LK103" => {
            let capacity = e.detail().and_then(|d| d.parse().ok()).unwrap_or(0);
            return (Trouble::Capacity(capacity), "");
        }
        "LK104" => return (Trouble::Full, ""),
        // Serialization, deadlock and lock_timeout; too many connections; shutting down or starting.
        "40001" | "40P01" | "55P03" | "53300" | "57P01" | "57P02" | "57P03" | "57014" => {
            return (Trouble::Unavailable, "");
        }
        "53100" => return (Trouble::Unavailable, "; the server's disk is full"),
        "25006" => {
            return (Trouble::Unavailable, "; the server is a replica: connect to the primary");
        }
        "26000" | "42P05" => {
            return (Trouble::Misconfigured, "; behind a connection pooler, say pooler=true");
        }
        _ => {}
    }
    if *code == SqlState::INSUFFICIENT_PRIVILEGE {
        return (Trouble::Denied, "; `lockkeeper migrate --print` shows which rights are needed");
    }
    match &code.code()[..2] {
        "28" => (Trouble::Denied, "; check the user and its password"),
        "3D" => (Trouble::Misconfigured, ""),
        "08" => (Trouble::Unavailable, ""),
        _ => (Trouble::Other, ""),
    }
}
