//! A store around a store that counts renewals and times requests.

use crate::machine::now;
use lockkeeper::{
    Line, Name, StoreError, TicketId,
    store::{
        Capabilities, Cell, Claim, Edit, Edited, Enter, Entered, Hints, Leave, Left, ListScope,
        Open, PollScope, Renewal, SessionId, Store, StoreId, StoreResult, Terms, TicketStatus,
    },
};
use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

/// What a [`Meter`] has counted.
#[derive(Default)]
pub(crate) struct Count {
    renewals: AtomicU64,
    worst_nanos: AtomicU64,
}

impl Count {
    /// How many renewals were sent.
    pub(crate) fn renewals(&self) -> u64 {
        self.renewals.load(Ordering::Relaxed)
    }

    /// How long the slowest enter, leave or renewal took.
    pub(crate) fn worst_nanos(&self) -> u64 {
        self.worst_nanos.load(Ordering::Relaxed)
    }

    /// Forgets what was slow until now.
    pub(crate) fn reset_worst(&self) {
        self.worst_nanos.store(0, Ordering::Relaxed);
    }

    async fn timed<T>(&self, request: impl Future<Output = T>) -> T {
        let began = now();
        let answer = request.await;
        let took = now().as_nanos().saturating_sub(began.as_nanos());
        self.worst_nanos.fetch_max(took, Ordering::Relaxed);
        answer
    }
}

/// Passes everything on to the store inside.
pub(crate) struct Meter<S> {
    inside: S,
    count: Arc<Count>,
}

impl<S: Store> Meter<S> {
    pub(crate) fn around(inside: S) -> (Self, Arc<Count>) {
        let count = Arc::default();
        (Self { inside, count: Arc::clone(&count) }, count)
    }
}

impl<S: Store> Store for Meter<S> {
    fn scheme(&self) -> &'static str {
        self.inside.scheme()
    }

    fn capabilities(&self) -> Capabilities {
        self.inside.capabilities()
    }

    fn id(&self) -> StoreId {
        self.inside.id()
    }

    async fn open(&self, ask: Open) -> StoreResult<Terms> {
        self.inside.open(ask).await
    }

    async fn renew(&self, session: SessionId) -> StoreResult<Renewal> {
        self.count.renewals.fetch_add(1, Ordering::Relaxed);
        self.count.timed(self.inside.renew(session)).await
    }

    async fn close(&self, session: SessionId) -> StoreResult<()> {
        self.inside.close(session).await
    }

    async fn enter(&self, ask: Enter) -> StoreResult<Entered> {
        self.count.timed(self.inside.enter(ask)).await
    }

    async fn poll(
        &self,
        session: SessionId,
        which: PollScope,
    ) -> StoreResult<Vec<(Name, TicketId, TicketStatus)>> {
        self.inside.poll(session, which).await
    }

    async fn hints(&self, session: SessionId, to: Arc<dyn Hints>) -> StoreError {
        self.inside.hints(session, to).await
    }

    async fn leave(&self, ask: Leave) -> StoreResult<Left> {
        self.count.timed(self.inside.leave(ask)).await
    }

    fn leave_now(&self, ask: &Leave) -> bool {
        self.inside.leave_now(ask)
    }

    async fn set_label(&self, edit: Edit) -> StoreResult<Edited> {
        self.inside.set_label(edit).await
    }

    async fn list(&self, which: ListScope) -> StoreResult<Vec<Line>> {
        self.inside.list(which).await
    }

    async fn check(&self, claim: Claim) -> StoreResult<bool> {
        self.inside.check(claim).await
    }

    async fn read(&self, name: Name) -> StoreResult<Option<Cell>> {
        self.inside.read(name).await
    }

    async fn write(&self, edit: Edit) -> StoreResult<Edited> {
        self.inside.write(edit).await
    }

    async fn evict(&self, name: Name, ticket: TicketId) -> StoreResult<bool> {
        self.inside.evict(name, ticket).await
    }

    fn forget(&self, session: SessionId) {
        self.inside.forget(session);
    }

    fn blind_spots(&self) -> Option<&'static str> {
        self.inside.blind_spots()
    }

    fn native(&self, claim: &Claim) -> Vec<(&'static str, String)> {
        self.inside.native(claim)
    }
}
