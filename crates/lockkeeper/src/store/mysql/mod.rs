//! MySQL and MariaDB; the tests run on MySQL 9.7 and MariaDB 10.11.
//!
//! | idea | here |
//! |---|---|
//! | line | the first ticket in the name's row in `lk_gate`, the others in rows of their own; who changes more than the first has the name's row in `lk_line` locked |
//! | session | a row with its end, in the server's clock |
//! | hint | one query for all who wait in this process, often while things move |
//! | fence | max(the line's last + 1, the server's clock in µs), drawn under the line's lock |
//! | round trips | enter, leave, renew, poll (for 64 tickets): one each |
//! | connections | four: two for lines, one for renewals, one to watch |
//!
//! A lock that nobody else wants is taken by one plain statement and released by one (`store/fast.rs`). The other
//! operations are procedures in the database, in the `.sql` files beside this one, made when a
//! store is first connected to. Time is the server's alone, read after every wait for a lock. A leave
//! hands the lock to the next ticket in its own transaction; the waiter finds the grant by looking.
//!
//! Which promise fails when: a server that loses its last transactions in a crash
//! (`innodb_flush_log_at_trx_commit` ≠ 1) or in a failover to an asynchronous replica forgets locks
//! whose holders live on; fences go on from the server's clock. A server's clock that is set forward
//! ends sessions early.

mod advice;
pub(super) mod config;
mod connection;
mod enter;
mod error;
mod hot_names;
mod inspect;
mod leave;
mod reply;
mod rights;
mod schema;
mod statements;
mod sweep;
mod tx;
mod watch;

pub(super) use config::migration;
pub use tx::{Procedures, fence_check, lock_in};

use super::{
    Advice, Capabilities, Cell, Claim, Edit, Edited, Enter, Entered, Hints, Leave, Left, ListScope,
    Manner, Open, PollScope, Renewal, STRAY_MAX, Store, StoreId, StoreResult, Terms, TicketDigest,
    TicketStatus, common::duplicates::Duplicates, common::fast_path::FastPath,
};
use crate::{
    clock::Clock,
    error::{Outcome, StoreError},
    model::{
        line::Line,
        name::Name,
        ticket::{Place, SessionId, TicketId},
    },
    sync::Mutex,
};
use config::Plan;
use connection::Link;
use connection::Text;
use hot_names::Often;
use mysql_async::{Row, Value};
use reply::{field, one, what};
use statements::{Server, Statements};
use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering},
    },
    time::Duration,
};
use sweep::Sweep;
use watch::Watch;

pub(crate) const KIND: &str = "mysql";

/// For how long an idle line's last number is kept: longer than clocks may differ.
const IDLE: Duration = Duration::from_secs(24 * 3600);
/// No request takes effect later than this after it was sent.
const PATIENCE: Duration = STRAY_MAX.checked_div(2).expect("two is not zero");
/// With every so many renewals idle lines are looked for, though nothing else is to be swept.
const SWEEP: u64 = 16;
/// By so many microseconds two answers of one server may differ about its start, which it tells in seconds.
const START_DOUBT: u64 = 3_000_000;
/// How many tickets one poll asks for, so that others get their turn.
const POLL: usize = 64;

/// Lines in MySQL or MariaDB.
pub struct Mysql {
    /// The identity of the data, which may be replaced under our feet.
    id: AtomicU64,
    clock: Clock,
    link: Arc<Link>,
    sql: Statements,
    prefix: String,
    /// May the tables be made?
    create: bool,
    /// Which server has answered the last renewal, and how often it was another than before.
    answering: Mutex<Option<Answering>>,
    servers: AtomicU64,
    /// A newer lockkeeper has made the procedures anew since we connected.
    outdated: AtomicBool,
    /// The server's clock less ours, in microseconds, as last seen.
    offset: AtomicI64,
    watch: Watch,
    fast: FastPath,
    often: Often,
    doubts: Duplicates,
    renewals: AtomicU64,
    sweep: Sweep,
}

/// A server, as a renewal's answer shows it.
struct Answering {
    name: String,
    /// In microseconds since 1970, give or take a second.
    started: i64,
}

impl Answering {
    fn of(row: &Row) -> StoreResult<Self> {
        Ok(Self { name: field(row, "server")?, started: field(row, "started")? })
    }

    /// The same process as the other one?
    fn is(&self, other: &Self) -> bool {
        self.name == other.name && self.started.abs_diff(other.started) <= START_DOUBT
    }
}

fn micros(duration: Duration) -> i64 {
    i64::try_from(duration.as_micros()).unwrap_or(i64::MAX)
}

/// Bytes as a parameter.
fn bytes(bytes: impl AsRef<[u8]>) -> Value {
    Value::Bytes(bytes.as_ref().to_vec())
}

