//! Wake-ups: within the process by a call, to another process by its doorbell.

use super::{
    KIND, Sqlite,
    doorbell::{Doorbell, Tag},
};
use crate::{
    error::{ErrorKind, StoreError},
    model::{
        name::Name,
        ticket::{SessionId, TicketId},
    },
    store::Hints,
};
use std::{
    collections::HashMap,
    io,
    sync::{Arc, MutexGuard},
};

/// What has to be told once the transaction is committed.
pub(super) enum News {
    Granted {
        session: SessionId,
        doorbell: Option<Tag>,
        ticket: TicketId,
        fence: u64,
    },
    Ended {
        session: SessionId,
        ticket: TicketId,
    },
    Freed(Name),
    /// A session was swept; its doorbell may have outlived its process.
    Cleared(Tag),
}

impl Sqlite {
    /// Passes on the hints of a session until its doorbell fails.
    pub(super) async fn session_hints(&self, session: SessionId, to: Arc<dyn Hints>) -> StoreError {
        let no_doorbell = |e| {
            let what = "cannot listen for other processes";
            StoreError::not_applied(KIND, ErrorKind::Unavailable, what).because(e)
        };
        self.sinks().insert(session, Arc::clone(&to));
        let _sink = Sink { store: self, session };
        let doorbell = match self.own_doorbell() {
            Ok(doorbell) => doorbell,
            Err(e) => return no_doorbell(e),
        };
        to.recheck(None);
        loop {
            match doorbell.rung().await {
                Ok(rings) => {
                    let sinks = self.all_sinks();
                    for ticket in rings.into_iter().map(|ring| ring.map(TicketId::from_bytes)) {
                        sinks.iter().for_each(|sink| sink.recheck(ticket));
                    }
                }
                Err(e) => return no_doorbell(e),
            }
        }
    }

    pub(super) fn sinks(&self) -> MutexGuard<'_, HashMap<SessionId, Arc<dyn Hints>>> {
        self.sinks.lock()
    }

    fn all_sinks(&self) -> Vec<Arc<dyn Hints>> {
        self.sinks().values().cloned().collect()
    }

    pub(super) fn tell(&self, news: Vec<News>) {
        for news in news {
            match news {
                News::Granted { session, doorbell, ticket, fence } => {
                    let sink = self.sinks().get(&session).cloned();
                    match (sink, doorbell) {
                        // The poll will report that the session is over.
                        (Some(sink), _) if self.is_cut_off_cached() => sink.recheck(Some(ticket)),
                        (Some(sink), _) => sink.granted(ticket, fence),
                        (None, Some(tag)) => self.doorbells.ring(&tag, &ticket.to_bytes()),
                        (None, None) => {}
                    }
                }
                News::Ended { session, ticket } => {
                    let sink = self.sinks().get(&session).cloned();
                    if let Some(sink) = sink {
                        sink.ended(ticket);
                    }
                }
                News::Freed(name) => self.all_sinks().iter().for_each(|s| s.freed(&name)),
                News::Cleared(tag) if tag != self.tag => self.doorbells.ring(&tag, &[]),
                News::Cleared(_) => {}
            }
        }
    }

    /// The doorbell of this process, made for the first session that waits.
    fn own_doorbell(&self) -> io::Result<Arc<Doorbell>> {
        let mut slot = self.doorbell.lock();
        if let Some(doorbell) = slot.upgrade() {
            return Ok(doorbell);
        }
        let doorbell = Arc::new(self.doorbells.bind(&self.tag)?);
        *slot = Arc::downgrade(&doorbell);
        Ok(doorbell)
    }
}

/// A session's sink among those of this process, until the task that passes hints on ends.
struct Sink<'a> {
    store: &'a Sqlite,
    session: SessionId,
}

impl Drop for Sink<'_> {
    fn drop(&mut self) {
        self.store.sinks().remove(&self.session);
    }
}
