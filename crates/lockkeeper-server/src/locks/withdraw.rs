//! What becomes of a ticket whose request ends without an answer.

use crate::{service::Service, session_id::Session};
use lockkeeper::{
    Store as _, TicketId,
    store::{Leave, Place, STRAY_MAX, StoreResult},
};
use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use tokio::{
    runtime::Handle,
    time::{Instant, sleep},
};

/// The first pause after a failed attempt, and the longest.
const PAUSE_FIRST: Duration = Duration::from_millis(20);
const PAUSE_MOST: Duration = Duration::from_secs(1);

/// The requests that are under way for each ticket. A client that lost its connection may have sent the same request
/// again before the loss is noticed here: the ticket goes with the last of them, and stays if one was answered.
#[derive(Clone, Debug, Default)]
pub(crate) struct InFlight(Arc<Mutex<HashMap<TicketId, Copies>>>);

/// The equal requests for one ticket.
#[derive(Debug, Default)]
struct Copies {
    count: usize,
    is_answered: bool,
}

impl InFlight {
    fn add(&self, ticket: TicketId) {
        self.tickets().entry(ticket).or_default().count += 1;
    }

    /// The client has an answer for the ticket.
    fn is_answered(&self, ticket: TicketId) {
        if let Some(copies) = self.tickets().get_mut(&ticket) {
            copies.is_answered = true;
        }
    }

    /// Was it the last one, and none of them answered?
    fn remove(&self, ticket: TicketId) -> bool {
        let mut tickets = self.tickets();
        let Some(copies) = tickets.get_mut(&ticket) else { return true };
        copies.count -= 1;
        if copies.count > 0 {
            return false;
        }
        let is_answered = copies.is_answered;
        tickets.remove(&ticket);
        !is_answered
    }

    fn tickets(&self) -> MutexGuard<'_, HashMap<TicketId, Copies>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What is to be done when the request ends without an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Then {
    Nothing,
    /// Leave the line. `stray`: a copy of the enter may still come.
    Leave {
        stray: bool,
    },
    /// Close the session, which the client does not know.
    Close,
}

/// Stands for a ticket from before its enter until the client has its answer. Its drop withdraws the ticket.
pub(super) struct Withdrawal {
    service: Service,
    session: Session,
    place: Place,
    /// Has the service made the session's secret, for this ticket alone?
    is_private: bool,
    /// Can the client send the same request again?
    is_repeatable: bool,
    then: Then,
}

impl Withdrawal {
    pub(super) fn new(
        service: &Service,
        session: &Session,
        place: Place,
        is_private: bool,
        is_repeatable: bool,
        withdraws: bool,
    ) -> Self {
        service.in_flight.add(place.ticket);
        let then = match (withdraws, is_private) {
            (false, _) => Then::Nothing,
            (true, true) => Then::Close,
            (true, false) => Then::Leave { stray: true },
        };
        let (service, session) = (service.clone(), session.clone());
        Self { service, session, place, is_private, is_repeatable, then }
    }

    pub(super) fn ticket(&self) -> TicketId {
        self.place.ticket
    }

    /// From here on it is about another ticket.
    pub(super) fn take_another(&mut self) {
        self.service.in_flight.remove(self.place.ticket);
        self.place.ticket = TicketId::random();
        self.service.in_flight.add(self.place.ticket);
    }

    /// The store has answered the enter. Unless the client can have sent the same again, no copy will come.
    pub(super) fn entered(&mut self) {
        if let Then::Leave { stray } = &mut self.then {
            *stray = self.is_repeatable;
        }
    }

    /// The ticket is in no line.
    pub(super) fn is_in_no_line(&mut self) {
        self.then = if self.is_private { Then::Close } else { Then::Nothing };
    }

    /// The store may have the ticket, and the client is told so: it asks again, if it can.
    pub(super) fn is_unknown(&mut self) {
        self.then = match (self.is_repeatable, self.is_private) {
            (true, _) => Then::Nothing,
            (false, true) => Then::Close,
            (false, false) => Then::Leave { stray: true },
        };
    }

    /// The client has its answer.
    pub(super) fn is_answered(&mut self) {
        self.then = Then::Nothing;
        self.service.in_flight.is_answered(self.place.ticket);
    }
}

impl Drop for Withdrawal {
    fn drop(&mut self) {
        let is_unanswered = self.service.in_flight.remove(self.place.ticket);
        // Without a runtime the process ends, and the session by its TTL.
        let Ok(runtime) = Handle::try_current() else { return };
        if !is_unanswered || self.then == Then::Nothing {
            return;
        }
        let (service, session) = (self.service.clone(), self.session.clone());
        let (place, then) = (self.place.clone(), self.then);
        runtime.spawn(async move {
            match then {
                Then::Nothing => {}
                Then::Leave { stray } => leave(&service, Leave { place, keep: None, stray }).await,
                Then::Close => close(&service, &session).await,
            }
        });
    }
}

/// Leaves until the store answers, or a late copy of the enter would not be refused any more.
async fn leave(service: &Service, leave: Leave) {
    let ending = service.hub.ending(&leave.place.name, leave.place.ticket);
    if let Some(left) = until_answered(|| service.store.leave(leave.clone())).await {
        ending.left(left, false);
    }
}

/// Closes a session that its client does not know.
async fn close(service: &Service, session: &Session) {
    if until_answered(|| service.store.close(session.id)).await.is_some() {
        service.closed(session);
    }
}

async fn until_answered<T, F>(mut send: impl FnMut() -> F) -> Option<T>
where
    F: Future<Output = StoreResult<T>>,
{
    let (mut pause, until) = (PAUSE_FIRST, Instant::now() + STRAY_MAX);
    loop {
        match send().await {
            Ok(answer) => return Some(answer),
            Err(e) if e.is_transient() && Instant::now() < until => {}
            Err(e) => {
                tracing::debug!(error = %e, "a ticket was left to expire with its session");
                return None;
            }
        }
        sleep(pause).await;
        pause = (pause * 2).min(PAUSE_MOST);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ticket_goes_with_the_last_of_its_requests_unless_one_was_answered() {
        let (requests, ticket) = (InFlight::default(), TicketId::random());
        (0..2).for_each(|_| requests.add(ticket));
        assert_eq!([(); 2].map(|()| requests.remove(ticket)), [false, true]);
        (0..2).for_each(|_| requests.add(ticket));
        requests.is_answered(ticket);
        assert_eq!([(); 2].map(|()| requests.remove(ticket)), [false, false]);
        requests.add(ticket);
        assert!(requests.remove(ticket), "an earlier answer is forgotten");
    }
}