impl Mysql {
    async fn over(plan: Plan, clock: Clock) -> StoreResult<Self> {
        let Plan { opts, prefix, create } = plan;
        let link = Arc::new(Link::new(opts, clock.clone()));
        link.begin().await?;
        for advice in advice::of(&link, &clock).await? {
            tracing::warn!(%advice, "the database server's set-up");
        }
        let prepared = schema::prepare(&link, &prefix, create).await;
        let id = rights::check(&link, &prefix, prepared).await?;
        let version =
            one(link.ask(link.lines(), "SELECT VERSION() AS version", Vec::new()).await?)?;
        let server = Server::of(&field::<String>(&version, "version")?);
        let sql = Statements::new(&prefix, server);
        Ok(Self {
            id: AtomicU64::new(u64::from_be_bytes(id.0)),
            sweep: Sweep::new(&link, &clock, &sql.sweep),
            clock,
            link,
            sql,
            prefix,
            create,
            answering: Mutex::default(),
            servers: AtomicU64::new(0),
            outdated: AtomicBool::new(false),
            offset: AtomicI64::new(0),
            watch: Watch::default(),
            fast: FastPath::default(),
            often: Often::default(),
            doubts: Duplicates::default(),
            renewals: AtomicU64::new(0),
        })
    }

    /// Asks for what can be asked for twice.
    async fn insist(&self, sql: impl Into<Text<'_>>, params: Vec<Value>) -> StoreResult<Vec<Row>> {
        Ok(self.link.insist(self.link.lines(), sql, params).await?.rows)
    }

    /// Notes whose data has answered; says whether it is that of before.
    fn same_store(&self, row: &Row) -> StoreResult<bool> {
        let store: Vec<u8> = field(row, "store")?;
        let store = <[u8; 8]>::try_from(store).map_err(|_| reply::nonsense())?;
        let store = u64::from_be_bytes(store);
        Ok(self.id.swap(store, Ordering::AcqRel) == store)
    }

    /// Notes which server has answered a renewal. If it is another than before, behind a proxy or under
    /// the same name, or has been started anew, it may not have what was written last.
    fn meet(&self, row: &Row) -> StoreResult<()> {
        let now = Answering::of(row)?;
        let mut last = self.answering.lock();
        if last.as_ref().is_some_and(|last| !last.is(&now)) {
            self.servers.fetch_add(1, Ordering::AcqRel);
            // The other connections may still lead to the server of before.
            self.link.broke();
        }
        *last = Some(now);
        Ok(())
    }

    /// Notes of which layout the procedures are now. Those of a newer one take and answer what they did before,
    /// but our own statements may not know all that it has.
    fn note_layout(&self, row: &Row) -> StoreResult<()> {
        let layout: i64 = field(row, "layout")?;
        let outdated = layout > schema::LAYOUT;
        if outdated && !self.outdated.swap(true, Ordering::AcqRel) {
            tracing::warn!(layout, "a newer lockkeeper has brought the tables up to date");
        }
        Ok(())
    }

    fn local_micros(&self) -> i64 {
        i64::try_from(self.clock.now().as_micros()).unwrap_or(0)
    }

    /// Remembers what the server's clock says.
    fn set_clock(&self, server: i64) {
        self.offset.store(server - self.local_micros(), Ordering::Relaxed);
    }

    /// The server's clock, as far as we can tell.
    fn server_micros(&self) -> i64 {
        self.local_micros() + self.offset.load(Ordering::Relaxed)
    }

    /// How these tickets of a session stand, in one round trip.
    async fn stands(
        &self,
        session: SessionId,
        tickets: &[(Name, TicketId)],
    ) -> StoreResult<Vec<TicketStatus>> {
        let mut list = Vec::new();
        for (name, ticket) in tickets {
            let length = u16::try_from(name.as_str().len()).unwrap_or(0);
            list.extend(length.to_be_bytes());
            list.extend(name.as_str().as_bytes());
            list.extend(ticket.to_bytes());
        }
        let params = vec![bytes(session.to_bytes()), bytes(list)];
        let rows = self.insist(&self.sql.poll, params).await?;
        if rows.len() != tickets.len() {
            return Err(reply::nonsense());
        }
        rows.iter().map(reply::stand).collect()
    }

    async fn all(&self, session: SessionId) -> StoreResult<Vec<(Name, TicketId, u64)>> {
        let params = vec![bytes(session.to_bytes()), bytes(session.to_bytes())];
        let rows = self.insist(&self.sql.all, params).await?;
        let mut all = Vec::with_capacity(rows.len());
        for row in rows {
            // A name that is none was written by nobody of ours; it is left alone.
            if let Some(name) = name(&field::<Vec<u8>>(&row, "name")?) {
                let ticket = reply::ticket_id(field(&row, "id")?)?;
                all.push((name, ticket, reply::fence(&row)?));
            }
        }
        Ok(all)
    }

