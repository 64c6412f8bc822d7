//! ZooKeeper 3.6 or newer: one server or an ensemble.
//!
//! | idea | here |
//! |---|---|
//! | line | the ephemeral sequential children of a container node, named as Curator names them |
//! | session | a ZooKeeper session on a connection of its own; further ones for thousands of tickets |
//! | hint | a watch on the node that blocks a ticket (of permits: on as many as it takes), and one on its own |
//! | fence | czxid, the number of the write that created the ticket's node |
//!
//! | operation | round trips |
//! |---|---|
//! | enter | 1: the node is created and the line listed together; 1 more to wait (2 if the line has no node yet) |
//! | enter to contend | 1 if the lock is taken: a read, which leaves nothing; 2 if it is free |
//! | poll | 1 for all that hold; for waiters a list of each line, and the watches that are not set yet |
//! | leave | 1 |
//! | renew | 1: a write that a majority agrees upon, and a list of the session's nodes behind it |
//! | attach | 1 for the connection |
//! | open | 1 for the connection, and 1 that reads the store's identity; close 1 |
//! | check; write a cell; set a label | 2 |
//! | read a cell | 1 |
//! | evict | 2 |
//! | list | 2 for one name; 3 for a prefix with up to 1,000 lines |
//!
//! One list of a line's names decides which tickets are granted. The list may be old, and decides all the
//! same: a ticket that was before another one and has gone does not come back, so what was once granted
//! stays granted as long as its node is there.
//!
//! **What breaks a promise:** data that was restored from an older copy takes fences back; so does a power
//! cut of a majority where `forceSync` is off. A paused server or a new leader only make dead sessions last
//! longer.
//!
//! The protocol is in `client`, which knows nothing of locks.

mod advice;
mod attach;
mod cells;
mod client;
mod config;
mod connection;
mod data;
mod enter;
mod error;
mod inspect;
mod leave;
mod names;
mod poll;
mod queue;
#[cfg(test)]
mod scripted;
mod session;
mod shard;
mod terms;
#[cfg(test)]
mod tests;
mod watch;

use super::{
    Advice, Attach, Capabilities, Cell, Claim, Edit, Edited, Enter, Entered, Hints, Leave, Left,
    ListScope, Open, PollScope, Renewal, Store, StoreId, StoreResult, Terms, TicketStatus,
};
use crate::{
    clock::{Clock, Moment},
    error::StoreError,
    model::{
        line::Line,
        name::Name,
        ticket::{Mode, SessionId, TicketId},
    },
};
use client::Session;
use config::Config;
use session::SessionTable;
use std::{fmt, sync::Arc, time::Duration};
use terms::Servers;

const KIND: &str = "zookeeper";

/// For how long an answer may take: a third of the session's TTL within these bounds.
const ANSWER_TIMEOUT_MIN: Duration = Duration::from_secs(1);
const ANSWER_TIMEOUT_MAX: Duration = Duration::from_secs(5);
/// How often an operation is tried again that other clients' writes can spoil by chance.
const ATTEMPTS: usize = 16;

/// Lines in ZooKeeper.
pub struct Zookeeper {
    id: StoreId,
    clock: Clock,
    config: Config,
    servers: Servers,
    /// For reads and evictions, which belong to no session of ours.
    common: Session,
    sessions: SessionTable,
}

impl Zookeeper {
    fn now(&self) -> Moment {
        self.clock.now()
    }
}

impl fmt::Debug for Zookeeper {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Zookeeper({})", self.id)
    }
}

impl Store for Zookeeper {
    fn scheme(&self) -> &'static str {
        KIND
    }

    fn capabilities(&self) -> Capabilities {
        let paths = &self.config.paths;
        Capabilities {
            at_least: false,
            sessions_shared: false,
            durable: true,
            survives_failover: !self.servers.alone,
            renewal_shows_tickets: true,
            shared: paths.refusal(Mode::Shared).is_none(),
            permits: paths.refusal(Mode::Permits { weight: 1, of: 1 }).is_none(),
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
        self.poll_session(session, which).await
    }

    async fn hints(&self, session: SessionId, to: Arc<dyn Hints>) -> StoreError {
        self.session_hints(session, to).await
    }

    async fn leave(&self, ask: Leave) -> StoreResult<Left> {
        self.leave_line(ask).await
    }

    async fn set_label(&self, edit: Edit) -> StoreResult<Edited> {
        self.edit_label(edit).await
    }

    async fn list(&self, which: ListScope) -> StoreResult<Vec<Line>> {
        self.list_locks(which).await
    }

    fn blind_spots(&self) -> Option<&'static str> {
        let raw = self.config.paths.is_raw();
        raw.then_some("locks in the folders below (name a folder to list it)")
    }

    fn unsupported(&self, mode: Mode) -> Option<&'static str> {
        self.config.paths.refusal(mode)
    }

    async fn check(&self, claim: Claim) -> StoreResult<bool> {
        Ok(self.claimed(&claim).await?.is_some())
    }

    async fn read(&self, name: Name) -> StoreResult<Option<Cell>> {
        self.read_cell(&name).await
    }

    async fn write(&self, edit: Edit) -> StoreResult<Edited> {
        self.edit_cell(edit).await
    }

    async fn write_under(&self, claim: Claim, bytes: Vec<u8>) -> StoreResult<Edited> {
        self.put_cell(&claim, &bytes).await
    }

    async fn evict(&self, name: Name, ticket: TicketId) -> StoreResult<bool> {
        self.evict_ticket(&name, ticket).await
    }

    async fn advice(&self) -> StoreResult<Vec<Advice>> {
        let ensemble = &self.config.ensemble;
        Ok(advice::of(&advice::facts(ensemble).await, ensemble))
    }

    fn detach(&self, session: SessionId) -> StoreResult<Vec<u8>> {
        self.detach_session(session)
    }

    async fn attach(&self, ask: Attach) -> StoreResult<()> {
        self.attach_session(ask).await
    }

    fn forget(&self, session: SessionId) {
        self.sessions.end(session, self.now());
    }

    fn native(&self, claim: &Claim) -> Vec<(&'static str, String)> {
        self.native_name(claim)
    }
}
