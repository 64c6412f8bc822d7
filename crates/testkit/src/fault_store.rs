//! A store that sees every request to another one, and decides what becomes of it.

use crate::hint_filter::{HintFate, HintFilter};
use lockkeeper::{
    Capabilities, ErrorKind, Line, Mode, Name, Store, StoreError, TicketId,
    store::{
        AnyStore, Cell, Claim, Edit, Edited, Enter, Entered, Hints, Leave, Left, ListScope, Open,
        PollScope, Renewal, SessionId, StoreId, StoreResult, Terms, TicketStatus,
    },
};
use std::{
    fmt,
    future::pending,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use tokio::{sync::Notify, task::yield_now, time::sleep};

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
    Annotate,
    ListScope,
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

/// What becomes of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It arrives and is answered.
    Pass,
    /// It never arrives, and the sender is told so.
    Refuse,
    /// It arrives, but the answer is lost: the sender cannot know.
    Lose,
    /// It never arrives, and no answer comes.
    Vanish,
    /// It arrives, and no answer comes.
    Silence,
    /// It arrives, and the answer is kept back until it is [let go](Tapped::let_go).
    Hold,
    /// It arrives twice; the first answer counts.
    Twice,
    /// It takes its time on the way, and the answer too.
    Slow {
        /// On the way.
        before: Duration,
        /// On the way back.
        after: Duration,
    },
    /// As slow, but in polls of the sender's future instead of time.
    Pend {
        /// On the way.
        before: usize,
        /// On the way back.
        after: usize,
    },
}

/// Decides what becomes of each request.
pub type Plan = Arc<dyn Fn(&Call) -> Fate + Send + Sync>;

/// A store that passes requests on to another one, with the faults that a case asks for.
pub struct FaultStore {
    inner: AnyStore,
    plan: Mutex<Plan>,
    log: Mutex<Vec<Call>>,
    held_back: Notify,
    hints: Arc<HintFilter>,
}

impl FaultStore {
    /// Stands before this store. At first everything passes.
    pub fn over(inner: impl Store) -> Arc<Self> {
        Arc::new(Self {
            inner: AnyStore::new(inner),
            plan: Mutex::new(Arc::new(|_| Fate::Pass)),
            log: Mutex::default(),
            held_back: Notify::new(),
            hints: Arc::default(),
        })
    }

    /// The store with the faults.
    #[must_use]
    pub fn store(self: &Arc<Self>) -> AnyStore {
        AnyStore::shared(Arc::clone(self))
    }

    /// The store without the faults.
    #[must_use]
    pub fn inner(&self) -> &AnyStore {
        &self.inner
    }

    /// From now on `plan` decides.
    pub fn plan(&self, plan: impl Fn(&Call) -> Fate + Send + Sync + 'static) {
        *locked(&self.plan) = Arc::new(plan);
    }

    /// From now on everything passes.
    pub fn pass_all(&self) {
        self.plan(|_| Fate::Pass);
    }

    /// From now on requests of these kinds have this fate, and all others pass.
    pub fn only(&self, ops: &'static [Op], fate: Fate) {
        self.plan(move |call| if ops.contains(&call.op) { fate } else { Fate::Pass });
    }

    /// Lets the answers go that are kept back now.
    pub fn release_held(&self) {
        self.held_back.notify_waiters();
    }

    /// Decides what becomes of the hints from now on.
    pub fn hint_fate(&self, fate: HintFate) {
        self.hints.set(fate);
    }

    /// What is known of the hints.
    #[must_use]
    pub fn hint_filter(&self) -> &HintFilter {
        &self.hints
    }

    /// All requests so far.
    #[must_use]
    pub fn log(&self) -> Vec<Call> {
        locked(&self.log).clone()
    }

    /// How many requests of this kind there were so far.
    #[must_use]
    pub fn count(&self, op: Op) -> usize {
        locked(&self.log).iter().filter(|call| call.op == op).count()
    }

    /// The sessions that were asked for, in order.
    #[must_use]
    pub fn sessions(&self) -> Vec<SessionId> {
        let log = locked(&self.log);
        log.iter().filter(|call| call.op == Op::Open).filter_map(|call| call.session).collect()
    }

    fn decide(&self, op: Op, session: Option<SessionId>, ticket: Option<TicketId>) -> Fate {
        let call = Call { op, session, ticket };
        let plan = Arc::clone(&locked(&self.plan));
        let fate = plan(&call);
        locked(&self.log).push(call);
        fate
    }

    async fn pass<T, F>(&self, fate: Fate, send: impl Fn() -> F + Send + Sync) -> StoreResult<T>
    where
        T: Send,
        F: Future<Output = StoreResult<T>> + Send,
    {
        match fate {
            Fate::Pass => send().await,
            Fate::Refuse => Err(self.refused()),
            Fate::Lose => {
                let _ = send().await;
                Err(self.lost())
            }
            Fate::Vanish => pending().await,
            Fate::Silence => {
                let _ = send().await;
                pending().await
            }
            Fate::Hold => {
                let answer = send().await;
                self.held_back.notified().await;
                answer
            }
            Fate::Twice => {
                let answer = send().await;
                let _ = send().await;
                answer
            }
            Fate::Slow { before, after } => {
                sleep(before).await;
                let answer = send().await;
                sleep(after).await;
                answer
            }
            Fate::Pend { before, after } => {
                yield_for(before).await;
                let answer = send().await;
                yield_for(after).await;
                answer
            }
        }
    }

