//! Redis and Valkey: a single server, a primary behind Sentinel, or a cluster.
//!
//! | idea | here |
//! |---|---|
//! | line | a sorted set of tickets and a hash of what they carry, both under the name |
//! | session | one entry with its end in a sorted set, in every bucket where it is used |
//! | hint | one channel for each process; the message carries ticket and fence |
//! | fence | max(the bucket's last + 1, the server's clock in µs), drawn inside the script |
//!
//! | operation | round trips |
//! |---|---|
//! | enter, leave, evict, check, label, cell | 1 script (a read of a cell: 1 command) |
//! | open | 1: the session and the identity of the data side by side |
//! | renew | 1 script for each bucket that the session uses, side by side |
//! | poll of some tickets | the same, for the buckets of these tickets |
//! | poll of all tickets, close | 2: each bucket's list of tickets, then as above |
//! | list | 2 for a page: the names, then their lines, 64 in a script |
//! | first enter in another bucket of a cluster | 3 more: open there, note it at home, renew there |
//!
//! The operations are Lua scripts beside this file, atomic on the server. Time is the server's alone.
//! A release hands the lock to the next ticket inside its own script and tells the waiter by a message;
//! the waiter holds the lock when the message arrives.
//!
//! On a cluster names are spread over buckets, whose keys share a slot. A session lives in each bucket
//! that it uses, and losing it in one of them ends all of it. An empty line leaves nothing behind.
//!
//! A lost reply: `connection.rs` gives the request up, and `error.rs` says whether it may have been carried out
//! (*unknown*) or not. The core sends an enter that waits, a leave and a renewal again (`session/wait.rs`,
//! `session/task.rs`), and the scripts answer the second copy as they answered the first; to a caller of
//! `try_now` or of an edit the error goes at once. A copy that comes late is refused by its deadline on the
//! server's clock (`common/server_clock.rs` computes it, `enter.lua` compares) or by the mark that a leave has
//! set (`leave.lua`). In a cluster the client library may send again by itself: `leave.rs`, `sent_twice`.

pub(super) mod advice;
pub(super) mod config;
mod connection;
mod edit;
mod enter;
mod error;
mod exec;
mod inspect;
mod keys;
mod leave;
mod meta;
mod notify;
mod poll;
mod reply;
mod scripts;
mod session;
#[cfg(test)]
mod session_tests;

use super::{
    Advice, Capabilities, Cell, Claim, Edit, Edited, Enter, Entered, Hints, Leave, Left, ListScope,
    Open, PollScope, Renewal, Store, StoreId, StoreResult, Terms, TicketStatus,
    common::server_clock::ServerClock,
};
use crate::{
    clock::Clock,
    error::StoreError,
    model::{
        line::Line,
        name::Name,
        ticket::{SessionId, TicketId},
    },
};
use config::Config;
pub(super) use connection::{Connection, Handshake, Live, is_unknown_script};
pub(super) use exec::Call;
use keys::{CLUSTER_BUCKETS, Keys, bucket};
pub(super) use reply::{Reply, hex, micros, pack, unexpected, unpack};
use session::Sessions;
use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

pub(crate) const KIND: &str = "redis";

/// The bucket in which every session is open, and which notes its other buckets.
const HOME: u32 = 0;

/// Lines in Redis.
pub struct Redis {
    /// The identity of the data, see [`StoreId`]. It changes when the server has lost its data and another
    /// client has written a new identity first.
    id: AtomicU64,
    prefix: String,
    clock: Clock,
    server_clock: ServerClock,
    connection: Connection,
    buckets: Vec<Keys>,
    channel: String,
    sessions: Arc<Sessions>,
}

impl Redis {
    pub(super) async fn connect(config: Config) -> StoreResult<Self> {
        let Config { source, addresses, prefix } = config;
        let (clock, sessions) = (Clock::system(), Arc::<Sessions>::default());
        let on_push = notify::push_handler(&sessions);
        let connection = Connection::new(source, addresses, on_push, None);
        let buckets = if connection.is_cluster() { CLUSTER_BUCKETS } else { 1 };
        advice::refuse(&connection).await?;
        let id = meta::meta(&connection, &prefix, buckets, rand::random()).await?;
        Ok(Self {
            id: id.into(),
            server_clock: ServerClock::new(clock.clone()),
            clock,
            connection,
            buckets: (0..buckets).map(|b| Keys::new(&prefix, b)).collect(),
            channel: format!("{prefix}:n:{:016x}", rand::random::<u64>()),
            prefix,
            sessions,
        })
    }

    fn keys(&self, name: &Name) -> &Keys {
        &self.buckets[self.bucket(name) as usize]
    }

    fn bucket(&self, name: &Name) -> u32 {
        bucket(name, self.bucket_count())
    }

    fn bucket_count(&self) -> u32 {
        u32::try_from(self.buckets.len()).unwrap_or(1)
    }

    /// Writes the identity of the data again if the server has lost it, as with all else; takes over the
    /// one that another client has written meanwhile.
    async fn identify(&self) -> StoreResult<()> {
        let ours = self.id.load(Ordering::Acquire);
        let id = meta::meta(&self.connection, &self.prefix, self.bucket_count(), ours).await?;
        self.id.store(id, Ordering::Release);
        Ok(())
    }
}

impl Store for Redis {
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
        self.open_session(&ask).await?;
        Ok(Terms::new(ask.ttl, ask.lock_delay))
    }

    async fn renew(&self, session: SessionId) -> StoreResult<Renewal> {
        self.renew_session(session).await
    }

    async fn close(&self, session: SessionId) -> StoreResult<()> {
        self.close_session(session).await
    }

    async fn enter(&self, ask: Enter) -> StoreResult<Entered> {
        self.enter_line(&ask).await
    }

    async fn poll(
        &self,
        session: SessionId,
        which: PollScope,
    ) -> StoreResult<Vec<(Name, TicketId, TicketStatus)>> {
        self.poll_tickets(session, which).await
    }

    async fn hints(&self, session: SessionId, to: Arc<dyn Hints>) -> StoreError {
        self.deliver_hints(session, to).await
    }

    async fn leave(&self, ask: Leave) -> StoreResult<Left> {
        self.leave_line(&ask).await
    }

    async fn set_label(&self, edit: Edit) -> StoreResult<Edited> {
        self.edit("note", &edit).await
    }

    async fn list(&self, which: ListScope) -> StoreResult<Vec<Line>> {
        self.lines(which).await
    }

    async fn check(&self, claim: Claim) -> StoreResult<bool> {
        self.is_held(&claim).await
    }

    async fn read(&self, name: Name) -> StoreResult<Option<Cell>> {
        self.read_cell(&name).await
    }

    async fn write(&self, edit: Edit) -> StoreResult<Edited> {
        self.edit("cell", &edit).await
    }

    async fn write_under(&self, claim: Claim, bytes: Vec<u8>) -> StoreResult<Edited> {
        self.put_cell(&claim, &bytes).await
    }

    async fn evict(&self, name: Name, ticket: TicketId) -> StoreResult<bool> {
        self.evict_ticket(&name, ticket).await
    }

    async fn advice(&self) -> StoreResult<Vec<Advice>> {
        advice::of(&self.connection, &self.clock).await
    }

    fn forget(&self, session: SessionId) {
        self.sessions.forget(session);
    }

    fn native(&self, claim: &Claim) -> Vec<(&'static str, String)> {
        self.native_names(claim)
    }
}

impl fmt::Debug for Redis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Redis({})", self.id())
    }
}
