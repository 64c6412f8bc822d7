//! Polling: each ticket of a session is confirmed by a majority of the nodes.

use super::{Redlock, session::Held};
use crate::{
    model::{
        name::Name,
        ticket::{SessionId, TicketId},
    },
    store::{PollScope, StoreResult, TicketStatus, common::join},
};
use std::collections::HashMap;

impl Redlock {
    pub(super) async fn poll_tickets(
        &self,
        session: SessionId,
        which: PollScope,
    ) -> StoreResult<Vec<(Name, TicketId, TicketStatus)>> {
        let known: HashMap<TicketId, Held> =
            self.session(session).map(|local| local.tickets).unwrap_or_default();
        let all = matches!(which, PollScope::All);
        let asked: Vec<_> = match which {
            PollScope::These(tickets) => tickets,
            PollScope::All => known.iter().map(|(id, held)| (held.name.clone(), *id)).collect(),
        };
        let known = &known;
        let status = |(name, ticket): (Name, TicketId)| async move {
            let status = match known.get(&ticket).filter(|held| held.name == name) {
                Some(held) => self.verify(session, ticket, held).await?,
                None => TicketStatus::Gone,
            };
            Ok((name, ticket, status))
        };
        let statuses = join::all(asked.into_iter().map(status)).await;
        let mut statuses = statuses.into_iter().collect::<StoreResult<Vec<_>>>()?;
        statuses.retain(|(_, _, status)| !all || *status != TicketStatus::Gone);
        Ok(statuses)
    }

    /// How a ticket of the session stands on the nodes; the session loses one that is gone.
    pub(super) async fn verify(
        &self,
        session: SessionId,
        ticket: TicketId,
        held: &Held,
    ) -> StoreResult<TicketStatus> {
        if self.is_held(&held.name, ticket, held.fence).await? {
            return Ok(TicketStatus::Granted { fence: self.fence(held) });
        }
        self.sessions.lock().lost(session, ticket, held.fence);
        Ok(TicketStatus::Gone)
    }
}
