//! The one waiting loop, for every primitive and every store.
//!
//! A ticket is guarded before it is asked for: from the first request on, a [`Seat`] stands for it,
//! and dropping the seat, at whatever await, leads to a leave.

use crate::{
    clock::Moment,
    desk::Tell,
    error::{Error, Loss, Outcome, Result, Trouble},
    gate::Pass,
    grip::Grip,
    guard::{Guard, Hold},
    keeper::Inner,
    name::Name,
    observe,
    options::Times,
    outage::Outage,
    retry::{Retry, jittered},
    session::{Session, Unanswered},
    store::{Enter, Entered, Leave, Manner, StoreResult, Wait},
    ticket::{Mode, TicketId},
};
use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};
use tokio::sync::Notify;

/// The first pause after a session was lost while waiting; it doubles up to a second.
const DRIFT_PAUSE: Duration = Duration::from_millis(20);

/// How long somebody is ready to wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Patience {
    /// One attempt.
    Try,
    /// For so long.
    For(Duration),
    /// As long as it takes.
    Forever,
}

/// What somebody wants, checked and complete.
#[derive(Clone)]
pub(crate) struct Want {
    pub(crate) name: Name,
    pub(crate) mode: Mode,
    pub(crate) manner: Manner,
    pub(crate) patience: Patience,
    pub(crate) retry: Retry,
    pub(crate) times: Times,
    /// A fixed lease: not renewed once granted.
    pub(crate) leased: bool,
    pub(crate) at_least: Option<Duration>,
    pub(crate) max_hold: Option<Duration>,
    pub(crate) owner: Option<Arc<str>>,
    pub(crate) note: Vec<u8>,
    pub(crate) tell: Option<Tell>,
}

/// How a stay in the line ended.
enum Turn {
    Granted(Hold),
    /// The patience or the retries ran out.
    GaveUp,
    /// The session was lost while waiting.
    Adrift(Loss),
}

/// Takes the lock. `None` if it could not be had in time.
pub(crate) async fn acquire(keeper: &Arc<Inner>, want: &Want) -> Result<Option<Guard>> {
    // A store that answers without ever pending would starve the renewal on this thread.
    tokio::task::coop::consume_budget().await;
    let clock = &keeper.clock;
    let began = clock.now();
    let until = match want.patience {
        Patience::For(wait) => began + wait,
        Patience::Try | Patience::Forever => Moment::NEVER,
    };
    if let Some(guard) = keeper.owned.again(want)? {
        return Ok(Some(guard));
    }
    let pass = match want.patience {
        Patience::Try if keeper.gate.crowded(&want.name) => return Ok(None),
        Patience::Try => None,
        _ => {
            let pass = tokio::select! {
                biased;
                pass = keeper.gate.pass(&want.name) => pass,
                () = clock.sleep_until(until) => return Ok(None),
            };
            Some(pass)
        }
    };
    // While we stood at the gate, another task of the same owner may have come to hold the lock.
    if let Some(guard) = keeper.owned.again(want)? {
        return Ok(Some(guard));
    }
    let (mut outage, mut drift) = (Outage::default(), Duration::ZERO);
    loop {
        // Most find one; opening one is rare and takes more room than all the rest.
        let living = if want.leased { None } else { keeper.living(want.times) };
        let session = match living {
            Some(session) => session,
            None => match Box::pin(session(keeper, want, until, &mut outage)).await? {
                Some(session) => session,
                None => return outage.or(None, clock.now()),
            },
        };
        outage = Outage::default();
        match stand(keeper, &session, want, until, pass.as_ref()).await? {
            Turn::GaveUp => return Ok(None),
            Turn::Granted(hold) => {
                if want.leased {
                    Box::pin(settle_lease(&hold, clock.now().saturating_since(began))).await?;
                }
                return Ok(Some(keeper.owned.first(want, hold)));
            }
            Turn::Adrift(why) if want.patience == Patience::Try => {
                return Err(Error::Lost { name: want.name.clone(), why });
            }
            Turn::Adrift(why) => observe::reentering(&want.name, why),
        }
        // A session that is lost again and again must not keep us, or the store, busy.
        drift = (drift * 2).clamp(DRIFT_PAUSE, Duration::from_secs(1));
        tokio::select! {
            () = clock.sleep(jittered(drift, 2)) => {}
            () = clock.sleep_until(until) => return Ok(None),
        }
    }
}

/// A fixed lease counts from its grant, not from the opening of its session.
async fn settle_lease(hold: &Hold, waited: Duration) -> Result<()> {
    let session = hold.session();
    session.call_off_the_watchdog();
    // Granted at once, the opening was just now: one more trip would gain nothing.
    if waited <= session.terms.margin {
        return Ok(());
    }
    match session.renew_now(hold.name()).await {
        // Unanswered, the lease is only a little shorter.
        Err(Error::Store(e)) if e.is_transient() => Ok(()),
        answer => answer,
    }
}

