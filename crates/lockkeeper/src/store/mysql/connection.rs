//! The connections: two for requests, one for renewals, one to watch; made again when they break.
//!
//! A MySQL connection does one thing at a time, so a process has a few and not more. A renewal waits behind nothing
//! but other renewals, and those are short. When a connection breaks or falls silent, the request under way is
//! *unknown*, all other connections are taken to be broken too, and the next request connects anew: perhaps to
//! another server behind the same name.

use super::{KIND, error, statements::LineCall};
use crate::{
    clock::{Clock, Moment},
    error::{ErrorKind, StoreError},
    model::ticket::Place,
    store::{
        StoreResult,
        common::repeat::{Limits, Repeat},
    },
    sync::Mutex,
};
use mysql_async::{
    Conn, Opts, OptsBuilder, Params, QueryResult, Row, Value,
    prelude::{Protocol, Queryable},
};
use std::{
    io,
    net::{IpAddr, SocketAddr},
    pin::pin,
    sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering},
    time::Duration,
};
use tokio::{
    net::lookup_host,
    sync::{Semaphore, SemaphorePermit},
};

/// For how long a request may take. When it is over the request may still be carried out.
const REQUEST: Duration = Duration::from_secs(8);
/// The same for a renewal, which waits for no row and behind which other renewals wait: it is sent again by another
/// connection, and may take twice as long there.
const RENEWAL: Duration = Duration::from_secs(1);
/// A request that its caller gives up after so long takes its connection along.
const SILENCE: Duration = Duration::from_secs(1);
/// For how long a request may wait for a connection.
const QUEUE: Duration = Duration::from_secs(8);
/// For how long connecting may take, to all addresses of a name together.
const CONNECT: Duration = Duration::from_secs(5);

pub(super) const LIMITS: Limits = Limits {
    total: Duration::from_secs(5),
    // A row that another request of ours has locked is free again before that.
    blocked: Duration::from_millis(100),
    pause: Duration::from_millis(10),
    longest_pause: Duration::from_millis(200),
    is_blocked: error::is_blocked,
};

/// Sent to the server on every new connection. Times are UTC; bytes stay bytes; every statement sees what
/// was committed before it; no statement waits long for a table that is being changed; idle connections stay. Nor
/// does a statement wait for a row, unless it says otherwise: a plain statement that meets a user's transaction is
/// given up for a procedure, which does not wait for it either. MySQL takes the 0 for a second, which without
/// strictness is no error.
pub(super) const GREETING: [&str; 4] = [
    "SET NAMES binary",
    "SET SESSION sql_mode = ''",
    "SET SESSION time_zone = '+00:00', autocommit = 1, innodb_lock_wait_timeout = 0, \
     lock_wait_timeout = 5, wait_timeout = 86400, sql_mode = 'STRICT_ALL_TABLES'",
    "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED",
];

/// Bytes as a parameter.
pub(super) fn bytes(bytes: impl AsRef<[u8]>) -> Value {
    Value::Bytes(bytes.as_ref().to_vec())
}

/// The parameters of most procedures: the name, the ticket, the session, and what else there is.
pub(super) fn params<const N: usize>(place: &Place, more: [Value; N]) -> Vec<Value> {
    let Place { session, name, ticket } = place;
    let place = [bytes(name.as_str()), bytes(ticket.to_bytes()), bytes(session.to_bytes())];
    place.into_iter().chain(more).collect()
}

/// A connection. The driver keeps the statements that it has prepared.
struct Connection {
    driver: Conn,
    /// How many connections had broken when it was made.
    breaks: u64,
}

impl Connection {
    async fn run(&mut self, sql: &str, params: Vec<Value>) -> mysql_async::Result<Answer> {
        // What has no parameters is asked once, when we connect: to prepare it would be another round trip.
        if params.is_empty() {
            return answer(self.driver.query_iter(sql).await?).await;
        }
        answer(self.driver.exec_iter(sql, Params::Positional(params)).await?).await
    }
}

async fn answer<P: Protocol>(
    mut result: QueryResult<'_, 'static, P>,
) -> mysql_async::Result<Answer> {
    let updated = Updated { number: result.last_insert_id(), changed: result.affected_rows() > 0 };
    let mut rows = Vec::new();
    while !result.is_empty() {
        rows.extend(Box::pin(result.collect::<Row>()).await?);
    }
    Ok(Answer { rows, updated })
}

/// The server's answer to a statement.
struct Answer {
    /// The rows of all its results, one after the other.
    rows: Vec<Row>,
    updated: Updated,
}

/// What a plain statement has done.
#[derive(Default)]
pub(super) struct Updated {
    /// The number that it has drawn.
    pub(super) number: Option<u64>,
    /// Was there a row to change?
    pub(super) changed: bool,
}

/// Connections for one purpose.
pub(super) struct Pool {
    permits: Semaphore,
    idle: Mutex<Vec<Connection>>,
    /// For how long a request may take here, and how many took longer since the last that did not.
    request: Duration,
    late: AtomicU32,
    /// A request that its caller gives up after so long takes its connection along.
    silence: Duration,
}

