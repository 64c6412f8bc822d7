//! Ending tickets on all nodes: the session's own, or another's (evict).

use super::{
    Redlock,
    flavour::Flavour,
    nodes::{PATIENCE, most_answered, patience},
    votes,
};
use crate::{
    error::ErrorKind,
    model::{
        name::Name,
        ticket::{Place, TicketId},
    },
    store::{
        Leave, Left, STRAY_MAX, StoreResult,
        redis::{Call, hex, micros},
    },
};
use std::time::Duration;

impl Redlock {
    pub(super) async fn leave_line(&self, ask: &Leave) -> StoreResult<Left> {
        let left = self.sessions.lock().leave(&ask.place, self.nodes.clock.now());
        let Some((ttl, held)) = left else { return Ok(Left::Gone) };
        // A ticket that the session does not have was left before, unless the outcome of its enter is unknown.
        // A slow node may still have it then, and that is no release.
        let may_be_there = ask.stray || held.is_some();
        let stray = ask.stray || held.is_some_and(|held| held.is_stray());
        let there = self.take_away(&ask.place, stray, patience(ttl)).await?;
        Ok(if there && may_be_there { Left::Released } else { Left::Gone })
    }

    /// Takes a ticket away on all nodes; says whether it was on any. A majority must have answered, for then
    /// no majority has it any more.
    pub(super) async fn take_away(
        &self,
        place: &Place,
        stray: bool,
        patience: Duration,
    ) -> StoreResult<bool> {
        let call = self.leave_call(place, stray);
        Ok(self.nodes.tell(patience, call, votes::flag).await?.contains(&true))
    }

    pub(super) fn leave_call(&self, Place { session, name, ticket }: &Place, stray: bool) -> Call {
        let keys = [self.key(name), self.index(), self.closed_key(name)];
        let mut call = Call::new(&self.scripts.leave, &keys);
        call.arg(ticket.to_string()).arg(hex(*session));
        call.arg(if stray { micros(STRAY_MAX) } else { 0 }).arg(name.as_str());
        call
    }

    pub(super) async fn evict_ticket(&self, name: &Name, ticket: TicketId) -> StoreResult<bool> {
        self.allows(name)?;
        let mut call = Call::new(&self.scripts.evict, &[self.key(name), self.index()]);
        match self.flavour {
            Flavour::Fenced => call.arg(ticket.to_string()),
            Flavour::Plain => match self.value_of(name, ticket).await? {
                Some(value) => call.arg(value),
                None => return Ok(false),
            },
        };
        call.arg(name.as_str());
        Ok(self.nodes.tell(PATIENCE, call, votes::flag).await?.contains(&true))
    }

    /// The plain string that a ticket stands for. Other libraries know nothing of tickets, so only the
    /// string that is there can say.
    async fn value_of(&self, name: &Name, ticket: TicketId) -> StoreResult<Option<Vec<u8>>> {
        let call = Call::new(&self.scripts.show, &[self.key(name)]);
        let keys = self.nodes.read(PATIENCE, call, votes::plain, most_answered).await?;
        match keys.into_iter().flatten().find(|key| key.ticket() == ticket) {
            Some(key) if !key.is_string() => {
                let what = "evicting what is no plain string: it may be no lock at all";
                Err(self.refused(ErrorKind::Unsupported(what), what))
            }
            key => Ok(key.map(|key| key.value)),
        }
    }
}
