//! etcd, 3.4 or newer: one member or a cluster.
//!
//! | idea | here |
//! |---|---|
//! | line | the keys under the name, in the order of their create revisions |
//! | session | a lease that all its keys belong to |
//! | hint | a watch on the key before, from the revision on at which it was read, and a hand-off notice from the ticket that left |
//! | fence | the ticket's create revision; in raw mode the revision of a key that is written when it is granted |
//!
//! | operation | round trips |
//! |---|---|
//! | enter | 1; 2 for readers and permits in a line of more than 64 tickets |
//! | leave | 1 for a held ticket, else 2 |
//! | poll | 1 for up to 128 tickets |
//! | renew | 1: a keep-alive, a list of the lease's keys, and a read, side by side |
//! | check, cell write | 1 |
//! | set a label, evict | 2 |
//! | open | 2 |
//! | close | 2 |
//! | list | 1 for each 4,000 keys, and then 1 for the leases |
//!
//! A ticket is granted by the one rule of [`admitted`](crate::store::admitted), applied to a linearizable read of
//! the line, or by a hand-off notice from the ticket before it. `try_now` is one transaction that puts the
//! ticket only if the line has room.
//!
//! A leader dies: `client/retry.rs` leaves the member that does not answer and goes on to the next one, within
//! the time of the request; `client/error.rs` tells *not applied* from *unknown*. etcd gives every lease a full
//! TTL from the election on, so sessions and places in line live on. `session.rs` renews with a keep-alive, and
//! takes none from a deposed leader; `watch.rs` watches anew at another member, and the session task polls
//! meanwhile.
//!
//! Raw mode (`?raw=true`) uses the keys of etcd's own clients, so that `etcdctl lock`, the Go library
//! and others stand in the same line; the layout is in `keys.rs`.

mod advice;
mod cells;
mod client;
mod compact;
mod config;
mod enter;
mod error;
mod handoff;
mod held_keys;
mod inspect;
mod keys;
mod leave;
mod line;
mod local_session;
mod poll;
mod raw;
mod row;
mod session;
mod watch;

use super::{
    Advice, Capabilities, Cell, Claim, Edit, Edited, Enter, Entered, Hints, Leave, Left, ListScope,
    Open, PollScope, Renewal, Store, StoreId, StoreResult, Terms, TicketStatus, url::StoreUrl,
};
use crate::{
    clock::Clock,
    error::{ErrorKind, Result, StoreError},
    model::{
        line::Line,
        name::Name,
        ticket::{SessionId, TicketId},
    },
};
use client::{Client, Retry, TxnRequest, malformed, txn};
use compact::Compactor;
use config::Config;
use keys::Keys;
use local_session::Sessions;
use std::{fmt, sync::Arc};

pub(crate) const KIND: &str = "etcd";

/// Lines in etcd.
pub struct Etcd {
    id: StoreId,
    clock: Clock,
    client: Arc<Client>,
    keys: Keys,
    sessions: Sessions,
    /// Compacts the history, if the URL asks for it.
    compactor: Option<Compactor>,
    /// Where members show their figures without TLS.
    plain_endpoints: Vec<(String, u16)>,
}

impl Etcd {
    /// Connects to the cluster that a URL names.
    pub(super) async fn connect(url: StoreUrl) -> Result<Self> {
        let Config { endpoints, credentials, root, raw, compact } = Config::from_url(url)?;
        let clock = Clock::system();
        let plain = endpoints.iter().filter(|endpoint| endpoint.tls.is_none());
        let plain_endpoints = plain.map(|e| (e.host.clone(), e.port)).collect();
        let client = Client::new(endpoints, credentials, clock.clone()).map_err(|e| {
            let what = "the URL cannot be used";
            StoreError::not_applied(KIND, ErrorKind::Misconfigured, what).because(e)
        })?;
        let (client, keys) = (Arc::new(client), Keys::new(root, raw));
        client.log_in(client.logins()).await?;
        let id = identity(&client, &keys).await?;
        let compactor = compact.map(|every| Compactor::new(&client, &keys, every));
        let sessions = Sessions::default();
        let store = Self { id, clock, client, keys, sessions, compactor, plain_endpoints };
        store.refuse_old().await?;
        Ok(store)
    }

    fn wall_ms(&self) -> u64 {
        self.clock.wall_micros() / 1_000
    }
}

/// The identity of the data, made by the first client. The cluster's own id is part of it: after a restore
/// from a snapshot revisions may be given out again, so the data count as other data then.
async fn identity(client: &Client, keys: &Keys) -> StoreResult<StoreId> {
    let (key, fresh) = (keys.id(), rand::random::<u64>());
    let request = TxnRequest {
        compare: vec![txn::absent(&key)],
        success: vec![txn::put(&key, format!("{fresh:016x}").into_bytes(), 0)],
        failure: vec![txn::range(txn::one(&key))],
    };
    let mut answer = client.txn(request, Retry::Safe).await?;
    let id = if answer.succeeded {
        fresh
    } else {
        let found = answer.range()?;
        let text = found.kvs.first().and_then(|kv| std::str::from_utf8(&kv.value).ok());
        let id = text.and_then(|text| u64::from_str_radix(text, 16).ok());
        id.ok_or_else(|| malformed("the identity of the data"))?
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
            // A ticket that is kept says so in its value, and in raw mode the value is the label.
            at_least: !self.keys.is_raw(),
            renewal_shows_tickets: true,
            ..Capabilities::LINES
        }
    }

    fn id(&self) -> StoreId {
        self.id
    }

    async fn open(&self, open: Open) -> StoreResult<Terms> {
        self.open_session(open).await
    }

    async fn renew(&self, session: SessionId) -> StoreResult<Renewal> {
        self.renew_session(session).await
    }

    async fn close(&self, session: SessionId) -> StoreResult<()> {
        self.close_session(session).await
    }

    async fn enter(&self, enter: Enter) -> StoreResult<Entered> {
        self.enter_line(enter).await
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

    async fn leave(&self, leave: Leave) -> StoreResult<Left> {
        self.leave_line(leave).await
    }

    async fn set_label(&self, edit: Edit) -> StoreResult<Edited> {
        self.edit_label(edit).await
    }

    async fn list(&self, which: ListScope) -> StoreResult<Vec<Line>> {
        self.list_lines(which).await
    }

    fn blind_spots(&self) -> Option<&'static str> {
        let hidden = "other clients' locks whose keys do not end with their lease's id (name a lock \
                      to see it)";
        self.keys.is_raw().then_some(hidden)
    }

    async fn check(&self, claim: Claim) -> StoreResult<bool> {
        Ok(self.claimed(&claim).await?.is_some())
    }

    async fn read(&self, name: Name) -> StoreResult<Option<Cell>> {
        self.read_cell(&name).await
    }

    async fn write(&self, edit: Edit) -> StoreResult<Edited> {
        self.write_cell(edit).await
    }

    async fn write_under(&self, claim: Claim, bytes: Vec<u8>) -> StoreResult<Edited> {
        self.put_cell(&claim, &bytes).await
    }

    async fn evict(&self, name: Name, ticket: TicketId) -> StoreResult<bool> {
        self.evict_ticket(&name, ticket).await
    }

    async fn advice(&self) -> StoreResult<Vec<Advice>> {
        self.setup_advice().await
    }

    fn forget(&self, session: SessionId) {
        self.sessions.lock().remove(&session);
    }

    fn native(&self, claim: &Claim) -> Vec<(&'static str, String)> {
        self.native_key(claim)
    }
}

impl fmt::Debug for Etcd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Etcd({})", self.id)
    }
}
