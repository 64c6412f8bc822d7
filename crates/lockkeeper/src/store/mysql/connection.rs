//! The connections: two for lines, one for renewals, one to watch; made again when they break.
//!
//! A MySQL connection does one thing at a time, so a process has a few and not more. A renewal never
//! stands behind anything but other renewals, and those are short. When a connection breaks or falls
//! silent, the request under way is *unknown*, all other connections are taken to be broken too,
//! and the next request connects anew: perhaps to another server behind the same name.

use super::{KIND, error, statements::Patient};
use crate::{
    api::retry::jittered,
    clock::{Clock, Moment},
    error::{ErrorKind, Outcome, StoreError},
    store::StoreResult,
    sync::Mutex,
};
use mysql_async::{Conn, Opts, OptsBuilder, Params, Row, Statement, Value, prelude::Queryable};
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
    time::timeout,
};

/// For how long a request may take. When it is over the request may still be carried out.
const REQUEST: Duration = Duration::from_secs(8);
/// The same for a renewal, which others wait for and which waits for no row: it is sent again by another
/// connection, and then may take twice as long.
const RENEWAL: Duration = Duration::from_secs(1);
/// After how long a request that nobody waits for any more counts against its connection.
const SILENCE: Duration = Duration::from_secs(1);
/// For how long a request may wait for others of this process before it is sent.
const QUEUE: Duration = Duration::from_secs(8);
/// For how long connecting may take, to all addresses of a name together.
const CONNECT: Duration = Duration::from_secs(5);
/// For how long a request is repeated that was refused for the moment or lost with its connection.
const PERSIST: Duration = Duration::from_secs(5);
/// The same for an enter that somebody is in the way of. A row of ours is free again before that is over.
const BLOCKED: Duration = Duration::from_millis(100);
/// The pause before the first repetition, and the longest.
const PAUSE: Duration = Duration::from_millis(10);
const PAUSE_MOST: Duration = Duration::from_millis(200);

/// Said to the server on every new connection. Times are UTC; bytes stay bytes; every statement sees what
/// was committed before it; nothing waits long for somebody who changes a table; and nobody ends a
/// connection that is idle. Nor does anything wait for a row, unless a statement says otherwise: a plain
/// statement that meets a user's transaction is given up for a procedure, which waits for none. MySQL
/// takes the 0 for a second, which without strictness is no error.
pub(super) const GREETING: [&str; 4] = [
    "SET NAMES binary",
    "SET SESSION sql_mode = ''",
    "SET SESSION time_zone = '+00:00', autocommit = 1, innodb_lock_wait_timeout = 0, \
     lock_wait_timeout = 5, wait_timeout = 86400, sql_mode = 'STRICT_ALL_TABLES'",
    "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED",
];

/// A connection, and the statements that it has prepared.
struct Wire {
    conn: Conn,
    /// The number of breaks when it was made.
    breaks: u64,
    known: Vec<(Box<str>, Statement)>,
}

impl Wire {
    fn new(conn: Conn, breaks: u64) -> Self {
        Self { conn, breaks, known: Vec::new() }
    }

    /// The driver has a cache of its own, but reads the whole text for each look into it.
    async fn statement(&mut self, sql: &str) -> mysql_async::Result<Statement> {
        if let Some((_, known)) = self.known.iter().find(|(text, _)| **text == *sql) {
            return Ok(known.clone());
        }
        let fresh = self.conn.prep(sql).await?;
        self.known.push((sql.into(), fresh.clone()));
        Ok(fresh)
    }

    async fn run(&mut self, sql: &str, params: Vec<Value>) -> mysql_async::Result<Answer> {
        let statement = self.statement(sql).await?;
        let params = if params.is_empty() { Params::Empty } else { Params::Positional(params) };
        let mut result = self.conn.exec_iter(statement, params).await?;
        let wrote = Wrote { number: result.last_insert_id(), changed: result.affected_rows() > 0 };
        let mut rows = Vec::new();
        while !result.is_empty() {
            rows.extend(Box::pin(result.collect::<Row>()).await?);
        }
        Ok(Answer { rows, wrote })
    }
}

/// What is sent.
#[derive(Clone, Copy)]
pub(super) struct Text<'t> {
    sql: &'t str,
    waits: Waits,
}

