//! How tickets stand.

use super::{
    Http,
    client::{Ask, Retry},
    enter, error,
    session::{path_of, reference},
    wire::{PollSession, SessionTickets, State, TicketState},
};
use crate::{
    model::{
        name::Name,
        ticket::{SessionId, TicketId},
    },
    store::{PollScope, StoreResult, TicketStatus},
};
use http::Method;

impl Http {
    pub(super) async fn poll_tickets(
        &self,
        session: SessionId,
        which: PollScope,
    ) -> StoreResult<Vec<(Name, TicketId, TicketStatus)>> {
        let tickets = match which {
            PollScope::All => None,
            PollScope::These(tickets) => {
                Some(tickets.iter().map(|(name, ticket)| reference(name, *ticket)).collect())
            }
        };
        let ask = Ask::new(Method::POST, path_of(session, "/poll"), Retry::Safe)
            .secret_of(session)
            .json(&PollSession { tickets })?;
        let reply = self.client.call(&ask).await?;
        if !reply.is_success() {
            return Err(error::refusal(&reply));
        }
        reply.read::<SessionTickets>()?.tickets.into_iter().map(status).collect()
    }
}

fn status(of: TicketState) -> StoreResult<(Name, TicketId, TicketStatus)> {
    let status = match of.state {
        State::Granted(fence) => TicketStatus::Granted { fence: fence.fence },
        State::Waiting(waiting) => TicketStatus::Waiting(enter::wait(waiting)?),
        State::Gone => TicketStatus::Gone,
    };
    Ok((of.lock, of.ticket, status))
}
