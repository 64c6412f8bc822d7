//! The service (`lockkeeper serve`) as a store: over TCP, TLS or a unix socket, from one or several instances.
//!
//! | idea | here |
//! |---|---|
//! | line | the service's: whatever its own store makes of it |
//! | session | the service's; its secret travels in a header, its public half ([`wire::public_half`]) in paths |
//! | hint | one stream of server-sent events for each session that waits |
//! | fence | the service's |
//!
//! | operation | round trips |
//! |---|---|
//! | connect | 1: what the store behind the service is and can do |
//! | open | 2 side by side: the session, and the identity of the data, which may be another one by now |
//! | list | 1 for each page of the service |
//! | every other operation | 1 |
//!
//! To these come the round trips of the service to its own store, and one for a connection that is not open yet. A
//! few connections stay open, each carrying one request at a time.
//!
//! An enter asks for no wait in the service: the core's waiting loop waits, woken by the stream of hints.
//!
//! Several instances of the service may stand before one store. One of them is in use at a time; when it fails, the
//! client moves on to the next (`client/retry.rs`). A renewal's version names the instance that answered, so the core
//! compares all tickets after such a move. A request says until when it may have an effect, on the service's clock,
//! so that an instance that stood still and goes on later does not carry out what was given up long ago.

mod advice;
mod cells;
mod client;
pub(super) mod config;
mod enter;
mod error;
mod inspect;
mod leave;
mod notify;
mod poll;
mod session;
#[cfg(test)]
mod tests;
pub mod wire;
mod words;

use super::{
    Advice, Capabilities, Cell, Claim, Edit, Edited, Enter, Entered, Hints, Leave, Left, ListScope,
    Open, PollScope, Renewal, Store, StoreId, StoreResult, Terms, TicketStatus,
};
use crate::{
    error::StoreError,
    model::{
        line::Line,
        name::Name,
        ticket::{SessionId, TicketId},
    },
};
use client::Client;
use config::Config;
use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

pub(crate) const KIND: &str = "lockkeeper+http";

/// Lines behind the service.
pub struct Http {
    client: Client,
    capabilities: Capabilities,
    not_shown: Option<&'static str>,
    /// The identity of the data, see [`StoreId`]. It changes when the service was started anew on a store that
    /// does not outlive it.
    id: AtomicU64,
}

impl Http {
    pub(super) async fn connect(config: Config) -> StoreResult<Self> {
        let client = Client::new(config);
        let info = session::info(&client).await?;
        Ok(Self {
            capabilities: info.capabilities,
            not_shown: info.not_shown.as_deref().map(words::keep),
            id: session::store_id(&info)?.into(),
            client,
        })
    }
}

impl Store for Http {
    fn scheme(&self) -> &'static str {
        KIND
    }

    fn capabilities(&self) -> Capabilities {
        self.capabilities
    }

    fn id(&self) -> StoreId {
        StoreId(self.id.load(Ordering::Acquire).to_be_bytes())
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
        self.deliver_hints(session, &*to).await
    }

    async fn leave(&self, ask: Leave) -> StoreResult<Left> {
        self.leave_line(&ask).await
    }

    async fn set_label(&self, edit: Edit) -> StoreResult<Edited> {
        self.change_label(edit).await
    }

    async fn list(&self, which: ListScope) -> StoreResult<Vec<Line>> {
        self.lines(which).await
    }

    fn blind_spots(&self) -> Option<&'static str> {
        self.not_shown
    }

    async fn check(&self, claim: Claim) -> StoreResult<bool> {
        self.is_held(claim).await
    }

    async fn read(&self, name: Name) -> StoreResult<Option<Cell>> {
        self.read_cell(&name).await
    }

    async fn write(&self, edit: Edit) -> StoreResult<Edited> {
        self.write_cell(edit).await
    }

    async fn write_under(&self, claim: Claim, bytes: Vec<u8>) -> StoreResult<Edited> {
        self.put_cell(claim, bytes).await
    }

    async fn evict(&self, name: Name, ticket: TicketId) -> StoreResult<bool> {
        self.evict_ticket(&name, ticket).await
    }

    async fn advice(&self) -> StoreResult<Vec<Advice>> {
        Ok(self.find_advice())
    }
}

impl fmt::Debug for Http {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Http({})", self.id())
    }
}
