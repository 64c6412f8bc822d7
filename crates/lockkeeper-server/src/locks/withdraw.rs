//! What becomes of a ticket whose request ends without an answer.

use crate::{service::Service, session_id::Session};
use lockkeeper::{
    Store as _, TicketId,
    store::{Leave, Place, STRAY_MAX, StoreResult},
};
use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};
use tokio::{
    runtime::Handle,
    time::{Instant, sleep},
};

/// The first pause after a failed attempt, and the longest.
const PAUSE_FIRST: Duration = Duration::from_millis(20);
const PAUSE_MOST: Duration = Duration::from_secs(1);

/// How many requests are under way for each ticket. A client that lost its connection may have sent the same request
/// again before the loss is noticed here: the ticket goes with the last of them.
#[derive(Clone, Debug, Default)]
pub(crate) struct InFlight(Arc<Mutex<HashMap<TicketId, usize>>>);

impl InFlight {
    fn add(&self, ticket: TicketId) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner).entry(ticket).or_default() += 1;
    }

    /// Was it the last one?
    fn remove(&self, ticket: TicketId) -> bool {
        let mut tickets = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let left = tickets.get(&ticket).map_or(0, |count| count - 1);
        match left {
            0 => drop(tickets.remove(&ticket)),
            left => drop(tickets.insert(ticket, left)),
        }
        left == 0
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
    /// Was the session opened for this ticket alone?
    single: bool,
    /// Can the client send the same request again?
    is_repeatable: bool,
    then: Then,
}

impl Withdrawal {
    pub(super) fn new(
        service: &Service,
        session: &Session,
        place: Place,
        single: bool,
        is_repeatable: bool,
        withdraws: bool,
    ) -> Self {
        service.in_flight.add(place.ticket);
        let then = match (withdraws, single) {
            (false, _) => Then::Nothing,
            (true, true) => Then::Close,
            (true, false) => Then::Leave { stray: true },
        };
        let (service, session) = (service.clone(), session.clone());
        Self { service, session, place, single, is_repeatable, then }
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
        self.then = if self.single && !self.is_repeatable { Then::Close } else { Then::Nothing };
    }

    /// The store may have the ticket, and the client is told so: it asks again, if it can.
    pub(super) fn is_unknown(&mut self) {
        self.then = match (self.is_repeatable, self.single) {
            (true, _) => Then::Nothing,
            (false, true) => Then::Close,
            (false, false) => Then::Leave { stray: true },
        };
    }

    /// The client has its answer.
    pub(super) fn is_answered(&mut self) {
        self.then = Then::Nothing;
    }
}

impl Drop for Withdrawal {
    fn drop(&mut self) {
        let is_last = self.service.in_flight.remove(self.place.ticket);
        // Without a runtime the process ends, and the session by its TTL.
        let Ok(runtime) = Handle::try_current() else { return };
        if !is_last || self.then == Then::Nothing {
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

/// Closes a session that its client does not know, or does not need any more.
pub(super) async fn close(service: &Service, session: &Session) {
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
