//! What a session's task, the store's hints, the waiting loop and the guards share: which tickets wait,
//! which are held, and until when the session may be believed in.

mod compare;
mod hints;

pub(crate) use compare::Expected;

use crate::{
    clock::{Clock, Moment},
    error::{Loss, StoreError},
    model::{
        name::Name,
        ticket::{ById, TicketId},
    },
    session::{hold_state::HoldState, outage::Away},
    store::{Hints as _, TicketDigest, TicketStatus, Wait},
    sync::Mutex,
};
use std::{
    collections::HashMap,
    sync::{
        Arc, MutexGuard,
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
pub(crate) type WaitUpdates = watch::Sender<Option<Wait>>;

/// The deadline of a session whose deadline was seen to have passed. No renewal brings it back.
const LOST: u64 = 0;

pub(crate) struct SessionState {
    pub(crate) clock: Clock,
    /// In nanoseconds since boot, or [`LOST`].
    deadline: AtomicU64,
    lease: watch::Sender<Lease>,
    table: Mutex<TicketTable>,
    /// The store sends no hints (yet): poll often.
    without_hints: AtomicBool,
    closing: AtomicBool,
    /// Something is due earlier than the task thinks.
    pub(crate) due: Notify,
    /// A ticket with a longest hold was granted.
    pub(crate) timed: Notify,
    /// The first waiter has come.
    pub(crate) waiters: Notify,
}

#[derive(Default)]
struct TicketTable {
    waiting: ById<TicketId, Waiter>,
    held: ById<TicketId, Arc<HoldState>>,
    leaving: foldhash::HashSet<TicketId>,
    /// Those that have left since all tickets were asked for: the answer may still have them.
    left: Option<foldhash::HashSet<TicketId>>,
    contending: HashMap<Name, Arc<Notify>>,
    /// The lanes that tickets have, a bit each.
    lanes: u64,
    /// The version that the last renewal was answered with.
    version: Option<u64>,
    /// How often renewals were answered with another version than before: another server, perhaps.
    changes: u64,
    /// The version for which all tickets are to be polled, and when.
    verify: Option<(u64, Moment)>,
    verified: Option<u64>,
    /// What the comparison under way cannot have seen makes another one necessary.
    again: bool,
    /// A lock was handed out: the program may have worked under it.
    used: bool,
    /// The session was lost before any lock was handed out, and none will be.
    unused: bool,
    /// The store has not answered the session's task lately.
    away: Option<Away>,
}

impl TicketTable {
    fn is_comparing(&self) -> bool {
        self.left.is_some()
    }
}

struct Waiter {
    name: Name,
    /// When to poll; `None` while the enter has not been answered.
    recheck: Option<Moment>,
    /// A hint has come before that answer, which may be older than the hint.
    hinted: bool,
    /// Another client ended it before it was held, so its grant counts for nothing.
    ended: bool,
    pause: Duration,
    /// Taken when the grant has been told; the entry stays until the ticket is held or left, so that
    /// the ticket is known all the time.
    grant: Option<oneshot::Sender<u64>>,
    /// The fence that was told: the grant is on its way to the waiting loop.
    told: Option<u64>,
    news: Option<WaitUpdates>,
    /// [`TicketTable::changes`] when the ticket was about to enter for the first time.
    changes: u64,
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

impl SessionState {
    pub(crate) fn new(clock: Clock, deadline: Moment) -> Self {
        Self {
            clock,
            deadline: deadline.as_nanos().into(),
            lease: watch::Sender::new(Lease::Held),
            table: Mutex::default(),
            without_hints: true.into(),
            closing: false.into(),
            due: Notify::new(),
            timed: Notify::new(),
            waiters: Notify::new(),
        }
    }

    fn table(&self) -> MutexGuard<'_, TicketTable> {
        self.table.lock()
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
        self.set_lease(Lease::Held);
        // Tickets may have come and gone meanwhile, before or after the store looked. If it looked in
        // between, all are polled in vain.
        let agree = tickets.is_none_or(|t| t == expected || t == self.digest());
        let mut table = self.table();
        table.away = None;
        if table.version.replace(version) != Some(version) {
            table.changes += 1;
        }
        if table.verified != Some(version) || !agree {
            table.verify = Some((version, self.clock.now()));
            drop(table);
            self.due.notify_one();
        }
        true
    }

    /// A renewal that was sent then has failed.
    pub(crate) fn jeopardy(&self, e: &Arc<StoreError>, sent: Moment) {
        self.set_lease(Lease::Jeopardy);
        self.unreached(e, sent);
    }

    /// The store has answered the session's task.
    pub(crate) fn reached(&self) {
        self.table().away = None;
    }

    /// It has not answered what was sent then.
    pub(crate) fn unreached(&self, e: &Arc<StoreError>, sent: Moment) {
        if e.is_transient() {
            let (e, mut table) = (Arc::clone(e), self.table());
            table.away = Some(match &table.away {
                Some(away) => away.still(e),
                None => Away::new(sent, e),
            });
        }
    }

    /// That the store has not answered the session's task lately.
    pub(crate) fn away(&self) -> Option<Away> {
        self.table().away.clone()
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

    /// A lock of the session was handed out before this process knew it.
    pub(crate) fn set_used(&self) {
        self.table().used = true;
    }

    /// The session is lost. Was no lock of it ever handed out? Then none will be, and nothing was protected
    /// by it.
    pub(crate) fn is_unused(&self) -> bool {
        let mut table = self.table();
        table.unused = !table.used;
        table.unused
    }

    /// Declares the session lost. The first reason stands.
    pub(crate) fn lose(&self, why: Loss) {
        self.set_lease(Lease::Lost(why));
    }

    fn set_lease(&self, to: Lease) {
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
        let mut table = self.table();
        let free = (0..LANES).find(|lane| table.lanes & 1 << lane == 0);
        table.lanes |= free.map_or(0, |lane| 1 << lane);
        TicketId::random_in(free.unwrap_or_else(|| rand::random_range(LANES..=u8::MAX)))
    }

    /// Notes that a ticket is about to enter, so that a grant in between is not missed.
    pub(crate) fn add_waiter(
        &self,
        ticket: TicketId,
        name: &Name,
        news: Option<WaitUpdates>,
    ) -> oneshot::Receiver<u64> {
        let (grant, receiver) = oneshot::channel();
        let mut table = self.table();
        // A repeated enter belongs to the first one, which the store may have carried out.
        let changes = table.waiting.get(&ticket).map_or(table.changes, |waiter| waiter.changes);
        let waiter = Waiter {
            name: name.clone(),
            recheck: None,
            hinted: false,
            ended: false,
            pause: POLL_FIRST,
            grant: Some(grant),
            told: None,
            news,
            changes,
        };
        table.waiting.insert(ticket, waiter);
        receiver
    }

    /// The store said: wait.
    pub(crate) fn queued(&self, ticket: TicketId, wait: &Wait) {
        {
            let mut table = self.table();
            let waiting = table.waiting.get_mut(&ticket).filter(|w| w.grant.is_some());
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
        let without_hints = self.without_hints.load(Ordering::Acquire);
        let most = if without_hints { waiter.pause } else { Wait::rest_most(wait.ahead) };
        waiter.pause = (waiter.pause * 2).min(POLL_MOST);
        let pause = wait.recheck.min(most).max(PAUSE_LEAST);
        waiter.recheck = Some(self.clock.now() + pause);
    }

    /// Notes a granted ticket. Says no if the session was lost before.
    pub(crate) fn hold(&self, ticket: TicketId, hold_state: Arc<HoldState>) -> bool {
        if matches!(self.lease(), Lease::Lost(_)) {
            return false;
        }
        let timed = hold_state.max_hold.is_some();
        {
            let mut table = self.table();
            if table.unused {
                return false;
            }
            table.used = true;
            let waiter = table.waiting.remove(&ticket);
            if waiter.as_ref().is_some_and(|waiter| waiter.ended) {
                hold_state.end(Loss::Evicted);
                return true;
            }
            // If the version has changed since the ticket entered, the grant may come late from the server
            // of before a failover, while the new server has the ticket as one that waits. The comparison
            // that the change led to has not seen the grant, and no digest shows it.
            if waiter.is_some_and(|waiter| waiter.changes != table.changes) {
                table.again = table.is_comparing();
                table.verified = None;
            }
            table.held.insert(ticket, hold_state);
        }
        if timed {
            self.timed.notify_one();
        }
        true
    }

    /// Notes that a ticket is being left.
    pub(crate) fn leaving(&self, ticket: TicketId) {
        let mut table = self.table();
        table.waiting.remove(&ticket);
        table.held.remove(&ticket);
        table.leaving.insert(ticket);
    }

    /// Notes that a ticket is in no line.
    pub(crate) fn forget(&self, ticket: TicketId) {
        let mut table = self.table();
        table.waiting.remove(&ticket);
        table.held.remove(&ticket);
        if table.leaving.remove(&ticket) {
            table.left.as_mut().map(|left| left.insert(ticket));
        }
        if ticket.lane() < LANES {
            table.lanes &= !(1 << ticket.lane());
        }
    }

    /// Notified when the line has room: for a contender, which has no ticket there.
    pub(crate) fn contend(&self, name: &Name) -> Arc<Notify> {
        Arc::clone(self.table().contending.entry(name.clone()).or_default())
    }

    pub(crate) fn stop_contending(&self, name: &Name) {
        self.table().contending.remove(name);
    }

    /// When something is due next.
    pub(crate) fn next_due(&self) -> Moment {
        let table = self.table();
        let verify = table.verify.map(|(_, at)| at);
        let polls = table.waiting.values().filter_map(|w| w.recheck);
        polls.chain(verify).min().unwrap_or(Moment::NEVER)
    }

    /// When the longest hold of a ticket passes next.
    pub(crate) fn next_overheld(&self) -> Moment {
        let holds = self.table().held.values().filter_map(|g| g.max_hold).min();
        holds.unwrap_or(Moment::NEVER)
    }

    /// The tickets whose longest hold has passed.
    pub(crate) fn overheld(&self) -> Vec<(TicketId, Arc<HoldState>)> {
        let (now, table) = (self.clock.now(), self.table());
        let held = table.held.iter().filter(|(_, g)| g.max_hold.is_some_and(|at| at <= now));
        held.map(|(t, g)| (*t, Arc::clone(g))).collect()
    }

    /// What is due now. A poll that is under way is not due again until it is answered.
    pub(crate) fn due(&self) -> Due {
        let (now, mut table) = (self.clock.now(), self.table());
        let is_due = |at: Option<Moment>| at.is_some_and(|at| at <= now);
        let waiting = table.waiting.iter_mut().filter(|(_, w)| is_due(w.recheck));
        let asked = |(t, w): (&TicketId, &mut Waiter)| {
            w.recheck = Some(ASKED);
            (w.name.clone(), *t)
        };
        let poll = waiting.map(asked).collect();
        let verify = table.verify.take_if(|(_, at)| *at <= now).map(|(version, _)| version);
        table.left = verify.map(|_| Default::default());
        Due { verify, poll }
    }

    /// Takes in how a waiting ticket stands.
    pub(crate) fn polled(&self, ticket: TicketId, stand: &TicketStatus) {
        match stand {
            TicketStatus::Granted { fence } => self.granted(ticket, *fence),
            TicketStatus::Waiting(wait) => {
                // If a hint has come since the poll was sent, the answer may be older than the hint.
                let mut table = self.table();
                let asked = |w: &&mut Waiter| w.recheck == Some(ASKED);
                if let Some(waiter) = table.waiting.get_mut(&ticket).filter(asked) {
                    self.rest(waiter, wait);
                    waiter.news.as_ref().map(|news| news.send_replace(Some(wait.clone())));
                }
            }
            // Without its sender the waiter enters again, at the end of the line.
            TicketStatus::Gone => drop(self.answered(ticket)),
        }
    }

    /// The poll failed: once more, soon.
    pub(crate) fn unanswered(&self, due: &Due) {
        let (soon, mut table) = (self.clock.now() + POLL_MOST, self.table());
        for (_, ticket) in &due.poll {
            let asked = |w: &&mut Waiter| w.recheck == Some(ASKED);
            if let Some(waiter) = table.waiting.get_mut(ticket).filter(asked) {
                waiter.recheck = Some(soon);
            }
        }
        table.verify = table.verify.or(due.verify.map(|version| (version, soon)));
        table.left = None;
    }

    /// How many locks are taken to be held.
    pub(crate) fn holds(&self) -> usize {
        self.table().held.len()
    }

    /// Takes out a waiter whose enter has been answered.
    fn answered(&self, ticket: TicketId) -> Option<Waiter> {
        let mut table = self.table();
        table.waiting.get(&ticket)?.recheck?;
        table.waiting.remove(&ticket)
    }

    /// The session is being closed, which ends all its tickets.
    pub(crate) fn closes(&self) {
        self.closing.store(true, Ordering::Release);
    }

    pub(crate) fn is_closing(&self) -> bool {
        self.closing.load(Ordering::Acquire)
    }

    /// The source of hints has broken.
    pub(crate) fn hints_lost(&self) {
        self.without_hints.store(true, Ordering::Release);
    }
}

#[cfg(test)]
mod tests;
