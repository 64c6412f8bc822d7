//! What a session's task, the store's hints, the waiting loop and the guards share: who waits, who
//! holds, and until when the session may be believed in.

use crate::{
    clock::{Clock, Moment},
    error::Loss,
    grip::Grip,
    name::Name,
    store::{Hints, Stand, TicketDigest, Wait},
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

/// Told to a waiter's owner when it moves up.
pub(crate) type Tell = Arc<dyn Fn(&Wait) + Send + Sync>;

pub(crate) struct Desk {
    pub(crate) clock: Clock,
    deadline: AtomicU64,
    lease: watch::Sender<Lease>,
    book: Mutex<Book>,
    /// Nobody wakes our waiters (yet): poll often.
    deaf: AtomicBool,
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
    tell: Option<Tell>,
}

impl Waiter {
    /// Must the store have this ticket? Yes from the answer to its enter on, or from the grant on,
    /// which may overtake that answer.
    fn stands(&self) -> bool {
        !self.ended && (self.recheck.is_some() || self.told.is_some())
    }
}

/// A ticket that the store must have when it is asked for all of them.
pub(crate) struct Expected {
    pub(crate) ticket: TicketId,
    /// It was granted already when the question was sent.
    granted: bool,
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
    /// version is another one, or if the store's tickets do not `agree` with ours.
    pub(crate) fn renewed(&self, deadline: Moment, version: u64, agree: bool) {
        self.deadline.store(deadline.as_nanos(), Ordering::Release);
        self.turn_to(Lease::Held);
        let mut book = self.book();
        if book.verified != Some(version) || !agree {
            book.verify = Some((version, self.clock.now()));
            drop(book);
            self.due.notify_one();
        }
    }

    pub(crate) fn jeopardy(&self) {
        self.turn_to(Lease::Jeopardy);
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
            _ if self.clock.now() >= self.deadline() => Lease::Lost(Loss::Expired),
            lease => lease,
        }
    }

    /// May the store have ended the session? Then nothing more is sent for it. (A session that was
    /// closed here, before its deadline, is not meant.)
    pub(crate) fn may_be_gone(&self) -> bool {
        let told = matches!(*self.lease.borrow(), Lease::Lost(why) if why != Loss::Closed);
        told || self.clock.now() >= self.deadline()
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
        tell: Option<Tell>,
    ) -> oneshot::Receiver<u64> {
        let (turn, receiver) = oneshot::channel();
        let waiter = Waiter {
            name: name.clone(),
            recheck: None,
            hinted: false,
            ended: false,
            pause: POLL_FIRST,
            turn: Some(turn),
            told: None,
            tell,
        };
        self.book().waiting.insert(ticket, waiter);
        receiver
    }

    /// The store said: wait.
    pub(crate) fn queued(&self, ticket: TicketId, wait: &Wait) {
        let tell = {
            let mut book = self.book();
            let waiting = book.waiting.get_mut(&ticket).filter(|w| w.turn.is_some());
            let Some(waiter) = waiting else { return };
            let tell = self.rest(waiter, wait);
            if std::mem::take(&mut waiter.hinted) {
                waiter.recheck = Some(self.clock.now());
            }
            tell
        };
        self.waiters.notify_one();
        self.due.notify_one();
        // The user's code, so without our lock.
        tell.inspect(|tell| tell(wait));
    }

    fn rest(&self, waiter: &mut Waiter, wait: &Wait) -> Option<Tell> {
        let deaf = self.deaf.load(Ordering::Acquire);
        let most = if deaf { waiter.pause } else { Wait::rest_most(wait.ahead) };
        waiter.pause = (waiter.pause * 2).min(POLL_MOST);
        let pause = wait.recheck.min(most).max(PAUSE_LEAST);
        waiter.recheck = Some(self.clock.now() + pause);
        waiter.tell.clone()
    }

    /// Notes a granted ticket.
    pub(crate) fn hold(&self, ticket: TicketId, grip: Arc<Grip>) {
        let timed = grip.max_hold.is_some();
        {
            let mut book = self.book();
            if book.waiting.remove(&ticket).is_some_and(|waiter| waiter.ended) {
                grip.end(Loss::Evicted);
                return;
            }
            book.held.insert(ticket, grip);
        }
        if timed {
            self.timed.notify_one();
        }
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
        Due { verify, poll }
    }

    /// Takes in how a waiting ticket stands.
    pub(crate) fn polled(&self, ticket: TicketId, stand: &Stand) {
        match stand {
            Stand::Granted { fence } => self.granted(ticket, *fence),
            Stand::Waiting(wait) => {
                // If a hint has come since the poll was sent, the answer may be older than the hint.
                let tell = {
                    let mut book = self.book();
                    let asked = |w: &&mut Waiter| w.recheck == Some(ASKED);
                    let waiter = book.waiting.get_mut(&ticket).filter(asked);
                    waiter.and_then(|waiter| self.rest(waiter, wait))
                };
                tell.inspect(|tell| tell(wait));
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
        book.left = None;
    }

    /// How many locks are taken to be held.
    pub(crate) fn holds(&self) -> usize {
        self.book().held.len()
    }

    /// The tickets that the store must have now, held and waiting.
    pub(crate) fn expected(&self) -> Vec<Expected> {
        let book = self.book();
        let held = book.held.keys().map(|ticket| Expected { ticket: *ticket, granted: true });
        let waiting = book.waiting.iter().filter(|(_, waiter)| waiter.stands());
        let waiting = waiting
            .map(|(ticket, waiter)| Expected { ticket: *ticket, granted: waiter.told.is_some() });
        held.chain(waiting).collect()
    }

    /// The same in two numbers, as a renewal's answer has them.
    pub(crate) fn digest(&self) -> TicketDigest {
        self.expected().into_iter().map(|expected| expected.ticket).collect()
    }

    /// Takes in how a ticket stood that the store should have had when all were asked for. A grant that
    /// is missing there, or has another number, is lost; a ticket that waited enters again.
    pub(crate) fn compared(&self, expected: &Expected, there: Option<&Stand>, fenced: bool) {
        let is_wrong = |fence: u64| match there {
            Some(Stand::Granted { fence: now }) => fenced && *now != fence,
            // The answer may be older than a grant that came after the question.
            Some(Stand::Waiting(_)) => expected.granted,
            Some(Stand::Gone) | None => true,
        };
        let mut book = self.book();
        if let Some(waiter) = book.waiting.get_mut(&expected.ticket) {
            match waiter.told {
                Some(fence) => waiter.ended |= is_wrong(fence),
                // Without its sender the waiting loop enters again, at the end of the line.
                None if there.is_none() => drop(book.waiting.remove(&expected.ticket)),
                None => {}
            }
        }
        let lost = book.held.get(&expected.ticket).is_some_and(|grip| is_wrong(grip.fence));
        let grip = if lost { book.held.remove(&expected.ticket) } else { None };
        drop(book);
        if let Some(grip) = grip {
            grip.end(Loss::Evicted);
        }
    }

    /// All tickets were compared with the store's of this version.
    pub(crate) fn verified(&self, version: u64) {
        let mut book = self.book();
        (book.verified, book.left) = (Some(version), None);
    }

    /// Does anybody here know this ticket?
    pub(crate) fn knows(&self, ticket: TicketId) -> bool {
        let book = self.book();
        book.waiting.contains_key(&ticket)
            || book.held.contains_key(&ticket)
            || book.leaving.contains(&ticket)
            || book.left.as_ref().is_some_and(|left| left.contains(&ticket))
    }

    /// Takes out a waiter whose enter has been answered.
    fn answered(&self, ticket: TicketId) -> Option<Waiter> {
        let mut book = self.book();
        book.waiting.get(&ticket)?.recheck?;
        book.waiting.remove(&ticket)
    }

    /// The source of hints has broken.
    pub(crate) fn deafened(&self) {
        self.deaf.store(true, Ordering::Release);
    }
}

impl Hints for Desk {
    fn granted(&self, ticket: TicketId, fence: u64) {
        let turn = self.book().waiting.get_mut(&ticket).and_then(|waiter| {
            waiter.recheck = None;
            let turn = waiter.turn.take()?;
            waiter.told = Some(fence);
            Some(turn)
        });
        if let Some(turn) = turn {
            // The waiter may have gone: then its seat leaves, whatever the fence.
            let _ = turn.send(fence);
        }
    }

    fn ended(&self, ticket: TicketId) {
        drop(self.answered(ticket));
        let grip = {
            let mut book = self.book();
            if let Some(waiter) = book.waiting.get_mut(&ticket) {
                (waiter.ended, waiter.hinted) = (true, true);
            }
            book.held.remove(&ticket)
        };
        if let Some(grip) = grip {
            grip.end(Loss::Evicted);
        }
    }

    fn freed(&self, name: &Name) {
        if let Some(bell) = self.book().contending.get(name) {
            bell.notify_one();
        }
    }

    fn look(&self, ticket: Option<TicketId>) {
        self.deaf.store(false, Ordering::Release);
        let (now, mut book) = (self.clock.now(), self.book());
        let mut hurry = |waiter: &mut Waiter| match &mut waiter.recheck {
            Some(recheck) => *recheck = now,
            None => waiter.hinted = true,
        };
        match ticket {
            Some(ticket) => book.waiting.get_mut(&ticket).into_iter().for_each(&mut hurry),
            None => {
                book.waiting.values_mut().for_each(&mut hurry);
                book.contending.values().for_each(|bell| bell.notify_one());
            }
        }
        drop(book);
        self.due.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hint_that_overtakes_the_answer_to_an_enter_is_not_lost() {
        let desk = Desk::new(Clock::system(), Moment::NEVER);
        let wait = Wait { ahead: 1, holder: None, recheck: Duration::from_secs(60) };
        let enter = |hint: bool| {
            let (name, ticket) = (Name::new("a").unwrap(), TicketId::random());
            let _turn = desk.listen(ticket, &name, None);
            if hint {
                desk.look(Some(ticket));
            }
            desk.look(Some(TicketId::random()));
            desk.queued(ticket, &wait);
            let due = desk.due().poll;
            desk.forget(ticket);
            !due.is_empty()
        };
        assert!(enter(true), "it looks again at once");
        assert!(!enter(false), "it waits");
    }

    #[test]
    fn who_is_ended_between_its_grant_and_its_hold_holds_nothing() {
        let desk = Desk::new(Clock::system(), Moment::NEVER);
        let take = |ended: bool| {
            let (name, ticket) = (Name::new("a").unwrap(), TicketId::random());
            let mut turn = desk.listen(ticket, &name, None);
            desk.queued(ticket, &Wait { ahead: 1, holder: None, recheck: Duration::MAX });
            desk.granted(ticket, 7);
            if ended {
                desk.ended(ticket);
            }
            assert_eq!(turn.try_recv(), Ok(7));
            let grip = Grip::new(name, 7, None);
            desk.hold(ticket, Arc::clone(&grip));
            grip.why()
        };
        assert_eq!(take(true), Some(Loss::Evicted));
        assert_eq!(take(false), None);
    }

    #[test]
    fn who_stands_far_back_looks_less_often_and_who_is_near_every_second() {
        let seconds = [0, 15, 16, 160, 10_000, usize::MAX].map(|n| Wait::rest_most(n).as_secs());
        assert_eq!(seconds, [1, 1, 2, 11, 30, 30]);
    }

    #[test]
    fn a_ticket_takes_the_first_lane_that_is_free() {
        let desk = Desk::new(Clock::system(), Moment::NEVER);
        let tickets: Vec<TicketId> = (0..=LANES).map(|_| desk.ticket()).collect();
        for (ticket, lane) in tickets.iter().zip(0..LANES) {
            assert_eq!(ticket.lane(), lane);
        }
        assert!(tickets[64].lane() >= LANES, "no lane is left");
        desk.forget(tickets[64]);
        desk.forget(tickets[7]);
        assert_eq!(desk.ticket().lane(), 7);
        assert!(desk.ticket().lane() >= LANES);
    }
}
