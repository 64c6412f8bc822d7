//! The rule by which a node votes, without a server: `enter.lua`, `leave.lua` and expiry in Rust. The
//! random schedules of `decide.rs` run on it, and `lua_tests.rs` holds the scripts to it.

use super::decide::Vote;

/// What a node knows about one name.
#[derive(Clone, Debug, Default)]
pub(super) struct Node {
    pub(super) ticket: Option<u32>,
    pub(super) counter: u64,
    /// Tickets that were closed by their owners.
    pub(super) closed: Vec<u32>,
    /// A planted fault: a proposal equal to the counter is accepted as well.
    pub(super) lax: bool,
}

impl Node {
    pub(super) fn accept(&mut self, ticket: u32, t: u64) -> Vote {
        match self.ticket {
            _ if self.closed.contains(&ticket) => Vote::Closed,
            Some(other) if other != ticket => Vote::No,
            Some(_) if self.counter == t => Vote::Yes,
            _ if self.counter > t || (self.counter == t && !self.lax) => Vote::Low(self.counter),
            _ => {
                (self.ticket, self.counter) = (Some(ticket), t);
                Vote::Yes
            }
        }
    }

    /// It restarts without its data, and is out of quarantine since `end` by its own clock: of names that
    /// it does not know it accepts no fence from before.
    pub(super) fn forget(&mut self, end: u64) {
        *self = Self { counter: end, ..Self::default() };
    }

    /// A ticket is put back that a majority of the nodes has. That is no vote.
    pub(super) fn repair(&mut self, ticket: u32, t: u64) {
        if self.ticket.is_none() && !self.closed.contains(&ticket) {
            (self.ticket, self.counter) = (Some(ticket), self.counter.max(t));
        }
    }

    /// Says whether the ticket was there.
    pub(super) fn release(&mut self, ticket: u32) -> bool {
        self.ticket.take_if(|held| *held == ticket).is_some()
    }

    /// A release after which late copies are refused.
    pub(super) fn close(&mut self, ticket: u32) -> bool {
        self.closed.push(ticket);
        self.release(ticket)
    }
}
