//! Sessions: opening, renewing and closing them.
//!
//! The lease lives for the TTL and the lock-delay together; its owner gives up at the TTL.

use super::{
    Etcd, KIND, Nature,
    error::{self, lease_gone},
    ops,
    proto::{KeyValue, TxnRequest},
    row::Record,
    sessions::{Life, lease, tag},
};
use crate::{
    clock::Moment,
    error::{ErrorKind, StoreError},
    model::ticket::{Owner, SessionId},
    store::{Open, Renewal, StoreResult, Terms, common::join},
};
use std::time::Duration;

impl Etcd {
    pub(super) async fn open_session(&self, ask: Open) -> StoreResult<Terms> {
        let Open { session, ttl, lock_delay, owner } = ask;
        let sent = self.clock.now();
        let granted = self.grant(lease(session, 0), ttl + lock_delay).await?;
        // A server may have a longer shortest time than was asked for.
        let terms = Terms::new(granted - lock_delay, lock_delay);
        let record = self.write_record(session, 0, Record::new(session, terms, owner)).await?;
        let life = Life::new(record.terms, record.owner, sent, 1);
        self.sessions.lives().entry(session).or_insert(life);
        Ok(record.terms)
    }

    /// Grants a lease, or finds that it was; says for how long.
    async fn grant(&self, id: i64, wanted: Duration) -> StoreResult<Duration> {
        let seconds = i64::try_from(wanted.as_millis().div_ceil(1_000)).unwrap_or(i64::MAX);
        let granted = match self.client.grant(id, seconds).await? {
            Some(granted) => granted,
            None => self.client.time_to_live(id, false).await?.granted_ttl,
        };
        // It ended between the two questions.
        let granted = u64::try_from(granted).ok().filter(|granted| *granted > 0);
        let granted = Duration::from_secs(granted.ok_or_else(|| StoreError::session_over(KIND))?);
        if granted < wanted {
            let what = "there is a lease of this id with a shorter time";
            return Err(StoreError::not_applied(KIND, ErrorKind::Other, what));
        }
        Ok(granted)
    }

    /// Writes down that a lease belongs to a session, once; says what is written there.
    async fn write_record(
        &self,
        session: SessionId,
        shard: usize,
        record: Record,
    ) -> StoreResult<Record> {
        let key = self.keys.shard(tag(session), shard);
        let ask = TxnRequest {
            compare: vec![ops::absent(&key)],
            success: vec![ops::put(&key, record.write(), lease(session, shard))],
            failure: vec![ops::range(ops::one(&key))],
        };
        let answer = self.client.txn(ask, Nature::Repeatable).await?;
        if answer.succeeded {
            return Ok(record);
        }
        let found = ops::Answers::of(answer).range()?;
        let found = found.kvs.first().and_then(|kv| Record::read(&kv.value));
        let found = found.ok_or_else(|| error::nonsense("a session's record"))?;
        if !found.is_of(session) {
            let what = "the session's id is taken by another one";
            return Err(StoreError::not_applied(KIND, ErrorKind::Denied, what));
        }
        Ok(found)
    }

    /// What is known of a session; asked from the cluster if another handle has opened it. `None` if it
    /// is over.
    pub(super) async fn life(&self, session: SessionId) -> StoreResult<Option<(Terms, Owner)>> {
        let now = self.clock.now();
        let known = self
            .sessions
            .with(session, |life| (!life.is_over(now)).then(|| (life.terms, life.owner.clone())));
        match known {
            Some(Some(known)) => return Ok(Some(known)),
            Some(None) => return self.life_by_others(session).await,
            None => {}
        }
        let found = self.client.range(ops::all(&self.keys.session(tag(session)))).await?;
        let (shards, _) = self.shards_of(session, &found.kvs);
        let first = self.keys.shard(tag(session), 0);
        let record = found.kvs.iter().find(|kv| kv.key == first);
        let record = record.and_then(|kv| Record::read(&kv.value));
        let Some(record) = record.filter(|record| record.is_of(session)) else { return Ok(None) };
        let Some(renewed) = self.last_renewal(session, record.terms).await? else {
            return Ok(None);
        };
        let life = Life::new(record.terms, record.owner.clone(), renewed, shards);
        self.sessions.lives().entry(session).or_insert(life);
        Ok(Some((record.terms, record.owner)))
    }

    /// A session that this handle has not renewed for a TTL: another one may have.
    async fn life_by_others(&self, session: SessionId) -> StoreResult<Option<(Terms, Owner)>> {
        let Some(terms) = self.sessions.with(session, |life| life.terms) else { return Ok(None) };
        let Some(renewed) = self.last_renewal(session, terms).await? else {
            self.sessions.lives().remove(&session);
            return Ok(None);
        };
        Ok(self.sessions.with(session, |life| {
            life.renewed = life.renewed.max(renewed);
            (life.terms, life.owner.clone())
        }))
    }

    /// When the session was renewed, at the earliest, by whichever handle. `None` if it lives only by its
    /// lock-delay, or not at all.
    async fn last_renewal(&self, session: SessionId, terms: Terms) -> StoreResult<Option<Moment>> {
        let asked = self.clock.now();
        let answer = self.client.time_to_live(tag(session), false).await?;
        let left = Duration::from_secs(u64::try_from(answer.ttl).unwrap_or(0));
        let Some(good_for) = left.checked_sub(terms.lock_delay).filter(|d| !d.is_zero()) else {
            return Ok(None);
        };
        // Whole seconds are told, rounded down.
        let ago = terms.ttl.saturating_sub(good_for);
        let renewed = asked.as_nanos().saturating_sub(u64::try_from(ago.as_nanos()).unwrap_or(0));
        Ok(Some(Moment::from_nanos(renewed)))
    }

