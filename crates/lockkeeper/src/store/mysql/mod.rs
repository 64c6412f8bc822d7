//! MySQL ≥ 8 and MariaDB ≥ 10.6; the tests run on MySQL 9.7 and MariaDB 10.11.
//!
//! | idea | here |
//! |---|---|
//! | line | a ticket that came while the line was empty in the name's row in `lk_gate`, all others in rows of `lk_ticket`, where they stay when they are granted; a request that changes more than the first ticket locks the name's row in `lk_line` |
//! | session | a row with its end, on the server's clock |
//! | hint | one query for all waiters of this process, frequent while locks move |
//! | fence | max(the line's last + 1, the server's clock in µs), drawn under the line's lock |
//!
//! | operation | round trips | file |
//! |---|---|---|
//! | open, renew | 1 | `session` |
//! | enter | 1; 2 if the lock was taken to be free and is not | `enter` |
//! | leave | 1; 2 if other tickets are in the line and this process did not know | `leave` |
//! | evict | 1 | `leave` |
//! | poll | 1 for every 64 tickets; 1 more for all tickets of a session | `poll` |
//! | check, read, write, `set_label` | 1 | `inspect`, `cells` |
//! | list | 1 for one name; 2 for a page of names, and 1 to see that there are no more | `inspect` |
//! | close | 1, and more while the session has many tickets | `session` |
//! | a hand-over | 1 query by the waiter's process, every 2 to 50 ms | `watch` |
//!
//! A free lock is taken and released by one plain statement each (`common/fast_path.rs` says when). The other
//! operations are procedures in the database, in the `.sql` files beside this one, made when a store is first
//! connected to. `docs/design/mysql.md` has the decisions and their reasons. Time is the server's, read after every
//! wait for a lock. A leave hands the lock to the next ticket in its own transaction; the waiter finds the grant by
//! its process's query.
//!
//! Four connections for each handle, however many locks: two for requests, one for renewals, one to watch.
//!
//! Which promise fails when: a server that loses its last transactions in a crash
//! (`innodb_flush_log_at_trx_commit` ≠ 1) or in a failover to an asynchronous replica forgets locks
//! whose holders live on; fences go on from the server's clock. A server's clock that is set forward
//! ends sessions early.

mod advice;
mod cells;
mod config;
mod connection;
mod enter;
mod error;
mod inspect;
mod leave;
mod poll;
mod reply;
mod rights;
mod schema;
mod session;
mod statements;
mod sweep;
mod tx;
mod watch;

/// The client whose transactions [`lock_in`] and [`fence_check`] take.
pub use mysql_async;
pub use tx::{Procedures, fence_check, lock_in};

use super::{
    Advice, Capabilities, Cell, Claim, Edit, Edited, Enter, Entered, Hints, Leave, Left, ListScope,
    Open, PollScope, Renewal, Store, StoreId, StoreResult, Terms, TicketStatus,
    common::{
        duplicates::Duplicates, fast_path::FastPath, repeat::Repeat, server_clock::ServerClock,
    },
    url::StoreUrl,
};
use crate::{
    clock::Clock,
    error::{Result, StoreError},
    model::{
        line::Line,
        name::Name,
        ticket::{SessionId, TicketId},
    },
    sync::Mutex,
};
use config::Config;
use connection::Connections;
use mysql_async::{Row, Value};
use reply::{field, one};
use session::ServerProcess;
use statements::{Server, Statements};
use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};
use sweep::LastSweep;
use watch::Watch;

pub(crate) const KIND: &str = "mysql";

/// The statements that make what a store of this URL needs, for the `mariadb` or `mysql` client.
pub(super) fn migration(url: &mut StoreUrl) -> Result<String> {
    Ok(schema::printed(&Config::read(url)?.prefix))
}

/// Lines in MySQL or MariaDB.
pub struct Mysql(Arc<Shared>);

/// What a handle shares with its background tasks.
struct Shared {
    /// The identity of the data, which may be replaced while we are connected.
    id: AtomicU64,
    clock: Clock,
    server_clock: ServerClock,
    connections: Connections,
    statements: Statements,
    prefix: String,
    create: bool,
    /// The server that has answered the last renewal, and how often it was another than before.
    server: Mutex<Option<ServerProcess>>,
    servers: AtomicU64,
    /// A newer lockkeeper has replaced the procedures since we connected.
    outdated: AtomicBool,
    watch: Watch,
    fast: FastPath,
    duplicates: Duplicates,
    /// How many renewals there were, of all sessions together.
    renewed: AtomicU64,
    /// Locked while a sweep is running.
    sweeping: Arc<tokio::sync::Mutex<LastSweep>>,
}