impl Pool {
    fn new(connections: usize, request: Duration, silence: Duration) -> Self {
        let permits = Semaphore::new(connections);
        Self { permits, idle: Mutex::default(), request, late: AtomicU32::new(0), silence }
    }

    /// For how long the next request may take. It grows so that a slow server can answer at last.
    fn time_limit(&self) -> Duration {
        let late = self.late.load(Ordering::Relaxed).min(8);
        (self.request * 2_u32.pow(late)).min(REQUEST)
    }

    fn take(&self, breaks: u64) -> Option<Connection> {
        let mut idle = self.idle.lock();
        idle.retain(|connection| connection.breaks == breaks);
        idle.pop()
    }

    fn put(&self, connection: Connection) {
        self.idle.lock().push(connection);
    }

    async fn permit(&self) -> StoreResult<SemaphorePermit<'_>> {
        if let Ok(permit) = self.permits.try_acquire() {
            return Ok(permit);
        }
        match crate::clock::timeout(QUEUE, self.permits.acquire()).await {
            Ok(Ok(permit)) => Ok(permit),
            _ => {
                let what = format!("the server did not get to this request within {QUEUE:?}");
                Err(StoreError::not_applied(KIND, ErrorKind::Unavailable, what))
            }
        }
    }
}

pub(super) struct Connections {
    opts: Opts,
    pub(super) clock: Clock,
    pub(super) requests: Pool,
    pub(super) renewals: Pool,
    pub(super) watch: Pool,
    /// One request of this process at a time may wait for a locked line, so that the others have a connection left.
    line_wait: Semaphore,
    breaks: AtomicU64,
    /// The server's address that is tried first.
    first_address: AtomicUsize,
}

impl Connections {
    pub(super) fn new(opts: Opts, clock: Clock) -> Self {
        Self {
            opts,
            clock,
            requests: Pool::new(2, REQUEST, SILENCE),
            // The session task gives up a renewal when little time is left to find out why it is late.
            renewals: Pool::new(1, RENEWAL, Duration::ZERO),
            watch: Pool::new(1, REQUEST, SILENCE),
            line_wait: Semaphore::new(1),
            breaks: AtomicU64::new(0),
            first_address: AtomicUsize::new(0),
        }
    }

    /// Changes whenever a connection breaks: what was written before may be gone with a server.
    pub(super) fn breaks(&self) -> u64 {
        self.breaks.load(Ordering::Acquire)
    }

    /// Gives all connections up, so that new ones are made.
    pub(super) fn give_up(&self) {
        self.breaks.fetch_add(1, Ordering::AcqRel);
    }

    /// Connects for the first time, and fails if the server does not answer.
    pub(super) async fn first(&self) -> StoreResult<()> {
        let connection = self.connect(self.breaks()).await?;
        self.requests.put(connection);
        Ok(())
    }

    /// Runs one statement, and repeats it as far as `repeat` allows.
    ///
    /// # Cancel safety
    /// Dropping the future gives up the connection; what the server does is unknown.
    pub(super) async fn call(
        &self,
        pool: &Pool,
        sql: &str,
        params: Vec<Value>,
        repeat: Repeat,
    ) -> StoreResult<Vec<Row>> {
        let send_once = || self.rows(pool, sql, params.clone());
        LIMITS.send(&self.clock, repeat, send_once).await.0
    }

    /// The same for a call that locks its line. If another transaction has the line, the call waits for a second, unless
    /// another call of this process does so already or `may_wait` is false: then it is refused. Says also whether a
    /// copy of the request that got no answer may still be carried out.
    pub(super) async fn call_line(
        &self,
        call: &LineCall,
        params: Vec<Value>,
        may_wait: bool,
        repeat: Repeat,
    ) -> (StoreResult<Vec<Row>>, bool) {
        let send_once = || async {
            let permit = if may_wait { self.line_wait.try_acquire().ok() } else { None };
            let waits = u8::from(permit.is_some()).into();
            let params = params.iter().cloned().chain([waits]).collect();
            self.rows(&self.requests, &call.0, params).await
        };
        LIMITS.send(&self.clock, repeat, send_once).await
    }

    async fn rows(&self, pool: &Pool, sql: &str, params: Vec<Value>) -> StoreResult<Vec<Row>> {
        Ok(self.run(pool, sql, params).await?.rows)
    }

    /// Runs one statement once.
    pub(super) async fn once(&self, sql: &str) -> StoreResult<Vec<Row>> {
        self.rows(&self.requests, sql, Vec::new()).await
    }

    /// Runs one plain statement that changes one row. If another transaction has the row, it has done nothing.
    ///
    /// # Cancel safety
    /// As [`Connections::call`].
    pub(super) async fn update(&self, sql: &str, params: Vec<Value>) -> StoreResult<Updated> {
        match self.run(&self.requests, sql, params).await {
            Ok(answer) => Ok(answer.updated),
            Err(e) if error::is_conflict(&e) => Ok(Updated::default()),
            Err(e) => Err(e),
        }
    }

