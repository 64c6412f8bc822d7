//! The task of a session: renews it, re-checks what waits, takes the store's hints, and finishes what
//! dropped futures and guards have begun.

use crate::{
    api::{options::Renew, retry::jittered},
    clock::Moment,
    error::{ErrorKind, Loss, Outcome, StoreError},
    model::{
        name::Name,
        ticket::{Place, SessionId, TicketId},
    },
    observe,
    session::{
        Cleanup, Taker, Unanswered,
        outage::ANSWER_MOST,
        state::{Due, Expected, SessionState},
    },
    store::{
        AnyStore, Leave, Left, PollScope, Renewal, STRAY_MAX, Store as _, StoreResult, Terms,
        TicketStatus,
    },
};
use std::{
    collections::HashMap,
    convert::Infallible,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};
use tokio::{
    sync::{mpsc, oneshot},
    task::JoinSet,
};

/// Pauses between attempts to do what must be done: leave, or listen again.
const PAUSE_FIRST: Duration = Duration::from_millis(20);
const PAUSE_MOST: Duration = Duration::from_secs(1);

/// Answers a caller that has asked for a renewal now: how the attempt went.
pub(super) type RenewReply = oneshot::Sender<StoreResult<()>>;

/// Sends a leave until it is answered; a repeated leave never ends a later grant. `None` when the
/// session may be gone: then nothing more is sent for it, or its lock-delay would be cut short.
pub(super) async fn leave_until_answered(
    store: &AnyStore,
    state: &SessionState,
    leave: Leave,
    retry_on: impl Fn(&StoreError) -> bool,
) -> Option<StoreResult<Left>> {
    let (mut pause, mut repeated, mut told) = (PAUSE_FIRST, false, false);
    while !state.may_be_gone() {
        match store.leave(leave.clone()).await {
            Err(e) if retry_on(&e) => {
                repeated |= e.outcome == Outcome::Unknown;
                if !e.is_transient() && !std::mem::replace(&mut told, true) {
                    observe::leave_failed(&e);
                }
            }
            // An earlier copy of this very request has done it.
            Ok(Left::Gone) if repeated => return Some(Ok(Left::Released)),
            answer => return Some(answer),
        }
        state.clock.sleep(jittered(pause, 2)).await;
        pause = (pause * 2).min(PAUSE_MOST);
    }
    None
}

/// The session's task.
pub(super) struct SessionTask {
    pub(super) id: SessionId,
    pub(super) store: AnyStore,
    pub(super) terms: Terms,
    pub(super) renew: Renew,
    /// When the opening was sent.
    pub(super) opened: Moment,
    pub(super) state: Arc<SessionState>,
    pub(super) auto_renew: Arc<AtomicBool>,
    /// Weak: the channel must end when all keepers and guards of the session are gone.
    pub(super) cleanups: mpsc::WeakUnboundedSender<Cleanup>,
}

impl SessionTask {
    pub(super) async fn run(self, queue: CleanupQueue, asked: mpsc::UnboundedReceiver<RenewReply>) {
        let taker = tokio::select! {
            why = self.renewal_loop(asked) => return self.lost(why).await,
            // Another request was told by the store that the session is over.
            why = self.state.lost() => return self.lost(why).await,
            taker = self.cleanups(queue) => taker,
            never = self.hints() => match never {},
            never = self.recheck_loop() => match never {},
            never = self.max_hold_loop() => match never {},
        };
        // If the caller has gone, no process would know the session's secret: it is closed.
        if let Some(taker) = taker.filter(|taker| !taker.is_closed()) {
            match self.store.detach(self.id) {
                Ok(state) => return self.detach(taker, state),
                Err(e) => drop(taker.send(Err(e))),
            }
        }
        // First the guards here, then the others in the line.
        self.state.lose(Loss::Closed);
        if self.state.may_be_gone() {
            return;
        }
        if let Err(e) = self.store.close(self.id).await {
            observe::close_failed(&e);
        }
    }