/// What becomes of a request for a line that somebody has.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Waits {
    /// It needs none.
    Needless,
    /// It is refused.
    Never,
    /// It waits, unless another does so already.
    Perhaps,
}

impl<'t> Text<'t> {
    /// Refused where it would have to wait.
    pub(super) fn at_once(text: &'t Patient) -> Self {
        Self { sql: &text.0, waits: Waits::Never }
    }
}

impl<'t> From<&'t str> for Text<'t> {
    fn from(sql: &'t str) -> Self {
        Self { sql, waits: Waits::Needless }
    }
}

impl<'t> From<&'t String> for Text<'t> {
    fn from(sql: &'t String) -> Self {
        Self { sql, waits: Waits::Needless }
    }
}

impl<'t> From<&'t Patient> for Text<'t> {
    fn from(text: &'t Patient) -> Self {
        Self { sql: &text.0, waits: Waits::Perhaps }
    }
}

/// What the server says to a statement.
struct Answer {
    rows: Vec<Row>,
    wrote: Wrote,
}

/// What a plain statement has done.
#[derive(Default)]
pub(super) struct Wrote {
    /// The number that it has drawn.
    pub(super) number: Option<u64>,
    /// Was there a row to change?
    pub(super) changed: bool,
}

/// Connections of one purpose.
pub(super) struct Lane {
    permits: Semaphore,
    /// Those that nobody uses now.
    idle: Mutex<Vec<Wire>>,
    /// For how long a request may take here, and how many took longer since the last that did not.
    request: Duration,
    late: AtomicU32,
    /// A request that is dropped after so long has given up its connection too.
    silence: Duration,
}

impl Lane {
    fn of(connections: usize, request: Duration, silence: Duration) -> Self {
        let permits = Semaphore::new(connections);
        Self { permits, idle: Mutex::default(), request, late: AtomicU32::new(0), silence }
    }

    /// For how long the next request may take. A server that is slow must be able to answer at last.
    fn patience(&self) -> Duration {
        let late = self.late.load(Ordering::Relaxed).min(8);
        (self.request * 2_u32.pow(late)).min(REQUEST)
    }

    fn take(&self, breaks: u64) -> Option<Wire> {
        let mut idle = self.idle.lock();
        idle.retain(|wire| wire.breaks == breaks);
        idle.pop()
    }

    fn put(&self, wire: Wire) {
        self.idle.lock().push(wire);
    }

    async fn permit(&self) -> StoreResult<SemaphorePermit<'_>> {
        if let Ok(permit) = self.permits.try_acquire() {
            return Ok(permit);
        }
        match timeout(QUEUE, self.permits.acquire()).await {
            Ok(Ok(permit)) => Ok(permit),
            _ => {
                let what = format!("the server did not get to this request within {QUEUE:?}");
                Err(StoreError::not_applied(KIND, ErrorKind::Unavailable, what))
            }
        }
    }
}

pub(super) struct Link {
    opts: Opts,
    clock: Clock,
    lines: Lane,
    renewals: Lane,
    watch: Lane,
    /// One request at a time may wait for a line that somebody has, so that the others have a connection left.
    chair: Semaphore,
    breaks: AtomicU64,
    /// With which of the server's addresses connecting begins.
    first: AtomicUsize,
}

/// The answer to a request that may have been sent more than once.
pub(super) struct Reply {
    pub(super) rows: Vec<Row>,
    /// An earlier copy got no answer and may still be under way.
    pub(super) doubled: bool,
}

impl Link {
    pub(super) fn new(opts: Opts, clock: Clock) -> Self {
        Self {
            opts,
            clock,
            lines: Lane::of(2, REQUEST, SILENCE),
            // Whoever gives up a renewal has little time left to find out why it is late.
            renewals: Lane::of(1, RENEWAL, Duration::ZERO),
            watch: Lane::of(1, REQUEST, SILENCE),
            chair: Semaphore::new(1),
            breaks: AtomicU64::new(0),
            first: AtomicUsize::new(0),
        }
    }

    pub(super) fn lines(&self) -> &Lane {
        &self.lines
    }

    pub(super) fn renewals(&self) -> &Lane {
        &self.renewals
    }

    pub(super) fn watch(&self) -> &Lane {
        &self.watch
    }

    pub(super) fn clock(&self) -> &Clock {
        &self.clock
    }