    async fn edit(&self, cell: bool, edit: Edit) -> StoreResult<Edited> {
        let Place { session, name, ticket } = edit.place;
        let params = vec![
            bytes(name.as_str()),
            bytes(ticket.to_bytes()),
            bytes(session.to_bytes()),
            u8::from(cell).into(),
            edit.edit.into(),
            edit.bytes.map_or(Value::NULL, Value::Bytes),
        ];
        let row = one(self.insist(&self.sql.edit, params).await?)?;
        match what(&row)?.as_str() {
            "done" => Ok(Edited::Done),
            "lost" => Ok(Edited::NotHeld),
            "pinned" => Err(reply::pinned()),
            _ => Err(reply::nonsense()),
        }
    }
}

fn name(bytes: &[u8]) -> Option<Name> {
    std::str::from_utf8(bytes).ok().and_then(|name| Name::new(name).ok())
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
        StoreId(self.id.load(Ordering::Acquire).to_be_bytes())
    }

    async fn open(&self, ask: Open) -> StoreResult<Terms> {
        let Open { session, ttl, lock_delay, owner } = ask;
        let params = vec![
            bytes(session.to_bytes()),
            micros(ttl).into(),
            micros(lock_delay).into(),
            bytes(owner.host),
            owner.pid.into(),
            bytes(owner.program),
        ];
        let (sent, breaks) = (self.clock.now(), self.link.breaks());
        let opened = match self.link.ask(self.link.lines(), &self.sql.open, params.clone()).await {
            // The database was emptied, or somebody is just making its procedures anew.
            Err(e) if error::is_missing(&e) => {
                schema::prepare(&self.link, &self.prefix, self.create).await?;
                self.insist(&self.sql.open, params).await?
            }
            Err(e) if e.is_transient() => self.insist(&self.sql.open, params).await?,
            opened => opened?,
        };
        let row = one(opened)?;
        self.set_clock(field(&row, "now")?);
        self.same_store(&row)?;
        if field(&row, "is_over")? {
            return Err(StoreError::session_over(KIND));
        }
        self.fast.lives(session, field(&row, "expires")?, sent, breaks);
        Ok(Terms::new(reply::duration(&row, "ttl")?, reply::duration(&row, "delay")?))
    }

    async fn renew(&self, session: SessionId) -> StoreResult<Renewal> {
        // Before the renewal: the next plain statement must not go by a connection that was made since.
        let (sent, breaks) = (self.clock.now(), self.link.breaks());
        let params = vec![bytes(session.to_bytes())];
        let renewed = self.link.insist(self.link.renewals(), &self.sql.renew, params).await?;
        let row = one(renewed.rows)?;
        self.set_clock(field(&row, "now")?);
        if !self.same_store(&row)? || !field::<bool>(&row, "lives")? {
            self.fast.forget(session);
            return Ok(Renewal::Lost);
        }
        self.meet(&row)?;
        self.note_layout(&row)?;
        self.fast.lives(session, field(&row, "expires")?, sent, breaks);
        let turn = self.renewals.fetch_add(1, Ordering::Relaxed) % SWEEP == SWEEP - 1;
        if turn || field(&row, "leftovers")? {
            self.sweep.begin();
        }
        let evictions: u64 = field(&row, "evictions")?;
        let version = (self.servers.load(Ordering::Acquire) << 32).wrapping_add(evictions);
        let tickets =
            TicketDigest { count: field(&row, "tickets")?, sum: field(&row, "ticket_sum")? };
        Ok(Renewal::Renewed { version, tickets: Some(tickets) })
    }

    async fn close(&self, session: SessionId) -> StoreResult<()> {
        self.watch.forget(session);
        self.fast.forget(session);
        let mut before = u64::MAX;
        loop {
            let params = vec![bytes(session.to_bytes()), micros(STRAY_MAX).into()];
            let row = one(self.insist(&self.sql.close, params).await?)?;
            let left: u64 = field(&row, "tickets")?;
            // What a user's transaction keeps from going is left to the sweep.
            if left == 0 || left >= before {
                break;
            }
            before = left;
        }
        self.sweep.at_the_end().await;
        Ok(())
    }

    async fn enter(&self, ask: Enter) -> StoreResult<Entered> {
        match self.enter_first(&ask).await {
            Ok(Some(fence)) => return Ok(Entered::Granted { fence }),
            Ok(None) => {}
            // The procedure finds out what has become of it.
            Err(e) if e.is_transient() && e.outcome == Outcome::Unknown => {
                self.doubts.note(&ask.place);
            }
            Err(e) if e.is_transient() => {}
            Err(e) => return Err(e),
        }
        let entered = Box::pin(self.enter_line(&ask)).await;
        match &entered {
            Ok(Entered::Queued(_)) => self.watch.waits(ask.place.session, ask.place.ticket),
            // A copy that got no answer may come when the lock is free, so the ticket is closed: whoever
            // comes again does so with another. What cannot be closed now is left to the caller.
            Ok(Entered::Busy(_)) if self.doubts.has(ask.place.ticket) => {
                let leave = Leave { place: ask.place.clone(), keep: None, stray: true };
                if Box::pin(self.leave_line(leave)).await.is_ok() {
                    return entered;
                }
            }
            _ => {}
        }
        self.doubts.tell(KIND, ask.place.ticket, entered)
    }

    async fn poll(
        &self,
        session: SessionId,
        which: PollScope,
    ) -> StoreResult<Vec<(Name, TicketId, TicketStatus)>> {
        let (mut stands, mut waiting) = (Vec::new(), Vec::new());
        match which {
            PollScope::These(tickets) => waiting = tickets,
            PollScope::All => {
                for (name, ticket, fence) in self.all(session).await? {
                    match fence {
                        0 => waiting.push((name, ticket)),
                        fence => stands.push((name, ticket, TicketStatus::Granted { fence })),
                    }
                }
            }
        }
        for some in waiting.chunks(POLL) {
            let answers = self.stands(session, some).await?;
            for ((name, ticket), stand) in some.iter().zip(answers) {
                // One that waits is looked for since its enter, unless it has been left meanwhile.
                if !matches!(stand, TicketStatus::Waiting(_)) {
                    self.watch.waits_no_more(*ticket);
                }
                stands.push((name.clone(), *ticket, stand));
            }
        }
        Ok(stands)
    }

    async fn hints(&self, session: SessionId, to: Arc<dyn Hints>) -> StoreError {
        self.watch.tell(session, Arc::clone(&to));
        to.recheck(None);
        self.watch.look(self).await
    }

    async fn leave(&self, ask: Leave) -> StoreResult<Left> {
        self.watch.waits_no_more(ask.place.ticket);
        let ask = Leave { stray: ask.stray || self.doubts.has(ask.place.ticket), ..ask };
        if self.leave_first(&ask).await? {
            return Ok(Left::Released);
        }
        Box::pin(self.leave_line(ask)).await
    }

    async fn set_label(&self, edit: Edit) -> StoreResult<Edited> {
        self.edit(false, edit).await
    }

    async fn list(&self, which: ListScope) -> StoreResult<Vec<Line>> {
        inspect::look(&self.link, &self.prefix, which).await
    }

    async fn check(&self, claim: Claim) -> StoreResult<bool> {
        let (name, ticket) = (bytes(claim.name.as_str()), bytes(claim.ticket.to_bytes()));
        let params = vec![
            name.clone(),
            name,
            ticket.clone(),
            ticket,
            claim.fence.into(),
            claim.mode.weight().into(),
            claim.mode.capacity().into(),
        ];
        let row = one(self.insist(&self.sql.check, params).await?)?;
        field(&row, "held")
    }

    async fn read(&self, name: Name) -> StoreResult<Option<Cell>> {
        let params = vec![bytes(name.as_str())];
        let rows = self.insist(&self.sql.read, params).await?;
        let Some(row) = rows.first() else { return Ok(None) };
        Ok(Some(Cell { bytes: field(row, "bytes")?, fence: reply::fence(row)? }))
    }

    async fn write(&self, edit: Edit) -> StoreResult<Edited> {
        self.edit(true, edit).await
    }

    async fn evict(&self, name: Name, ticket: TicketId) -> StoreResult<bool> {
        let params = vec![bytes(name.as_str()), bytes(ticket.to_bytes())];
        let reply = self.link.insist(self.link.lines(), &self.sql.evict, params).await?;
        match what(&one(reply.rows)?)?.as_str() {
            "evicted" => Ok(true),
            // By a copy that got no answer, as far as anybody can tell.
            "gone" => Ok(reply.doubled),
            "pinned" => Err(reply::pinned()),
            _ => Err(reply::nonsense()),
        }
    }

    async fn advice(&self) -> StoreResult<Vec<Advice>> {
        advice::of(&self.link, &self.clock).await
    }

    fn forget(&self, session: SessionId) {
        self.watch.forget(session);
        self.fast.forget(session);
        self.doubts.forget(session);
    }

    fn native(&self, claim: &Claim) -> Vec<(&'static str, String)> {
        vec![
            ("tables", format!("{0}_gate, {0}_ticket", self.prefix)),
            ("name", claim.name.to_string()),
            ("id", claim.ticket.to_string()),
            ("fence", claim.fence.to_string()),
        ]
    }
}

impl fmt::Debug for Mysql {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Mysql({})", self.id())
    }
}
