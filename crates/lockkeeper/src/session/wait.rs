//! The one waiting loop, for every primitive and every store.
//!
//! From the first request on a [`PendingTicket`] stands for the ticket, so that this loop may be dropped
//! at any await.
//!
//! # A lock is taken
//! 1. `api/keeper.rs`: `keeper.lock("a")` makes an [`Acquire`](crate::Acquire); nothing is sent yet.
//! 2. `api/acquire.rs`: awaiting it checks the options and makes a `LockRequest` (`session/request.rs`).
//! 3. `session/local_queue.rs`: of all tasks of this keeper that want the name, one goes on.
//! 4. `session/keeper_state.rs`: the session for this TTL and lock-delay, opened if there is none (`session/mod.rs`).
//! 5. `session/state.rs`: the ticket is entered as a waiter, so that no hint is missed.
//! 6. `session/pending_ticket.rs`: `store.enter`, the one round trip: granted, queued or busy.
//! 7. Granted at once: `session/hold.rs` has the granted ticket, `api/guard.rs` is the [`Guard`].
//! 8. Queued: this loop sleeps until a hint, a poll or the end of the wait.
//! 9. `session/outage.rs`: if the store does not answer, the attempt is repeated with growing pauses.
//!
//! # A lock is handed over
//! 1. `session/hold.rs`: `release` sends the leave itself; a dropped guard hands it to the session's task
//!    (`session/task.rs`), which sends it in the background.
//! 2. The store ends the ticket and grants the next in line, by the rule of `model/admission.rs`, in one
//!    step. `store/memory.rs` shows how.
//! 3. The store sends a hint to the waiter's process: `store/mod.rs`, [`Hints`](crate::store::Hints).
//! 4. `session/state.rs`: a hint with the grant wakes the waiter; any other asks for a poll.
//! 5. `session/task.rs`: the poll asks the store how the waiting tickets stand. Without a hint it is due
//!    when the store said ("recheck"), so a lost hint costs time and no lock.
//! 6. This loop takes the grant, if the session's deadline has not passed, and returns the [`Guard`].

use crate::{
    api::{guard::Guard, retry::jittered},
    clock::Moment,
    error::{Error, ErrorKind, Loss, Result},
    model::name::Name,
    observe,
    session::{
        Session,
        hold::Hold,
        keeper_state::KeeperState,
        local_queue::LocalTurn,
        outage::Outage,
        pending_ticket::PendingTicket,
        request::{LockRequest, Patience},
    },
    store::{Entered, Manner, Store as _, Wait},
};
use std::{sync::Arc, time::Duration};
use tokio::sync::Notify;

/// The first pause after a session was lost while waiting; it doubles up to a second.
const DRIFT_PAUSE: Duration = Duration::from_millis(20);

/// How a stay in the line ended.
enum WaitOutcome {
    Granted(Hold),
    /// The patience or the retries ran out.
    GaveUp,
    /// The session was lost while waiting.
    SessionLost(Loss),
}

