//! Which tickets a session has, as the data has them.
//!
//! A renewal tells the core, so that a ticket which is missing, or has come back, is noticed whatever
//! hid the change: a restored snapshot, another cluster behind the same address, a key deleted by hand.
//! Two questions are asked side by side: what each lease holds, and how the session's newest keys stand.
//! The first one sees every key, in its leader's memory; the second one is answered by a majority, and
//! sees that a key was created anew. A history that was restored is a beginning of the one that was: if
//! the newest keys are in it, so are all older ones.

use super::{
    Etcd, KIND, Nature, ops,
    proto::{Headed as _, KeyValue, TxnRequest},
    sessions::tag,
    standing::Queue,
};
use crate::{
    error::StoreError,
    model::{
        name::Name,
        ticket::{SessionId, TicketId},
    },
    store::{StoreResult, common::join},
};
use std::collections::{BTreeSet, HashMap};

/// So many of the session's keys are read beside a renewal.
const NEWEST: usize = ops::OPS_MAX - 2;

/// What the cluster has of a session.
pub(super) struct Census {
    /// All that is written about the session itself.
    pub(super) about: Vec<KeyValue>,
    pub(super) tickets: BTreeSet<(Name, TicketId)>,
    /// In which term the majority has answered.
    pub(super) term: u64,
    /// Compacting the history is due, if that was asked for.
    pub(super) compact: bool,
}

/// A ticket that this handle knows to stand at a key since a revision.
struct Stood {
    name: Name,
    ticket: TicketId,
    key: Vec<u8>,
    created: i64,
}

impl Etcd {
    pub(super) async fn census(&self, session: SessionId, leases: &[i64]) -> StoreResult<Census> {
        let known = self.stood(session);
        let newest = &known[known.len().saturating_sub(NEWEST)..];
        let (listed, read) = tokio::join!(self.listed(leases), self.read_newest(session, newest));
        let (listed, (about, now, term, compact)) = (listed?, read?);
        let mut tickets: BTreeSet<(Name, TicketId)> = newest
            .iter()
            .zip(&now)
            .filter(|(stood, now)| **now == Some(stood.created))
            .map(|(stood, _)| (stood.name.clone(), stood.ticket))
            .collect();
        let now: HashMap<&[u8], Option<i64>> =
            newest.iter().map(|stood| stood.key.as_slice()).zip(now).collect();
        // Also what was entered meanwhile.
        let known = self.stood(session);
        let by_key: HashMap<&[u8], &Stood> =
            known.iter().map(|stood| (stood.key.as_slice(), stood)).collect();
        let mut unnamed = Vec::new();
        for (lease, key) in listed {
            let Some((name, spot)) = self.keys.parse(&key, lease) else { continue };
            let stood = by_key.get(key.as_slice()).filter(|stood| {
                now.get(key.as_slice()).is_none_or(|now| *now == Some(stood.created))
            });
            match (stood, spot.ticket) {
                (Some(stood), _) => drop(tickets.insert((name, stood.ticket))),
                (None, Some(_)) if spot.session != Some(tag(session)) => {}
                _ => unnamed.push((name, key)),
            }
        }
        tickets.extend(self.read_names(session, unnamed).await?);
        Ok(Census { about, tickets, term, compact })
    }

    /// The tickets that this handle knows to stand, the newest last.
    fn stood(&self, session: SessionId) -> Vec<Stood> {
        let known = self.sessions.with(session, |life| {
            let known = life.tickets.iter().filter_map(|(ticket, known)| {
                let (name, key) = (known.name.clone(), known.key.clone());
                Some(Stood { name, ticket: *ticket, key, created: known.created? })
            });
            known.collect::<Vec<_>>()
        });
        let mut known = known.unwrap_or_default();
        known.sort_unstable_by_key(|stood| stood.created);
        known
    }

    /// The keys that belong to the leases.
    async fn listed(&self, leases: &[i64]) -> StoreResult<Vec<(i64, Vec<u8>)>> {
        let asks = leases.iter().map(|lease| async move {
            let keys = self.client.time_to_live(*lease, true).await?.keys.into_iter();
            Ok::<_, StoreError>(keys.map(|key| (*lease, key)).collect::<Vec<_>>())
        });
        let listed: StoreResult<Vec<_>> = join::all(asks).await.into_iter().collect();
        Ok(listed?.into_iter().flatten().collect())
    }

    /// What is written about the session, at which revisions the keys were created, in which term this was
    /// answered, and whether compacting is due.
    async fn read_newest(
        &self,
        session: SessionId,
        newest: &[Stood],
    ) -> StoreResult<(Vec<KeyValue>, Vec<Option<i64>>, u64, bool)> {
        let mut success = vec![ops::range(ops::all(&self.keys.session(tag(session))))];
        success.extend(newest.iter().map(|stood| ops::range(ops::key_of(&stood.key))));
        if self.compactor.is_some() {
            success.push(ops::range(ops::key_of(&self.keys.compaction_due())));
        }
        let ask = TxnRequest { success, ..TxnRequest::default() };
        let answer = self.client.txn(ask, Nature::Repeatable).await?;
        let term = answer.header().map_or(0, |header| header.raft_term);
        let mut answers = ops::Answers::of(answer);
        let about = answers.range()?.kvs;
        let mut created = Vec::with_capacity(newest.len());
        for _ in newest {
            created.push(answers.range()?.kvs.first().map(|kv| kv.create_revision));
        }
        let compact = self.compactor.is_some() && answers.range()?.kvs.is_empty();
        Ok((about, created, term, compact))
    }

    /// Which tickets of the session stand at keys that this handle does not know, or knew as another's.
    pub(super) async fn read_names(
        &self,
        session: SessionId,
        keys: Vec<(Name, Vec<u8>)>,
    ) -> StoreResult<BTreeSet<(Name, TicketId)>> {
        let mut tickets = BTreeSet::new();
        for keys in keys.chunks(ops::OPS_MAX) {
            let asks = keys.iter().map(|(_, key)| ops::one(key)).collect();
            let (_, found) = self.read_all(asks).await?;
            for ((name, _), slot) in keys.iter().zip(found) {
                let queue = Queue::read(&self.keys, name, slot.kvs);
                let own = queue.0.iter().filter(|s| s.spot.session == Some(tag(session)));
                tickets.extend(own.filter(|s| !s.is_kept()).map(|s| (name.clone(), s.ticket)));
            }
        }
        Ok(tickets)
    }

    /// May the caller act for this session? A handle that knows the session has asked already.
    pub(super) async fn is_owner(&self, session: SessionId) -> StoreResult<bool> {
        if self.sessions.lives().contains_key(&session) {
            return Ok(true);
        }
        let found = self.client.range(ops::one(&self.keys.shard(tag(session), 0))).await?;
        let record = found.kvs.first().and_then(|kv| super::row::Record::read(&kv.value));
        Ok(record.is_some_and(|record| record.is_of(session)))
    }

    /// The name, if there can be a lock of that name.
    pub(super) fn good<'a>(&self, name: &'a Name) -> StoreResult<&'a Name> {
        match self.keys.refusal(name) {
            None => Ok(name),
            Some(rule) => Err(StoreError::not_applied(KIND, crate::error::ErrorKind::Name, rule)),
        }
    }
}