    /// How many leases a session has, by what is written about it; and how often it was evicted.
    fn shards_of(&self, session: SessionId, kvs: &[KeyValue]) -> (usize, u64) {
        let (evicted, mailbox) = (self.keys.evicted(tag(session)), self.keys.mailbox(tag(session)));
        let evictions = kvs.iter().find(|kv| kv.key == evicted).map_or(0, |kv| kv.version);
        let shards = kvs.iter().filter(|kv| kv.key < mailbox.from).count();
        (shards, u64::try_from(evictions).unwrap_or(0))
    }

    /// A lease of the session with room for one more key.
    pub(super) async fn roomy_lease(&self, session: SessionId) -> StoreResult<i64> {
        if let Some(Some(shard)) = self.sessions.with(session, |life| life.roomy_shard()) {
            return Ok(lease(session, shard));
        }
        let Some((terms, owner)) = self.life(session).await? else {
            return Err(StoreError::session_over(KIND));
        };
        let shard = self.sessions.with(session, |life| life.shards.len()).unwrap_or(0);
        let id = lease(session, shard);
        self.grant(id, terms.ttl + terms.lock_delay).await?;
        self.write_record(session, shard, Record::new(session, terms, owner)).await?;
        self.sessions.with(session, |life| {
            if life.shards.len() == shard {
                life.shards.push(0);
            }
        });
        // The lease may be older than this request, and a renewal that began before now did not know of
        // it: whoever believes in that renewal would believe for longer than the grant is good for.
        if !self.client.keep_alive(vec![id]).await?.all {
            return Err(StoreError::session_over(KIND));
        }
        Ok(id)
    }

    /// The keep-alives say that the leases live on, and the census beside them, which a majority answers,
    /// that the session is there, which tickets it has, and whether one was evicted.
    pub(super) async fn renew_session(&self, session: SessionId) -> StoreResult<Renewal> {
        let sent = self.clock.now();
        let leases = match self.life(session).await? {
            Some(_) => self.sessions.with(session, |life| life.leases(session)),
            None => None,
        };
        let Some(leases) = leases else { return Ok(Renewal::Lost) };
        let before = leases.len();
        let (alive, found) =
            tokio::join!(self.client.keep_alive(leases.clone()), self.census(session, &leases));
        if self.client.is_restored() {
            tracing::warn!("the cluster was restored or replaced: the session is lost");
            return Ok(Renewal::Lost);
        }
        let alive = alive?;
        if !alive.all {
            return Ok(Renewal::Lost);
        }
        let found = found?;
        check_terms(alive.term, found.term)?;
        let (shards, version) = self.shards_of(session, &found.about);
        if shards < before {
            return Ok(Renewal::Lost);
        }
        // Another handle has taken more leases for it.
        let more: Vec<i64> = (before..shards).map(|shard| lease(session, shard)).collect();
        let mut tickets = found.tickets;
        if !more.is_empty() {
            if !self.client.keep_alive(more.clone()).await?.all {
                return Ok(Renewal::Lost);
            }
            tickets.extend(self.census(session, &more).await?.tickets);
        }
        self.sessions.with(session, |life| {
            life.renewed = life.renewed.max(sent);
            let shards = life.shards.len().max(shards);
            life.shards.resize(shards, 0);
        });
        if let Some(compactor) = self.compactor.as_ref().filter(|_| found.compact) {
            compactor.begin();
        }
        let tickets = tickets.into_iter().map(|(_, ticket)| ticket).collect();
        Ok(Renewal::Renewed { version, tickets: Some(tickets) })
    }

    pub(super) async fn close_session(&self, session: SessionId) -> StoreResult<()> {
        // Also the leases that another handle has taken, so what is known here is not enough.
        let found = self.client.range(ops::all(&self.keys.session(tag(session)))).await?;
        let mailbox = self.keys.mailbox(tag(session));
        let records = found.kvs.iter().filter(|kv| kv.key < mailbox.from);
        let proves = |kv: &KeyValue| Record::read(&kv.value).is_some_and(|r| r.is_of(session));
        // A record that cannot be read proves nothing: to know the public half is no right to close.
        if !records.clone().all(proves) {
            return Ok(());
        }
        // Without any record the session is closed already, or this handle, which knows the session
        // because it has the whole id, ends what it knows.
        let shards = records.count();
        let known = self.sessions.with(session, |life| life.shards.len()).unwrap_or(0);
        let revokes = (0..shards.max(known)).map(|shard| self.client.revoke(lease(session, shard)));
        for revoked in join::all(revokes).await {
            match revoked {
                Err(e) if !lease_gone(&e) => return Err(e),
                _ => {}
            }
        }
        self.sessions.lives().remove(&session);
        Ok(())
    }
}

/// A leader that was deposed and does not know it yet may renew a lease for nobody; then the read beside
/// it, which a majority has answered, is from a later term.
fn check_terms(renewed: u64, read: u64) -> StoreResult<()> {
    if renewed >= read {
        return Ok(());
    }
    let what = "the leases were renewed by a leader that is none any more";
    Err(StoreError::unknown(KIND, ErrorKind::Unavailable, what))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_renewal_by_a_deposed_leader_is_none() {
        assert!(check_terms(3, 3).is_ok() && check_terms(4, 3).is_ok());
        assert!(check_terms(3, 4).is_err());
    }
}
