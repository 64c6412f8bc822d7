//! What a session's task, the store's hints, the waiting loop and the guards share: who waits, who
//! holds, and until when the session may be believed in.

mod compare;
mod hints;

pub(crate) use compare::Expected;

use crate::{
    clock::{Clock, Moment},
    error::{Loss, StoreError},
    grip::Grip,
    name::Name,
    outage::Away,
    store::{Hints as _, Stand, TicketDigest, Wait},
    ticket::{ById, TicketId},
};
use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};
use tokio::sync::{Notify, oneshot, watch};

/// The pauses between polls while no hints come.
const POLL_FIRST: Duration = Duration::from_millis(5);
const POLL_MOST: Duration = Duration::from_millis(250);
/// Whatever a store says, no waiter polls without a pause.
const PAUSE_LEAST: Duration = Duration::from_millis(1);
/// The `recheck` of a waiter for which a poll is under way. A hint replaces it.
const ASKED: Moment = Moment::NEVER;

/// How many lanes there are: see [`TicketId::lane`].
const LANES: u8 = 64;

/// How a session stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lease {
    /// The last renewal was answered.
    Held,
    /// A renewal has failed; the deadline has not passed.
    Jeopardy,
    /// Over.
    Lost(Loss),
}

/// Where the latest news for a waiter are left, if it wants to hear them.
pub(crate) type News = watch::Sender<Option<Wait>>;

/// The deadline of a session whose deadline was seen to have passed. No renewal brings it back.
const LOST: u64 = 0;

pub(crate) struct Desk {
    pub(crate) clock: Clock,
    /// In nanoseconds since boot, or [`LOST`].
    deadline: AtomicU64,
    lease: watch::Sender<Lease>,
    book: Mutex<Book>,
    /// Nobody wakes our waiters (yet): poll often.
    deaf: AtomicBool,
    closing: AtomicBool,
    /// Something is due earlier than the task thinks.
    pub(crate) due: Notify,
    /// A ticket with a longest hold was granted.
    pub(crate) timed: Notify,
    /// The first waiter has come.
    pub(crate) waiters: Notify,
}

#[derive(Default)]
struct Book {
    waiting: ById<TicketId, Waiter>,
    held: ById<TicketId, Arc<Grip>>,
    leaving: foldhash::HashSet<TicketId>,
    /// Those that have left since all tickets were asked for: the answer may still have them.
    left: Option<foldhash::HashSet<TicketId>>,
    contending: HashMap<Name, Arc<Notify>>,
    /// The lanes that tickets have, a bit each.
    lanes: u64,
    /// The version for which all tickets are to be polled, and when.
    verify: Option<(u64, Moment)>,
    verified: Option<u64>,
    /// How many comparisons of all tickets have begun or ended: odd while one is under way.
    comparisons: u64,
    /// What the comparison under way cannot have seen makes another one necessary.
    again: bool,
    /// The store shows the tickets in every renewal.
    shown: bool,
    /// A lock was handed out: the program may have worked under it.
    used: bool,
    /// The session was lost before any lock was handed out, and none will be.
    unused: bool,
    /// The store has not answered the session's task lately.
    away: Option<Away>,
}

impl Book {
    fn is_comparing(&self) -> bool {
        self.comparisons % 2 == 1
    }
}

struct Waiter {
    name: Name,
    /// When to poll; `None` while the enter has not been answered.
    recheck: Option<Moment>,
    /// A hint has come before that answer, which may be older than the hint.
    hinted: bool,
    /// Somebody else has ended it before it was held: the grant is no more worth than that.
    ended: bool,
    pause: Duration,
    /// Taken when the grant has been told; the entry stays until the ticket is held or left, so that
    /// the ticket is known all the time.
    turn: Option<oneshot::Sender<u64>>,
    /// The fence that was told: the grant is on its way to the waiting loop.
    told: Option<u64>,
    news: Option<News>,
    /// [`Book::comparisons`] when it was about to enter.
    comparisons: u64,
}

impl Waiter {
    /// Must the store have this ticket? Yes from the answer to its enter on, or from the grant on,
    /// which may overtake that answer.
    fn stands(&self) -> bool {
        !self.ended && (self.recheck.is_some() || self.told.is_some())
    }
}

/// What the session's task has to do now.
pub(crate) struct Due {
    /// The version of the session's tickets that all must be polled for.
    pub(crate) verify: Option<u64>,
    /// The tickets to poll.
    pub(crate) poll: Vec<(Name, TicketId)>,
}

