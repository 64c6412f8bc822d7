//! A store around a store: every request passes through, and what wraps it overrides what it wants to see or
//! to change.
//!
//! ```
//! use lockkeeper::{Keeper, store::{AnyStore, StoreResult, memory::Memory}};
//! use lockkeeper_testkit::layer::{Call, Layer, Layered};
//! use std::sync::{Arc, atomic::{AtomicUsize, Ordering}};
//!
//! /// Counts the requests.
//! struct Counter(AnyStore, Arc<AtomicUsize>);
//!
//! impl Layer for Counter {
//!     fn inner(&self) -> &AnyStore {
//!         &self.0
//!     }
//!
//!     async fn around<T: Send, F>(&self, _: Call, send: impl Fn() -> F + Send + Sync) -> StoreResult<T>
//!     where
//!         F: Future<Output = StoreResult<T>> + Send,
//!     {
//!         self.1.fetch_add(1, Ordering::Relaxed);
//!         send().await
//!     }
//! }
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> anyhow::Result<()> {
//! let requests = Arc::new(AtomicUsize::new(0));
//! let store = Layered(Counter(AnyStore::new(Memory::new()), requests.clone()));
//! let keeper = Keeper::over(AnyStore::new(store));
//! keeper.lock("jobs").await?.release().await?;
//! assert_eq!(requests.load(Ordering::Relaxed), 3); // open, enter, leave
//! # Ok(())
//! # }
//! ```

use lockkeeper::{
    Capabilities, Line, Mode, Name, Store, StoreError, TicketId,
    store::{
        Advice, AnyStore, Attach, Cell, Claim, Edit, Edited, Enter, Entered, Hints, Leave, Left,
        ListScope, Open, PollScope, Renewal, SessionId, StoreId, StoreResult, Terms, TicketStatus,
    },
};
use std::sync::Arc;

/// The kinds of requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "the names are those of the store's operations")]
pub enum Op {
    Open,
    Renew,
    Close,
    Enter,
    /// A poll for some tickets.
    PollThese,
    /// A poll for all tickets of the session.
    PollAll,
    Leave,
    LeaveNow,
    SetLabel,
    List,
    Check,
    Read,
    Write,
    Evict,
}

/// One request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    /// Its kind.
    pub op: Op,
    /// On whose behalf.
    pub session: Option<SessionId>,
    /// About which ticket.
    pub ticket: Option<TicketId>,
}

/// The answer to a poll.
pub type Statuses = Vec<(Name, TicketId, TicketStatus)>;

