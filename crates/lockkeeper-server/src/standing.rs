//! How tickets stand, from the store's words to those of the answers.

use crate::{checks, extract::millis};
use lockkeeper::{
    Name, TicketId, Wait,
    store::{
        TicketStatus,
        http::wire::{HeldBy, State, TicketState, Waiting},
    },
};

pub(crate) fn waiting(wait: &Wait) -> Waiting {
    let holder = wait.holder.as_ref().map(|holder| HeldBy {
        owner: holder.owner.clone(),
        label: checks::shown(&holder.label),
        held_for_ms: holder.held_for.map(millis),
    });
    Waiting { ahead: wait.ahead, holder, recheck_ms: millis(wait.recheck) }
}

pub(crate) fn tickets(all: Vec<(Name, TicketId, TicketStatus)>) -> Vec<TicketState> {
    let state = |status| match status {
        TicketStatus::Granted { fence } => State::Granted(fence.into()),
        TicketStatus::Waiting(wait) => State::Waiting(waiting(&wait)),
        TicketStatus::Gone => State::Gone,
    };
    let shown = |(lock, ticket, status)| TicketState { lock, ticket, state: state(status) };
    all.into_iter().map(shown).collect()
}
