//! What the store's hints say about tickets.

use super::{Desk, Waiter};
use crate::{error::Loss, name::Name, store::Hints, ticket::TicketId};
use std::sync::atomic::Ordering;

impl Hints for Desk {
    fn granted(&self, ticket: TicketId, fence: u64) {
        let turn = self.book().waiting.get_mut(&ticket).and_then(|waiter| {
            waiter.recheck = None;
            let turn = waiter.turn.take()?;
            waiter.told = Some(fence);
            Some(turn)
        });
        if let Some(turn) = turn {
            // The waiter may have gone: then its seat leaves, whatever the fence.
            let _ = turn.send(fence);
        }
    }

    fn ended(&self, ticket: TicketId) {
        drop(self.answered(ticket));
        let grip = {
            let mut book = self.book();
            if let Some(waiter) = book.waiting.get_mut(&ticket) {
                (waiter.ended, waiter.hinted) = (true, true);
            }
            book.held.remove(&ticket)
        };
        if let Some(grip) = grip {
            grip.end(Loss::Evicted);
        }
    }

    fn freed(&self, name: &Name) {
        if let Some(bell) = self.book().contending.get(name) {
            bell.notify_one();
        }
    }

    fn look(&self, ticket: Option<TicketId>) {
        self.deaf.store(false, Ordering::Release);
        let (now, mut book) = (self.clock.now(), self.book());
        let mut hurry = |waiter: &mut Waiter| match &mut waiter.recheck {
            Some(recheck) => *recheck = now,
            None => waiter.hinted = true,
        };
        match ticket {
            Some(ticket) => book.waiting.get_mut(&ticket).into_iter().for_each(&mut hurry),
            None => {
                book.waiting.values_mut().for_each(&mut hurry);
                book.contending.values().for_each(|bell| bell.notify_one());
            }
        }
        drop(book);
        self.due.notify_one();
    }
}
