//! Sessions: opening, renewing and closing them.
//!
//! The lease lives for the TTL and the lock-delay together; its owner gives up at the TTL.

use super::{
    Etcd, KIND, Nature,
    error::{self, lease_gone},
    ops,
    proto::TxnRequest,
    row::Record,
    sessions::{Life, lease, tag},
};
use crate::{
    error::{StoreError, Trouble},
    store::{Open, Renewal, StoreResult, Terms, together},
    ticket::{Owner, SessionId},
};
use std::time::Duration;

impl Etcd {
    pub(super) async fn open_session(&self, ask: Open) -> StoreResult<Terms> {
        let Open { session, ttl, lock_delay, owner } = ask;
        let sent = self.clock.now();
        let granted = self.grant(lease(session, 0), ttl + lock_delay).await?;
        // A server may have a longer shortest time than was asked for.
        let record = Record { terms: Terms::new(granted - lock_delay, lock_delay), owner };
        let record = self.write_record(session, 0, record).await?;
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
            return Err(StoreError::not_applied(KIND, Trouble::Other, what));
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
        found.ok_or_else(|| error::nonsense("a session's record"))
    }

    /// What is known of a session; asked from the cluster if another handle has opened it.
    pub(super) async fn life(&self, session: SessionId) -> StoreResult<Option<(Terms, Owner)>> {
        let known = self.sessions.with(session, |life| (life.terms, life.owner.clone()));
        if known.is_some() {
            return Ok(known);
        }
        let now = self.clock.now();
        let found = self.client.range(ops::all(&self.keys.session(tag(session)))).await?;
        let (shards, _) = self.shards_of(session, &found.kvs);
        let first = self.keys.shard(tag(session), 0);
        let record = found.kvs.iter().find(|kv| kv.key == first);
        let Some(record) = record.and_then(|kv| Record::read(&kv.value)) else { return Ok(None) };
        let life = Life::new(record.terms, record.owner.clone(), now, shards);
        self.sessions.lives().entry(session).or_insert(life);
        Ok(Some((record.terms, record.owner)))
    }

    /// How many leases a session has, by what is written about it; and how often it was evicted.
    fn shards_of(&self, session: SessionId, kvs: &[super::proto::KeyValue]) -> (usize, u64) {
        let mailbox = self.keys.mailbox(tag(session));
        let evictions = kvs.iter().find(|kv| kv.key == mailbox).map_or(0, |kv| kv.version);
        let shards = kvs.iter().filter(|kv| kv.key != mailbox).count();
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
        let sent = self.clock.now();
        self.grant(lease(session, shard), terms.ttl + terms.lock_delay).await?;
        self.write_record(session, shard, Record { terms, owner }).await?;
        let overtaken = self.sessions.with(session, |life| {
            if life.shards.len() == shard {
                life.shards.push(0);
            }
            life.renewing >= sent
        });
        // A renewal that began meanwhile did not know of this lease, and whoever believes in that
        // renewal believes for longer than the grant is good for.
        if overtaken == Some(true) && !self.client.keep_alive(vec![lease(session, shard)]).await? {
            return Err(StoreError::session_over(KIND));
        }
        Ok(lease(session, shard))
    }

    /// The keep-alives say that the leases live on, and a read beside them, answered by a majority,
    /// that the session is there and whether somebody was evicted.
    pub(super) async fn renew_session(&self, session: SessionId) -> StoreResult<Renewal> {
        let sent = self.clock.now();
        if self.life(session).await?.is_none() {
            return Ok(Renewal::Lost);
        }
        let known =
            self.sessions.with(session, |life| (!life.is_over(sent)).then(|| life.leases(session)));
        let Some(Some(leases)) = known else { return Ok(Renewal::Lost) };
        let before = leases.len();
        let about = ops::all(&self.keys.session(tag(session)));
        let (alive, found) = tokio::join!(self.client.keep_alive(leases), self.client.range(about));
        let (alive, found) = match (alive, found) {
            (Err(e), _) | (_, Err(e)) if e.trouble == Trouble::Misconfigured => {
                tracing::warn!(error = %e, "the session is lost");
                return Ok(Renewal::Lost);
            }
            (alive, found) => (alive?, found?),
        };
        let (shards, evictions) = self.shards_of(session, &found.kvs);
        if !alive || shards < before {
            return Ok(Renewal::Lost);
        }
        // Another handle has taken more leases for it.
        let more: Vec<i64> = (before..shards).map(|shard| lease(session, shard)).collect();
        if !more.is_empty() && !self.client.keep_alive(more).await? {
            return Ok(Renewal::Lost);
        }
        self.sessions.with(session, |life| {
            life.renewed = life.renewed.max(sent);
            let shards = life.shards.len().max(shards);
            life.shards.resize(shards, 0);
        });
        Ok(Renewal::Renewed { version: evictions })
    }

    pub(super) async fn close_session(&self, session: SessionId) -> StoreResult<()> {
        // Also the leases that another handle has taken, so what is known here is not enough.
        let found = self.client.range(ops::all(&self.keys.session(tag(session)))).await?;
        let (shards, _) = self.shards_of(session, &found.kvs);
        let known = self.sessions.with(session, |life| life.shards.len()).unwrap_or(0);
        let revokes = (0..shards.max(known)).map(|shard| self.client.revoke(lease(session, shard)));
        for revoked in together::all(revokes).await {
            match revoked {
                Err(e) if !lease_gone(&e) => return Err(e),
                _ => {}
            }
        }
        self.sessions.lives().remove(&session);
        Ok(())
    }
}
