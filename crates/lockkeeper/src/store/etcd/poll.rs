//! How tickets stand: read from their lines, many lines in one request.

use super::{
    Etcd, Nature, ops,
    proto::{Headed as _, RangeRequest, RangeResponse, TxnRequest},
    sessions::{Known, tag},
    standing::{Blocker, Queue, UNNUMBERED},
    turn,
    watch::Target,
};
use crate::{
    model::{
        name::Name,
        ticket::{Mode, Place, SessionId, TicketId},
    },
    store::{PollScope, StoreResult, TicketStatus},
};
use std::collections::{BTreeSet, HashMap};

impl Etcd {
    pub(super) async fn poll_tickets(
        &self,
        session: SessionId,
        which: PollScope,
    ) -> StoreResult<Vec<(Name, TicketId, TicketStatus)>> {
        match which {
            PollScope::These(tickets) if !self.is_owner(session).await? => Ok(tickets
                .into_iter()
                .map(|(name, ticket)| (name, ticket, TicketStatus::Gone))
                .collect()),
            PollScope::These(tickets) => self.stands(session, tickets).await,
            PollScope::All => {
                let tickets = self.tickets_of(session).await?;
                let mut stands = self.stands(session, tickets).await?;
                stands.retain(|(.., stand)| *stand != TicketStatus::Gone);
                Ok(stands)
            }
        }
    }

    /// All tickets that the data has, and those that were sent from here: a member that is asked about a
    /// lease may lag behind.
    async fn tickets_of(&self, session: SessionId) -> StoreResult<Vec<(Name, TicketId)>> {
        self.life(session).await?;
        let known = self.sessions.with(session, |life| {
            let tickets = life.tickets.iter().map(|(ticket, known)| (known.name.clone(), *ticket));
            (life.leases(session), tickets.collect::<BTreeSet<_>>())
        });
        let Some((leases, mut tickets)) = known else { return Ok(Vec::new()) };
        tickets.extend(self.census(session, &leases).await?.tickets);
        Ok(tickets.into_iter().collect())
    }

    pub(super) async fn stands(
        &self,
        session: SessionId,
        tickets: Vec<(Name, TicketId)>,
    ) -> StoreResult<Vec<(Name, TicketId, TicketStatus)>> {
        if let [(name, ticket)] = &tickets[..]
            && let Some(stand) = self.answer_the_call(session, name, *ticket).await
        {
            return Ok(vec![(name.clone(), *ticket, stand)]);
        }
        let mut stands = Vec::with_capacity(tickets.len());
        for tickets in tickets.chunks(ops::OPS_MAX) {
            let asks = tickets.iter().map(|(name, ticket)| self.ask(session, name, *ticket));
            let (revision, lines) = self.read_all(asks.collect()).await?;
            for ((name, ticket), line) in tickets.iter().zip(lines) {
                let place = Place { session, name: name.clone(), ticket: *ticket };
                let queue = self.named(&place, line);
                let stand = self.stand(&place, &queue, revision);
                stands.push((name.clone(), *ticket, self.numbered(&place, &queue, stand).await?));
            }
        }
        Ok(stands)
    }

    /// The line of a ticket that this handle may know.
    fn named(&self, place: &Place, line: RangeResponse) -> Queue {
        let Place { session, name, ticket } = place;
        let mut queue = Queue::read(&self.keys, name, line.kvs);
        let known = self.sessions.with(*session, |life| life.tickets.get(ticket).cloned());
        if let Some(Known { key, created: Some(created), .. }) = known.flatten() {
            queue.name(&key, created, *ticket);
        }
        queue
    }

    /// A ticket whose turn may have come, as a watch has told, looks for its grant at the member that told,
    /// and no majority is asked. What is there was committed: whoever stood before the ticket is gone for
    /// good, and the ticket was there after that. What is old only says to wait on, and from there on
    /// is watched; but that the ticket is gone is not believed. Who needs the line for himself only looks
    /// who is its first, and who stands behind.
    async fn answer_the_call(
        &self,
        session: SessionId,
        name: &Name,
        ticket: TicketId,
    ) -> Option<TicketStatus> {
        let called = self.sessions.with(session, |life| {
            let known = life.tickets.get_mut(&ticket);
            known.is_some_and(|known| std::mem::take(&mut known.called) && known.fence.is_none())
        });
        if called != Some(true) {
            return None;
        }
        let place = Place { session, name: name.clone(), ticket };
        let ask = self.ask(session, name, ticket);
        let known = self.sessions.with(session, |life| life.tickets.get(&ticket).cloned());
        let alone = matches!(
            known.flatten(),
            Some(Known { mode: Mode::Exclusive, created: Some(_), fence: None, .. })
        );
        let ask = match alone {
            true => {
                let line = RangeRequest { max_create_revision: 0, keys_only: true, ..ask };
                ops::first(line, turn::READ)
            }
            false => ask,
        };
        let line = self.client.glance(ask).await.ok()?;
        let revision = line.revision();
        let queue = self.named(&place, line);
        let at = queue.own(ticket, tag(session))?;
        if alone && at > 0 {
            return None;
        }
        let stand = self.verdict(&place, &queue, revision);
        let stand = self.numbered(&place, &queue, stand).await.ok()?;
        if alone {
            let behind = turn::behind(&self.keys, name, &queue);
            self.sessions.with(session, |life| {
                life.tickets.entry(ticket).and_modify(|known| known.behind = behind);
            });
        }
        Some(stand)
    }

