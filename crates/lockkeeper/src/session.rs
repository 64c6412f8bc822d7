//! A session: one lease in the store, one renewal, many tickets.
//!
//! Acquiring and releasing call the store directly. Beside them one task for each session renews it,
//! re-checks what waits, takes the store's hints, and finishes what dropped futures and guards have
//! begun. These are loops side by side; none awaits inside another's turn, so a slow request
//! cannot hold up a renewal.

use crate::{
    clock::{Clock, Moment},
    desk::{Desk, Due, Expected, Lease},
    error::{Error, Loss, Outcome, Result, StoreError, Trouble},
    name::Name,
    observe,
    options::{Renew, Times},
    retry::jittered,
    store::{
        AnyStore, Entered, Leave, Left, Open, Renewal, STRAY_MAX, Stand, Store as _, StoreResult,
        Terms, Which,
    },
    ticket::{Owner, Place, SessionId, TicketId},
};
use std::{
    collections::HashMap,
    convert::Infallible,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};
use tokio::{
    sync::{mpsc, oneshot},
    task::{JoinHandle, JoinSet},
};

/// Pauses between attempts to do what must be done: leave, or listen again.
const PAUSE_FIRST: Duration = Duration::from_millis(20);
const PAUSE_MOST: Duration = Duration::from_secs(1);

/// A request whose future was dropped half-way. The task awaits it, so that the leave which follows
/// cannot overtake it.
pub(crate) type Unanswered = std::pin::Pin<Box<dyn Future<Output = StoreResult<Entered>> + Send>>;

/// What is left to do for futures and guards that were dropped.
pub(crate) enum Chore {
    Leave { request: Option<Unanswered>, leave: Leave },
    Close,
}

/// A wish to be renewed now; told how the attempt went.
type Asker = oneshot::Sender<StoreResult<()>>;

pub(crate) struct Session {
    pub(crate) id: SessionId,
    pub(crate) store: AnyStore,
    pub(crate) terms: Terms,
    pub(crate) desk: Arc<Desk>,
    chores: mpsc::UnboundedSender<Chore>,
    renewals: mpsc::UnboundedSender<Asker>,
    /// Renew by the clock, or only when asked to (a fixed lease that has been granted).
    watchdog: Arc<AtomicBool>,
}

impl Session {
    pub(crate) async fn open(
        store: &AnyStore,
        clock: &Clock,
        times: Times,
        renew: Renew,
        owner: Owner,
    ) -> StoreResult<(Arc<Self>, JoinHandle<()>)> {
        let (id, sent) = (SessionId::random(), clock.now());
        let Times { ttl, lock_delay } = times;
        let terms = store.open(Open { session: id, ttl, lock_delay, owner }).await?;
        let desk = Arc::new(Desk::new(clock.clone(), sent + terms.belief()));
        let (chores, handed_over) = mpsc::unbounded_channel();
        let (renewals, asked) = mpsc::unbounded_channel();
        let watchdog = Arc::new(AtomicBool::new(true));
        let tender = Tender {
            id,
            store: store.clone(),
            terms,
            renew,
            opened: sent,
            desk: Arc::clone(&desk),
            watchdog: Arc::clone(&watchdog),
            chores: chores.downgrade(),
        };
        let to_do = ToDo { chores: handed_over, store: store.clone(), desk: Arc::clone(&desk) };
        let task = tokio::spawn(tender.tend(to_do, asked));
        let session = Self { id, store: store.clone(), terms, desk, chores, renewals, watchdog };
        Ok((Arc::new(session), task))
    }

    pub(crate) fn place(&self, name: &Name, ticket: TicketId) -> Place {
        Place { session: self.id, name: name.clone(), ticket }
    }

    pub(crate) fn is_lost(&self) -> bool {
        matches!(self.desk.lease(), Lease::Lost(_))
    }

    /// Hands what is left to do to the task. Never blocks; without a task there is no session.
    pub(crate) fn hand_over(&self, request: Option<Unanswered>, leave: Leave) {
        self.desk.leaving(leave.place.ticket);
        let chore = Chore::Leave { request, leave };
        if let Err(mpsc::error::SendError(Chore::Leave { leave, .. })) = self.chores.send(chore) {
            // The runtime that tended the session has ended.
            leave_now(&self.store, &self.desk, &leave);
        }
    }

