//! What happens to locks, as a stream.

use crate::{routes::Route, service::Service};
use lockkeeper::{Mode, Name, Owner, TicketId};

/// The routes of this group.
pub(crate) fn routes() -> Vec<Route> {
    Vec::new()
}

/// What a request to this instance has done to a ticket.
#[derive(Clone, Debug)]
pub(crate) struct Happened {
    pub(crate) what: What,
    pub(crate) lock: Name,
    pub(crate) ticket: TicketId,
    /// If the request said it.
    pub(crate) mode: Option<Mode>,
    /// Of a grant, and of what became of one, if it is known.
    pub(crate) fence: Option<u64>,
    /// If the request said it.
    pub(crate) owner: Option<Owner>,
    /// If the request said it.
    pub(crate) label: Option<Vec<u8>>,
}

/// What happened to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum What {
    Queued,
    Granted,
    Released,
    Withdrawn,
    Evicted,
    LabelChanged,
}

impl Happened {
    pub(crate) fn new(what: What, lock: &Name, ticket: TicketId) -> Self {
        let (mode, fence, owner, label) = (None, None, None, None);
        Self { what, lock: lock.clone(), ticket, mode, fence, owner, label }
    }
}

impl Service {
    /// Notes what a request has done. Called from every route that changes a ticket; never blocks.
    pub(crate) fn happened(&self, event: &Happened) {
        let Happened { what, lock, ticket, fence, .. } = event;
        tracing::debug!(lock = %lock, %ticket, ?fence, "{what:?}");
    }
}
