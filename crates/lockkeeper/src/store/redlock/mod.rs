//! Redlock: a lock on the majority of several Redis servers that know nothing of each other.
//!
//! | idea | here |
//! |---|---|
//! | line | none: the ticket that a majority of the nodes has holds the name. Mutex only, contend only |
//! | session | known to its client alone (`session.rs`); each ticket is renewed on a majority by itself |
//! | hint | none |
//! | fence | proposed by the client, accepted by a node only above its counter (`decide.rs`) |
//!
//! | operation | round trips, each to all nodes at once |
//! |---|---|
//! | open | none |
//! | enter | 1; if the name is taken 2, to take the own votes back; 2 more for each fence that was too low; up to 2 more before a handle's first lock, to agree about `max_ttl` |
//! | renew, poll | 1 for each ticket, side by side; a renewal takes 1 more to repair a node that lacks one |
//! | leave, check, label | 1 |
//! | evict | 1 (of a plain string: 2, since its value must be known) |
//! | close | 1 for each ticket, side by side |
//! | list | 1 for the names, and 1 for each name, 64 at once |
//!
//! A ticket is valid while a majority of all nodes still holds *that* ticket. A node that answers late or not
//! at all counts as a node that does not have it, and no request waits for it once a majority has answered: it
//! gets what was decided in the background. A node that has started anew may have forgotten a holder, so it
//! has no vote until the longest TTL has passed (its quarantine, `handshake.rs`). A renewal that a majority has
//! carried puts its ticket back on nodes that lack it, which is no vote either.
//!
//! With `?compat=string` the tickets are the plain locks that many libraries make, `SET NX PX` on the name
//! itself and a delete that compares (redis-py, redsync, rslock, bsm/redislock, node-redlock): one server of
//! `redis://`, or the majority of `redlock://`. Theirs and ours exclude each other. They know neither fences nor
//! quarantine, so there is neither: the fence is 0, and a resource cannot tell an old holder from a new one. A
//! key of another type under the name, such as Redisson's hash, keeps us out.

mod advice;
pub(super) mod config;
mod decide;
mod enter;
mod flavour;
mod handshake;
mod inspect;
mod keys;
mod leave;
#[cfg(test)]
mod lua_tests;
#[cfg(test)]
mod model;
mod nodes;
mod poll;
mod session;
mod votes;

use super::{
    Advice, Attach, Capabilities, Cell, Claim, Edit, Edited, Enter, Entered, Hints, Leave, Left,
    ListScope, Open, PollScope, Renewal, Store, StoreId, StoreResult, Terms, TicketStatus,
    redis::{Connection, micros},
};
use crate::{
    error::{ErrorKind, StoreError},
    model::{
        line::Line,
        name::Name,
        ticket::{Mode, SessionId, TicketId},
    },
    sync::Mutex,
};
use config::Config;
use flavour::{Flavour, Scripts};
use handshake::Agreement;
use nodes::Nodes;
use session::Sessions;
use std::{
    fmt,
    sync::{Arc, atomic::AtomicU64},
    time::Duration,
};

/// For how long a node keeps the counter of an idle name.
const IDLE: Duration = Duration::from_secs(24 * 3600);

/// A lock on the majority of several servers.
pub struct Redlock {
    id: StoreId,
    nodes: Nodes,
    prefix: String,
    flavour: Flavour,
    max_ttl: Duration,
    scripts: &'static Scripts,
    sessions: Mutex<Sessions>,
    /// The highest fence seen or proposed.
    seen: AtomicU64,
}

impl Redlock {
    pub(super) async fn connect(config: Config) -> StoreResult<Self> {
        let Config { kind, clients, prefix, flavour, max_ttl } = config;
        let id = StoreId(identity(&prefix, clients.len()));
        let (agreement, connections) = match flavour {
            Flavour::Plain => {
                (None, clients.into_iter().map(|c| Connection::to_node(c, None)).collect())
            }
            Flavour::Fenced => {
                let key = format!("{prefix}:rl-max-ttl");
                let agreement = Agreement::new(key, micros(max_ttl), clients.len());
                let to_node =
                    |(node, client)| Connection::to_node(client, Some(agreement.handshake(node)));
                let connections = clients.into_iter().enumerate().map(to_node).collect();
                (Some(agreement), connections)
            }
        };
        let nodes = Nodes::new(kind, connections, agreement);
        nodes.connect(max_ttl).await?;
        Ok(Self::new(id, nodes, prefix, flavour, max_ttl))
    }