    /// Leaves, however often it takes, until it is done or the session is over.
    pub(crate) async fn leave(&self, leave: Leave) -> Result<Left> {
        let name = leave.place.name.clone();
        tokio::select! {
            biased;
            left = persist(&self.store, &self.desk, leave, StoreError::is_transient) => match left {
                Some(left) => Ok(left?),
                None => Err(Error::Lost { name, why: self.desk.lost().await }),
            },
            why = self.desk.lost() => Err(Error::Lost { name, why }),
        }
    }

    /// Renews now, with one attempt.
    pub(crate) async fn renew_now(&self, name: &Name) -> Result<()> {
        let (asker, answer) = oneshot::channel();
        let _ = self.renewals.send(asker);
        match answer.await {
            Ok(answer) => Ok(answer?),
            // The task has dropped our wish, so the session is over or about to be.
            Err(_) => Err(Error::Lost { name: name.clone(), why: self.desk.lost().await }),
        }
    }

    /// From now on the session ends by itself unless somebody renews it by hand.
    pub(crate) fn call_off_the_watchdog(&self) {
        self.watchdog.store(false, Ordering::Release);
    }

    /// Tells the task to finish what dropped futures have begun, and to end the session with all its
    /// tickets.
    pub(crate) fn close(&self) {
        let _ = self.chores.send(Chore::Close);
    }
}

/// Sends a leave until it is answered; a repeated leave never ends a later grant. `None` when the
/// session may be gone: then nothing more is sent for it, or its lock-delay would be cut short.
async fn persist(
    store: &AnyStore,
    desk: &Desk,
    leave: Leave,
    may_pass: impl Fn(&StoreError) -> bool,
) -> Option<StoreResult<Left>> {
    let (mut pause, mut repeated, mut told) = (PAUSE_FIRST, false, false);
    while !desk.may_be_gone() {
        match store.leave(leave.clone()).await {
            Err(e) if may_pass(&e) => {
                repeated |= e.outcome == Outcome::Unknown;
                if !e.is_transient() && !std::mem::replace(&mut told, true) {
                    observe::leave_failed(&e);
                }
            }
            // An earlier copy of this very request has done it.
            Ok(Left::Gone) if repeated => return Some(Ok(Left::Released)),
            answer => return Some(answer),
        }
        desk.clock.sleep(jittered(pause, 2)).await;
        pause = (pause * 2).min(PAUSE_MOST);
    }
    None
}

/// The session's task.
struct Tender {
    id: SessionId,
    store: AnyStore,
    terms: Terms,
    renew: Renew,
    /// When the opening was sent.
    opened: Moment,
    desk: Arc<Desk>,
    watchdog: Arc<AtomicBool>,
    /// Weak: the channel must end when all keepers and guards of the session are gone.
    chores: mpsc::WeakUnboundedSender<Chore>,
}

impl Tender {
    async fn tend(self, to_do: ToDo, asked: mpsc::UnboundedReceiver<Asker>) {
        tokio::select! {
            why = self.renewing(asked) => return self.lost(why).await,
            // Another request was told by the store that the session is over.
            why = self.desk.lost() => return self.lost(why).await,
            () = self.chores(to_do) => {}
            never = self.hints() => match never {},
            never = self.rechecks() => match never {},
            never = self.overholds() => match never {},
        }
        // First the guards here, then the others in the line.
        self.desk.lose(Loss::Closed);
        if self.desk.may_be_gone() {
            return;
        }
        if let Err(e) = self.store.close(self.id).await {
            observe::close_failed(&e);
        }
    }

    /// The session is lost. Nothing more is sent for it, so that the store keeps its locks closed for the
    /// lock-delay: the program may still be at work under one of them.
    ///
    /// A session that never handed out a lock protected no work. It is closed, or its own process would wait
    /// behind its tickets until they expire. The store may be away: the close is repeated for as long as a
    /// late copy of a renewal may prolong the session.
    async fn lost(self, why: Loss) {
        self.desk.lose(why);
        observe::session_lost(why, self.desk.holds());
        let (mut pause, until) = (PAUSE_FIRST, self.desk.clock.now() + STRAY_MAX);
        while self.desk.is_unused() && self.desk.clock.now() < until {
            match self.store.close(self.id).await {
                Err(e) if e.is_transient() => {}
                Err(e) => return observe::close_failed(&e),
                Ok(()) => return,
            }
            self.desk.clock.sleep(jittered(pause, 2)).await;
            pause = (pause * 2).min(PAUSE_MOST);
        }
    }

