//! A ticket is guarded before it is asked for: from the first request on, a [`Seat`] stands for it, and
//! dropping the seat, at whatever await, leads to a leave.

use crate::{
    error::Outcome,
    grip::Grip,
    guard::Hold,
    name::Name,
    session::{Session, Unanswered},
    store::{Enter, Entered, Leave, StoreResult},
    ticket::{Mode, TicketId},
    wait::Want,
};
use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

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
    pub(crate) fn take(session: &Arc<Session>, want: &Want) -> Self {
        Self {
            session: Arc::clone(session),
            name: want.name.clone(),
            ticket: session.desk.ticket(),
            mode: want.mode,
            presence: Presence::Absent,
            stray: false,
        }
    }

    pub(crate) fn ask(&mut self, want: &Want) -> Ask<'_> {
        let place = self.session.place(&self.name, self.ticket);
        let (mode, manner) = (want.mode, want.manner);
        let request = Enter { place, mode, manner, note: want.note.clone() };
        let call = self.session.store.enter(request);
        Ask { seat: self, call: Some(call) }
    }

    /// The lock in hand; `None` if the session was lost before.
    pub(crate) fn granted(self, want: &Want, fence: u64) -> Option<Hold> {
        let now = self.session.desk.clock.now();
        let grip = Grip::new(self.name.clone(), fence, want.max_hold.map(|d| now + d));
        let held = self.session.desk.hold(self.ticket, Arc::clone(&grip));
        held.then(|| Hold::new(self, grip, now, want))
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
pub(crate) struct Ask<'a> {
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
