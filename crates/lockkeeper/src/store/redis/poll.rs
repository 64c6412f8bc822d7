//! Polling: one script for each bucket grants what has come free by expiry and says how tickets stand. A poll
//! of all tickets of a session first asks each bucket for their list.

use super::{
    Redis,
    exec::Call,
    reply::{self, Entry, Reply, hex},
    scripts::SCRIPTS,
};
use crate::{
    model::{
        name::Name,
        ticket::{SessionId, TicketId},
    },
    store::{PollScope, StoreResult, TicketStatus, common::join},
};
use redis::{Script, Value};
use std::collections::BTreeMap;

/// How many lines one script goes through, since the server serves no other request meanwhile.
const AT_ONCE: usize = 300;

type Tickets = Vec<(Name, TicketId)>;

impl Redis {
    pub(super) async fn poll_tickets(
        &self,
        session: SessionId,
        which: PollScope,
    ) -> StoreResult<Vec<(Name, TicketId, TicketStatus)>> {
        let all = matches!(which, PollScope::All);
        let tickets = match which {
            PollScope::These(tickets) => tickets,
            PollScope::All => self.tickets_of(session).await?,
        };
        let tickets = self.by_bucket(tickets);
        let replies =
            self.over_tickets(&SCRIPTS.poll, session, u64::from(all), tickets, false).await?;
        let mut statuses = Vec::new();
        for (tickets, replies) in replies {
            for ((name, ticket), reply) in tickets.into_iter().zip(Reply::of(replies)?) {
                statuses.push((name, ticket, Reply::of(reply)?.status()?));
            }
        }
        statuses.retain(|(_, _, status)| !all || *status != TicketStatus::Gone);
        Ok(statuses)
    }

    /// Runs a script over tickets of one session, bucket by bucket, and sweeps there if asked to.
    pub(super) async fn over_tickets(
        &self,
        script: &'static Script,
        session: SessionId,
        argument: u64,
        tickets: BTreeMap<u32, Tickets>,
        sweep: bool,
    ) -> StoreResult<Vec<(Tickets, Value)>> {
        let portions = tickets.into_iter().flat_map(|(bucket, tickets)| {
            // At least one, also for a bucket without tickets.
            let first = tickets.len().min(AT_ONCE);
            let rest = tickets[first..].chunks(AT_ONCE);
            let portions = [&tickets[..first]].into_iter().chain(rest);
            portions.map(|some| (bucket, some.to_vec())).collect::<Vec<_>>()
        });
        let calls = portions.map(|(bucket, tickets)| {
            let (keys, id) = (&self.buckets[bucket as usize], hex(session));
            let entry = |(name, ticket): &(Name, TicketId)| Entry {
                session: id.clone(),
                ticket: ticket.to_string(),
                name: name.clone(),
            };
            let mut entries: Vec<Entry> = tickets.iter().map(entry).collect();
            if sweep {
                entries.append(&mut self.sessions.leftovers(bucket));
            }
            let call = Call::over_bucket(script, keys, session, &[argument], &entries);
            async move { Ok((tickets, self.run(keys, None, &call).await?)) }
        });
        join::all(calls).await.into_iter().collect()
    }

    pub(super) fn by_bucket(&self, tickets: Tickets) -> BTreeMap<u32, Tickets> {
        let mut buckets: BTreeMap<u32, Tickets> = BTreeMap::new();
        for (name, ticket) in tickets {
            buckets.entry(self.bucket(&name)).or_default().push((name, ticket));
        }
        buckets
    }

    /// All tickets of a session that the server has, whichever handle has entered them. A handle's own list
    /// would not do: it forgets a ticket that it has left, and a replica that missed the leave brings the
    /// ticket back when it takes over.
    pub(super) async fn tickets_of(&self, session: SessionId) -> StoreResult<Tickets> {
        let (from, to) = (format!("[{} ", hex(session)), format!("({}!", hex(session)));
        let lists = self.buckets.iter().map(|keys| {
            let mut list = redis::cmd("ZRANGE");
            list.arg(&keys.own).arg(&from).arg(&to).arg("BYLEX");
            async move { self.connection.query::<Vec<String>>(&list).await }
        });
        let lists: StoreResult<Vec<_>> = join::all(lists).await.into_iter().collect();
        Ok(lists?.iter().flatten().filter_map(|entry| reply::own(entry)).collect())
    }
}