    fn refused(&self) -> StoreError {
        StoreError::not_applied(self.inner.scheme(), ErrorKind::Unavailable, "refused by the test")
    }

    fn lost(&self) -> StoreError {
        StoreError::unknown(self.inner.scheme(), ErrorKind::Unavailable, "answer lost by the test")
    }
}

async fn yield_for(polls: usize) {
    for _ in 0..polls {
        yield_now().await;
    }
}

/// A panic elsewhere in the case must not hide behind a poisoned lock.
pub(crate) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl fmt::Debug for FaultStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("FaultStore").field(&self.inner).finish()
    }
}

impl Store for FaultStore {
    fn scheme(&self) -> &'static str {
        self.inner.scheme()
    }

    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    fn id(&self) -> StoreId {
        self.inner.id()
    }

    async fn open(&self, ask: Open) -> StoreResult<Terms> {
        let fate = self.decide(Op::Open, Some(ask.session), None);
        self.pass(fate, || self.inner.open(ask.clone())).await
    }

    async fn renew(&self, session: SessionId) -> StoreResult<Renewal> {
        let fate = self.decide(Op::Renew, Some(session), None);
        self.pass(fate, || self.inner.renew(session)).await
    }

    async fn close(&self, session: SessionId) -> StoreResult<()> {
        let fate = self.decide(Op::Close, Some(session), None);
        self.pass(fate, || self.inner.close(session)).await
    }

    async fn enter(&self, ask: Enter) -> StoreResult<Entered> {
        let fate = self.decide(Op::Enter, Some(ask.place.session), Some(ask.place.ticket));
        self.pass(fate, || self.inner.enter(ask.clone())).await
    }

    async fn poll(
        &self,
        session: SessionId,
        which: PollScope,
    ) -> StoreResult<Vec<(Name, TicketId, TicketStatus)>> {
        let op = if matches!(which, PollScope::All) { Op::PollAll } else { Op::PollThese };
        let fate = self.decide(op, Some(session), None);
        self.pass(fate, || self.inner.poll(session, which.clone())).await
    }

    async fn hints(&self, session: SessionId, to: Arc<dyn Hints>) -> StoreError {
        self.inner.hints(session, self.hints.before(to)).await
    }

    async fn leave(&self, ask: Leave) -> StoreResult<Left> {
        let fate = self.decide(Op::Leave, Some(ask.place.session), Some(ask.place.ticket));
        self.pass(fate, || self.inner.leave(ask.clone())).await
    }

    fn leave_now(&self, ask: &Leave) -> bool {
        let fate = self.decide(Op::LeaveNow, Some(ask.place.session), Some(ask.place.ticket));
        !matches!(fate, Fate::Refuse | Fate::Vanish) && self.inner.leave_now(ask)
    }

    async fn set_label(&self, edit: Edit) -> StoreResult<Edited> {
        let fate = self.decide(Op::Annotate, Some(edit.place.session), Some(edit.place.ticket));
        self.pass(fate, || self.inner.set_label(edit.clone())).await
    }

    async fn list(&self, which: ListScope) -> StoreResult<Vec<Line>> {
        let fate = self.decide(Op::ListScope, None, None);
        self.pass(fate, || self.inner.list(which.clone())).await
    }

    async fn check(&self, claim: Claim) -> StoreResult<bool> {
        let fate = self.decide(Op::Check, None, Some(claim.ticket));
        self.pass(fate, || self.inner.check(claim.clone())).await
    }

    async fn read(&self, name: Name) -> StoreResult<Option<Cell>> {
        let fate = self.decide(Op::Read, None, None);
        self.pass(fate, || self.inner.read(name.clone())).await
    }

    async fn write(&self, edit: Edit) -> StoreResult<Edited> {
        let fate = self.decide(Op::Write, Some(edit.place.session), Some(edit.place.ticket));
        self.pass(fate, || self.inner.write(edit.clone())).await
    }

    async fn evict(&self, name: Name, ticket: TicketId) -> StoreResult<bool> {
        let fate = self.decide(Op::Evict, None, Some(ticket));
        self.pass(fate, || self.inner.evict(name.clone(), ticket)).await
    }

    fn forget(&self, session: SessionId) {
        self.inner.forget(session);
    }

    fn blind_spots(&self) -> Option<&'static str> {
        self.inner.blind_spots()
    }

    fn unsupported(&self, mode: Mode) -> Option<&'static str> {
        self.inner.unsupported(mode)
    }

    fn native(&self, claim: &Claim) -> Vec<(&'static str, String)> {
        self.inner.native(claim)
    }
}