/// What wraps a store. By default every request goes through [`around`](Self::around), and that sends it on.
pub trait Layer: Send + Sync + 'static {
    /// The store inside.
    fn inner(&self) -> &AnyStore;

    /// Every awaited request that is not overridden. `send` sends it on: once, not at all, or several times.
    fn around<T: Send, F>(
        &self,
        call: Call,
        send: impl Fn() -> F + Send + Sync,
    ) -> impl Future<Output = StoreResult<T>> + Send
    where
        F: Future<Output = StoreResult<T>> + Send,
    {
        let _ = call;
        async move { send().await }
    }

    /// See [`Store::scheme`].
    fn scheme(&self) -> &'static str {
        self.inner().scheme()
    }

    /// See [`Store::capabilities`].
    fn capabilities(&self) -> Capabilities {
        self.inner().capabilities()
    }

    /// See [`Store::leave_now`].
    fn leave_now(&self, ask: &Leave) -> bool {
        self.inner().leave_now(ask)
    }

    /// See [`Store::hints`].
    fn hints(
        &self,
        session: SessionId,
        to: Arc<dyn Hints>,
    ) -> impl Future<Output = StoreError> + Send {
        async move { Store::hints(self.inner(), session, to).await }
    }

    /// See [`Store::open`].
    fn open(&self, ask: Open) -> impl Future<Output = StoreResult<Terms>> + Send {
        let call = Call { op: Op::Open, session: Some(ask.session), ticket: None };
        self.around(call, move || Store::open(self.inner(), ask.clone()))
    }

    /// See [`Store::renew`].
    fn renew(&self, session: SessionId) -> impl Future<Output = StoreResult<Renewal>> + Send {
        let call = Call { op: Op::Renew, session: Some(session), ticket: None };
        self.around(call, move || Store::renew(self.inner(), session))
    }

    /// See [`Store::close`].
    fn close(&self, session: SessionId) -> impl Future<Output = StoreResult<()>> + Send {
        let call = Call { op: Op::Close, session: Some(session), ticket: None };
        self.around(call, move || Store::close(self.inner(), session))
    }

    /// See [`Store::enter`].
    fn enter(&self, ask: Enter) -> impl Future<Output = StoreResult<Entered>> + Send {
        let (session, ticket) = (Some(ask.place.session), Some(ask.place.ticket));
        let call = Call { op: Op::Enter, session, ticket };
        self.around(call, move || Store::enter(self.inner(), ask.clone()))
    }

    /// See [`Store::poll`].
    fn poll(
        &self,
        session: SessionId,
        which: PollScope,
    ) -> impl Future<Output = StoreResult<Statuses>> + Send {
        let op = if matches!(which, PollScope::All) { Op::PollAll } else { Op::PollThese };
        let call = Call { op, session: Some(session), ticket: None };
        self.around(call, move || Store::poll(self.inner(), session, which.clone()))
    }

    /// See [`Store::leave`].
    fn leave(&self, ask: Leave) -> impl Future<Output = StoreResult<Left>> + Send {
        let (session, ticket) = (Some(ask.place.session), Some(ask.place.ticket));
        let call = Call { op: Op::Leave, session, ticket };
        self.around(call, move || Store::leave(self.inner(), ask.clone()))
    }

    /// See [`Store::set_label`].
    fn set_label(&self, edit: Edit) -> impl Future<Output = StoreResult<Edited>> + Send {
        let (session, ticket) = (Some(edit.place.session), Some(edit.place.ticket));
        let call = Call { op: Op::SetLabel, session, ticket };
        self.around(call, move || Store::set_label(self.inner(), edit.clone()))
    }

    /// See [`Store::list`].
    fn list(&self, which: ListScope) -> impl Future<Output = StoreResult<Vec<Line>>> + Send {
        let call = Call { op: Op::List, session: None, ticket: None };
        self.around(call, move || Store::list(self.inner(), which.clone()))
    }

    /// See [`Store::check`].
    fn check(&self, claim: Claim) -> impl Future<Output = StoreResult<bool>> + Send {
        let call = Call { op: Op::Check, session: None, ticket: Some(claim.ticket) };
        self.around(call, move || Store::check(self.inner(), claim.clone()))
    }

    /// See [`Store::read`].
    fn read(&self, name: Name) -> impl Future<Output = StoreResult<Option<Cell>>> + Send {
        let call = Call { op: Op::Read, session: None, ticket: None };
        self.around(call, move || Store::read(self.inner(), name.clone()))
    }

    /// See [`Store::write`].
    fn write(&self, edit: Edit) -> impl Future<Output = StoreResult<Edited>> + Send {
        let (session, ticket) = (Some(edit.place.session), Some(edit.place.ticket));
        let call = Call { op: Op::Write, session, ticket };
        self.around(call, move || Store::write(self.inner(), edit.clone()))
    }

    /// See [`Store::write_under`].
    fn write_under(
        &self,
        claim: Claim,
        bytes: Vec<u8>,
    ) -> impl Future<Output = StoreResult<Edited>> + Send {
        let call = Call { op: Op::Write, session: None, ticket: Some(claim.ticket) };
        self.around(call, move || Store::write_under(self.inner(), claim.clone(), bytes.clone()))
    }

    /// See [`Store::evict`].
    fn evict(
        &self,
        name: Name,
        ticket: TicketId,
    ) -> impl Future<Output = StoreResult<bool>> + Send {
        let call = Call { op: Op::Evict, session: None, ticket: Some(ticket) };
        self.around(call, move || Store::evict(self.inner(), name.clone(), ticket))
    }
}

/// The store that a [`Layer`] makes of the one inside.
#[derive(Debug)]
pub struct Layered<L>(pub L);

impl<L: Layer> Store for Layered<L> {
    fn scheme(&self) -> &'static str {
        self.0.scheme()
    }

    fn capabilities(&self) -> Capabilities {
        self.0.capabilities()
    }

    fn id(&self) -> StoreId {
        self.0.inner().id()
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

    async fn poll(&self, session: SessionId, which: PollScope) -> StoreResult<Statuses> {
        self.0.poll(session, which).await
    }

    async fn hints(&self, session: SessionId, to: Arc<dyn Hints>) -> StoreError {
        self.0.hints(session, to).await
    }

    async fn leave(&self, ask: Leave) -> StoreResult<Left> {
        self.0.leave(ask).await
    }

    fn leave_now(&self, ask: &Leave) -> bool {
        self.0.leave_now(ask)
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
        Store::advice(self.0.inner()).await
    }

    fn detach(&self, session: SessionId) -> StoreResult<Vec<u8>> {
        self.0.inner().detach(session)
    }

    async fn attach(&self, ask: Attach) -> StoreResult<()> {
        Store::attach(self.0.inner(), ask).await
    }

    fn forget(&self, session: SessionId) {
        self.0.inner().forget(session);
    }

    fn blind_spots(&self) -> Option<&'static str> {
        self.0.inner().blind_spots()
    }

    fn unsupported(&self, mode: Mode) -> Option<&'static str> {
        self.0.inner().unsupported(mode)
    }

    fn native(&self, claim: &Claim) -> Vec<(&'static str, String)> {
        self.0.inner().native(claim)
    }
}