    /// What to read to know how a ticket stands. A grant that was seen stands as long as its key does.
    fn ask(&self, session: SessionId, name: &Name, ticket: TicketId) -> RangeRequest {
        let line = ops::all(&self.keys.line(name));
        let known = self.sessions.with(session, |life| life.tickets.get(&ticket).cloned());
        match known.flatten() {
            Some(Known { key, fence: Some(_), .. }) => ops::one(&key),
            Some(Known { created: Some(created), long, .. }) => {
                RangeRequest { max_create_revision: created, keys_only: long, ..line }
            }
            _ => line,
        }
    }

    /// Reads all of it at one revision.
    pub(super) async fn read_all(
        &self,
        mut asks: Vec<RangeRequest>,
    ) -> StoreResult<(i64, Vec<RangeResponse>)> {
        if asks.len() == 1 {
            let line = self.client.range(asks.remove(0)).await?;
            return Ok((line.revision(), vec![line]));
        }
        if asks.is_empty() {
            return Ok((0, Vec::new()));
        }
        let count = asks.len();
        let success = asks.into_iter().map(ops::range).collect();
        let ask = TxnRequest { success, ..TxnRequest::default() };
        let answer = self.client.txn(ask, Nature::Repeatable).await?;
        let revision = answer.revision();
        let mut answers = ops::Answers::of(answer);
        let lines = (0..count).map(|_| answers.range()).collect::<StoreResult<_>>()?;
        Ok((revision, lines))
    }

    fn stand(&self, place: &Place, queue: &Queue, revision: i64) -> TicketStatus {
        let Place { session, ticket, .. } = place;
        if queue.own(*ticket, tag(*session)).is_some() {
            return self.verdict(place, queue, revision);
        }
        // An enter that is under way is not known to have come, and one may have come since the line was
        // read.
        let was_there = |known: &Known| known.created.is_some_and(|created| created <= revision);
        self.sessions.with(*session, |life| {
            if life.tickets.get(ticket).is_some_and(was_there) {
                life.detach(*session, *ticket);
            }
        });
        TicketStatus::Gone
    }

    /// How a ticket stands that was found in what was read of its line at this revision; if it has to
    /// wait, what it waits for is watched from there on.
    pub(super) fn verdict(&self, place: &Place, queue: &Queue, revision: i64) -> TicketStatus {
        let Place { session, name, ticket } = place;
        let at = queue.own(*ticket, tag(*session)).expect("the ticket was found in the line");
        let own = &queue.0[at];
        let known = self.sessions.with(*session, |life| {
            let before = life.tickets.get(ticket)?.fence;
            Some((before, life.born(*ticket, own.created)?.fence))
        });
        match known.flatten() {
            Some((_, Some(fence))) => return TicketStatus::Granted { fence },
            // Only its key was read, and it is not the one we knew: the next poll reads the line.
            Some((Some(_), None)) => return TicketStatus::Waiting(queue.wait(at, self.wall_ms())),
            _ => {}
        }
        if at < queue.admitted() {
            let number = if self.keys.is_raw() { None } else { Some(own.created) };
            let fence = number.map(|number| self.note_grant(place, own.created, number));
            return TicketStatus::Granted { fence: fence.unwrap_or(UNNUMBERED) };
        }
        let blocker = queue.blocker(at);
        let anyone = blocker == Blocker::Anyone;
        let target = Target {
            ticket: *ticket,
            own: own.key.clone(),
            blocker,
            excess: queue.excess(at),
            ahead: if anyone { queue.ahead(at) } else { HashMap::new() },
            line: self.keys.line(name),
            from: revision + 1,
        };
        self.sessions.with(*session, |life| {
            let waits = life.tickets.get(ticket).is_some_and(|known| known.fence.is_none());
            if let Some(ear) = life.ear.as_ref().filter(|_| waits) {
                ear.watch(target);
            }
        });
        TicketStatus::Waiting(queue.wait(at, self.wall_ms()))
    }
}
