//! Opening, renewing and closing sessions.
//!
//! A session's lease lives for the TTL and the lock-delay together. Its owner gives up after the TTL.

use super::{
    Etcd, KIND,
    client::{KeyValue, Retry, TxnRequest, malformed, txn},
    local_session::{LocalSession, public_id},
    row::Record,
};
use crate::{
    clock::Moment,
    error::{ErrorKind, StoreError},
    model::ticket::{Owner, SessionId},
    store::{Open, Renewal, StoreResult, Terms},
};
use std::time::Duration;

impl Etcd {
    pub(super) async fn open_session(&self, open: Open) -> StoreResult<Terms> {
        let Open { session, ttl, lock_delay, owner } = open;
        let sent = self.clock.now();
        let granted = self.grant_lease(public_id(session), ttl + lock_delay).await?;
        // The server's shortest lease may be longer than what was asked for.
        let terms = Terms::new(granted - lock_delay, lock_delay);
        let record = self.write_record(session, Record::new(session, terms, owner)).await?;
        let local = LocalSession::new(record.terms, record.owner, sent);
        self.sessions.lock().entry(session).or_insert(local);
        Ok(record.terms)
    }

    /// Grants a lease, or finds it granted already; returns its whole time.
    async fn grant_lease(&self, id: i64, wanted: Duration) -> StoreResult<Duration> {
        let granted = match self.client.grant(id, seconds(wanted)).await? {
            Some(granted) => granted,
            None => self.client.time_to_live(id, false).await?.granted_ttl,
        };
        // There is none if the lease ended between the two requests.
        let granted = u64::try_from(granted).ok().filter(|granted| *granted > 0);
        let granted = Duration::from_secs(granted.ok_or_else(|| StoreError::session_over(KIND))?);
        if granted < wanted {
            let what = "there is a lease of this id with a shorter time";
            return Err(StoreError::not_applied(KIND, ErrorKind::Other, what));
        }
        Ok(granted)
    }

    /// Writes the session's record, unless that is written already; returns what is written.
    async fn write_record(&self, session: SessionId, record: Record) -> StoreResult<Record> {
        let lease = public_id(session);
        let key = self.keys.record(lease);
        let request = TxnRequest {
            compare: vec![txn::absent(&key)],
            success: vec![txn::put(&key, record.write(), lease)],
            failure: vec![txn::range(txn::one(&key))],
        };
        let mut answer = self.client.txn(request, Retry::Safe).await?;
        if answer.succeeded {
            return Ok(record);
        }
        let found = answer.range()?.kvs;
        let found = found.first().and_then(|kv| Record::read(&kv.value));
        let found = found.ok_or_else(|| malformed("a session's record"))?;
        if !found.is_of(session) {
            let what = "the session's id is taken by another one";
            return Err(StoreError::not_applied(KIND, ErrorKind::Denied, what));
        }
        Ok(found)
    }

    /// The terms and the owner of a session; read from the cluster if another handle has opened or renewed
    /// it. `None` if it is over.
    pub(super) async fn session(&self, session: SessionId) -> StoreResult<Option<(Terms, Owner)>> {
        let now = self.clock.now();
        let of = |local: &mut LocalSession| (local.terms, local.owner.clone());
        let known = self.sessions.with(session, |local| (of(local), local.is_over(now)));
        let terms = match known {
            Some((known, false)) => return Ok(Some(known)),
            // Another handle may have renewed it.
            Some(((terms, _), true)) => terms,
            None => return self.unknown_session(session).await,
        };
        let Some(renewed) = self.last_renewal(session, terms).await? else {
            self.sessions.lock().remove(&session);
            return Ok(None);
        };
        Ok(self.sessions.with(session, |local| {
            local.renewed = local.renewed.max(renewed);
            of(local)
        }))
    }

    /// A session that another handle has opened.
    async fn unknown_session(&self, session: SessionId) -> StoreResult<Option<(Terms, Owner)>> {
        let Some(Record { terms, owner, .. }) = self.read_record(session).await? else {
            return Ok(None);
        };
        let Some(renewed) = self.last_renewal(session, terms).await? else { return Ok(None) };
        let local = LocalSession::new(terms, owner.clone(), renewed);
        self.sessions.lock().entry(session).or_insert(local);
        Ok(Some((terms, owner)))
    }

