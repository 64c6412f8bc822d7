//! How tickets of a session stand.

use super::{
    Shared,
    connection::{Connection, Values},
    error,
    reply::{self, Answer, get, scalar},
};
use crate::{
    model::{
        name::Name,
        ticket::{SessionId, TicketId},
    },
    store::{PollScope, StoreResult, TicketStatus, common::repeat::Repeat},
};
use std::sync::atomic::Ordering;

impl Shared {
    pub(super) async fn poll(
        &self,
        session: SessionId,
        which: PollScope,
    ) -> StoreResult<Vec<(Name, TicketId, TicketStatus)>> {
        let all = matches!(which, PollScope::All);
        let server = if all { self.renewing_server().await? } else { &self.requests };
        let tickets = match which {
            PollScope::These(tickets) => tickets,
            PollScope::All => self.tickets_of(server, session).await?,
        };
        let names: Vec<&str> = tickets.iter().map(|(name, _)| name.as_str()).collect();
        let ids: Vec<[u8; 16]> = tickets.iter().map(|(_, ticket)| ticket.to_bytes()).collect();
        let ids: Vec<&[u8]> = ids.iter().map(|id| &id[..]).collect();
        let values: Values<'_> = &[&&session.to_bytes()[..], &names, &ids];
        let rows = server.call(&self.statements.poll, values, Repeat::Always).await?;
        let mut found = Vec::with_capacity(tickets.len());
        for (row, (name, ticket)) in rows.iter().zip(&tickets) {
            let answer: Answer<'_> = get(row, "lk_poll")?;
            let status = match answer.what {
                "due" => self.settle(server, session, name, *ticket).await?,
                _ => answer.status()?,
            };
            if !all || status != TicketStatus::Gone {
                found.push((name.clone(), *ticket, status));
            }
        }
        Ok(found)
    }

    /// Settles the ticket's line, because a deadline in it has passed.
    async fn settle(
        &self,
        server: &Connection,
        session: SessionId,
        name: &Name,
        ticket: TicketId,
    ) -> StoreResult<TicketStatus> {
        let (ticket, session) = (ticket.to_bytes(), session.to_bytes());
        let values: Values<'_> = &[&name.as_str(), &&ticket[..], &&session[..]];
        let call = &self.statements.settle;
        let rows = match server.call(call, values, Repeat::UnlessBlocked).await {
            // A transaction has locked this line, which is no reason to fail for the other tickets.
            Err(e) if error::is_blocked(&e) => {
                let wait = self.blocked.record(name, true, self.clock.now());
                return Ok(TicketStatus::Waiting(wait));
            }
            rows => rows?,
        };
        self.blocked.forget(name);
        let answer: Answer<'_> = scalar(&rows)?;
        self.tell_granted(&answer.granted).await;
        answer.status()
    }

    /// All tickets of a session that the database has, whichever handle has entered them.
    ///
    /// First tickets have no index by session, which would make every lock dearer, so this reads all lines. It
    /// reads the lines that this handle knows instead, if all lines were read before and no other handle is likely
    /// to have entered since. But if those show just what the last renewal has shown, the core asks because it
    /// expects other tickets: then all lines are read after all.
    async fn tickets_of(
        &self,
        server: &Connection,
        session: SessionId,
    ) -> StoreResult<Vec<(Name, TicketId)>> {
        let (id, version) = (session.to_bytes(), self.tickets.version(session));
        if self.tickets.knows(session) {
            let names = self.tickets.names(session);
            let names: Vec<&str> = names.iter().map(Name::as_str).collect();
            let (call, values): (_, Values<'_>) =
                (&self.statements.own_tickets_in, &[&&id[..], &names]);
            let rows = server.call(call, values, Repeat::Always).await?;
            let tickets = reply::places(&rows)?;
            if !self.tickets.were_shown(session, &tickets) {
                return Ok(tickets);
            }
        }
        let (call, values): (_, Values<'_>) = (&self.statements.own_tickets, &[&&id[..]]);
        let tickets = reply::places(&server.call(call, values, Repeat::Always).await?)?;
        self.tickets.searched(session, version, &tickets);
        Ok(tickets)
    }

    /// The connection to the server that answers renewals, for a comparison of all tickets: that server says
    /// what a session has. After a failover the connection for requests may still lead to the old primary, which
    /// lives on. Then the store leaves it and compares over the connection for renewals.
    async fn renewing_server(&self) -> StoreResult<&Connection> {
        let renewing = self.history.load(Ordering::Relaxed);
        if renewing == 0 {
            return Ok(&self.requests);
        }
        let history: Option<i64> = match self.ask(&self.statements.history, &[]).await {
            // An older schema was restored under this handle.
            Err(e) if error::is_missing(&e) => None,
            rows => scalar(&rows?)?,
        };
        match history {
            Some(history) if history.cast_unsigned() == renewing => return Ok(&self.requests),
            Some(_) => {
                self.requests.give_up();
                self.listener.give_up();
            }
            None => {}
        }
        Ok(&self.renewals)
    }
}