    fn new(id: StoreId, nodes: Nodes, prefix: String, flavour: Flavour, max_ttl: Duration) -> Self {
        let (scripts, sessions, seen) = (flavour.scripts(), Mutex::default(), AtomicU64::new(0));
        Self { id, nodes, prefix, flavour, max_ttl, scripts, sessions, seen }
    }

    fn refused(&self, kind: ErrorKind, what: impl Into<String>) -> StoreError {
        StoreError::not_applied(self.nodes.kind, kind, what)
    }
}

/// All clients of the same servers and prefix must get the same identity, without a place to keep it.
fn identity(prefix: &str, nodes: usize) -> [u8; 8] {
    let text = format!("redlock {nodes} {prefix}");
    let fold = |hash: u64, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    text.bytes().fold(0xcbf2_9ce4_8422_2325, fold).to_be_bytes()
}

impl Store for Redlock {
    fn scheme(&self) -> &'static str {
        self.nodes.kind
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            fenced: self.flavour == Flavour::Fenced,
            durable: true,
            survives_failover: self.nodes.connections.len() > 1,
            renewal_shows_tickets: true,
            ..Capabilities::NONE
        }
    }

    fn id(&self) -> StoreId {
        self.id
    }

    async fn open(&self, ask: Open) -> StoreResult<Terms> {
        if self.flavour == Flavour::Fenced && ask.ttl + ask.lock_delay > self.max_ttl {
            let (asked, most) = (ask.ttl + ask.lock_delay, self.max_ttl);
            let what = format!(
                "ttl and lock_delay are {asked:?} together, and the longest that forgetful nodes \
                 stay out for is max_ttl={most:?}"
            );
            return Err(self.refused(ErrorKind::Misconfigured, what));
        }
        self.check_max_ttl().await?;
        if let Some(agreement) = &self.nodes.agreement {
            agreement.allow_writing();
        }
        let opened = self.sessions.lock().open(ask, self.nodes.clock.now());
        opened.ok_or_else(|| StoreError::session_over(self.nodes.kind))
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

    async fn hints(&self, _: SessionId, _: Arc<dyn Hints>) -> StoreError {
        std::future::pending().await
    }

    async fn leave(&self, ask: Leave) -> StoreResult<Left> {
        self.leave_line(&ask).await
    }

    async fn set_label(&self, edit: Edit) -> StoreResult<Edited> {
        self.edit_label(&edit).await
    }

    async fn list(&self, which: ListScope) -> StoreResult<Vec<Line>> {
        self.lines(which).await
    }

    fn blind_spots(&self) -> Option<&'static str> {
        // The list of names is our own.
        (self.flavour == Flavour::Plain).then_some("locks that only other libraries have taken")
    }

    async fn check(&self, claim: Claim) -> StoreResult<bool> {
        let Claim { name, ticket, mode, fence } = claim;
        Ok(mode == Mode::Exclusive && self.is_held(&name, ticket, fence).await?)
    }

    async fn read(&self, _: Name) -> StoreResult<Option<Cell>> {
        Err(self.refused(ErrorKind::Unsupported("cells"), "no such thing"))
    }

    async fn write(&self, _: Edit) -> StoreResult<Edited> {
        Err(self.refused(ErrorKind::Unsupported("cells"), "no such thing"))
    }

    async fn write_under(&self, _: Claim, _: Vec<u8>) -> StoreResult<Edited> {
        Err(self.refused(ErrorKind::Unsupported("cells"), "no such thing"))
    }

    async fn evict(&self, name: Name, ticket: TicketId) -> StoreResult<bool> {
        self.evict_ticket(&name, ticket).await
    }

    async fn advice(&self) -> StoreResult<Vec<Advice>> {
        Ok(self.setup_advice().await)
    }

    fn detach(&self, session: SessionId) -> StoreResult<Vec<u8>> {
        self.detach_session(session)
    }

    async fn attach(&self, ask: Attach) -> StoreResult<()> {
        self.attach_session(&ask)
    }

    fn forget(&self, session: SessionId) {
        self.sessions.lock().forget(session);
    }

    fn native(&self, claim: &Claim) -> Vec<(&'static str, String)> {
        self.native_names(claim)
    }
}

impl fmt::Debug for Redlock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Redlock({} of {})", self.id, self.nodes.connections.len())
    }
}
