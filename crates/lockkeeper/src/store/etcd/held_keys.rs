//! Which tickets a session has, according to the cluster.
//!
//! A renewal tells the core, so that a ticket which is missing or has come back is noticed, whatever hid
//! the change: a restored snapshot, another cluster behind the same address, a key deleted by hand.
//!
//! Two requests are sent side by side. The list of the lease's keys is complete, but comes from the
//! leader's memory and has no revisions. The read of the session's newest keys is answered by a majority
//! and has their create revisions. Together they are exact, because a restored history is a beginning of
//! the real one: if it has the newest keys, it has all older ones.

use super::{Etcd, client::txn, line::LineSnapshot, local_session::public_id};
use crate::{
    model::{
        name::Name,
        ticket::{SessionId, TicketId},
    },
    store::StoreResult,
};
use std::collections::{BTreeSet, HashMap};

/// How many of the session's newest keys are read.
const NEWEST: usize = txn::OPS_MAX - 3;

/// What the cluster has of a session.
pub(super) struct HeldKeys {
    /// The session's record is there.
    pub(super) session_stands: bool,
    /// How many of the session's tickets were evicted.
    pub(super) evictions: u64,
    pub(super) tickets: BTreeSet<(Name, TicketId)>,
    /// The term in which a majority has answered.
    pub(super) term: u64,
    pub(super) compaction_due: bool,
}

/// A key at which this handle knows a ticket to stand.
struct KnownKey {
    name: Name,
    ticket: TicketId,
    key: Vec<u8>,
    created: i64,
}

impl Etcd {
    pub(super) async fn held_keys(&self, session: SessionId) -> StoreResult<HeldKeys> {
        let lease = public_id(session);
        let known = self.known_keys(session);
        let newest = &known[known.len().saturating_sub(NEWEST)..];
        let (listed, read) =
            tokio::join!(self.client.time_to_live(lease, true), self.read_newest(session, newest));
        let (listed, (mut held, created)) = (listed?, read?);
        let created: HashMap<&[u8], Option<i64>> =
            newest.iter().map(|known| known.key.as_slice()).zip(created).collect();
        // `None` for a key that was not read.
        let stands = |known: &KnownKey| {
            created.get(known.key.as_slice()).map(|created| *created == Some(known.created))
        };
        let there = newest.iter().filter(|known| stands(known) == Some(true));
        held.tickets.extend(there.map(|known| (known.name.clone(), known.ticket)));
        // Again, because tickets may have entered meanwhile.
        let known = self.known_keys(session);
        let by_key: HashMap<&[u8], &KnownKey> =
            known.iter().map(|known| (known.key.as_slice(), known)).collect();
        let mut unnamed = Vec::new();
        for key in listed.keys {
            let Some((name, parsed)) = self.keys.parse(&key, lease) else { continue };
            let known = by_key.get(key.as_slice()).filter(|known| stands(known).unwrap_or(true));
            match (known, parsed.ticket) {
                (Some(known), _) => drop(held.tickets.insert((name, known.ticket))),
                (None, Some(_)) if parsed.session != Some(lease) => {}
                _ => unnamed.push((name, key)),
            }
        }
        held.tickets.extend(self.read_tickets(session, unnamed).await?);
        Ok(held)
    }

    /// The keys at which this handle knows tickets to stand, the newest last.
    fn known_keys(&self, session: SessionId) -> Vec<KnownKey> {
        let known = self.sessions.with(session, |local| {
            let known = local.tickets.iter().filter_map(|(ticket, local)| {
                let (name, key) = (local.name.clone(), local.key.clone());
                Some(KnownKey { name, ticket: *ticket, key, created: local.created? })
            });
            known.collect::<Vec<_>>()
        });
        let mut known = known.unwrap_or_default();
        known.sort_unstable_by_key(|known| known.created);
        known
    }

    /// What a majority says of the session, without its tickets, and the create revisions of these keys.
    async fn read_newest(
        &self,
        session: SessionId,
        newest: &[KnownKey],
    ) -> StoreResult<(HeldKeys, Vec<Option<i64>>)> {
        let (record, evicted) =
            (self.keys.record(public_id(session)), self.keys.evicted(public_id(session)));
        let mut success = [record, evicted].map(|key| txn::range(txn::key_of(&key))).to_vec();
        success.extend(newest.iter().map(|known| txn::range(txn::key_of(&known.key))));
        if self.compactor.is_some() {
            success.push(txn::range(txn::key_of(&self.keys.compaction_due())));
        }
        let mut answer = self.client.read(success).await?;
        let (term, session_stands) = (answer.raft_term, !answer.range()?.kvs.is_empty());
        let evictions = answer.range()?.kvs.first().map_or(0, |kv| kv.version);
        let evictions = u64::try_from(evictions).unwrap_or(0);
        let mut created = Vec::with_capacity(newest.len());
        for _ in newest {
            created.push(answer.range()?.kvs.first().map(|kv| kv.create_revision));
        }
        let compaction_due = self.compactor.is_some() && answer.range()?.kvs.is_empty();
        let tickets = BTreeSet::new();
        Ok((HeldKeys { session_stands, evictions, tickets, term, compaction_due }, created))
    }

    /// The session's tickets at keys whose ticket this handle does not know.
    async fn read_tickets(
        &self,
        session: SessionId,
        keys: Vec<(Name, Vec<u8>)>,
    ) -> StoreResult<BTreeSet<(Name, TicketId)>> {
        let mut tickets = BTreeSet::new();
        for keys in keys.chunks(txn::OPS_MAX) {
            let requests = keys.iter().map(|(_, key)| txn::one(key)).collect();
            let (_, found) = self.client.ranges(requests).await?;
            for ((name, _), found) in keys.iter().zip(found) {
                let found = LineSnapshot::read(&self.keys, name, found.kvs).0.into_iter();
                let own = found.filter(|e| e.parsed.session == Some(public_id(session)));
                tickets.extend(own.filter(|e| !e.is_kept()).map(|e| (name.clone(), e.ticket)));
            }
        }
        Ok(tickets)
    }
}
