//! etcd, 3.4 or newer: one member or a cluster.
//!
//! | idea | here |
//! |---|---|
//! | line | the keys under the name, in the order of their create revisions |
//! | session | a lease that all its keys belong to, and one more after every 1,000 keys |
//! | hint | a watch on the key before, from the revision on at which it was read, and a letter from who left |
//! | fence | the ticket's create revision; in raw mode the revision of a key that is written when it is granted |
//! | round trips | enter 1 (2 where a line that was free the last time is taken, and for readers and permits in a line of more than 64 tickets), leave 1, poll 1, renew 1 for every 1,000 tickets, and beside it a question for each of these and a read, check 1, write 1, annotate 2 |
//!
//! Who may go is decided here, from a linearizable read of the line, by the one rule of
//! [`admission`](crate::admission), or heard from the one before, who told it when it left. A try is one
//! transaction that puts the ticket only if nobody stands in the way, and leaves nothing otherwise.
//!
//! Raw mode (`?raw=true`) uses the keys of etcd's own clients, so that `etcdctl lock`, the Go library
//! and others stand in the same line; the layout is in `keys.rs`.

mod advice;
mod cells;
mod census;
mod client;
mod compact;
pub(super) mod connect;
mod enter;
mod error;
mod keys;
mod leave;
mod lives;
mod login;
mod ops;
mod poll;
mod proto;
mod row;
mod sessions;
mod show;
mod standing;
mod turn;
mod watch;
mod wire;

use super::{
    Advice, Capabilities, Cell, Claim, Edit, Edited, Enter, Entered, Hints, Leave, Left, ListScope,
    Open, PollScope, Renewal, Store, StoreId, StoreResult, Terms, TicketStatus,
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
use client::{Client, Nature};
use compact::Compactor;
use keys::Keys;
use leave::Strays;
use proto::TxnRequest;
use sessions::Sessions;
use std::{fmt, sync::Arc, time::Duration};

pub(crate) const KIND: &str = "etcd";

/// Lines in etcd.
pub struct Etcd {
    id: StoreId,
    clock: Clock,
    client: Arc<Client>,
    keys: Keys,
    sessions: Sessions,
    strays: Strays,
    /// Compacts the history, if that was asked for.
    compactor: Option<Compactor>,
}

impl Etcd {
    async fn over(
        client: Client,
        keys: Keys,
        clock: Clock,
        compact: Option<Duration>,
    ) -> StoreResult<Self> {
        client.log_in(client.logins()).await?;
        let id = identity(&client, &keys).await?;
        let (sessions, strays) = Default::default();
        let client = Arc::new(client);
        let compactor = compact.map(|every| Compactor::new(&client, &keys, every));
        let store = Self { id, clock, client, keys, sessions, strays, compactor };
        for advice in store.look_at_set_up().await? {
            tracing::warn!(%advice, "the etcd cluster's set-up");
        }
        Ok(store)
    }

    fn wall_ms(&self) -> u64 {
        self.clock.wall_micros() / 1_000
    }
}

/// The identity of the data, made by the first who comes. The cluster's own id is part of it: after a
/// restore from a snapshot revisions may be given out again, so it is other data then.
async fn identity(client: &Client, keys: &Keys) -> StoreResult<StoreId> {
    let (key, fresh) = (keys.id(), rand::random::<u64>());
    let ask = TxnRequest {
        compare: vec![ops::absent(&key)],
        success: vec![ops::put(&key, format!("{fresh:016x}").into_bytes(), 0)],
        failure: vec![ops::range(ops::one(&key))],
    };
    let answer = client.txn(ask, Nature::Repeatable).await?;
    let id = if answer.succeeded {
        fresh
    } else {
        let found = ops::Answers::of(answer).range()?;
        let text = found.kvs.first().and_then(|kv| std::str::from_utf8(&kv.value).ok());
        let id = text.and_then(|text| u64::from_str_radix(text, 16).ok());
        id.ok_or_else(|| error::nonsense("the identity of the data"))?
    };
    Ok(StoreId((id ^ client.cluster()).to_be_bytes()))
}

impl Store for Etcd {
    fn scheme(&self) -> &'static str {
        KIND
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            durable: true,
            survives_failover: self.client.endpoints() > 1,
            // What is kept is said in the value, and that is not ours in raw mode.
            at_least: !self.keys.is_raw(),
            renewal_shows_tickets: true,
            ..Capabilities::LINES
        }
    }

    fn id(&self) -> StoreId {
        self.id
    }

    async fn open(&self, ask: Open) -> StoreResult<Terms> {
        self.open_session(ask).await
    }

    async fn renew(&self, session: SessionId) -> StoreResult<Renewal> {
        self.renew_session(session).await
    }

    async fn close(&self, session: SessionId) -> StoreResult<()> {
        self.close_session(session).await
    }

    async fn enter(&self, ask: Enter) -> StoreResult<Entered> {
        self.enter_line(ask).await
    }

    async fn poll(
        &self,
        session: SessionId,
        which: PollScope,
    ) -> StoreResult<Vec<(Name, TicketId, TicketStatus)>> {
        self.poll_tickets(session, which).await
    }

    async fn hints(&self, session: SessionId, to: Arc<dyn Hints>) -> StoreError {
        self.listen(session, to).await
    }

    async fn leave(&self, ask: Leave) -> StoreResult<Left> {
        self.leave_line(ask).await
    }

    async fn set_label(&self, edit: Edit) -> StoreResult<Edited> {
        self.annotate_ticket(edit).await
    }

    async fn list(&self, which: ListScope) -> StoreResult<Vec<Line>> {
        self.get(which).await
    }

    fn blind_spots(&self) -> Option<&'static str> {
        let hidden = "other clients' locks whose keys do not end with their lease's id (name a lock \
                      to see it)";
        self.keys.is_raw().then_some(hidden)
    }

    async fn check(&self, claim: Claim) -> StoreResult<bool> {
        self.check_claim(claim).await
    }

    async fn read(&self, name: Name) -> StoreResult<Option<Cell>> {
        self.read_cell(&name).await
    }

    async fn write(&self, edit: Edit) -> StoreResult<Edited> {
        self.write_cell(edit).await
    }

    async fn evict(&self, name: Name, ticket: TicketId) -> StoreResult<bool> {
        self.evict_ticket(&name, ticket).await
    }

    async fn advice(&self) -> StoreResult<Vec<Advice>> {
        self.look_at_set_up().await
    }

    fn forget(&self, session: SessionId) {
        self.sessions.lives().remove(&session);
    }

    fn native(&self, claim: &Claim) -> Vec<(&'static str, String)> {
        let lives = self.sessions.lives();
        let known = lives.values().find_map(|life| life.tickets.get(&claim.ticket));
        let Some(known) = known else { return Vec::new() };
        let key = String::from_utf8_lossy(&known.key).into_owned();
        let mut native = vec![("key", key)];
        native.extend(known.created.map(|created| ("create_revision", created.to_string())));
        native
    }
}

impl fmt::Debug for Etcd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Etcd({})", self.id)
    }
}
