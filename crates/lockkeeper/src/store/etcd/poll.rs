//! How tickets stand: read from their lines, many lines in one request.

use super::{
    Etcd,
    client::{HasHeader as _, KeyRange, KeyValue, RangeRequest, txn},
    handoff,
    line::{Blocker, LineEntry, LineSnapshot},
    local_session::{LocalTicket, public_id},
    watch::WaitTarget,
};
use crate::{
    model::{
        name::Name,
        ticket::{Mode, Place, SessionId, TicketId},
    },
    store::{PollScope, StoreResult, TicketStatus},
};
use std::{collections::BTreeSet, mem::take};

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
            PollScope::These(tickets) => self.statuses(session, tickets).await,
            PollScope::All => {
                let tickets = self.tickets_of(session).await?;
                let mut statuses = self.statuses(session, tickets).await?;
                statuses.retain(|(.., status)| *status != TicketStatus::Gone);
                Ok(statuses)
            }
        }
    }

    /// The tickets that the cluster has of a session, and those that this handle has sent: a member may lag
    /// behind when it lists a lease's keys.
    async fn tickets_of(&self, session: SessionId) -> StoreResult<Vec<(Name, TicketId)>> {
        self.session(session).await?;
        let known = self.sessions.with(session, |local| {
            let tickets = local.tickets.iter().map(|(ticket, known)| (known.name.clone(), *ticket));
            tickets.collect::<BTreeSet<_>>()
        });
        let Some(mut tickets) = known else { return Ok(Vec::new()) };
        tickets.extend(self.held_keys(session).await?.tickets);
        Ok(tickets.into_iter().collect())
    }

    pub(super) async fn statuses(
        &self,
        session: SessionId,
        tickets: Vec<(Name, TicketId)>,
    ) -> StoreResult<Vec<(Name, TicketId, TicketStatus)>> {
        let place = |(name, ticket)| Place { session, name, ticket };
        let places: Vec<Place> = tickets.into_iter().map(place).collect();
        if let [place] = &places[..]
            && let Some(status) = self.poll_after_wake(place).await
        {
            return Ok(vec![(place.name.clone(), place.ticket, status)]);
        }
        let mut statuses = Vec::with_capacity(places.len());
        for places in places.chunks(txn::OPS_MAX) {
            let request = |place: &Place| {
                let known = self.sessions.ticket(session, place.ticket);
                self.read_request(&place.name, known.as_ref())
            };
            let (revision, lines) =
                self.client.ranges(places.iter().map(request).collect()).await?;
            for (place, line) in places.iter().zip(lines) {
                let line = self.line_of(place, line.kvs);
                let status = self.status(place, &line, revision).await?;
                statuses.push((place.name.clone(), place.ticket, status));
            }
        }
        Ok(statuses)
    }

    /// What to read to know how a ticket stands. A grant that was seen stands as long as its key does.
    fn read_request(&self, name: &Name, known: Option<&LocalTicket>) -> RangeRequest {
        let line = txn::all(&self.keys.line(name));
        match known {
            Some(LocalTicket { key, fence: Some(_), .. }) => txn::one(key),
            Some(LocalTicket { created: Some(created), .. }) => {
                RangeRequest { max_create_revision: *created, ..line }
            }
            _ => line,
        }
    }

    /// The line of a ticket, in which it is identified also if no values were read.
    fn line_of(&self, place: &Place, kvs: Vec<KeyValue>) -> LineSnapshot {
        let mut line = LineSnapshot::read(&self.keys, &place.name, kvs);
        let known = self.sessions.ticket(place.session, place.ticket);
        if let Some(LocalTicket { key, created: Some(created), .. }) = known {
            line.identify(&key, created, place.ticket);
        }
        line
    }

    /// Looks for the grant of an exclusive ticket whose blocker has left, as a watch has told, and for the
    /// tickets behind it. `None` if the ordinary poll has to find out.
    ///
    /// The member that told answers from its own data, and no majority is asked. What it has was committed:
    /// the ticket was there, and the tickets before it are gone for good. Data that are old can only say
    /// that the ticket still waits, or is gone, which is not believed.
    async fn poll_after_wake(&self, place: &Place) -> Option<TicketStatus> {
        let Place { session, name, ticket } = place;
        let woken = self.sessions.with_ticket(*session, *ticket, |known| {
            take(&mut known.unblocked) && known.fence.is_none() && known.mode == Mode::Exclusive
        });
        if woken != Some(true) {
            return None;
        }
        let line = RangeRequest { keys_only: true, ..txn::all(&self.keys.line(name)) };
        let answer = self.client.serializable_range(txn::first(line, handoff::READ)).await.ok()?;
        let revision = answer.revision();
        let line = self.line_of(place, answer.kvs);
        let at = line.own(*ticket, public_id(*session)).filter(|at| *at == 0)?;
        let status = self.status_in(place, &line, at, revision).await.ok()?;
        let successors = handoff::successors(&self.keys, name, &line);
        self.sessions.with_ticket(*session, *ticket, |known| known.successors = successors);
        Some(status)
    }

    async fn status(
        &self,
        place: &Place,
        line: &LineSnapshot,
        revision: i64,
    ) -> StoreResult<TicketStatus> {
        let Place { session, ticket, .. } = place;
        if let Some(at) = line.own(*ticket, public_id(*session)) {
            return self.status_in(place, line, at, revision).await;
        }
        // A ticket may still be entering, or have entered since the line was read.
        let was_there =
            |known: &LocalTicket| known.created.is_some_and(|created| created <= revision);
        self.sessions.with(*session, |local| {
            if local.tickets.get(ticket).is_some_and(was_there) {
                local.remove(*ticket);
            }
        });
        Ok(TicketStatus::Gone)
    }

    /// How the ticket at this place of its line stands. If it waits, its blocker is watched from the
    /// revision on at which the line was read.
    pub(super) async fn status_in(
        &self,
        place: &Place,
        line: &LineSnapshot,
        at: usize,
        revision: i64,
    ) -> StoreResult<TicketStatus> {
        let Place { session, ticket, .. } = place;
        let own = &line.0[at];
        let known = self.sessions.with(*session, |local| {
            let before = local.tickets.get(ticket)?.fence;
            Some((before, local.record_created(*ticket, own.created)?.fence))
        });
        match known.flatten() {
            Some((_, Some(fence))) => return Ok(TicketStatus::Granted { fence }),
            // Only its key was read, and it is another key than before: the next poll reads the line.
            Some((Some(_), None)) => {}
            _ if at < line.admitted() => {
                let fence = self.assign_fence(place, own).await?;
                return Ok(
                    fence.map_or(TicketStatus::Gone, |fence| TicketStatus::Granted { fence })
                );
            }
            _ => self.watch(place, line, at, revision + 1),
        }
        Ok(TicketStatus::Waiting(line.wait(at, self.wall_ms())))
    }

    /// Watches what the waiting ticket at this place of its line waits for.
    fn watch(&self, place: &Place, line: &LineSnapshot, at: usize, from: i64) {
        let blocker = line.blocker(at);
        let keys = match &blocker {
            Blocker::Key(key) => KeyRange::of_key(key),
            Blocker::Weight { .. } => self.keys.line(&place.name),
        };
        let target = WaitTarget { ticket: place.ticket, blocker, keys, from };
        self.sessions.with(place.session, |local| {
            let waits = local.tickets.get(&place.ticket).is_some_and(|known| known.fence.is_none());
            if let Some(watches) = local.watches.as_mut().filter(|_| waits) {
                watches.watch(target);
            }
        });
    }

    /// Notes a grant that was seen, and returns its fence. `None` if the ticket is gone meanwhile.
    pub(super) async fn assign_fence(
        &self,
        place: &Place,
        own: &LineEntry,
    ) -> StoreResult<Option<u64>> {
        let raw = self.keys.is_raw();
        let fence = if raw { self.raw_fence(place, own).await? } else { Some(own.created) };
        Ok(fence.map(|fence| self.record_grant(place, own.created, fence)))
    }

    /// Notes a grant and its fence, and returns the fence that was noted first.
    pub(super) fn record_grant(&self, place: &Place, created: i64, fence: i64) -> u64 {
        let fence = u64::try_from(fence).unwrap_or(0);
        let Place { session, ticket, .. } = place;
        let noted =
            self.sessions.with(*session, |local| local.record_grant(*ticket, created, fence));
        noted.flatten().unwrap_or(fence)
    }
}
