//! Compacting the history, if the URL asks for it by `compact=`.
//!
//! etcd keeps every write until its history is compacted. A renewal looks whether compacting is due, and
//! the clients agree upon who does it by a key whose lease lives for the interval: it is done once in
//! an interval, however many clients there are, and no clock is compared. What was written before the
//! last time is forgotten; so every revision stays readable for one interval at least, and two at most.

use super::{Etcd, Nature, leave, ops, proto::TxnRequest};
use crate::store::StoreResult;
use std::time::Duration;

/// For how long a renewal waits for it.
const PATIENCE: Duration = Duration::from_millis(500);

impl Etcd {
    /// Given up when it takes long: the next interval does it.
    pub(super) async fn compact_history(&self, every: Duration) {
        match tokio::time::timeout(PATIENCE, self.try_to_compact(every)).await {
            Ok(Ok(())) => {}
            Ok(Err(e)) => {
                tracing::warn!(error = %e, "the history of the cluster was not compacted")
            }
            Err(_) => tracing::debug!("compacting the history of the cluster takes long"),
        }
    }

    async fn try_to_compact(&self, every: Duration) -> StoreResult<()> {
        let (due, last) = (self.keys.compaction_due(), self.keys.compacted_last());
        let lease = leave::random_lease();
        self.client.grant(lease, leave::seconds(every)).await?;
        let ask = TxnRequest {
            compare: vec![ops::absent(&due)],
            success: vec![
                ops::range(ops::key_of(&last)),
                ops::put(&due, Vec::new(), lease),
                ops::put(&last, Vec::new(), 0),
            ],
            failure: Vec::new(),
        };
        let answer = self.client.txn(ask, Nature::Once).await?;
        if !answer.succeeded {
            return self.client.revoke(lease).await;
        }
        match ops::Answers::of(answer).range()?.kvs.first() {
            Some(last) => self.client.compact(last.mod_revision).await,
            None => Ok(()),
        }
    }
}
