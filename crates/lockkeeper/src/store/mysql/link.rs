//! The connections: two for lines, one for renewals, one to watch; made again when they break.
//!
//! A MySQL connection does one thing at a time, so a process has a few and not more. A renewal never
//! stands behind anything else. When a connection breaks, the request under way ends as *unknown*,
//! all others are taken to be broken too, and the next request connects anew.

use super::KIND;
use crate::{
    clock::Clock,
    error::{StoreError, Trouble},
    retry::jittered,
    store::StoreResult,
};
use mysql_async::{Conn, Opts, Params, Row, ServerError, Value, prelude::Queryable};
use std::{
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};
use tokio::{sync::Semaphore, time::timeout};

/// For how long a request may take. When it is over the request may still be carried out.
const REQUEST: Duration = Duration::from_secs(8);
/// For how long a request may wait for others of this process before it is sent.
const QUEUE: Duration = Duration::from_secs(8);
/// For how long connecting may take.
const CONNECT: Duration = Duration::from_secs(5);
/// For how long a transaction that the server has turned back is tried again.
const TURNED_BACK: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_millis(10);

/// Said to the server on every new connection. Times are UTC; bytes stay bytes; nothing waits long for
/// a row, or for somebody who changes a table.
pub(super) const GREETING: [&str; 2] = [
    "SET NAMES binary",
    "SET SESSION time_zone = '+00:00', autocommit = 1, innodb_lock_wait_timeout = 2, \
     lock_wait_timeout = 5",
];

/// Connections of one purpose.
pub(super) struct Lane {
    permits: Semaphore,
    /// Those that nobody uses now, and the number of breaks when they were made.
    idle: Mutex<Vec<(u64, Conn)>>,
}

impl Lane {
    fn of(connections: usize) -> Self {
        Self { permits: Semaphore::new(connections), idle: Mutex::default() }
    }

    fn take(&self, breaks: u64) -> Option<Conn> {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        idle.retain(|(made, _)| *made == breaks);
        idle.pop().map(|(_, conn)| conn)
    }

    fn put(&self, breaks: u64, conn: Conn) {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).push((breaks, conn));
    }
}

pub(super) struct Link {
    opts: Opts,
    clock: Clock,
    lines: Lane,
    renewals: Lane,
    watch: Lane,
    breaks: AtomicU64,
}