    /// Leaves the session to another process. That may be this one again, so the store's handle has forgotten
    /// the session before the caller is told.
    fn detach(self, taker: Taker, state: Vec<u8>) {
        self.state.lose(Loss::Detached);
        drop(self);
        let _ = taker.send(Ok(state));
    }

    /// The session is lost. Nothing more is sent for it, so that the store keeps its locks closed for the
    /// lock-delay: the program may still be at work under one of them.
    ///
    /// A session that never handed out a lock protected no work. It is closed, or its own process would wait
    /// behind its tickets until they expire. The store may be away: the close is repeated for as long as a
    /// late copy of a renewal may prolong the session.
    async fn lost(self, why: Loss) {
        self.state.lose(why);
        observe::session_lost(why, self.state.holds());
        let (mut pause, until) = (PAUSE_FIRST, self.state.clock.now() + STRAY_MAX);
        while self.state.is_unused() && self.state.clock.now() < until {
            match self.store.close(self.id).await {
                Err(e) if e.is_transient() => {}
                Err(e) => return observe::close_failed(&e),
                Ok(()) => return,
            }
            self.state.clock.sleep(jittered(pause, 2)).await;
            pause = (pause * 2).min(PAUSE_MOST);
        }
    }

    /// The one renewal loop. Returns when the session is lost.
    async fn renewal_loop(&self, mut asked: mpsc::UnboundedReceiver<RenewReply>) -> Loss {
        let clock = &self.state.clock;
        // The store may have granted less than was asked for.
        let interval = self.renew.interval(self.terms.ttl).min(self.terms.belief() / 2);
        let mut next = self.opened + interval;
        loop {
            let deadline = self.state.deadline();
            let auto_renew = self.auto_renew.load(Ordering::Acquire);
            let wake = if auto_renew { next.min(deadline) } else { deadline };
            let reply = tokio::select! {
                () = clock.sleep_until(wake) => None,
                Some(reply) = asked.recv() => Some(reply),
            };
            let sent = clock.now();
            // Never renew what we have stopped believing in: the store may still think it lives.
            if sent >= deadline {
                return Loss::Expired;
            }
            if reply.is_none() && !self.auto_renew.load(Ordering::Acquire) {
                continue;
            }
            let expected = self.state.digest();
            let answer = match self.attempt(deadline.saturating_since(sent)).await {
                Ok(Renewal::Renewed { version, tickets }) => {
                    let later = sent + self.terms.belief();
                    // Lost is final, also when the answer was only late: others have been told.
                    if !self.state.renewed(later, version, tickets, expected) {
                        return Loss::Expired;
                    }
                    observe::renewed();
                    next = sent + interval;
                    Ok(())
                }
                Ok(Renewal::Lost) => return Loss::SessionGone,
                Err(e) => {
                    observe::renewal_failed(&e);
                    let e = Arc::new(e);
                    self.state.jeopardy(&e, sent);
                    next = clock.now() + jittered(self.renew.retry_pause(self.terms.ttl), 2);
                    Err(StoreError::shared(&e))
                }
            };
            if let Some(reply) = reply {
                let _ = reply.send(answer);
            }
        }
    }

    /// One renewal, given up when no answer comes in time.
    async fn attempt(&self, left: Duration) -> StoreResult<Renewal> {
        let patience = left.min(self.renew.attempt_timeout(self.terms.ttl));
        tokio::select! {
            biased;
            answer = self.store.renew(self.id) => answer,
            () = self.state.clock.sleep(patience) => Err(StoreError::unknown(
                self.store.scheme(),
                ErrorKind::Unavailable,
                format!("no answer to a renewal within {patience:.1?}"),
            )),
        }
    }

