//! A ticket is guarded before it is asked for: from the first request on, a [`PendingTicket`] stands for
//! it, and dropping that, at any await, leads to a leave.

use crate::{
    error::Outcome,
    model::{
        name::Name,
        ticket::{Mode, TicketId},
    },
    session::{Session, Unanswered, hold::Hold, hold_state::HoldState, request::LockRequest},
    store::{Claim, Enter, Entered, Leave, StoreResult},
};
use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

/// A ticket that may stand in the store's line. Dropping it hands it to the session's task.
pub(crate) struct PendingTicket {
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

impl PendingTicket {
    pub(crate) fn take(session: &Arc<Session>, request: &LockRequest) -> Self {
        Self {
            session: Arc::clone(session),
            name: request.name.clone(),
            ticket: session.state.ticket(),
            mode: request.mode,
            presence: Presence::Absent,
            stray: false,
        }
    }

    /// A ticket that another process has entered.
    pub(crate) fn attached(session: &Arc<Session>, claim: &Claim) -> Self {
        let Claim { name, ticket, mode, .. } = claim;
        let (session, presence, stray) = (Arc::clone(session), Presence::Possible, false);
        Self { session, name: name.clone(), ticket: *ticket, mode: *mode, presence, stray }
    }

    pub(crate) fn ask(&mut self, request: &LockRequest) -> EnterCall<'_> {
        let place = self.session.place(&self.name, self.ticket);
        let (mode, manner) = (request.mode, request.manner);
        let request = Enter { place, mode, manner, label: request.label.clone() };
        let call = self.session.store.enter(request);
        EnterCall { pending: self, call: Some(call) }
    }

    /// The lock in hand; `None` if the session was lost before.
    pub(crate) fn granted(self, request: &LockRequest, fence: u64) -> Option<Hold> {
        let now = self.session.state.clock.now();
        let hold_state =
            HoldState::new(self.name.clone(), fence, request.max_hold.map(|d| now + d));
        let held = self.session.state.hold(self.ticket, Arc::clone(&hold_state));
        held.then(|| Hold::new(self, hold_state, now, request.at_least))
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

impl Drop for PendingTicket {
    fn drop(&mut self) {
        match self.presence {
            Presence::Absent => self.session.state.forget(self.ticket),
            Presence::Possible => self.hand_over(None),
            Presence::HandedOver => {}
        }
    }
}

/// An enter under way. Dropped half-way, the request itself is handed over, so that the leave
/// cannot overtake it.
pub(crate) struct EnterCall<'a> {
    pending: &'a mut PendingTicket,
    call: Option<Unanswered>,
}

impl Future for EnterCall<'_> {
    type Output = StoreResult<Entered>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let call = self.call.as_mut().expect("an enter is not polled after its answer");
        let answer = ready!(call.as_mut().poll(cx));
        self.call = None;
        let pending = &mut *self.pending;
        match &answer {
            Ok(Entered::Granted { .. } | Entered::Queued(_)) => {
                pending.presence = Presence::Possible
            }
            Err(e) if e.outcome == Outcome::Unknown => {
                (pending.presence, pending.stray) = (Presence::Possible, true);
            }
            // If an earlier request got no answer, its copy may still come.
            Ok(Entered::Busy(_)) | Err(_) => {}
        }
        Poll::Ready(answer)
    }
}

impl Drop for EnterCall<'_> {
    fn drop(&mut self) {
        if let Some(call) = self.call.take() {
            self.pending.presence = Presence::HandedOver;
            self.pending.stray = true;
            let leave = self.pending.leave_request(None);
            self.pending.session.hand_over(Some(call), leave);
        }
    }
}
