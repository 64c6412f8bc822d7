//! Comparing the tickets that the session has with those that the store has.

use super::SessionState;
use crate::{
    error::Loss,
    model::ticket::TicketId,
    store::{TicketDigest, TicketStatus},
};

/// A ticket that the store must have when it is asked for all of them.
pub(crate) struct Expected {
    pub(crate) ticket: TicketId,
    /// It was granted already when the question was sent.
    granted: bool,
}

impl SessionState {
    /// The tickets that the store must have now, held and waiting.
    pub(crate) fn expected(&self) -> Vec<Expected> {
        let table = self.table();
        let held = table.held.keys().map(|ticket| Expected { ticket: *ticket, granted: true });
        let waiting = table.waiting.iter().filter(|(_, waiter)| waiter.stands());
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
    pub(crate) fn compared(&self, expected: &Expected, there: Option<&TicketStatus>, fenced: bool) {
        let is_wrong = |fence: u64| match there {
            Some(TicketStatus::Granted { fence: now }) => fenced && *now != fence,
            // The answer may be older than a grant that came after the question.
            Some(TicketStatus::Waiting(_)) => expected.granted,
            Some(TicketStatus::Gone) | None => true,
        };
        let mut table = self.table();
        if !expected.granted && matches!(there, Some(TicketStatus::Waiting(_))) {
            let told = table.waiting.get(&expected.ticket).is_some_and(|w| w.told.is_some());
            table.again |= told || table.held.contains_key(&expected.ticket);
        }
        if let Some(waiter) = table.waiting.get_mut(&expected.ticket) {
            match waiter.told {
                Some(fence) => waiter.ended |= is_wrong(fence),
                // Without its sender the waiting loop enters again, at the end of the line.
                None if there.is_none() => drop(table.waiting.remove(&expected.ticket)),
                None => {}
            }
        }
        let lost =
            table.held.get(&expected.ticket).is_some_and(|hold_state| is_wrong(hold_state.fence));
        let hold_state = if lost { table.held.remove(&expected.ticket) } else { None };
        drop(table);
        if let Some(hold_state) = hold_state {
            hold_state.end(Loss::Evicted);
        }
    }

    /// The session was attached by a renewal with this version and these tickets. If they are not the ones
    /// that are known, the next renewal leads to a comparison.
    pub(crate) fn attached(&self, version: u64, tickets: Option<TicketDigest>) {
        let agree = tickets.is_none_or(|tickets| tickets == self.digest());
        let mut table = self.table();
        (table.version, table.verified) = (Some(version), agree.then_some(version));
    }

    /// All tickets were compared with the store's of this version. If something came meanwhile that the
    /// comparison cannot have seen, the next renewal leads to another one.
    pub(crate) fn verified(&self, version: u64) {
        let mut table = self.table();
        let again = std::mem::take(&mut table.again);
        (table.verified, table.left) = ((!again).then_some(version), None);
    }

    /// Whether the session has this ticket: as one that waits, is held, or is being left.
    pub(crate) fn knows(&self, ticket: TicketId) -> bool {
        let table = self.table();
        table.waiting.contains_key(&ticket)
            || table.held.contains_key(&ticket)
            || table.leaving.contains(&ticket)
            || table.left.as_ref().is_some_and(|left| left.contains(&ticket))
    }
}
