//! How tickets of a session stand.

use super::{
    Shared,
    connection::bytes,
    reply::{self, nonsense},
};
use crate::{
    model::{
        name::Name,
        ticket::{SessionId, TicketId},
    },
    store::{PollScope, StoreResult, TicketStatus},
};

/// How many tickets one request asks for, so that other requests get a connection between two of them.
const PAGE: usize = 64;

impl Shared {
    pub(super) async fn poll(
        &self,
        session: SessionId,
        which: PollScope,
    ) -> StoreResult<Vec<(Name, TicketId, TicketStatus)>> {
        let (mut found, mut waiting) = (Vec::new(), Vec::new());
        match which {
            PollScope::These(tickets) => waiting = tickets,
            PollScope::All => {
                for (name, ticket, fence) in self.tickets_of(session).await? {
                    match fence {
                        0 => waiting.push((name, ticket)),
                        fence => found.push((name, ticket, TicketStatus::Granted { fence })),
                    }
                }
            }
        }
        for page in waiting.chunks(PAGE) {
            let statuses = self.poll_page(session, page).await?;
            for ((name, ticket), status) in page.iter().zip(statuses) {
                // A ticket that waits was added to the watch by its enter, and may have been left meanwhile.
                if !matches!(status, TicketStatus::Waiting(_)) {
                    self.watch.remove(*ticket);
                }
                found.push((name.clone(), *ticket, status));
            }
        }
        Ok(found)
    }

    /// How these tickets stand, in one round trip.
    async fn poll_page(
        &self,
        session: SessionId,
        tickets: &[(Name, TicketId)],
    ) -> StoreResult<Vec<TicketStatus>> {
        let mut list = Vec::new();
        for (name, ticket) in tickets {
            let length = u16::try_from(name.as_str().len()).unwrap_or(0);
            list.extend(length.to_be_bytes());
            list.extend(name.as_str().as_bytes());
            list.extend(ticket.to_bytes());
        }
        let params = vec![bytes(session.to_bytes()), bytes(list)];
        let rows = self.ask(&self.statements.poll, params).await?;
        if rows.len() != tickets.len() {
            return Err(nonsense("an answer for another number of tickets"));
        }
        rows.iter().map(reply::status).collect()
    }

    /// All tickets of a session that the database has, each with its fence, or 0 if it waits.
    async fn tickets_of(&self, session: SessionId) -> StoreResult<Vec<(Name, TicketId, u64)>> {
        let params = vec![bytes(session.to_bytes()), bytes(session.to_bytes())];
        let rows = self.ask(&self.statements.own_tickets, params).await?;
        let mut tickets = Vec::with_capacity(rows.len());
        for row in rows {
            if let Some(name) = reply::name(&row)? {
                tickets.push((name, reply::ticket_id(&row, "id")?, reply::fence(&row)?));
            }
        }
        Ok(tickets)
    }
}