    /// Finishes what was handed over, until the session is detached or closed, or its last handle is dropped.
    /// Returns where to say what takes a detached session over.
    async fn cleanups(&self, mut queue: CleanupQueue) -> Option<Taker> {
        let mut work = JoinSet::new();
        let taker = loop {
            tokio::select! {
                cleanup = queue.cleanups.recv() => match cleanup {
                    Some(Cleanup::Leave { request, leave }) => {
                        work.spawn(self.finish(request, leave));
                    }
                    Some(Cleanup::Detach(taker)) => break Some(taker),
                    Some(Cleanup::Close) | None => break None,
                },
                Some(_) = work.join_next() => {}
            }
        };
        self.state.closes();
        while work.join_next().await.is_some() {}
        taker
    }

    /// Awaits the request that may still put the ticket into its line, then leaves.
    fn finish(
        &self,
        request: Option<Unanswered>,
        leave: Leave,
    ) -> impl Future<Output = ()> + Send + 'static {
        let (store, state) = (self.store.clone(), Arc::clone(&self.state));
        let pending = PendingLeave { leave: Some(leave.clone()), store, state };
        async move {
            let work = async {
                if let Some(request) = request {
                    let _ = request.await;
                }
                let ticket = leave.place.ticket;
                // Only this task ends the ticket while the session lives, so it tries again after any error:
                // an operator may give rights back or make space. Once the session is being closed, the close
                // ends the ticket.
                let retry_on = |e: &StoreError| {
                    let over = e.kind == ErrorKind::SessionOver;
                    e.is_transient() || !(over || pending.state.is_closing())
                };
                match leave_until_answered(&pending.store, &pending.state, leave, retry_on).await {
                    Some(Err(e)) if e.kind == ErrorKind::SessionOver => {
                        pending.state.lose(Loss::SessionGone);
                    }
                    Some(Err(e)) => observe::leave_failed(&e),
                    _ => {}
                }
                pending.state.forget(ticket);
            };
            tokio::select! { () = work => {} _ = pending.state.lost() => {} }
            pending.kept();
        }
    }

    /// Lets the store drop its hints at the state, from the first waiter on.
    async fn hints(&self) -> Infallible {
        self.state.waiters.notified().await;
        let mut pause = PAUSE_FIRST;
        loop {
            let began = self.state.clock.now();
            let e = self.store.hints(self.id, Arc::clone(&self.state) as _).await;
            self.state.hints_lost();
            observe::hints_broke(&e);
            self.note_session_over(&e);
            if self.state.clock.now().saturating_since(began) > PAUSE_MOST {
                pause = PAUSE_FIRST;
            }
            self.state.clock.sleep(jittered(pause, 2)).await;
            pause = (pause * 2).min(PAUSE_MOST);
        }
    }

    /// Polls for what waits when it is due, by a hint or by the clock, and ends what is held too long.
    async fn recheck_loop(&self) -> Infallible {
        loop {
            tokio::select! {
                () = self.state.due.notified() => {}
                () = self.state.clock.sleep_until(self.state.next_due()) => {}
            }
            let due = self.state.due();
            self.recheck(&due).await;
        }
    }

    /// Ends what is held too long. A loop of its own: a slow poll must not hold it up.
    async fn max_hold_loop(&self) -> Infallible {
        loop {
            tokio::select! {
                () = self.state.timed.notified() => {}
                () = self.state.clock.sleep_until(self.state.next_overheld()) => {}
            }
            for (ticket, hold_state) in self.state.overheld() {
                // The guard's own hold leaves when it is dropped; the line need not wait for that.
                hold_state.end(Loss::MaxHold);
                self.hand_over(hold_state.name.clone(), ticket);
            }
        }
    }

    fn hand_over(&self, name: Name, ticket: TicketId) {
        self.state.leaving(ticket);
        let leave =
            Leave { place: Place { session: self.id, name, ticket }, keep: None, stray: true };
        if let Some(cleanups) = self.cleanups.upgrade() {
            let _ = cleanups.send(Cleanup::Leave { request: None, leave });
        }
    }

    /// The store says that the session is over: the waiters must hear of it now, not by the next renewal.
    fn note_session_over(&self, e: &StoreError) {
        if e.kind == ErrorKind::SessionOver {
            self.state.lose(Loss::SessionGone);
        }
    }

    async fn recheck(&self, due: &Due) {
        let which = match due.verify {
            Some(_) => PollScope::All,
            None if due.poll.is_empty() => return,
            None => PollScope::These(due.poll.clone()),
        };
        let expected = due.verify.map(|_| self.state.expected()).unwrap_or_default();
        let sent = self.state.clock.now();
        match self.polled(which, sent).await {
            Err(e) => {
                self.state.unanswered(due);
                self.note_session_over(&e);
                self.state.unreached(&Arc::new(e), sent);
            }
            Ok(stands) => {
                self.state.reached();
                for (_, ticket, stand) in &stands {
                    self.state.polled(*ticket, stand);
                }
                if let Some(version) = due.verify {
                    self.compare(&expected, &stands);
                    self.state.verified(version);
                }
            }
        }
    }

    /// One poll. A store that does not answer it soon counts as away before the store's own time for it is over.
    async fn polled(
        &self,
        which: PollScope,
        sent: Moment,
    ) -> StoreResult<Vec<(Name, TicketId, TicketStatus)>> {
        let mut answer = pin!(self.store.poll(self.id, which));
        tokio::select! {
            biased;
            answer = &mut answer => return answer,
            () = self.state.clock.sleep(ANSWER_MOST) => {}
        }
        let what = format!("no answer within {ANSWER_MOST:?}");
        let e = StoreError::unknown(self.store.scheme(), ErrorKind::Unavailable, what);
        self.state.unreached(&Arc::new(e), sent);
        answer.await
    }

    /// Compares what we know with all that the store has: what is missing there is lost (or, if it
    /// waited, enters again), what is unknown here is left.
    fn compare(&self, expected: &[Expected], stands: &[(Name, TicketId, TicketStatus)]) {
        let there: HashMap<TicketId, &TicketStatus> =
            stands.iter().map(|(_, t, s)| (*t, s)).collect();
        let fenced = self.store.capabilities().fenced;
        for expected in expected {
            self.state.compared(expected, there.get(&expected.ticket).copied(), fenced);
        }
        for (name, ticket, _) in stands.iter().filter(|(_, t, _)| !self.state.knows(*t)) {
            self.hand_over(name.clone(), *ticket);
        }
    }
}