    /// The one renewal loop. Returns when the session is lost.
    async fn renewing(&self, mut asked: mpsc::UnboundedReceiver<Asker>) -> Loss {
        let clock = &self.desk.clock;
        // The store may have granted less than was asked for.
        let interval = self.renew.interval(self.terms.ttl).min(self.terms.belief() / 2);
        let mut next = self.opened + interval;
        loop {
            let deadline = self.desk.deadline();
            let watchdog = self.watchdog.load(Ordering::Acquire);
            let wake = if watchdog { next.min(deadline) } else { deadline };
            let asker = tokio::select! {
                () = clock.sleep_until(wake) => None,
                Some(asker) = asked.recv() => Some(asker),
            };
            let sent = clock.now();
            // Never renew what we have stopped believing in: the store may still think it lives.
            if sent >= deadline {
                return Loss::Expired;
            }
            if asker.is_none() && !self.watchdog.load(Ordering::Acquire) {
                continue;
            }
            let expected = self.desk.digest();
            let answer = match self.attempt(deadline.saturating_since(sent)).await {
                Ok(Renewal::Renewed { version, tickets }) => {
                    let later = sent + self.terms.belief();
                    // Lost is final, also when the answer was only late: others have been told.
                    if !self.desk.renewed(later, version, tickets, expected) {
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
                    self.desk.jeopardy(&e);
                    next = clock.now() + jittered(self.renew.retry_pause(self.terms.ttl), 2);
                    Err(StoreError::shared(&e))
                }
            };
            if let Some(asker) = asker {
                let _ = asker.send(answer);
            }
        }
    }

    /// One renewal, given up when no answer comes in time.
    async fn attempt(&self, left: Duration) -> StoreResult<Renewal> {
        let patience = left.min(self.renew.attempt_timeout(self.terms.ttl));
        tokio::select! {
            biased;
            answer = self.store.renew(self.id) => answer,
            () = self.desk.clock.sleep(patience) => Err(StoreError::unknown(
                self.store.kind(),
                Trouble::Unavailable,
                format!("no answer to a renewal within {patience:.1?}"),
            )),
        }
    }

    /// Finishes what was handed over, until the session is closed or nobody has it any more.
    async fn chores(&self, mut to_do: ToDo) {
        let mut work = JoinSet::new();
        loop {
            tokio::select! {
                chore = to_do.chores.recv() => match chore {
                    Some(Chore::Leave { request, leave }) => {
                        work.spawn(self.finish(request, leave));
                    }
                    Some(Chore::Close) | None => break,
                },
                Some(_) = work.join_next() => {}
            }
        }
        self.desk.closes();
        while work.join_next().await.is_some() {}
    }

    /// Awaits the request that may still put the ticket into its line, then leaves.
    fn finish(
        &self,
        request: Option<Unanswered>,
        leave: Leave,
    ) -> impl Future<Output = ()> + Send + 'static {
        let (store, desk) = (self.store.clone(), Arc::clone(&self.desk));
        let promise = Promise { leave: Some(leave.clone()), store, desk };
        async move {
            let work = async {
                if let Some(request) = request {
                    let _ = request.await;
                }
                let ticket = leave.place.ticket;
                // Nothing but this task would end the ticket while the session lives, so it tries again
                // whatever the trouble is: rights may be given back, space be made, a fault be mended. Once
                // the session is being closed, the close ends the ticket.
                let may_pass = |e: &StoreError| {
                    let over = e.trouble == Trouble::SessionOver;
                    e.is_transient() || !(over || promise.desk.is_closing())
                };
                match persist(&promise.store, &promise.desk, leave, may_pass).await {
                    Some(Err(e)) if e.trouble == Trouble::SessionOver => {
                        promise.desk.lose(Loss::SessionGone);
                    }
                    Some(Err(e)) => observe::leave_failed(&e),
                    _ => {}
                }
                promise.desk.forget(ticket);
            };
            tokio::select! { () = work => {} _ = promise.desk.lost() => {} }
            promise.kept();
        }
    }

    /// Lets the store drop its hints at the desk, from the first waiter on.
    async fn hints(&self) -> Infallible {
        self.desk.waiters.notified().await;
        let mut pause = PAUSE_FIRST;
        loop {
            let began = self.desk.clock.now();
            let e = self.store.hints(self.id, Arc::clone(&self.desk) as _).await;
            self.desk.deafened();
            observe::hints_broke(&e);
            self.heed(&e);
            if self.desk.clock.now().saturating_since(began) > PAUSE_MOST {
                pause = PAUSE_FIRST;
            }
            self.desk.clock.sleep(jittered(pause, 2)).await;
            pause = (pause * 2).min(PAUSE_MOST);
        }
    }

