//! Opening, renewing and closing sessions.
//!
//! A session's leases live for the TTL and the lock-delay together. Its owner gives up after the TTL.

use super::{
    Etcd, KIND,
    client::{KeyValue, Retry, TxnRequest, malformed, txn},
    local_session::{LocalSession, lease_id, public_id},
    row::Record,
};
use crate::{
    clock::Moment,
    error::{ErrorKind, StoreError},
    model::ticket::{Owner, SessionId},
    store::{Open, Renewal, StoreResult, Terms, common::join},
};
use std::time::Duration;

impl Etcd {
    pub(super) async fn open_session(&self, open: Open) -> StoreResult<Terms> {
        let Open { session, ttl, lock_delay, owner } = open;
        let sent = self.clock.now();
        let granted = self.grant_lease(lease_id(session, 0), ttl + lock_delay).await?;
        // The server's shortest lease may be longer than what was asked for.
        let terms = Terms::new(granted - lock_delay, lock_delay);
        let record = self.write_record(session, 0, Record::new(session, terms, owner)).await?;
        let local = LocalSession::new(record.terms, record.owner, sent, 1);
        self.sessions.lock().entry(session).or_insert(local);
        Ok(record.terms)
    }

    /// Grants a lease, or finds it granted already; returns its whole time.
    async fn grant_lease(&self, id: i64, wanted: Duration) -> StoreResult<Duration> {
        let granted = match self.client.grant(id, seconds(wanted)).await? {
            Some(granted) => granted,
            None => self.client.time_to_live(id).await?.granted_ttl,
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

    /// Writes that a lease belongs to a session, unless that is written already; returns what is written.
    async fn write_record(
        &self,
        session: SessionId,
        number: usize,
        record: Record,
    ) -> StoreResult<Record> {
        let key = self.keys.lease(public_id(session), number);
        let request = TxnRequest {
            compare: vec![txn::absent(&key)],
            success: vec![txn::put(&key, record.write(), lease_id(session, number))],
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
        let about = self.client.range(txn::all(&self.keys.session(public_id(session)))).await?.kvs;
        let first = self.keys.lease(public_id(session), 0);
        let record = about.iter().find(|kv| kv.key == first);
        let record = record.and_then(|kv| Record::read(&kv.value));
        let Some(record) = record.filter(|record| record.is_of(session)) else { return Ok(None) };
        let Some(renewed) = self.last_renewal(session, record.terms).await? else {
            return Ok(None);
        };
        let (terms, owner) = (record.terms, record.owner);
        let (leases, _) = self.leases_of(session, &about);
        let local = LocalSession::new(terms, owner.clone(), renewed, leases);
        self.sessions.lock().entry(session).or_insert(local);
        Ok(Some((terms, owner)))
    }

    /// May the caller act for this session? The proof was checked already if this handle knows the session.
    pub(super) async fn is_owner(&self, session: SessionId) -> StoreResult<bool> {
        if self.sessions.lock().contains_key(&session) {
            return Ok(true);
        }
        let found = self.client.range(txn::one(&self.keys.lease(public_id(session), 0))).await?;
        let record = found.kvs.first().and_then(|kv| Record::read(&kv.value));
        Ok(record.is_some_and(|record| record.is_of(session)))
    }

    /// The earliest moment at which some handle can have renewed the session last. `None` if the session
    /// has ended, or only its lock-delay is left.
    async fn last_renewal(&self, session: SessionId, terms: Terms) -> StoreResult<Option<Moment>> {
        let sent = self.clock.now();
        let left = self.client.time_to_live(public_id(session)).await?.ttl;
        let left = Duration::from_secs(u64::try_from(left).unwrap_or(0));
        // The server tells whole seconds, rounded down.
        let good_for = left.checked_sub(terms.lock_delay).filter(|d| !d.is_zero());
        Ok(good_for.map(|good_for| sent.before(terms.ttl.saturating_sub(good_for))))
    }

    /// From what is written about a session: the number of its leases, and of its evictions.
    fn leases_of(&self, session: SessionId, about: &[KeyValue]) -> (usize, u64) {
        let evicted = self.keys.evicted(public_id(session));
        let inbox = self.keys.inbox(public_id(session));
        let evictions = about.iter().find(|kv| kv.key == evicted).map_or(0, |kv| kv.version);
        let leases = about.iter().filter(|kv| kv.key < inbox.from).count();
        (leases, u64::try_from(evictions).unwrap_or(0))
    }

    /// A lease of the session with room for one more key; granted if there is none.
    pub(super) async fn lease_with_room(&self, session: SessionId) -> StoreResult<i64> {
        let known = self.sessions.with(session, |local| local.lease_with_room());
        if let Some(number) = known.flatten() {
            return Ok(lease_id(session, number));
        }
        let Some((terms, owner)) = self.session(session).await? else {
            return Err(StoreError::session_over(KIND));
        };
        let number = self.sessions.with(session, |local| local.leases.len()).unwrap_or(0);
        let id = lease_id(session, number);
        self.grant_lease(id, terms.ttl + terms.lock_delay).await?;
        self.write_record(session, number, Record::new(session, terms, owner)).await?;
        self.sessions.with(session, |local| {
            if local.leases.len() == number {
                local.leases.push(0);
            }
        });
        // The lease may be older than this request. A renewal that began before now did not renew it, and
        // the core would believe in that renewal for longer than this lease lives.
        if !self.client.keep_alive(vec![id]).await?.all {
            return Err(StoreError::session_over(KIND));
        }
        Ok(id)
    }

    /// Three requests side by side: the keep-alives, which the leader answers; what each lease holds; and a
    /// read that a majority answers, of the session's records, its newest keys and its evictions.
    pub(super) async fn renew_session(&self, session: SessionId) -> StoreResult<Renewal> {
        let sent = self.clock.now();
        let leases = match self.session(session).await? {
            Some(_) => self.sessions.with(session, |local| local.lease_ids(session)),
            None => None,
        };
        let Some(leases) = leases else { return Ok(Renewal::Lost) };
        let (kept, found) =
            tokio::join!(self.client.keep_alive(leases.clone()), self.held_keys(session, &leases));
        if self.client.is_restored() {
            tracing::warn!("the cluster was restored or replaced: the session is lost");
            return Ok(Renewal::Lost);
        }
        let kept = kept?;
        if !kept.all {
            return Ok(Renewal::Lost);
        }
        let mut found = found?;
        check_terms(kept.term, found.term)?;
        let (count, version) = self.leases_of(session, &found.about);
        if count < leases.len() {
            return Ok(Renewal::Lost);
        }
        // Another handle has granted these to the session.
        let more: Vec<i64> = (leases.len()..count).map(|n| lease_id(session, n)).collect();
        if !more.is_empty() {
            if !self.client.keep_alive(more.clone()).await?.all {
                return Ok(Renewal::Lost);
            }
            found.tickets.extend(self.held_keys(session, &more).await?.tickets);
        }
        self.sessions.with(session, |local| {
            local.renewed = local.renewed.max(sent);
            local.leases.resize(local.leases.len().max(count), 0);
        });
        if let Some(compactor) = self.compactor.as_ref().filter(|_| found.compaction_due) {
            compactor.begin();
        }
        let tickets = found.tickets.into_iter().map(|(_, ticket)| ticket).collect();
        Ok(Renewal::Renewed { version, tickets: Some(tickets) })
    }

    pub(super) async fn close_session(&self, session: SessionId) -> StoreResult<()> {
        // Another handle may have granted more leases than are known here.
        let found = self.client.range(txn::all(&self.keys.session(public_id(session)))).await?;
        let inbox = self.keys.inbox(public_id(session));
        let records = found.kvs.iter().filter(|kv| kv.key < inbox.from);
        let proves = |kv: &KeyValue| Record::read(&kv.value).is_some_and(|r| r.is_of(session));
        // Knowing the public half of the id gives no right to close, and a record that cannot be read
        // proves nothing.
        if !records.clone().all(proves) {
            return Ok(());
        }
        // Without a record the session is closed already, or this handle has opened it and knows its id.
        let known = self.sessions.with(session, |local| local.leases.len()).unwrap_or(0);
        let leases = (0..records.count().max(known)).map(|number| lease_id(session, number));
        for revoked in join::all(leases.map(|lease| self.client.revoke(lease))).await {
            revoked?;
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
    let what = "the leases were renewed by a leader that is none any more";
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
