//! PostgreSQL ≥ 13: a lock where the data already is.
//!
//! | idea | here |
//! |---|---|
//! | line | a row with its first ticket; the tickets behind it are rows of their own |
//! | session | a row with its end |
//! | hint | `LISTEN` on one channel for each process; the message carries ticket and fence |
//! | fence | more than all numbers of the line, and at least the server's clock in µs, drawn under the line's row lock |
//!
//! | operation | round trips | file |
//! |---|---|---|
//! | connect | 2, beside those of the server's handshake; more where the schema has to be made | `connection`, `schema` |
//! | open, renew | 1 | `session` |
//! | enter | 1; 2 if the line is new, or was taken to be free and is not | `enter` |
//! | leave | 1; 2 if the ticket is gone or a transaction has checked its fence | `leave` |
//! | evict | 1, and 1 if the ticket waits in another process | `leave` |
//! | poll | 1, and 1 for each ticket whose line has come due; 1 more for all tickets of a session | `poll` |
//! | list, check, read, write, `set_label` | 1 | `inspect`, `cells` |
//! | close | 2, and 1 for every 20 lines with tickets of the session | `session`, `sweep` |
//! | a hand-over to another process | 1 more, after the answer to the release | `notify` |
//!
//! A statement that a connection sends for the second time takes one more, because it is prepared then.
//!
//! The operations are functions in the database, beside this file as `.sql`, and documented for users
//! of other languages in `docs/sql.md`. A free lock is taken and released by plain statements that do the
//! same with less (`common/fast_path.rs` says when). A release hands the lock to the next ticket in its own
//! transaction. `docs/design/postgres.md` has the decisions and their reasons.
//!
//! Three connections for each handle, however many locks: one for requests; one for renewals, so that
//! nothing that a request waits for can cost a session its life; and one to listen, made when first needed.
//! Behind a pooler that lends connections for one transaction (pgbouncer), which the store recognizes, nothing
//! is prepared and nothing listens: waiters poll.
//!
//! Time is the server's, read after the wait for the line. A server whose clock is set forward ends
//! sessions early, and one whose clock is set back keeps dead sessions for longer.

mod advice;
mod blocked_lines;
mod cells;
mod config;
mod connection;
mod enter;
mod error;
mod inspect;
mod known_tickets;
mod leave;
mod notify;
mod poll;
mod reply;
mod rights;
mod schema;
mod session;
mod statements;
mod sweep;
mod tx;

/// The client whose transactions [`lock_in`] and [`fence_check`] take.
pub use tokio_postgres;
pub use tx::{Schema, fence_check, lock_in};

use super::{
    Advice, Attach, Capabilities, Cell, Claim, Edit, Edited, Enter, Entered, Hints, Leave, Left,
    ListScope, Open, PollScope, Renewal, Store, StoreId, StoreResult, Terms, TicketStatus,
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
};
use blocked_lines::BlockedLines;
use config::Config;
use connection::{Connection, SILENCE, SILENCE_OF_RENEWALS, Values};
use known_tickets::KnownTickets;
use notify::Sinks;
use statements::{Call, Statements};
use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicI32, AtomicU64, Ordering},
    },
};
use tokio_postgres::Row;

pub(crate) const KIND: &str = "postgres";

/// The statements that make the schema of this URL.
pub(super) fn migration(url: &mut StoreUrl) -> Result<String> {
    Ok(schema::printed(&Config::read(url)?.schema))
}

/// Lines in PostgreSQL.
pub struct Postgres(Arc<Shared>);

/// What a handle shares with its background tasks.
struct Shared {
    /// The identity of the data that was behind the URL when a session was last opened.
    id: AtomicU64,
    clock: Clock,
    server_clock: ServerClock,
    statements: Statements,
    requests: Connection,
    renewals: Connection,
    listener: Connection,
    pooled: bool,
    schema: String,
    create: bool,
    /// The channel on which this process listens.
    channel: String,
    sinks: Arc<Sinks>,
    tickets: KnownTickets,
    blocked: BlockedLines,
    duplicates: Duplicates,
    fast: FastPath,
    /// The schema's layout, as the last renewal told it.
    layout: AtomicI32,
    /// The history of the server's data, as the last renewal told it.
    history: AtomicU64,
    /// The connection for which a release was prepared, by the number of those that broke before it.
    warmed: AtomicU64,
    /// How many renewals there were, of all sessions together.
    renewed: AtomicU64,
    /// Locked while a sweep is running.
    sweeping: Arc<tokio::sync::Mutex<()>>,
}