    /// Changes whenever a connection breaks: what was written before may be gone with a server.
    pub(super) fn breaks(&self) -> u64 {
        self.breaks.load(Ordering::Acquire)
    }

    /// All connections are to be made anew.
    pub(super) fn broke(&self) {
        self.breaks.fetch_add(1, Ordering::AcqRel);
    }

    /// Connects for the first time; what does not answer now is not waited for.
    pub(super) async fn begin(&self) -> StoreResult<()> {
        let breaks = self.breaks();
        self.lines.put(Wire::new(self.connect().await?, breaks));
        Ok(())
    }

    /// Runs one statement; the rows of all its answers, one after the other. What is refused for the
    /// moment is tried again for a while; what broke with its connection is not.
    ///
    /// # Cancel safety
    /// Dropping the future gives up the connection; what the server does is unknown.
    pub(super) async fn ask(
        &self,
        lane: &Lane,
        sql: impl Into<Text<'_>>,
        params: Vec<Value>,
    ) -> StoreResult<Vec<Row>> {
        let surely_undone = |e: &StoreError| e.outcome == Outcome::NotApplied;
        Ok(self.persist(lane, sql.into(), params, surely_undone).await?.rows)
    }

    /// The same for a statement whose second copy does no harm: it is also sent again when its
    /// connection broke.
    pub(super) async fn insist(
        &self,
        lane: &Lane,
        sql: impl Into<Text<'_>>,
        params: Vec<Value>,
    ) -> StoreResult<Reply> {
        self.persist(lane, sql.into(), params, |_| true).await
    }

    /// The same for a statement that is soon given up if somebody has a row that it needs.
    pub(super) async fn insist_briefly(
        &self,
        lane: &Lane,
        sql: impl Into<Text<'_>>,
        params: Vec<Value>,
    ) -> StoreResult<Reply> {
        let until = self.clock.now() + BLOCKED;
        let soon = |e: &StoreError| !error::is_blocked(e) || self.clock.now() < until;
        self.persist(lane, sql.into(), params, soon).await
    }

    /// Runs one statement, and takes its first answer for the last.
    pub(super) async fn once(&self, sql: &str) -> StoreResult<Vec<Row>> {
        Ok(self.attempt(&self.lines, sql, Vec::new()).await?.rows)
    }

    /// Runs one plain statement that changes one row. If others are in the way it has done nothing.
    ///
    /// # Cancel safety
    /// As [`Link::ask`].
    pub(super) async fn write(
        &self,
        lane: &Lane,
        sql: &str,
        params: Vec<Value>,
    ) -> StoreResult<Wrote> {
        match self.attempt(lane, sql, params).await {
            Ok(answer) => Ok(answer.wrote),
            Err(e) if error::is_turned_back(&e) => Ok(Wrote::default()),
            Err(e) => Err(e),
        }
    }

    async fn persist(
        &self,
        lane: &Lane,
        sql: Text<'_>,
        params: Vec<Value>,
        harmless: impl Fn(&StoreError) -> bool,
    ) -> StoreResult<Reply> {
        let until = self.clock.now() + PERSIST;
        let (mut pause, mut doubled) = (PAUSE, false);
        loop {
            let mut e = match self.attempt_patiently(lane, sql, params.clone()).await {
                Ok(answer) => return Ok(Reply { rows: answer.rows, doubled }),
                Err(e) => e,
            };
            doubled |= e.outcome == Outcome::Unknown;
            if !e.is_transient() || !harmless(&e) || self.clock.now() >= until {
                if doubled {
                    e.outcome = Outcome::Unknown;
                }
                return Err(e);
            }
            self.clock.sleep(jittered(pause, 2)).await;
            pause = (pause * 2).min(PAUSE_MOST);
        }
    }

    /// Lets the request wait for others if it may.
    async fn attempt_patiently(
        &self,
        lane: &Lane,
        Text { sql, waits }: Text<'_>,
        mut params: Vec<Value>,
    ) -> StoreResult<Answer> {
        let chair = match waits {
            Waits::Perhaps => self.chair.try_acquire().ok(),
            Waits::Never | Waits::Needless => None,
        };
        if waits != Waits::Needless {
            params.push(u8::from(chair.is_some()).into());
        }
        self.attempt(lane, sql, params).await
    }