    /// Polls for what waits when it is due, by a hint or by the clock, and ends what is held too long.
    async fn rechecks(&self) -> Infallible {
        loop {
            tokio::select! {
                () = self.desk.due.notified() => {}
                () = self.desk.clock.sleep_until(self.desk.next_due()) => {}
            }
            let due = self.desk.due();
            self.recheck(&due).await;
        }
    }

    /// Ends what is held too long. A loop of its own: a slow poll must not hold it up.
    async fn overholds(&self) -> Infallible {
        loop {
            tokio::select! {
                () = self.desk.timed.notified() => {}
                () = self.desk.clock.sleep_until(self.desk.next_overheld()) => {}
            }
            for (ticket, grip) in self.desk.overheld() {
                // The guard's own hold leaves when it is dropped; the line need not wait for that.
                grip.end(Loss::MaxHold);
                self.hand_over(grip.name.clone(), ticket);
            }
        }
    }

    fn hand_over(&self, name: Name, ticket: TicketId) {
        self.desk.leaving(ticket);
        let leave =
            Leave { place: Place { session: self.id, name, ticket }, keep: None, stray: true };
        if let Some(chores) = self.chores.upgrade() {
            let _ = chores.send(Chore::Leave { request: None, leave });
        }
    }

    /// Whoever waits must not go on waiting in a session that is over until the next renewal finds it out.
    fn heed(&self, e: &StoreError) {
        if e.trouble == Trouble::SessionOver {
            self.desk.lose(Loss::SessionGone);
        }
    }

    async fn recheck(&self, due: &Due) {
        let which = match due.verify {
            Some(_) => Which::All,
            None if due.poll.is_empty() => return,
            None => Which::These(due.poll.clone()),
        };
        let expected = due.verify.map(|_| self.desk.expected()).unwrap_or_default();
        match self.store.poll(self.id, which).await {
            Err(e) => {
                self.desk.unanswered(due);
                self.heed(&e);
                self.desk.unreached(&Arc::new(e));
            }
            Ok(stands) => {
                self.desk.reached();
                for (_, ticket, stand) in &stands {
                    self.desk.polled(*ticket, stand);
                }
                if let Some(version) = due.verify {
                    self.compare(&expected, &stands);
                    self.desk.verified(version);
                }
            }
        }
    }

    /// Compares what we know with all that the store has: what is missing there is lost (or, if it
    /// waited, enters again), what is unknown here is left.
    fn compare(&self, expected: &[Expected], stands: &[(Name, TicketId, Stand)]) {
        let there: HashMap<TicketId, &Stand> = stands.iter().map(|(_, t, s)| (*t, s)).collect();
        let fenced = self.store.capabilities().fenced;
        for expected in expected {
            self.desk.compared(expected, there.get(&expected.ticket).copied(), fenced);
        }
        for (name, ticket, _) in stands.iter().filter(|(_, t, _)| !self.desk.knows(*t)) {
            self.hand_over(name.clone(), *ticket);
        }
    }
}

/// Whatever ends the task, a panic or the end of the runtime, ends the belief in the locks.
impl Drop for Tender {
    fn drop(&mut self) {
        self.desk.lose(Loss::Closed);
        self.store.forget(self.id);
    }
}

/// A leave that has not been answered. When the runtime ends before it is, a store that can leave
/// without awaiting does it in `drop`; with the others the ticket stays until the session expires.
struct Promise {
    leave: Option<Leave>,
    store: AnyStore,
    desk: Arc<Desk>,
}

impl Promise {
    fn kept(mut self) {
        self.leave = None;
    }
}

impl Drop for Promise {
    fn drop(&mut self) {
        if let Some(leave) = self.leave.take() {
            leave_now(&self.store, &self.desk, &leave);
        }
    }
}

/// The chores that nobody has begun with; the same goes for them.
struct ToDo {
    chores: mpsc::UnboundedReceiver<Chore>,
    store: AnyStore,
    desk: Arc<Desk>,
}

impl Drop for ToDo {
    fn drop(&mut self) {
        self.chores.close();
        while let Ok(chore) = self.chores.try_recv() {
            if let Chore::Leave { leave, .. } = chore {
                leave_now(&self.store, &self.desk, &leave);
            }
        }
    }
}

fn leave_now(store: &AnyStore, desk: &Desk, leave: &Leave) {
    if !desk.may_be_gone() {
        store.leave_now(leave);
    }
}