impl Desk {
    pub(crate) fn new(clock: Clock, deadline: Moment) -> Self {
        Self {
            clock,
            deadline: deadline.as_nanos().into(),
            lease: watch::Sender::new(Lease::Held),
            book: Mutex::default(),
            deaf: true.into(),
            closing: false.into(),
            due: Notify::new(),
            timed: Notify::new(),
            waiters: Notify::new(),
        }
    }

    fn book(&self) -> MutexGuard<'_, Book> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn deadline(&self) -> Moment {
        Moment::from_nanos(self.deadline.load(Ordering::Acquire))
    }

    /// A renewal sent so that it is good until `deadline` was answered. All tickets are polled if the
    /// version is another one, or if the store's tickets are not the `expected` ones. Says no if the loss
    /// was seen before: then it is final.
    pub(crate) fn renewed(
        &self,
        deadline: Moment,
        version: u64,
        tickets: Option<TicketDigest>,
        expected: TicketDigest,
    ) -> bool {
        let (later, order) = (deadline.as_nanos(), Ordering::Acquire);
        let prolong = |old: u64| (old != LOST).then_some(later);
        if self.is_past() || self.deadline.fetch_update(Ordering::AcqRel, order, prolong).is_err() {
            return false;
        }
        self.turn_to(Lease::Held);
        // Tickets may have come and gone meanwhile, before or after the store looked. If it looked in
        // between, all are polled in vain.
        let agree = tickets.is_none_or(|t| t == expected || t == self.digest());
        let mut book = self.book();
        (book.shown, book.away) = (tickets.is_some(), None);
        if book.verified != Some(version) || !agree {
            book.verify = Some((version, self.clock.now()));
            drop(book);
            self.due.notify_one();
        }
        true
    }

    /// A renewal has failed.
    pub(crate) fn jeopardy(&self, e: &Arc<StoreError>) {
        self.turn_to(Lease::Jeopardy);
        self.unreached(e);
    }

    /// The store has answered the session's task.
    pub(crate) fn reached(&self) {
        self.book().away = None;
    }

    /// It has not.
    pub(crate) fn unreached(&self, e: &Arc<StoreError>) {
        if e.is_transient() {
            let e = Arc::clone(e);
            let (now, mut book) = (self.clock.now(), self.book());
            book.away = Some(match &book.away {
                Some(away) => away.still(e),
                None => Away::new(now, e),
            });
        }
    }

    /// That the store has not answered the session's task lately.
    pub(crate) fn away(&self) -> Option<Away> {
        self.book().away.clone()
    }

    /// Has the deadline passed? The first caller that sees it makes the loss final.
    fn is_past(&self) -> bool {
        loop {
            let deadline = self.deadline.load(Ordering::Acquire);
            if deadline == LOST {
                return true;
            }
            if self.clock.now() < Moment::from_nanos(deadline) {
                return false;
            }
            let order = Ordering::AcqRel;
            if self.deadline.compare_exchange(deadline, LOST, order, Ordering::Acquire).is_ok() {
                return true;
            }
        }
    }

    /// The session is lost. Was no lock of it ever handed out? Then none will be, and nothing was protected
    /// by it.
    pub(crate) fn is_unused(&self) -> bool {
        let mut book = self.book();
        book.unused = !book.used;
        book.unused
    }

    /// Declares the session lost. The first reason stands.
    pub(crate) fn lose(&self, why: Loss) {
        self.turn_to(Lease::Lost(why));
    }

    fn turn_to(&self, to: Lease) {
        self.lease.send_if_modified(|lease| match (*lease, to) {
            (Lease::Lost(_), _) => false,
            (from, to) if from == to => false,
            _ => {
                *lease = to;
                true
            }
        });
    }

    /// How the session stands. Exact at every call, whatever the timers do: the deadline is compared
    /// with the clock that counts suspend.
    pub(crate) fn lease(&self) -> Lease {
        match *self.lease.borrow() {
            Lease::Lost(why) => Lease::Lost(why),
            _ if self.is_past() => Lease::Lost(Loss::Expired),
            lease => lease,
        }
    }

    /// May the store have ended the session? Then nothing more is sent for it. (A session that was
    /// closed here, before its deadline, is not meant.)
    pub(crate) fn may_be_gone(&self) -> bool {
        let told = matches!(*self.lease.borrow(), Lease::Lost(why) if why != Loss::Closed);
        told || self.is_past()
    }

    /// Waits until the session's standing is as `wanted` says.
    pub(crate) async fn lease_where(&self, wanted: impl FnMut(&Lease) -> bool + Send) -> Lease {
        let mut lease = self.lease.subscribe();
        // The sender is ours, so it cannot be gone.
        lease.wait_for(wanted).await.map_or(Lease::Lost(Loss::Closed), |lease| *lease)
    }

    pub(crate) async fn lost(&self) -> Loss {
        match self.lease_where(|lease| matches!(lease, Lease::Lost(_))).await {
            Lease::Lost(why) => why,
            _ => unreachable!("waited for a loss"),
        }
    }

    /// A fresh ticket, in the first lane that is free, if there is one.
    pub(crate) fn ticket(&self) -> TicketId {
        let mut book = self.book();
        let free = (0..LANES).find(|lane| book.lanes & 1 << lane == 0);
        book.lanes |= free.map_or(0, |lane| 1 << lane);
        TicketId::random_in(free.unwrap_or_else(|| rand::random_range(LANES..=u8::MAX)))
    }

    /// Notes that a ticket is about to enter, so that a grant in between is not missed.
    pub(crate) fn listen(
        &self,
        ticket: TicketId,
        name: &Name,
        news: Option<News>,
    ) -> oneshot::Receiver<u64> {
        let (turn, receiver) = oneshot::channel();
        let mut book = self.book();
        let waiter = Waiter {
            name: name.clone(),
            recheck: None,
            hinted: false,
            ended: false,
            pause: POLL_FIRST,
            turn: Some(turn),
            told: None,
            news,
            comparisons: book.comparisons,
        };
        book.waiting.insert(ticket, waiter);
        receiver
    }

    /// The store said: wait.
    pub(crate) fn queued(&self, ticket: TicketId, wait: &Wait) {
        {
            let mut book = self.book();
            let waiting = book.waiting.get_mut(&ticket).filter(|w| w.turn.is_some());
            let Some(waiter) = waiting else { return };
            self.rest(waiter, wait);
            if std::mem::take(&mut waiter.hinted) {
                waiter.recheck = Some(self.clock.now());
            }
        }
        self.waiters.notify_one();
        self.due.notify_one();
    }

    fn rest(&self, waiter: &mut Waiter, wait: &Wait) {
        let deaf = self.deaf.load(Ordering::Acquire);
        let most = if deaf { waiter.pause } else { Wait::rest_most(wait.ahead) };
        waiter.pause = (waiter.pause * 2).min(POLL_MOST);
        let pause = wait.recheck.min(most).max(PAUSE_LEAST);
        waiter.recheck = Some(self.clock.now() + pause);
    }

    /// Notes a granted ticket. Says no if the session was lost before.
    pub(crate) fn hold(&self, ticket: TicketId, grip: Arc<Grip>) -> bool {
        if matches!(self.lease(), Lease::Lost(_)) {
            return false;
        }
        let timed = grip.max_hold.is_some();
        {
            let mut book = self.book();
            if book.unused {
                return false;
            }
            book.used = true;
            let waiter = book.waiting.remove(&ticket);
            if waiter.as_ref().is_some_and(|waiter| waiter.ended) {
                grip.end(Loss::Evicted);
                return true;
            }
            let entered = waiter.filter(|waiter| waiter.told.is_none());
            let unseen = entered.is_some_and(|w| w.comparisons != book.comparisons);
            // The enter may have been answered by the server from before a failover, and the comparison
            // that the failover led to did not know of this ticket.
            if !book.shown && (unseen || book.is_comparing()) {
                book.again = book.is_comparing();
                book.verified = None;
            }
            book.held.insert(ticket, grip);
        }
        if timed {
            self.timed.notify_one();
        }
        true
    }

    /// Notes that a ticket is being left.
    pub(crate) fn leaving(&self, ticket: TicketId) {
        let mut book = self.book();
        book.waiting.remove(&ticket);
        book.held.remove(&ticket);
        book.leaving.insert(ticket);
    }

    /// Notes that a ticket is in no line.
    pub(crate) fn forget(&self, ticket: TicketId) {
        let mut book = self.book();
        book.waiting.remove(&ticket);
        book.held.remove(&ticket);
        if book.leaving.remove(&ticket) {
            book.left.as_mut().map(|left| left.insert(ticket));
        }
        if ticket.lane() < LANES {
            book.lanes &= !(1 << ticket.lane());
        }
    }

    /// Rung when the line has room: for those who contend.
    pub(crate) fn contend(&self, name: &Name) -> Arc<Notify> {
        Arc::clone(self.book().contending.entry(name.clone()).or_default())
    }

    pub(crate) fn stop_contending(&self, name: &Name) {
        self.book().contending.remove(name);
    }

    /// When something is due next.
    pub(crate) fn next_due(&self) -> Moment {
        let book = self.book();
        let verify = book.verify.map(|(_, at)| at);
        let polls = book.waiting.values().filter_map(|w| w.recheck);
        polls.chain(verify).min().unwrap_or(Moment::NEVER)
    }

    /// When the longest hold of a ticket passes next.
    pub(crate) fn next_overheld(&self) -> Moment {
        let holds = self.book().held.values().filter_map(|g| g.max_hold).min();
        holds.unwrap_or(Moment::NEVER)
    }

    /// The tickets whose longest hold has passed.
    pub(crate) fn overheld(&self) -> Vec<(TicketId, Arc<Grip>)> {
        let (now, book) = (self.clock.now(), self.book());
        let held = book.held.iter().filter(|(_, g)| g.max_hold.is_some_and(|at| at <= now));
        held.map(|(t, g)| (*t, Arc::clone(g))).collect()
    }

    /// What is due now. A poll that is under way is not due again until it is answered.
    pub(crate) fn due(&self) -> Due {
        let (now, mut book) = (self.clock.now(), self.book());
        let is_due = |at: Option<Moment>| at.is_some_and(|at| at <= now);
        let waiting = book.waiting.iter_mut().filter(|(_, w)| is_due(w.recheck));
        let asked = |(t, w): (&TicketId, &mut Waiter)| {
            w.recheck = Some(ASKED);
            (w.name.clone(), *t)
        };
        let poll = waiting.map(asked).collect();
        let verify = book.verify.take_if(|(_, at)| *at <= now).map(|(version, _)| version);
        book.left = verify.map(|_| Default::default());
        book.comparisons += u64::from(verify.is_some());
        Due { verify, poll }
    }

    /// Takes in how a waiting ticket stands.
    pub(crate) fn polled(&self, ticket: TicketId, stand: &Stand) {
        match stand {
            Stand::Granted { fence } => self.granted(ticket, *fence),
            Stand::Waiting(wait) => {
                // If a hint has come since the poll was sent, the answer may be older than the hint.
                let mut book = self.book();
                let asked = |w: &&mut Waiter| w.recheck == Some(ASKED);
                if let Some(waiter) = book.waiting.get_mut(&ticket).filter(asked) {
                    self.rest(waiter, wait);
                    waiter.news.as_ref().map(|news| news.send_replace(Some(wait.clone())));
                }
            }
            // Without its sender the waiter enters again, at the end of the line.
            Stand::Gone => drop(self.answered(ticket)),
        }
    }

    /// The poll failed: once more, soon.
    pub(crate) fn unanswered(&self, due: &Due) {
        let (soon, mut book) = (self.clock.now() + POLL_MOST, self.book());
        for (_, ticket) in &due.poll {
            let asked = |w: &&mut Waiter| w.recheck == Some(ASKED);
            if let Some(waiter) = book.waiting.get_mut(ticket).filter(asked) {
                waiter.recheck = Some(soon);
            }
        }
        book.verify = book.verify.or(due.verify.map(|version| (version, soon)));
        book.comparisons += u64::from(due.verify.is_some());
        book.left = None;
    }

    /// How many locks are taken to be held.
    pub(crate) fn holds(&self) -> usize {
        self.book().held.len()
    }

    /// Takes out a waiter whose enter has been answered.
    fn answered(&self, ticket: TicketId) -> Option<Waiter> {
        let mut book = self.book();
        book.waiting.get(&ticket)?.recheck?;
        book.waiting.remove(&ticket)
    }

    /// The session is being closed, which ends all its tickets.
    pub(crate) fn closes(&self) {
        self.closing.store(true, Ordering::Release);
    }

    pub(crate) fn is_closing(&self) -> bool {
        self.closing.load(Ordering::Acquire)
    }

    /// The source of hints has broken.
    pub(crate) fn deafened(&self) {
        self.deaf.store(true, Ordering::Release);
    }
}

#[cfg(test)]
mod tests;
