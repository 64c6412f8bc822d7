//! A store that sees every request to another one, and decides what becomes of it.

use crate::{
    hint_filter::{HintFate, HintFilter},
    layer::{Layer, Layered},
};
use lockkeeper::{
    ErrorKind, Store, StoreError,
    store::{AnyStore, Hints, Leave, SessionId, StoreResult},
};
use std::{
    fmt,
    future::pending,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use tokio::{sync::Notify, task::yield_now, time::sleep};

pub use crate::layer::{Call, Op};

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
    /// It arrives, and the answer is kept back until it is [let go](FaultStore::release_held).
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
        AnyStore::new(Layered(Arc::clone(self)))
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

    fn decide(&self, call: Call) -> Fate {
        let plan = Arc::clone(&locked(&self.plan));
        let fate = plan(&call);
        locked(&self.log).push(call);
        fate
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

impl Layer for Arc<FaultStore> {
    fn inner(&self) -> &AnyStore {
        &self.inner
    }

    async fn around<T: Send, F>(
        &self,
        call: Call,
        send: impl Fn() -> F + Send + Sync,
    ) -> StoreResult<T>
    where
        F: Future<Output = StoreResult<T>> + Send,
    {
        match self.decide(call) {
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

    async fn hints(&self, session: SessionId, to: Arc<dyn Hints>) -> StoreError {
        Store::hints(&self.inner, session, self.hints.before(to)).await
    }

    fn leave_now(&self, ask: &Leave) -> bool {
        let (session, ticket) = (Some(ask.place.session), Some(ask.place.ticket));
        let fate = self.decide(Call { op: Op::LeaveNow, session, ticket });
        !matches!(fate, Fate::Refuse | Fate::Vanish) && self.inner.leave_now(ask)
    }
}