/// Whatever ends the task, a panic or the end of the runtime, ends the belief in the locks.
impl Drop for SessionTask {
    fn drop(&mut self) {
        self.state.lose(Loss::Closed);
        self.store.forget(self.id);
    }
}

/// A leave that has not been answered. When the runtime ends before it is, a store that can leave
/// without awaiting does it in `drop`; with the others the ticket stays until the session expires.
struct PendingLeave {
    leave: Option<Leave>,
    store: AnyStore,
    state: Arc<SessionState>,
}

impl PendingLeave {
    fn kept(mut self) {
        self.leave = None;
    }
}

impl Drop for PendingLeave {
    fn drop(&mut self) {
        if let Some(leave) = self.leave.take() {
            leave_now(&self.store, &self.state, &leave);
        }
    }
}

/// The cleanups that were not begun: they too are left in `drop`, where the store can.
pub(super) struct CleanupQueue {
    pub(super) cleanups: mpsc::UnboundedReceiver<Cleanup>,
    pub(super) store: AnyStore,
    pub(super) state: Arc<SessionState>,
}

impl Drop for CleanupQueue {
    fn drop(&mut self) {
        self.cleanups.close();
        while let Ok(cleanup) = self.cleanups.try_recv() {
            if let Cleanup::Leave { leave, .. } = cleanup {
                leave_now(&self.store, &self.state, &leave);
            }
        }
    }
}

pub(super) fn leave_now(store: &AnyStore, state: &SessionState, leave: &Leave) {
    if !state.may_be_gone() {
        store.leave_now(leave);
    }
}