    /// The session's record, if it has one that was written for its whole id.
    async fn read_record(&self, session: SessionId) -> StoreResult<Option<Record>> {
        let found = self.client.range(txn::one(&self.keys.record(public_id(session)))).await?;
        let record = found.kvs.first().and_then(|kv| Record::read(&kv.value));
        Ok(record.filter(|record| record.is_of(session)))
    }

    /// May the caller act for this session? The proof was checked already if this handle knows the session.
    pub(super) async fn is_owner(&self, session: SessionId) -> StoreResult<bool> {
        let known = self.sessions.lock().contains_key(&session);
        Ok(known || self.read_record(session).await?.is_some())
    }

    /// The earliest moment at which some handle can have renewed the session last. `None` if the session
    /// has ended, or only its lock-delay is left.
    async fn last_renewal(&self, session: SessionId, terms: Terms) -> StoreResult<Option<Moment>> {
        let sent = self.clock.now();
        let left = self.client.time_to_live(public_id(session), false).await?.ttl;
        let left = Duration::from_secs(u64::try_from(left).unwrap_or(0));
        // The server tells whole seconds, rounded down.
        let good_for = left.checked_sub(terms.lock_delay).filter(|d| !d.is_zero());
        Ok(good_for.map(|good_for| sent.before(terms.ttl.saturating_sub(good_for))))
    }

    /// Three requests side by side: a keep-alive, which the leader answers; what the lease holds; and a read
    /// that a majority answers, of the session's record, its newest keys and its evictions.
    pub(super) async fn renew_session(&self, session: SessionId) -> StoreResult<Renewal> {
        let sent = self.clock.now();
        if self.session(session).await?.is_none() {
            return Ok(Renewal::Lost);
        }
        let keep_alive = self.client.keep_alive(public_id(session));
        let (kept, found) = tokio::join!(keep_alive, self.held_keys(session));
        if self.client.is_restored() {
            tracing::warn!("the cluster was restored or replaced: the session is lost");
            return Ok(Renewal::Lost);
        }
        let Some(term) = kept? else { return Ok(Renewal::Lost) };
        let found = found?;
        check_terms(term, found.term)?;
        if !found.session_stands {
            return Ok(Renewal::Lost);
        }
        self.sessions.with(session, |local| local.renewed = local.renewed.max(sent));
        if let Some(compactor) = self.compactor.as_ref().filter(|_| found.compaction_due) {
            compactor.begin();
        }
        let tickets = found.tickets.into_iter().map(|(_, ticket)| ticket).collect();
        Ok(Renewal::Renewed { version: found.evictions, tickets: Some(tickets) })
    }

    pub(super) async fn close_session(&self, session: SessionId) -> StoreResult<()> {
        let id = public_id(session);
        let found = self.client.range(txn::one(&self.keys.record(id))).await?.kvs;
        // Knowing the public half of the id gives no right to close, and a record that cannot be read
        // proves nothing.
        let proves = |kv: &KeyValue| Record::read(&kv.value).is_some_and(|r| r.is_of(session));
        if !found.iter().all(proves) {
            return Ok(());
        }
        // Without a record the session is closed already, or this handle has opened it and knows its id.
        if !found.is_empty() || self.sessions.lock().contains_key(&session) {
            self.client.revoke(id).await?;
        }
        self.sessions.lock().remove(&session);
        Ok(())
    }
}

/// A time in whole seconds, rounded up.
pub(super) fn seconds(time: Duration) -> i64 {
    i64::try_from(time.as_millis().div_ceil(1_000)).unwrap_or(i64::MAX)
}

/// A leader that was deposed and does not know it yet still answers keep-alives, in vain. The read beside
/// it, which a majority answered, is then from a later term.
fn check_terms(renewed: u64, read: u64) -> StoreResult<()> {
    if renewed >= read {
        return Ok(());
    }
    let what = "the lease was renewed by a leader that is none any more";
    Err(StoreError::unknown(KIND, ErrorKind::Unavailable, what))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_renewal_by_a_deposed_leader_does_not_count() {
        assert!(check_terms(3, 3).is_ok() && check_terms(4, 3).is_ok());
        assert!(check_terms(3, 4).is_err());
    }
}