impl Link {
    pub(super) fn new(opts: Opts, clock: Clock) -> Self {
        Self {
            opts,
            clock,
            lines: Lane::of(2),
            renewals: Lane::of(1),
            watch: Lane::of(1),
            breaks: AtomicU64::new(0),
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

    /// Changes whenever a connection breaks: what was written before may be gone with a server.
    pub(super) fn breaks(&self) -> u64 {
        self.breaks.load(Ordering::Acquire)
    }

    /// Runs one statement; the rows of all its answers, one after the other. A transaction that the
    /// server has turned back, because of a deadlock or a wait that was too long, is tried again.
    ///
    /// # Cancel safety
    /// Dropping the future gives up the connection; what the server does is unknown.
    pub(super) async fn ask(
        &self,
        lane: &Lane,
        sql: &str,
        params: Vec<Value>,
    ) -> StoreResult<Vec<Row>> {
        let began = self.clock.now();
        loop {
            let e = match self.attempt(lane, sql, params.clone()).await {
                Ok(rows) => return Ok(rows),
                Err(e) => e,
            };
            let late = self.clock.now().saturating_since(began) > TURNED_BACK;
            if late || !code(&e).is_some_and(is_turned_back) {
                return Err(e);
            }
            self.clock.sleep(jittered(PAUSE, 1)).await;
        }
    }

    async fn attempt(&self, lane: &Lane, sql: &str, params: Vec<Value>) -> StoreResult<Vec<Row>> {
        let Ok(Ok(_permit)) = timeout(QUEUE, lane.permits.acquire()).await else {
            let what = format!("the server did not get to this request within {QUEUE:?}");
            return Err(StoreError::not_applied(KIND, Trouble::Unavailable, what));
        };
        let breaks = self.breaks();
        let mut conn = match lane.take(breaks) {
            Some(conn) => conn,
            None => self.connect().await?,
        };
        match timeout(REQUEST, rows(&mut conn, sql, params)).await {
            Ok(Ok(rows)) => {
                lane.put(breaks, conn);
                Ok(rows)
            }
            Ok(Err(mysql_async::Error::Server(e))) if !is_farewell(&e) => {
                lane.put(breaks, conn);
                Err(refused(e))
            }
            Ok(Err(e)) => {
                self.broke();
                Err(lost(e))
            }
            Err(_) => {
                self.broke();
                let what = format!("no answer within {REQUEST:?}");
                Err(StoreError::unknown(KIND, Trouble::Unavailable, what))
            }
        }
    }

    fn broke(&self) {
        self.breaks.fetch_add(1, Ordering::AcqRel);
    }

    async fn connect(&self) -> StoreResult<Conn> {
        match timeout(CONNECT, Conn::new(self.opts.clone())).await {
            Ok(Ok(conn)) => Ok(conn),
            Ok(Err(mysql_async::Error::Server(e))) => Err(refused(e)),
            Ok(Err(e)) => {
                let what = "cannot connect";
                Err(StoreError::not_applied(KIND, Trouble::Unavailable, what).because(e))
            }
            Err(_) => {
                let what = format!("cannot connect within {CONNECT:?}");
                Err(StoreError::not_applied(KIND, Trouble::Unavailable, what))
            }
        }
    }

    /// Runs statements one after the other on a connection that is closed after them.
    pub(super) async fn once(&self, steps: Vec<(String, Vec<Value>)>) -> StoreResult<()> {
        let mut conn = self.connect().await?;
        for (sql, params) in steps {
            let done = if params.is_empty() {
                // Not everything can be prepared.
                conn.query_drop(sql).await
            } else {
                conn.exec_drop(sql, params).await
            };
            done.map_err(error)?;
        }
        let _ = conn.disconnect().await;
        Ok(())
    }
}

async fn rows(conn: &mut Conn, sql: &str, params: Vec<Value>) -> mysql_async::Result<Vec<Row>> {
    let params = if params.is_empty() { Params::Empty } else { Params::Positional(params) };
    let mut answer = conn.exec_iter(sql, params).await?;
    let mut rows = Vec::new();
    while !answer.is_empty() {
        rows.extend(answer.collect::<Row>().await?);
    }
    Ok(rows)
}

/// The number of the server's error, if it is one.
pub(super) fn code(e: &StoreError) -> Option<u16> {
    let source = e.source.as_ref()?.downcast_ref::<ServerError>()?;
    Some(source.code)
}

/// A deadlock, a wait for a row that was too long, a row that has changed meanwhile: the
/// transaction was rolled back, and nothing keeps the next attempt from succeeding.
fn is_turned_back(code: u16) -> bool {
    matches!(code, 1213 | 1205 | 1020 | 3572)
}

/// The server ends the connection, by shutdown or by somebody's KILL; what it did before is unknown.
fn is_farewell(e: &ServerError) -> bool {
    matches!(e.code, 1053 | 1077 | 1079 | 1152 | 1158..=1161 | 1184 | 1317 | 1927 | 3169 | 4031)
}

/// What an error of a request means to us.
pub(super) fn error(e: mysql_async::Error) -> StoreError {
    match e {
        mysql_async::Error::Server(e) if !is_farewell(&e) => refused(e),
        e => lost(e),
    }
}

fn lost(e: mysql_async::Error) -> StoreError {
    let what = "the connection broke";
    StoreError::unknown(KIND, Trouble::Unavailable, what).because(e)
}

/// What the server's refusal means to us. The procedures roll back whatever fails in them.
fn refused(e: ServerError) -> StoreError {
    let (trouble, hint) = match e.code {
        code if is_turned_back(code) => (Trouble::Unavailable, "; others are in the way"),
        // Too many connections, or the procedures are just being made anew.
        1040 | 1203 | 1226 | 1129 | 1305 => (Trouble::Unavailable, ""),
        1290 | 1792 | 1836 => (Trouble::Unavailable, "; the server is read-only: is it a replica?"),
        1114 | 1021 | 1041 => (Trouble::Unavailable, "; the server has no room left"),
        1044 | 1045 | 1142 | 1143 | 1227 | 1370 | 1698 => (
            Trouble::Denied,
            "; its user needs a password that fits, and SELECT, INSERT, UPDATE, \
                 DELETE and EXECUTE on the database",
        ),
        1049 => (Trouble::Misconfigured, "; create the database first"),
        1146 => (Trouble::Misconfigured, "; its tables are gone"),
        1665 => (Trouble::Misconfigured, "; set binlog_format to ROW or MIXED"),
        _ => (Trouble::Other, ""),
    };
    let what = format!("the server refuses: {}{hint}", e.message);
    StoreError::not_applied(KIND, trouble, what).because(e)
}
