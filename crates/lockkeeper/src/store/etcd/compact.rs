//! Compacting the history, if the URL asks for it by `compact=`.
//!
//! etcd keeps every write until its history is compacted. A renewal looks whether compacting is due, and
//! the clients agree by a key whose lease lives for the interval: the history is compacted once in an
//! interval, however many clients there are, and no clock is compared. What was written before the
//! last time is dropped, so every revision stays readable for one interval at least, and two at most.
//!
//! A task of its own does it, so that no renewal waits for it. The lease of an attempt that came to
//! nothing is revoked, or else every attempt would leave a lease for the whole interval.

use super::{
    client::{Client, Retry, TxnRequest, txn},
    keys::Keys,
    leave::random_lease,
    session::seconds,
};
use crate::store::StoreResult;
use std::{sync::Arc, time::Duration};
use tokio::sync::{Mutex, watch};

/// Compacts in the background, with at most one task of a handle at a time.
pub(super) struct Compactor {
    work: Arc<Work>,
    /// Locked while a task is at work. Holds a lease whose transaction got no answer, until the next
    /// task has found out what became of it.
    lease: Arc<Mutex<Option<i64>>>,
    /// Dropped with the handle, which the task notices.
    handle: watch::Sender<()>,
}

struct Work {
    client: Arc<Client>,
    every: Duration,
    due: Vec<u8>,
    last: Vec<u8>,
}

impl Compactor {
    pub(super) fn new(client: &Arc<Client>, keys: &Keys, every: Duration) -> Self {
        let (due, last) = (keys.compaction_due(), keys.compacted_last());
        let work = Arc::new(Work { client: Arc::clone(client), every, due, last });
        Self { work, lease: Arc::default(), handle: watch::Sender::new(()) }
    }

    /// Begins to compact, unless a task of this handle does so already.
    pub(super) fn begin(&self) {
        let Ok(mut lease) = Arc::clone(&self.lease).try_lock_owned() else { return };
        let (work, mut handle) = (Arc::clone(&self.work), self.handle.subscribe());
        tokio::spawn(async move {
            let done = tokio::select! {
                done = work.compact(&mut lease) => done,
                // The handle was dropped.
                _ = handle.changed() => Ok(()),
            };
            if let Err(e) = done.and(work.settle(&mut lease).await) {
                tracing::warn!(error = %e, "the history of the cluster was not compacted");
            }
        });
    }
}

impl Work {
    /// Claims this interval, and compacts up to the revision at which the last one was claimed.
    async fn compact(&self, lease: &mut Option<i64>) -> StoreResult<()> {
        self.settle(lease).await?;
        let id = *lease.insert(random_lease());
        self.client.grant(id, seconds(self.every)).await?;
        let request = TxnRequest {
            compare: vec![txn::absent(&self.due)],
            success: vec![
                txn::range(txn::key_of(&self.last)),
                txn::put(&self.due, Vec::new(), id),
                txn::put(&self.last, Vec::new(), 0),
            ],
            failure: Vec::new(),
        };
        let mut answer = self.client.txn(request, Retry::Never).await?;
        if !answer.succeeded {
            // Another client was faster; the caller revokes the lease.
            return Ok(());
        }
        *lease = None;
        match answer.range()?.kvs.first() {
            Some(last) => self.client.compact(last.mod_revision).await,
            None => Ok(()),
        }
    }

    /// Revokes the lease of an attempt, unless the attempt has claimed the interval and its answer was lost:
    /// revoking it would end the interval too early, and a revision of this interval could be dropped.
    async fn settle(&self, lease: &mut Option<i64>) -> StoreResult<()> {
        let Some(id) = *lease else { return Ok(()) };
        let compare = vec![txn::leased(&self.due, id)];
        let request = TxnRequest { compare, ..TxnRequest::default() };
        if !self.client.txn(request, Retry::Safe).await?.succeeded {
            self.client.revoke(id).await?;
        }
        *lease = None;
        Ok(())
    }
}