/// Takes the lock. `None` if it could not be had in time.
pub(crate) async fn acquire(
    keeper: &Arc<KeeperState>,
    request: &LockRequest,
) -> Result<Option<Guard>> {
    // A store that answers without ever pending would starve the renewal on this thread.
    tokio::task::coop::consume_budget().await;
    let clock = &keeper.clock;
    let until = match request.patience {
        Patience::For(wait) => request.began + wait,
        Patience::Try | Patience::Forever => Moment::NEVER,
    };
    if let Some(guard) = keeper.owned.again(request)? {
        return Ok(Some(guard));
    }
    let pass = match request.patience {
        Patience::Try if keeper.local_queue.is_contended(&request.name) => return Ok(None),
        Patience::Try => None,
        _ => {
            let pass = tokio::select! {
                biased;
                pass = keeper.local_queue.pass(&request.name) => pass,
                () = clock.sleep_until(until) => return behind_the_gate(keeper, request),
            };
            Some(pass)
        }
    };
    let mut outage = Outage::new(clock, request.began, pass.as_ref());
    if outage.is_on() && clock.now() >= until {
        return outage.or(None);
    }
    // While we stood in the local queue, another task of the same owner may have come to hold the lock.
    if let Some(guard) = keeper.owned.again(request)? {
        return Ok(Some(guard));
    }
    let mut drift = Duration::ZERO;
    loop {
        // Most find one; opening one is rare and takes more room than all the rest.
        let living = if request.leased { None } else { keeper.living(request.times) };
        let session = match living {
            Some(session) => session,
            None => match Box::pin(session(keeper, request, until, &mut outage)).await? {
                Some(session) => session,
                None => return outage.or(None),
            },
        };
        match stand(&session, request, until, pass.as_ref(), &mut outage).await? {
            WaitOutcome::GaveUp => return Ok(None),
            WaitOutcome::Granted(hold) => {
                if request.leased {
                    let waited = clock.now().saturating_since(request.began);
                    Box::pin(settle_lease(&hold, waited)).await?;
                }
                return Ok(Some(keeper.owned.first(request, hold)));
            }
            WaitOutcome::SessionLost(why) if request.patience == Patience::Try => {
                return Err(Error::Lost { name: request.name.clone(), why });
            }
            WaitOutcome::SessionLost(why) => {
                outage.inherit(session.state.away());
                observe::reentering(&request.name, why);
            }
        }
        // A session that is lost again and again must not keep us, or the store, busy.
        drift = (drift * 2).clamp(DRIFT_PAUSE, Duration::from_secs(1));
        tokio::select! {
            () = clock.sleep(jittered(drift, 2)) => {}
            () = clock.sleep_until(until) => return outage.or(None),
        }
    }
}

/// The patience ended in the local queue. The task that waits in the store for all of us, or the session, knows
/// whether the store is away.
fn behind_the_gate(keeper: &KeeperState, request: &LockRequest) -> Result<Option<Guard>> {
    let by_session = || keeper.living(request.times)?.state.away();
    match keeper.local_queue.away(&request.name).or_else(by_session) {
        Some(away) => Err(away.error(request.began, keeper.clock.now())),
        None => Ok(None),
    }
}

/// A fixed lease counts from its grant, not from the opening of its session.
async fn settle_lease(hold: &Hold, waited: Duration) -> Result<()> {
    let session = hold.session();
    session.stop_renewing();
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
    keeper: &KeeperState,
    request: &LockRequest,
    until: Moment,
    outage: &mut Outage<'_>,
) -> Result<Option<Arc<Session>>> {
    loop {
        let opening = keeper.session(request.times, request.leased);
        let Some(opened) = outage.answer(until, keeper.store.scheme(), opening).await else {
            return Ok(None);
        };
        let pause = match opened {
            Err(Error::Store(e)) if e.is_transient() && request.patience != Patience::Try => {
                outage.failed(e)
            }
            opened => {
                outage.answered();
                return opened.map(Some);
            }
        };
        tokio::select! {
            () = keeper.clock.sleep(pause) => {}
            () = keeper.clock.sleep_until(until) => return Ok(None),
        }
    }
}

