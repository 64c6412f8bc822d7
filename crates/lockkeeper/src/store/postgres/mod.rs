//! PostgreSQL ≥ 13: a lock where the data already is.
//!
//! | idea | here |
//! |---|---|
//! | line | a row with its first ticket; the tickets behind it are rows of their own |
//! | session | a row with its end |
//! | hint | `LISTEN` on one channel for each process; the message carries ticket and fence |
//! | fence | more than all numbers of the line, and at least the server's clock in µs, drawn under the line's row lock |
//! | round trips | open, renew, enter, leave, poll, check, cells: one call each (enter: two if others have come to a line that was free, or it is new; leave: two if the ticket is gone or its fence is being checked) |
//!
//! The operations are functions in the database, beside this file as `.sql`, and documented for users
//! of other languages in `docs/sql.md`. A free lock is taken and left by plain statements that do the
//! same with less; the one that takes it rests on what was said of the session a moment ago (`store/fast.rs`). A release hands the lock to the next ticket in its own
//! transaction. The message to the waiter is sent after the commit, because a transaction that
//! notifies holds up all others that do while it reaches the disk; a message that is lost costs one
//! re-check. Who waits in the same process is told without a message.
//!
//! A renewal carries the names of the session's tickets and answers with what the lines have there, and with the
//! identity and history of the server that answered: a few microseconds for each ticket. When one of them is not
//! as before, all tickets are polled, so nothing is inferred from connections.
//!
//! Three connections for each handle, however many locks: one for requests, one for renewals, so that
//! nothing a request waits for can cost a session its life, and one to listen, made when first needed.
//! Behind a pooler that lends connections for a transaction (pgbouncer), which is recognized, nothing
//! is prepared and nobody listens: waiters poll.
//!
//! Time is the server's, read behind the wait for the line. A server whose clock is set forward ends
//! sessions early, and one that is set back keeps dead ones for longer.

mod advice;
mod blocked_lines;
mod config;
mod connection;
mod enter;
mod notify;
mod reply;
mod schema;
mod statements;
mod sweep;
mod tickets;
mod tx;

pub use tx::{Schema, fence_check, lock_in};

use super::{
    Advice, Capabilities, Cell, Claim, Edit, Edited, Enter, Entered, Hints, LIST_MAX, Leave, Left,
    ListScope, Open, PollScope, Renewal, STRAY_MAX, Store, StoreId, StoreResult, Terms,
    TicketDigest, TicketStatus, common::duplicates::Duplicates, common::fast_path::FastPath,
    url::StoreUrl,
};
use crate::{
    clock::Clock,
    error::{ErrorKind, Outcome, Result, StoreError},
    model::{
        line::Line,
        name::Name,
        ticket::{Place, SessionId, TicketId},
    },
};
use blocked_lines::Blocked;
use config::Plan;
use connection::{Link, Repeat, Values};
use notify::{Message, Sinks};
use reply::{Answer, Parting, duration, get, micros, one, scalar};
use statements::{Call, Calls};
use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicI32, AtomicI64, AtomicU64, Ordering},
    },
    time::Duration,
};
use tickets::Tickets;
use tokio_postgres::{Row, types::ToSql};

pub(crate) const KIND: &str = "postgres";

/// No request takes effect later than this after it was sent.
const PATIENCE: Duration = STRAY_MAX.checked_div(2).expect("two is not zero");

/// The statements that make the schema of this URL.
pub(super) fn migration(url: &mut StoreUrl) -> Result<String> {
    Ok(schema::printed(&Plan::read(url)?.schema))
}

/// Lines in PostgreSQL.
pub struct Postgres(Arc<Shared>);

