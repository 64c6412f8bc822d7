//! Comparing the tickets that the session has with those that the store has.

use super::Desk;
use crate::{
    error::Loss,
    store::{Stand, TicketDigest},
    ticket::TicketId,
};

/// A ticket that the store must have when it is asked for all of them.
pub(crate) struct Expected {
    pub(crate) ticket: TicketId,
    /// It was granted already when the question was sent.
    granted: bool,
}

impl Desk {
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
        if !expected.granted && matches!(there, Some(Stand::Waiting(_))) {
            let told = book.waiting.get(&expected.ticket).is_some_and(|w| w.told.is_some());
            book.again |= told || book.held.contains_key(&expected.ticket);
        }
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

    /// All tickets were compared with the store's of this version. If something came meanwhile that the
    /// comparison cannot have seen, the next renewal leads to another one.
    pub(crate) fn verified(&self, version: u64) {
        let mut book = self.book();
        let again = std::mem::take(&mut book.again);
        (book.verified, book.left) = ((!again).then_some(version), None);
        book.comparisons += 1;
    }

    /// Whether the session has this ticket: as one that waits, is held, or is being left.
    pub(crate) fn knows(&self, ticket: TicketId) -> bool {
        let book = self.book();
        book.waiting.contains_key(&ticket)
            || book.held.contains_key(&ticket)
            || book.leaving.contains(&ticket)
            || book.left.as_ref().is_some_and(|left| left.contains(&ticket))
    }
}
