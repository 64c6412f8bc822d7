//! Raw mode: the fence of a grant among other clients' tickets.
//!
//! It must be higher than the fences of all grants before it, and those of other clients are the revisions
//! at which they saw their grants. So a key is written once when a ticket is granted, and its revision is
//! the fence. Every handle and every listing finds it there.

use super::{
    Etcd,
    client::{Retry, TxnRequest, txn},
    line::LineEntry,
};
use crate::{model::ticket::Place, store::StoreResult};

impl Etcd {
    /// The fence of this grant, written now if it was not before. `None` if the ticket is gone.
    pub(super) async fn raw_fence(
        &self,
        place: &Place,
        own: &LineEntry,
    ) -> StoreResult<Option<i64>> {
        let fence = self.keys.fence(&place.name, place.ticket);
        let request = TxnRequest {
            // A fence from before the ticket was created belongs to an earlier grant.
            compare: vec![
                txn::created(&own.key, own.created),
                txn::untouched_since(&fence, own.created),
            ],
            success: vec![txn::put(&fence, Vec::new(), own.lease)],
            failure: vec![txn::range(txn::key_of(&own.key)), txn::range(txn::key_of(&fence))],
        };
        let mut answer = self.client.txn(request, Retry::Safe).await?;
        if answer.succeeded {
            return Ok(Some(answer.revision));
        }
        let (own_now, fence) = (answer.range()?.kvs, answer.range()?.kvs);
        let stands = own_now.first().is_some_and(|kv| kv.create_revision == own.created);
        Ok(fence.first().filter(|_| stands).map(|kv| kv.mod_revision))
    }
}