/// What a handle has, shared with the task that clears away.
struct Shared {
    /// Whose data was found behind the URL when a session was last opened.
    id: AtomicU64,
    clock: Clock,
    calls: Calls,
    requests: Link,
    renewals: Link,
    ear: Link,
    pooled: bool,
    schema: String,
    create: bool,
    channel: String,
    sinks: Arc<Sinks>,
    tickets: Tickets,
    blocked: Blocked,
    doubts: Duplicates,
    fast: FastPath,
    /// The server's clock less ours, in microseconds, as last seen.
    offset: AtomicI64,
    /// The schema's layout, as the last renewal told it.
    layout: AtomicI32,
    /// The history of the server's data, as the last renewal told it.
    history: AtomicU64,
    /// For which connection a release was prepared, by the number of those that broke before it.
    warmed: AtomicU64,
    /// How many renewals there were, all sessions together.
    renewed: AtomicU64,
    /// Had by the task that clears leftovers away.
    sweeping: Arc<tokio::sync::Mutex<()>>,
}

impl Postgres {
    /// Connects, and makes the tables and functions if they are not there.
    pub(super) async fn connect(mut url: StoreUrl) -> Result<Self> {
        let plan = Arc::new(Plan::read(&mut url)?);
        Ok(Self(Arc::new(Shared::over(plan, Clock::system()).await?)))
    }
}

impl Shared {
    async fn over(plan: Arc<Plan>, clock: Clock) -> StoreResult<Self> {
        let calls = Calls::of(&schema::quoted(&plan.schema));
        let sinks = Arc::<Sinks>::default();
        let link = |silence, ear| Link::new(Arc::clone(&plan), clock.clone(), silence, ear);
        let requests = link(connection::SILENCE, None);
        let pooled = requests.is_pooled().await?;
        advice::refuse(&requests, &calls).await?;
        let id = match schema::ensure(&requests, &calls, &clock, &plan.schema, plan.create).await {
            Ok(id) => id,
            Err(e) => return Err(advice::with_rights(e, &requests, &calls, &plan.schema).await),
        };
        let tag: u64 = rand::random();
        let store = Self {
            id: AtomicU64::new(u64::from_be_bytes(id.0)),
            calls,
            requests,
            renewals: link(connection::SILENCE_OF_RENEWALS, None),
            ear: link(connection::SILENCE, Some(sinks.ear())),
            clock,
            pooled,
            schema: plan.schema.clone(),
            create: plan.create,
            channel: format!("lk_{tag:016x}"),
            sinks,
            tickets: Tickets::default(),
            blocked: Blocked::default(),
            offset: AtomicI64::new(0),
            doubts: Duplicates::default(),
            fast: FastPath::default(),
            layout: AtomicI32::new(schema::LAYOUT),
            history: AtomicU64::new(0),
            warmed: AtomicU64::new(0),
            renewed: AtomicU64::new(0),
            sweeping: Arc::default(),
        };
        store.set_clock(scalar(&store.ask(&store.calls.clock, &[]).await?)?);
        let advice = advice::of(&store.requests, &store.calls, &store.clock, &store.schema).await?;
        for advice in advice {
            tracing::warn!(%advice, "the PostgreSQL server's set-up");
        }
        Ok(store)
    }

    async fn ask(&self, call: &Call, values: Values<'_>) -> StoreResult<Vec<Row>> {
        self.requests.call(call, values, Repeat::Always).await
    }

    /// Changes whenever a connection breaks.
    fn breaks(&self) -> u64 {
        self.requests.breaks().wrapping_add(self.renewals.breaks())
    }

    fn local_micros(&self) -> i64 {
        i64::try_from(self.clock.now().as_micros()).unwrap_or(0)
    }

    /// The schema was brought to another layout while we are connected: what our connections have prepared
    /// may answer otherwise now, so others are made.
    fn heed_layout(&self, layout: i32) {
        if self.layout.swap(layout, Ordering::Relaxed) != layout {
            tracing::warn!(layout, "the schema was brought to another layout");
            self.requests.doubt();
            self.renewals.doubt();
        }
    }

    /// Was the schema brought to a layout that is newer than ours? Its functions take and answer what ours did,
    /// but our own statements may not know all that its tables have.
    fn is_outdated(&self) -> bool {
        self.layout.load(Ordering::Relaxed) > schema::LAYOUT
    }

    /// Remembers what the server's clock says.
    fn set_clock(&self, server: i64) {
        self.offset.store(server - self.local_micros(), Ordering::Relaxed);
    }