    async fn attempt(&self, lane: &Lane, sql: &str, params: Vec<Value>) -> StoreResult<Answer> {
        let _permit = lane.permit().await?;
        let breaks = self.breaks();
        let mut wire = match lane.take(breaks) {
            Some(wire) => wire,
            None => Wire::new(Box::pin(self.connect()).await?, breaks),
        };
        let mut unanswered = Unanswered::on(self, lane);
        let patience = lane.patience();
        let answer = {
            // In its place, for it is large to move.
            let run = pin!(wire.run(sql, params));
            timeout(patience, run).await
        };
        unanswered.since = None;
        match answer {
            Ok(Ok(answer)) => {
                lane.late.store(0, Ordering::Relaxed);
                lane.put(wire);
                Ok(answer)
            }
            Ok(Err(e)) => {
                match error::ends_connection(&e) {
                    true => self.broke(),
                    false => lane.put(wire),
                }
                let e = error::error(e);
                if error::code(&e).is_some_and(error::is_elsewhere) {
                    self.first.fetch_add(1, Ordering::Relaxed);
                }
                Err(e)
            }
            Err(_) => {
                lane.late.fetch_add(1, Ordering::Relaxed);
                self.broke();
                let what = format!("no answer within {patience:?}");
                Err(StoreError::unknown(KIND, ErrorKind::Unavailable, what))
            }
        }
    }

    async fn connect(&self) -> StoreResult<Conn> {
        match timeout(CONNECT, self.connect_to_any()).await {
            Ok(made) => made.map_err(error::at_connect),
            Err(_) => Err(late(CONNECT)),
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
        let first = self.first.load(Ordering::Relaxed) % addresses.len();
        addresses.rotate_left(first);
        let share = CONNECT / u32::try_from(addresses.len()).unwrap_or(1);
        let mut failed = io::Error::from(io::ErrorKind::TimedOut).into();
        for address in addresses {
            let opts = OptsBuilder::from_opts(self.opts.clone()).resolved_ips(Some([address]));
            match timeout(share, Conn::new(opts)).await {
                Ok(Ok(conn)) => return Ok(conn),
                Ok(Err(e)) => failed = e,
                Err(_) => {}
            }
        }
        Err(failed)
    }

    /// A connection for one purpose, which ends with it.
    pub(super) async fn alone(&self, patience: Duration) -> StoreResult<Alone> {
        Ok(Alone { conn: self.connect().await?, patience })
    }
}

fn late(after: Duration) -> StoreError {
    let what = format!("cannot connect within {after:?}");
    StoreError::not_applied(KIND, ErrorKind::Unavailable, what)
}

/// A request without an answer. Whoever gives it up after long has given up its connection, too: it
/// may have been cut off without a word, and what was written before may be gone with a server.
struct Unanswered<'l> {
    link: &'l Link,
    silence: Duration,
    since: Option<Moment>,
}

impl<'l> Unanswered<'l> {
    fn on(link: &'l Link, lane: &Lane) -> Self {
        Self { link, silence: lane.silence, since: Some(link.clock.now()) }
    }
}

impl Drop for Unanswered<'_> {
    fn drop(&mut self) {
        let waited = self.since.map(|since| self.link.clock.now().saturating_since(since));
        if waited.is_some_and(|waited| waited >= self.silence) {
            self.link.broke();
        }
    }
}

/// A connection that has a state, such as a lock of the server's.
pub(super) struct Alone {
    conn: Conn,
    patience: Duration,
}

impl Alone {
    /// Runs one statement.
    pub(super) async fn ask(&mut self, sql: &str, params: Vec<Value>) -> StoreResult<Vec<Row>> {
        // Not everything can be prepared.
        let plain = params.is_empty();
        let answer = async {
            match plain {
                true => self.conn.query(sql).await,
                false => self.conn.exec(sql, Params::Positional(params)).await,
            }
        };
        match timeout(self.patience, answer).await {
            Ok(answer) => answer.map_err(error::error),
            Err(_) => {
                let what = format!("no answer within {:?}", self.patience);
                Err(StoreError::unknown(KIND, ErrorKind::Unavailable, what))
            }
        }
    }

    pub(super) async fn end(self) {
        let _ = timeout(SILENCE, self.conn.disconnect()).await;
    }
}