/// The session to enter with; `None` when the patience ran out before there was one.
async fn session(
    keeper: &Inner,
    want: &Want,
    until: Moment,
    outage: &mut Outage,
) -> Result<Option<Arc<Session>>> {
    loop {
        let opened = tokio::select! {
            biased;
            opened = keeper.session(want.times, want.leased) => opened,
            () = keeper.clock.sleep_until(until) => return Ok(None),
        };
        let e = match opened {
            Ok(session) => return Ok(Some(session)),
            Err(Error::Store(e)) if e.is_transient() && want.patience != Patience::Try => e,
            Err(e) => return Err(e),
        };
        let pause = outage.pause(keeper.clock.now(), e);
        tokio::select! {
            () = keeper.clock.sleep(pause) => {}
            () = keeper.clock.sleep_until(until) => return Ok(None),
        }
    }
}

/// Enters the line and waits there for the turn.
async fn stand(
    keeper: &Inner,
    session: &Arc<Session>,
    want: &Want,
    until: Moment,
    pass: Option<&Pass>,
) -> Result<Turn> {
    let (desk, clock) = (&session.desk, &keeper.clock);
    let began = clock.now();
    let mut seat = Seat::take(session, want);
    // Before the first enter, so that no hint falls between the two.
    let contends = want.manner == Manner::Contend && want.patience != Patience::Try;
    let contender = contends.then(|| Contender::on(session, &want.name));
    let (mut outage, mut attempts) = (Outage::default(), Attempts::new());
    let fence = loop {
        let turn = desk.listen(seat.ticket, &want.name, want.tell.clone());
        let answer = tokio::select! {
            biased;
            answer = seat.ask(want) => answer,
            why = desk.lost() => return Ok(Turn::Adrift(why)),
            () = clock.sleep_until(until) => return Ok(Turn::GaveUp),
        };
        let pause = match answer {
            Ok(Entered::Granted { fence }) => break fence,
            Ok(Entered::Queued(wait)) => {
                outage = Outage::default();
                observe::queued(&want.name, seat.ticket, wait.ahead);
                pass.inspect(|pass| pass.waiting());
                desk.queued(seat.ticket, &wait);
                tokio::select! {
                    biased;
                    granted = turn => match granted {
                        Ok(fence) => break fence,
                        Err(_) => {
                            observe::entering_again(&want.name);
                            // A new stay is a new ticket: a late hint of the old one means nothing.
                            seat = Seat::take(session, want);
                        }
                    },
                    why = desk.lost() => return Ok(Turn::Adrift(why)),
                    () = clock.sleep_until(until) => return Ok(Turn::GaveUp),
                }
                continue;
            }
            Ok(Entered::Busy(wait)) => {
                outage = Outage::default();
                let Some(pause) = attempts.pause(want, &wait, clock.now()) else {
                    return Ok(Turn::GaveUp);
                };
                pass.inspect(|pass| pass.waiting());
                want.tell.as_ref().inspect(|tell| tell(&wait));
                pause
            }
            Err(e) if e.trouble == Trouble::SessionOver => {
                desk.lose(Loss::SessionGone);
                return Ok(Turn::Adrift(Loss::SessionGone));
            }
            // The store has told it that the lock is taken, and fears a late copy of that request.
            Err(e) if e.trouble == Trouble::TicketClosed && want.patience != Patience::Try => {
                (seat, outage) = (Seat::take(session, want), Outage::default());
                Duration::ZERO
            }
            Err(e) if e.is_transient() && want.patience != Patience::Try => {
                outage.pause(clock.now(), e)
            }
            Err(e) => return Err(e.about(&want.name, want.mode)),
        };
        // A pause may be none at all.
        tokio::task::coop::consume_budget().await;
        desk.waiters.notify_one();
        tokio::select! {
            () = Contender::rung(contender.as_ref()) => {}
            () = clock.sleep(pause) => {}
            why = desk.lost() => return Ok(Turn::Adrift(why)),
            () = clock.sleep_until(until) => return outage.or(Turn::GaveUp, clock.now()),
        }
    };
    Ok(granted(seat, want, fence, clock.now().saturating_since(began)).await)
}

/// A grant counts only before the session's deadline.
async fn granted(seat: Seat, want: &Want, fence: u64, waited: Duration) -> Turn {
    if seat.session.is_lost() {
        return Turn::Adrift(seat.session.desk.lost().await);
    }
    observe::granted(&want.name, seat.ticket, fence, waited);
    Turn::Granted(seat.granted(want, fence))
}

/// How often a contender has found the lock taken. A hint makes it look between two attempts and
/// does not use one up.
struct Attempts {
    failed: u32,
    /// When the pause after the last of them ends.
    resume: Option<Moment>,
}

impl Attempts {
    fn new() -> Self {
        Self { failed: 1, resume: None }
    }