    /// Until when, on the server's clock, a request sent now may take effect.
    fn deadline(&self) -> i64 {
        let now = self.local_micros() + self.offset.load(Ordering::Relaxed);
        now.saturating_add(micros(PATIENCE))
    }

    /// Tells those who were granted: ours at once, those of other processes by one statement that
    /// nobody waits for the effect of.
    async fn tell(&self, news: &[String]) {
        if news.is_empty() {
            return;
        }
        let others = notify::grants(news).filter_map(|(channel, text)| {
            if channel != self.channel {
                return Some((channel, text));
            }
            if let Some(message) = Message::parse(&text) {
                self.sinks.hear(message);
            }
            None
        });
        let (channels, texts): (Vec<&str>, Vec<String>) = others.unzip();
        Box::pin(self.send(&channels, &texts)).await;
    }

    async fn send(&self, channels: &[&str], texts: &[String]) {
        if !channels.is_empty() {
            // Lost, it costs the waiter one re-check.
            let _ = self.requests.once(&self.calls.tell, &[&channels, &texts]).await;
        }
    }

    /// Nobody stands in this line any more: those of ours who contend for it may try again.
    fn freed(&self, name: &Name) {
        self.blocked.forget(name);
        self.sinks.freed(name);
    }

    /// A ticket has left: tells those who are next, or that the line is free.
    async fn parted(&self, name: &Name, row: &Row) -> StoreResult<Left> {
        let Some(parting) = get::<Option<Parting<'_>>>(row, "o_else")? else {
            self.freed(name);
            return Ok(Left::Released);
        };
        self.tell(&parting.news).await;
        if parting.freed {
            self.freed(name);
        }
        Ok(match parting.what {
            "released" => Left::Released,
            "withdrawn" => Left::Withdrawn,
            _ => Left::Gone,
        })
    }

    fn stand(answer: Answer<'_>) -> StoreResult<TicketStatus> {
        Ok(match answer.what {
            "granted" => TicketStatus::Granted { fence: answer.fence()? },
            "queued" => TicketStatus::Waiting(answer.wait()),
            _ => TicketStatus::Gone,
        })
    }

    /// Settles the ticket's line, because something in it has come due.
    async fn settle(
        &self,
        session: SessionId,
        name: &Name,
        ticket: TicketId,
    ) -> StoreResult<TicketStatus> {
        let (ticket, session) = (ticket.to_bytes(), session.to_bytes());
        let values: Values<'_> = &[&name.as_str(), &&ticket[..], &&session[..]];
        let call = self.requests.call(&self.calls.stand, values, Repeat::Unblocked).await;
        let rows = match call {
            // Somebody's transaction sits on this line; that is nothing to the others.
            Err(e) if connection::is_blocked(&e) => {
                return Ok(TicketStatus::Waiting(self.blocked.note(name, true, self.clock.now())));
            }
            answer => answer?,
        };
        self.blocked.forget(name);
        let answer: Answer<'_> = scalar(&rows)?;
        self.tell(&answer.news).await;
        Self::stand(answer)
    }

    /// All tickets of a session that the database has, whichever handle has entered them. Those that are
    /// first in their lines have no index, which would make every lock dearer, so this reads all lines, unless they
    /// were read already and no other handle is likely to have entered any since. Then it looks behind the names of
    /// the tickets that this handle knows; if that is what the last renewal has shown, the caller expects another
    /// ticket, and all lines are read after all.
    async fn tickets_of(&self, session: SessionId) -> StoreResult<Vec<(Name, TicketId)>> {
        let (id, version) = (session.to_bytes(), self.tickets.version(session));
        if self.tickets.knows(session) {
            let names = self.tickets.names(session);
            let names: Vec<&str> = names.iter().map(Name::as_str).collect();
            let tickets = places(&self.ask(&self.calls.own_in, &[&&id[..], &names]).await?)?;
            if !self.tickets.were_shown(session, &tickets) {
                return Ok(tickets);
            }
        }
        let tickets = places(&self.ask(&self.calls.own, &[&&id[..]]).await?)?;
        self.tickets.searched(session, version, &tickets);
        Ok(tickets)
    }

    async fn edit(&self, call: &Call, edit: &Edit, bytes: Option<&[u8]>) -> StoreResult<Edited> {
        let Place { session, name, ticket } = &edit.place;
        let (ticket, session) = (ticket.to_bytes(), session.to_bytes());
        let number = edit.edit.cast_signed();
        let values: Values<'_> = &[&name.as_str(), &&ticket[..], &&session[..], &number, &bytes];
        let held: bool = scalar(&self.ask(call, values).await?)?;
        Ok(if held { Edited::Done } else { Edited::NotHeld })
    }
}