impl Postgres {
    /// Connects, and makes the tables and functions if they are not there.
    pub(super) async fn connect(mut url: StoreUrl) -> Result<Self> {
        let config = Arc::new(Config::read(&mut url)?);
        Ok(Self(Arc::new(Shared::connect(config, Clock::system()).await?)))
    }
}

impl Shared {
    async fn connect(config: Arc<Config>, clock: Clock) -> StoreResult<Self> {
        let statements = Statements::new(&schema::quoted(&config.schema));
        let sinks = Arc::<Sinks>::default();
        let connection = |silence, on_push| {
            Connection::new(Arc::clone(&config), clock.clone(), silence, on_push)
        };
        let requests = connection(SILENCE, None);
        let pooled = requests.is_pooled().await?;
        let (schema, create) = (config.schema.clone(), config.create);
        let (id, now) = match schema::find(&requests, &statements, create).await? {
            Some((id, now)) => (id, Some(now)),
            None => {
                advice::refuse(&requests, &statements).await?;
                match schema::ensure(&requests, &statements, &clock, &schema, create).await {
                    Ok(id) => (id, None),
                    Err(e) => return Err(rights::explain(e, &requests, &statements, &schema).await),
                }
            }
        };
        let store = Self {
            id: AtomicU64::new(u64::from_be_bytes(id.0)),
            statements,
            requests,
            renewals: connection(SILENCE_OF_RENEWALS, None),
            listener: connection(SILENCE, Some(sinks.push_handler())),
            server_clock: ServerClock::new(clock.clone()),
            clock,
            pooled,
            schema,
            create,
            channel: format!("lk_{:016x}", rand::random::<u64>()),
            sinks,
            tickets: KnownTickets::default(),
            blocked: BlockedLines::default(),
            duplicates: Duplicates::default(),
            fast: FastPath::default(),
            layout: AtomicI32::new(schema::LAYOUT),
            history: AtomicU64::new(0),
            warmed: AtomicU64::new(0),
            renewed: AtomicU64::new(0),
            sweeping: Arc::default(),
        };
        let now = match now {
            Some(now) => now,
            None => reply::scalar(&store.ask(&store.statements.clock, &[]).await?)?,
        };
        store.server_clock.set(now);
        Ok(store)
    }

    async fn ask(&self, call: &Call, values: Values<'_>) -> StoreResult<Vec<Row>> {
        self.requests.call(call, values, Repeat::Always).await
    }

    /// Changes whenever a connection breaks.
    fn breaks(&self) -> u64 {
        self.requests.breaks().wrapping_add(self.renewals.breaks())
    }

    /// Has the schema a newer layout than ours? Its functions take and answer what ours do, but our plain statements
    /// may not know all that its tables have.
    fn is_outdated(&self) -> bool {
        self.layout.load(Ordering::Relaxed) > schema::LAYOUT
    }

    async fn advice(&self) -> StoreResult<Vec<Advice>> {
        advice::collect(&self.requests, &self.statements, &self.clock, &self.schema).await
    }
}

impl Store for Postgres {
    fn scheme(&self) -> &'static str {
        KIND
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            durable: true,
            wakes: !self.0.pooled,
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
        self.0.advice().await
    }

    async fn attach(&self, ask: Attach) -> StoreResult<()> {
        self.0.attach(&ask);
        Ok(())
    }

    fn forget(&self, session: SessionId) {
        self.0.forget(session);
    }

    fn native(&self, claim: &Claim) -> Vec<(&'static str, String)> {
        inspect::native(claim)
    }
}

impl fmt::Debug for Postgres {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Postgres({})", self.id())
    }
}