impl Mysql {
    /// Connects, and makes the tables and procedures if they are not there.
    pub(super) async fn connect(mut url: StoreUrl) -> Result<Self> {
        let config = Config::read(&mut url)?;
        Ok(Self(Arc::new(Shared::connect(config, Clock::system()).await?)))
    }
}

impl Shared {
    async fn connect(config: Config, clock: Clock) -> StoreResult<Self> {
        let Config { opts, prefix, create } = config;
        let connections = Connections::new(opts, clock.clone());
        connections.first().await?;
        let (sql, repeat) = ("SELECT VERSION() AS version", Repeat::IfNotApplied);
        let call = connections.call(&connections.requests, sql, Vec::new(), repeat);
        let version: String = field(&one(call.await?)?, "version")?;
        advice::refuse_old(&version)?;
        let server = Server::of(&version);
        let ensured = schema::ensure(&connections, &clock, &prefix, create).await;
        let id = rights::check(&connections, &prefix, ensured).await?;
        Ok(Self {
            id: AtomicU64::new(u64::from_be_bytes(id.0)),
            server_clock: ServerClock::new(clock.clone()),
            clock,
            connections,
            statements: Statements::new(&prefix, server),
            prefix,
            create,
            server: Mutex::default(),
            servers: AtomicU64::new(0),
            outdated: AtomicBool::new(false),
            watch: Watch::default(),
            fast: FastPath::default(),
            duplicates: Duplicates::default(),
            renewed: AtomicU64::new(0),
            sweeping: Arc::default(),
        })
    }

    async fn ask(&self, sql: &str, params: Vec<Value>) -> StoreResult<Vec<Row>> {
        self.connections.call(&self.connections.requests, sql, params, Repeat::Always).await
    }

    /// Has the database a newer layout than ours? Its procedures take and answer what ours do, but our plain
    /// statements may not know all that its tables have.
    fn is_outdated(&self) -> bool {
        self.outdated.load(Ordering::Acquire)
    }
}

impl Store for Mysql {
    fn scheme(&self) -> &'static str {
        KIND
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            durable: true,
            renewal_shows_tickets: true,
            waiters_end_at_ttl: true,
            ..Capabilities::LINES
        }
    }

    fn id(&self) -> StoreId {
        StoreId(self.0.id.load(Ordering::Acquire).to_be_bytes())
    }

    async fn open(&self, ask: Open) -> StoreResult<Terms> {
        self.0.open(ask).await
    }

    async fn renew(&self, session: SessionId) -> StoreResult<Renewal> {
        self.0.renew(session).await
    }

    async fn close(&self, session: SessionId) -> StoreResult<()> {
        self.0.close(session).await
    }

    async fn enter(&self, ask: Enter) -> StoreResult<Entered> {
        self.0.enter(ask).await
    }

    async fn poll(
        &self,
        session: SessionId,
        which: PollScope,
    ) -> StoreResult<Vec<(Name, TicketId, TicketStatus)>> {
        self.0.poll(session, which).await
    }

    async fn hints(&self, session: SessionId, sink: Arc<dyn Hints>) -> StoreError {
        self.0.hints(session, sink).await
    }

    async fn leave(&self, ask: Leave) -> StoreResult<Left> {
        self.0.leave(ask).await
    }

    async fn set_label(&self, edit: Edit) -> StoreResult<Edited> {
        self.0.set_label(edit).await
    }

    async fn list(&self, which: ListScope) -> StoreResult<Vec<Line>> {
        self.0.list(which).await
    }

    async fn check(&self, claim: Claim) -> StoreResult<bool> {
        self.0.check(claim).await
    }

    async fn read(&self, name: Name) -> StoreResult<Option<Cell>> {
        self.0.read(name).await
    }

    async fn write(&self, edit: Edit) -> StoreResult<Edited> {
        self.0.write(edit).await
    }

    async fn write_under(&self, claim: Claim, bytes: Vec<u8>) -> StoreResult<Edited> {
        self.0.write_under(claim, bytes).await
    }

    async fn evict(&self, name: Name, ticket: TicketId) -> StoreResult<bool> {
        self.0.evict(name, ticket).await
    }

    async fn advice(&self) -> StoreResult<Vec<Advice>> {
        advice::collect(&self.0.connections, &self.0.clock).await
    }

    fn forget(&self, session: SessionId) {
        self.0.forget(session);
    }

    fn native(&self, claim: &Claim) -> Vec<(&'static str, String)> {
        self.0.native(claim)
    }
}

impl fmt::Debug for Mysql {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Mysql({})", self.id())
    }
}