/// Enters the line and waits there for the turn.
async fn stand(
    session: &Arc<Session>,
    request: &LockRequest,
    until: Moment,
    pass: Option<&LocalTurn>,
    outage: &mut Outage<'_>,
) -> Result<WaitOutcome> {
    let (state, clock) = (&session.state, &session.state.clock);
    let began = clock.now();
    let mut pending = PendingTicket::take(session, request);
    // Before the first enter, so that no hint falls between the two.
    let contends = request.manner == Manner::Contend && request.patience != Patience::Try;
    let contender = contends.then(|| Contender::on(session, &request.name));
    let mut attempts = Attempts::new();
    let fence = loop {
        let (news, mut ear) = request.ear();
        let turn = state.add_waiter(pending.ticket, &request.name, news);
        let answer = tokio::select! {
            biased;
            answer = outage.answer(until, session.store.scheme(), pending.ask(request)) => answer,
            why = state.lost() => return Ok(WaitOutcome::SessionLost(why)),
        };
        let Some(answer) = answer else { return outage.or(WaitOutcome::GaveUp) };
        outage.heard(&answer);
        let pause = match answer {
            Ok(Entered::Granted { fence }) => break fence,
            Ok(Entered::Queued(wait)) => {
                observe::queued(&request.name, pending.ticket, wait.ahead);
                pass.inspect(|pass| pass.waiting());
                state.queued(pending.ticket, &wait);
                request.tell(&wait);
                tokio::select! {
                    biased;
                    granted = turn => match granted {
                        Ok(fence) => break fence,
                        Err(_) => {
                            observe::entering_again(&request.name);
                            // A new stay is a new ticket: a late hint of the old one means nothing.
                            pending = PendingTicket::take(session, request);
                        }
                    },
                    why = state.lost() => return Ok(WaitOutcome::SessionLost(why)),
                    () = clock.sleep_until(until) => return gave_up(session, request, outage),
                    never = ear.hear(request) => match never {},
                }
                continue;
            }
            Ok(Entered::Busy(wait)) => {
                let Some(pause) = attempts.pause(request, &wait, clock.now()) else {
                    return Ok(WaitOutcome::GaveUp);
                };
                pass.inspect(|pass| pass.waiting());
                request.tell(&wait);
                pause
            }
            Err(e) if e.kind == ErrorKind::SessionOver => {
                state.lose(Loss::SessionGone);
                return Ok(WaitOutcome::SessionLost(Loss::SessionGone));
            }
            // The store has told it that the lock is taken, and fears a late copy of that request.
            Err(e) if e.kind == ErrorKind::TicketClosed && request.patience != Patience::Try => {
                pending = PendingTicket::take(session, request);
                Duration::ZERO
            }
            Err(e) if e.is_transient() && request.patience != Patience::Try => outage.failed(e),
            Err(e) => return Err(e.about(&request.name, request.mode)),
        };
        // A pause may be none at all.
        tokio::task::coop::consume_budget().await;
        state.waiters.notify_one();
        tokio::select! {
            () = Contender::rung(contender.as_ref()) => {}
            () = clock.sleep(pause) => {}
            why = state.lost() => return Ok(WaitOutcome::SessionLost(why)),
            () = clock.sleep_until(until) => return gave_up(session, request, outage),
        }
    };
    granted(pending, request, fence, clock.now().saturating_since(began)).await
}

/// The patience has ended: for want of the lock, or because the store does not answer? The session's task
/// may know that too, from a renewal or a poll that failed.
fn gave_up(session: &Session, request: &LockRequest, outage: &Outage<'_>) -> Result<WaitOutcome> {
    match session.state.away() {
        Some(away) if !outage.is_on() => Err(away.error(request.began, session.state.clock.now())),
        _ => outage.or(WaitOutcome::GaveUp),
    }
}

/// A grant counts only before the session's deadline.
async fn granted(
    pending: PendingTicket,
    request: &LockRequest,
    fence: u64,
    waited: Duration,
) -> Result<WaitOutcome> {
    let (session, name, ticket) =
        (Arc::clone(&pending.session), pending.name.clone(), pending.ticket);
    let Some(hold) = pending.granted(request, fence) else {
        return Ok(WaitOutcome::SessionLost(session.state.lost().await));
    };
    observe::granted(&name, ticket, fence, waited);
    Ok(WaitOutcome::Granted(hold))
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
    fn pause(&mut self, request: &LockRequest, wait: &Wait, now: Moment) -> Option<Duration> {
        if request.patience == Patience::Try {
            return None;
        }
        // It could not even stand in line, which is no failure of its own.
        if request.manner == Manner::Queue {
            return Some(wait.recheck);
        }
        if self.resume.take_if(|resume| *resume <= now).is_some() {
            self.failed += 1;
        }
        let resume = match self.resume {
            Some(resume) => resume,
            None => now + request.retry.pause(self.failed)?,
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
        Self { session, name, bell: session.state.contend(name) }
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
        self.session.state.stop_contending(self.name);
    }
}