    async fn run(&self, pool: &Pool, sql: &str, params: Vec<Value>) -> StoreResult<Answer> {
        let _permit = pool.permit().await?;
        let breaks = self.breaks();
        let mut connection = match pool.take(breaks) {
            Some(connection) => connection,
            None => Box::pin(self.connect(breaks)).await?,
        };
        let mut unanswered = Unanswered::new(self, pool);
        let limit = pool.time_limit();
        let answer = {
            // Pinned in place, because the future is large to move.
            let run = pin!(connection.run(sql, params));
            crate::clock::timeout(limit, run).await
        };
        unanswered.since = None;
        match answer {
            Ok(Ok(answer)) => {
                pool.late.store(0, Ordering::Relaxed);
                pool.put(connection);
                Ok(answer)
            }
            Ok(Err(e)) => {
                match error::ends_connection(&e) {
                    true => self.give_up(),
                    false => pool.put(connection),
                }
                let e = error::error(e);
                if error::code(&e).is_some_and(error::is_read_only) {
                    self.first_address.fetch_add(1, Ordering::Relaxed);
                }
                Err(e)
            }
            Err(_) => {
                pool.late.fetch_add(1, Ordering::Relaxed);
                self.give_up();
                Err(no_answer(limit))
            }
        }
    }

    async fn connect(&self, breaks: u64) -> StoreResult<Connection> {
        let driver = self.connect_driver().await?;
        Ok(Connection { driver, breaks })
    }

    async fn connect_driver(&self) -> StoreResult<Conn> {
        match crate::clock::timeout(CONNECT, self.connect_to_any()).await {
            Ok(made) => made.map_err(error::connect_error),
            Err(_) => {
                let what = format!("cannot connect within {CONNECT:?}");
                Err(StoreError::not_applied(KIND, ErrorKind::Unavailable, what))
            }
        }
    }

    /// Connects to the first address that answers. Each has its share of the time, so that one which
    /// is silent does not hide the others.
    async fn connect_to_any(&self) -> mysql_async::Result<Conn> {
        let (host, port) = (self.opts.ip_or_hostname(), self.opts.tcp_port());
        let found = lookup_host((host, port)).await?.map(|address: SocketAddr| address.ip());
        let mut addresses: Vec<IpAddr> = found.collect();
        if addresses.is_empty() {
            return Err(io::Error::new(io::ErrorKind::NotFound, "the name has no address").into());
        }
        let first = self.first_address.load(Ordering::Relaxed) % addresses.len();
        addresses.rotate_left(first);
        let share = CONNECT / u32::try_from(addresses.len()).unwrap_or(1);
        let mut failed = io::Error::from(io::ErrorKind::TimedOut).into();
        for address in addresses {
            let opts = OptsBuilder::from_opts(self.opts.clone()).resolved_ips(Some([address]));
            match crate::clock::timeout(share, Conn::new(opts)).await {
                Ok(Ok(driver)) => return Ok(driver),
                Ok(Err(e)) => failed = e,
                Err(_) => {}
            }
        }
        Err(failed)
    }

    /// A connection for one purpose, which ends with it.
    pub(super) async fn dedicated(&self, limit: Duration) -> StoreResult<Dedicated> {
        Ok(Dedicated { driver: self.connect_driver().await?, limit })
    }
}

fn no_answer(within: Duration) -> StoreError {
    let what = format!("no answer within {within:?}");
    StoreError::unknown(KIND, ErrorKind::Unavailable, what)
}

/// A request without an answer. When its caller drops it after a long silence, all connections are given up:
/// this one may have been cut off without a word, and what was written before may be gone with a server.
struct Unanswered<'c> {
    connections: &'c Connections,
    silence: Duration,
    since: Option<Moment>,
}

impl<'c> Unanswered<'c> {
    fn new(connections: &'c Connections, pool: &Pool) -> Self {
        Self { connections, silence: pool.silence, since: Some(connections.clock.now()) }
    }
}

impl Drop for Unanswered<'_> {
    fn drop(&mut self) {
        let now = self.connections.clock.now();
        let waited = self.since.map(|since| now.saturating_since(since));
        if waited.is_some_and(|waited| waited >= self.silence) {
            self.connections.give_up();
        }
    }
}

/// A connection that has a state, such as a lock of the server's.
pub(super) struct Dedicated {
    driver: Conn,
    limit: Duration,
}

impl Dedicated {
    /// Runs one statement.
    pub(super) async fn ask(&mut self, sql: &str, params: Vec<Value>) -> StoreResult<Vec<Row>> {
        // The server cannot prepare every statement.
        let plain = params.is_empty();
        let answer = async {
            match plain {
                true => self.driver.query(sql).await,
                false => self.driver.exec(sql, Params::Positional(params)).await,
            }
        };
        match crate::clock::timeout(self.limit, answer).await {
            Ok(answer) => answer.map_err(error::error),
            Err(_) => Err(no_answer(self.limit)),
        }
    }

    pub(super) async fn end(self) {
        let _ = crate::clock::timeout(SILENCE, self.driver.disconnect()).await;
    }
}