    /// How long to wait for a hint before looking again; `None` to give up.
    fn pause(&mut self, want: &Want, wait: &Wait, now: Moment) -> Option<Duration> {
        if want.patience == Patience::Try {
            return None;
        }
        // It could not even stand in line, which is no failure of its own.
        if want.manner == Manner::Queue {
            return Some(wait.recheck);
        }
        if self.resume.take_if(|resume| *resume <= now).is_some() {
            self.failed += 1;
        }
        let resume = match self.resume {
            Some(resume) => resume,
            None => now + want.retry.pause(self.failed)?,
        };
        self.resume = Some(resume);
        Some(resume.saturating_since(now).min(wait.recheck))
    }
}

/// A contender's bell: it has no ticket in the line that could be hinted at.
struct Contender<'a> {
    session: &'a Session,
    name: &'a Name,
    bell: Arc<Notify>,
}

impl<'a> Contender<'a> {
    fn on(session: &'a Session, name: &'a Name) -> Self {
        Self { session, name, bell: session.desk.contend(name) }
    }

    async fn rung(this: Option<&Self>) {
        match this {
            Some(contender) => contender.bell.notified().await,
            None => std::future::pending().await,
        }
    }
}

impl Drop for Contender<'_> {
    fn drop(&mut self) {
        self.session.desk.stop_contending(self.name);
    }
}

/// A ticket that may stand in the store's line. Dropping it hands it to the session's task.
pub(crate) struct Seat {
    pub(crate) session: Arc<Session>,
    pub(crate) name: Name,
    pub(crate) ticket: TicketId,
    pub(crate) mode: Mode,
    presence: Presence,
    /// A request of it may still be under way.
    stray: bool,
}

/// Is a ticket in the store's line, as far as we know?
#[derive(Clone, Copy, PartialEq, Eq)]
enum Presence {
    /// Surely not.
    Absent,
    /// It is, or may be.
    Possible,
    /// It is for the session's task to end it.
    HandedOver,
}

impl Seat {
    fn take(session: &Arc<Session>, want: &Want) -> Self {
        Self {
            session: Arc::clone(session),
            name: want.name.clone(),
            ticket: session.desk.ticket(),
            mode: want.mode,
            presence: Presence::Absent,
            stray: false,
        }
    }

    fn ask(&mut self, want: &Want) -> Ask<'_> {
        let place = self.session.place(&self.name, self.ticket);
        let (mode, manner) = (want.mode, want.manner);
        let request = Enter { place, mode, manner, note: want.note.clone() };
        let call = self.session.store.enter(request);
        Ask { seat: self, call: Some(call) }
    }

    fn granted(self, want: &Want, fence: u64) -> Hold {
        let now = self.session.desk.clock.now();
        let grip = Grip::new(self.name.clone(), fence, want.max_hold.map(|d| now + d));
        self.session.desk.hold(self.ticket, Arc::clone(&grip));
        Hold::new(self, grip, now, want)
    }

    pub(crate) fn leave_request(&self, keep: Option<Duration>) -> Leave {
        let place = self.session.place(&self.name, self.ticket);
        Leave { place, keep, stray: self.stray }
    }

    /// The ticket is in no line any more: nothing is left to do.
    pub(crate) fn left(&mut self) {
        self.presence = Presence::Absent;
    }

    /// Hands the ticket to the session's task, to leave or to keep for a while.
    pub(crate) fn hand_over(&mut self, keep: Option<Duration>) {
        if self.presence == Presence::Possible {
            self.presence = Presence::HandedOver;
            self.session.hand_over(None, self.leave_request(keep));
        }
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        match self.presence {
            Presence::Absent => self.session.desk.forget(self.ticket),
            Presence::Possible => self.hand_over(None),
            Presence::HandedOver => {}
        }
    }
}

/// An enter under way. Dropped half-way, the request itself is handed over, so that the leave
/// cannot overtake it.
struct Ask<'a> {
    seat: &'a mut Seat,
    call: Option<Unanswered>,
}

impl Future for Ask<'_> {
    type Output = StoreResult<Entered>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let call = self.call.as_mut().expect("an enter is not polled after its answer");
        let answer = ready!(call.as_mut().poll(cx));
        self.call = None;
        let seat = &mut *self.seat;
        match &answer {
            Ok(Entered::Granted { .. } | Entered::Queued(_)) => seat.presence = Presence::Possible,
            Err(e) if e.outcome == Outcome::Unknown => {
                (seat.presence, seat.stray) = (Presence::Possible, true);
            }
            // If an earlier request got no answer, its copy may still come.
            Ok(Entered::Busy(_)) | Err(_) => {}
        }
        Poll::Ready(answer)
    }
}

impl Drop for Ask<'_> {
    fn drop(&mut self) {
        if let Some(call) = self.call.take() {
            self.seat.presence = Presence::HandedOver;
            self.seat.stray = true;
            let leave = self.seat.leave_request(None);
            self.seat.session.hand_over(Some(call), leave);
        }
    }
}
