//! What the store's hints say about tickets.

use super::{SessionState, Waiter};
use crate::{
    error::Loss,
    model::{name::Name, ticket::TicketId},
    store::Hints,
};
use std::sync::atomic::Ordering;

impl Hints for SessionState {
    fn granted(&self, ticket: TicketId, fence: u64) {
        let grant = self.table().waiting.get_mut(&ticket).and_then(|waiter| {
            waiter.recheck = None;
            let grant = waiter.grant.take()?;
            waiter.told = Some(fence);
            Some(grant)
        });
        if let Some(grant) = grant {
            // The waiter may have gone: then its pending leaves, whatever the fence.
            let _ = grant.send(fence);
        }
    }

    fn ended(&self, ticket: TicketId) {
        drop(self.answered(ticket));
        let hold_state = {
            let mut table = self.table();
            if let Some(waiter) = table.waiting.get_mut(&ticket) {
                (waiter.ended, waiter.hinted) = (true, true);
            }
            table.held.remove(&ticket)
        };
        if let Some(hold_state) = hold_state {
            hold_state.end(Loss::Evicted);
        }
    }

    fn freed(&self, name: &Name) {
        if let Some(bell) = self.table().contending.get(name) {
            bell.notify_one();
        }
    }

    fn recheck(&self, ticket: Option<TicketId>) {
        self.without_hints.store(false, Ordering::Release);
        let (now, mut table) = (self.clock.now(), self.table());
        let mut hurry = |waiter: &mut Waiter| match &mut waiter.recheck {
            Some(recheck) => *recheck = now,
            None => waiter.hinted = true,
        };
        match ticket {
            Some(ticket) => table.waiting.get_mut(&ticket).into_iter().for_each(&mut hurry),
            None => {
                table.waiting.values_mut().for_each(&mut hurry);
                table.contending.values().for_each(|bell| bell.notify_one());
            }
        }
        drop(table);
        self.due.notify_one();
    }
}