/// Tickets with their names. A name that is none was written by no program of ours.
fn places(rows: &[Row]) -> StoreResult<Vec<(Name, TicketId)>> {
    let mut places = Vec::with_capacity(rows.len());
    for row in rows {
        if let Ok(name) = Name::new(get::<&str>(row, "name")?) {
            places.push((name, reply::id(get(row, "id")?)?));
        }
    }
    Ok(places)
}

fn news(row: &Row) -> StoreResult<Vec<String>> {
    Ok(get::<Option<Vec<String>>>(row, "o_news")?.unwrap_or_default())
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
        let (id, owner) = (ask.session.to_bytes(), &ask.owner);
        let (ttl, delay) = (micros(ask.ttl), micros(ask.lock_delay));
        let pid = i64::from(owner.pid);
        let values: Values<'_> =
            &[&&id[..], &ttl, &delay, &self.0.channel, &owner.host, &pid, &owner.program];
        let rows = match self.0.ask(&self.0.calls.open, values).await {
            // Another database is behind the URL, or this one was emptied.
            Err(e) if schema::is_missing(&e) => {
                let Shared { requests, calls, clock, schema, create, .. } = &*self.0;
                schema::ensure(requests, calls, clock, schema, *create).await?;
                self.0.ask(&self.0.calls.open, values).await?
            }
            answer => answer?,
        };
        self.0.tickets.opened(ask.session);
        let row = one(&rows)?;
        let store = reply::store(get(row, "o_store")?)?;
        self.0.id.store(u64::from_be_bytes(store.0), Ordering::Release);
        self.0.set_clock(get(row, "o_now")?);
        Ok(Terms::new(duration(get(row, "o_ttl")?), duration(get(row, "o_lock_delay")?)))
    }

    async fn renew(&self, session: SessionId) -> StoreResult<Renewal> {
        // Before the renewal: a break while it is under way must show the next time at the latest.
        let breaks = self.0.breaks();
        let names = self.0.tickets.names(session);
        let names: Vec<&str> = names.iter().map(Name::as_str).collect();
        let values: Values<'_> = &[&&session.to_bytes()[..], &names];
        let rows = self.0.renewals.once(&self.0.calls.renew, values).await?;
        let row = one(&rows)?;
        self.0.set_clock(get(row, "o_now")?);
        let Some(evictions) = get::<Option<i64>>(row, "o_version")? else {
            self.0.fast.forget(session);
            return Ok(Renewal::Lost);
        };
        // What the renewal could not read, because its table is locked, is as it was.
        if let Some(layout) = get(row, "o_layout")? {
            self.0.heed_layout(layout);
        }
        if let Some(history) = get::<Option<i64>>(row, "o_history")? {
            self.0.history.store(history.cast_unsigned(), Ordering::Relaxed);
        }
        self.0.sweep_now_and_then();
        let history = self.0.history.load(Ordering::Relaxed);
        let version = history.wrapping_add(breaks << 32).wrapping_add(evictions.cast_unsigned());
        let number =
            |column| StoreResult::Ok(get::<Option<i64>>(row, column)?.map(i64::cast_unsigned));
        let tickets = number("o_count")?.zip(number("o_sum")?);
        let tickets = tickets.map(|(count, sum)| TicketDigest { count, sum });
        self.0.tickets.renewed(session, version, tickets);
        Ok(Renewal::Renewed { version, tickets })
    }

    async fn close(&self, session: SessionId) -> StoreResult<()> {
        self.0.sinks.lock().remove(&session);
        self.0.fast.forget(session);
        self.0.ask(&self.0.calls.close, &[&&session.to_bytes()[..]]).await?;
        self.0.clear(session, self.0.tickets.names(session)).await?;
        self.0.tickets.forget_all(session);
        self.0.sweep_at_the_end().await;
        Ok(())
    }

    async fn enter(&self, ask: Enter) -> StoreResult<Entered> {
        self.0.tickets.note(&ask.place);
        let entered = self.0.try_enter(&ask).await;
        let entered = self.0.doubts.tell(KIND, ask.place.ticket, entered);
        let nothing_left = match &entered {
            Ok(entered) => matches!(entered, Entered::Busy(_)),
            Err(e) => e.outcome == Outcome::NotApplied,
        };
        if nothing_left {
            self.0.tickets.forget(&ask.place);
        } else {
            self.0.warm_aside();
        }
        entered
    }

    async fn poll(
        &self,
        session: SessionId,
        which: PollScope,
    ) -> StoreResult<Vec<(Name, TicketId, TicketStatus)>> {
        let all = matches!(which, PollScope::All);
        let tickets = match which {
            PollScope::These(tickets) => tickets,
            PollScope::All => self.0.tickets_of(session).await?,
        };
        let names: Vec<&str> = tickets.iter().map(|(name, _)| name.as_str()).collect();
        let ids: Vec<[u8; 16]> = tickets.iter().map(|(_, ticket)| ticket.to_bytes()).collect();
        let ids: Vec<&[u8]> = ids.iter().map(|id| &id[..]).collect();
        let session_id = session.to_bytes();
        let rows = self.0.ask(&self.0.calls.poll, &[&&session_id[..], &names, &ids]).await?;
        let mut stands = Vec::with_capacity(tickets.len());
        for (row, (name, ticket)) in rows.iter().zip(&tickets) {
            let answer: Answer<'_> = get(row, "lk_poll")?;
            let stand = match answer.what {
                "due" => self.0.settle(session, name, *ticket).await?,
                _ => Shared::stand(answer)?,
            };
            if !all || stand != TicketStatus::Gone {
                stands.push((name.clone(), *ticket, stand));
            }
        }
        Ok(stands)
    }

    async fn hints(&self, session: SessionId, to: Arc<dyn Hints>) -> StoreError {
        self.0.sinks.lock().insert(session, Arc::clone(&to));
        if self.0.pooled {
            // Ours are told of each other's releases all the same.
            return self.0.tend().await;
        }
        let breaks = (self.0.ear.breaks(), self.0.requests.breaks());
        if let Err(e) =
            self.0.ear.batch(&format!("LISTEN {}", self.0.channel), connection::REQUEST).await
        {
            return e;
        }
        to.recheck(None);
        tokio::select! {
            () = self.0.ear.broken(breaks.0) => {}
            // One that is cut off without a word is noticed by those who send.
            () = self.0.requests.broken(breaks.1) => self.0.ear.doubt(),
            e = self.0.tend() => return e,
        }
        StoreError::not_applied(KIND, ErrorKind::Unavailable, "the connection broke")
    }

    async fn leave(&self, ask: Leave) -> StoreResult<Left> {
        let ask = Leave { stray: ask.stray || self.0.doubts.has(ask.place.ticket), ..ask };
        let Place { session, name, ticket } = &ask.place;
        let (ticket_id, session_id) = (ticket.to_bytes(), session.to_bytes());
        let keep = micros(ask.keep.unwrap_or_default());
        let stray = if ask.stray { micros(STRAY_MAX) } else { 0 };
        let place: [&(dyn ToSql + Sync); 5] =
            [&name.as_str(), &&ticket_id[..], &&session_id[..], &keep, &stray];
        let plain = !self.0.pooled && !self.0.is_outdated() && self.0.tickets.is_first(&ask.place);
        let oddly = !plain || keep > 0 || ask.stray;
        let Shared { requests, calls, .. } = &*self.0;
        let mut rows = Vec::new();
        if !oddly {
            rows = match requests.call(&calls.leave, &place[..3], Repeat::Refused).await {
                // An older schema was restored under us.
                Err(e) if schema::is_missing(&e) => Vec::new(),
                rows => rows?,
            };
        }
        // It may be gone, or kept by a transaction that has checked its fence.
        if rows.is_empty() {
            rows = Box::pin(requests.call(&calls.leave_oddly, &place, Repeat::Refused)).await?;
        }
        self.0.tickets.forget(&ask.place);
        self.0.doubts.settle(*ticket);
        self.0.parted(name, one(&rows)?).await
    }

    async fn set_label(&self, edit: Edit) -> StoreResult<Edited> {
        let note = edit.bytes.as_deref().unwrap_or_default();
        self.0.edit(&self.0.calls.annotate, &edit, Some(note)).await
    }

    async fn list(&self, which: ListScope) -> StoreResult<Vec<Line>> {
        let (from, to, after) = match which {
            ListScope::Exact(name) => (name.to_string(), name.to_string(), String::new()),
            ListScope::Prefix { prefix, after } => {
                // No name that begins with the prefix comes behind this in the order of bytes.
                let to = format!("{prefix}{}", "\u{10ffff}".repeat(crate::NAME_MAX / 4));
                (prefix, to, after.map_or_else(String::new, |name| name.to_string()))
            }
        };
        let most = i32::try_from(LIST_MAX).unwrap_or(i32::MAX);
        reply::lines(&self.0.ask(&self.0.calls.look, &[&from, &to, &after, &most]).await?)
    }

    async fn check(&self, claim: Claim) -> StoreResult<bool> {
        let (ticket, fence) = (claim.ticket.to_bytes(), claim.fence.cast_signed());
        let weight = claim.mode.weight().cast_signed();
        let capacity = claim.mode.capacity().cast_signed();
        let values: Values<'_> = &[&claim.name.as_str(), &&ticket[..], &fence, &weight, &capacity];
        scalar(&self.0.ask(&self.0.calls.check, values).await?)
    }

    async fn read(&self, name: Name) -> StoreResult<Option<Cell>> {
        let rows = self.0.ask(&self.0.calls.read, &[&name.as_str()]).await?;
        let Some(row) = rows.first() else { return Ok(None) };
        let fence = get::<i64>(row, "fence")?.cast_unsigned();
        Ok(Some(Cell { bytes: get(row, "bytes")?, fence }))
    }

    async fn write(&self, edit: Edit) -> StoreResult<Edited> {
        self.0.edit(&self.0.calls.write, &edit, edit.bytes.as_deref()).await
    }

    async fn evict(&self, name: Name, ticket: TicketId) -> StoreResult<bool> {
        let id = ticket.to_bytes();
        let values: Values<'_> = &[&name.as_str(), &&id[..]];
        let rows = self.0.requests.call(&self.0.calls.evict, values, Repeat::Refused).await?;
        let row = one(&rows)?;
        if let Some(channel) = get::<Option<&str>>(row, "o_channel")? {
            if channel == self.0.channel {
                self.0.sinks.hear(Message::Ended(ticket));
            } else {
                self.0.send(&[channel], &[format!("{ticket} ended")]).await;
            }
        }
        self.0.tell(&news(row)?).await;
        if get::<bool>(row, "o_freed")? {
            self.0.freed(&name);
        }
        get(row, "o_found")
    }

    async fn advice(&self) -> StoreResult<Vec<Advice>> {
        advice::of(&self.0.requests, &self.0.calls, &self.0.clock, &self.0.schema).await
    }

    fn forget(&self, session: SessionId) {
        self.0.doubts.forget(session);
        self.0.fast.forget(session);
        self.0.tickets.forget_all(session);
        self.0.sinks.lock().remove(&session);
    }

    fn native(&self, claim: &Claim) -> Vec<(&'static str, String)> {
        vec![
            ("view", "lk_standing".to_owned()),
            ("name", claim.name.to_string()),
            ("id", claim.ticket.to_string()),
            ("fence", claim.fence.to_string()),
        ]
    }
}

impl fmt::Debug for Postgres {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Postgres({})", self.id())
    }
}
