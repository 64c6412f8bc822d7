//! Short words for the parts of a transaction: comparisons, operations, and what they answer.

use super::{
    error::malformed,
    proto::{
        ASCENDING, BY_CREATION, Compare, CompareResult, CompareTarget, CompareWith, DESCENDING,
        DeleteRangeRequest, HasHeader as _, PutRequest, RangeRequest, RangeResponse, Request,
        RequestOp, Response, ResponseOp, TxnRequest, TxnResponse,
    },
};
use crate::store::StoreResult;

/// The most operations that a server takes in one transaction, unless it was told otherwise.
pub(crate) const OPS_MAX: usize = 128;

/// The keys from one on and before another; the one key alone if there is no end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct KeyRange {
    pub(crate) from: Vec<u8>,
    pub(crate) to: Vec<u8>,
}

impl KeyRange {
    /// All keys that begin with this.
    pub(crate) fn with_prefix(prefix: impl Into<Vec<u8>>) -> Self {
        let from = prefix.into();
        let mut to = from.clone();
        while let Some(last) = to.pop() {
            if last < u8::MAX {
                to.push(last + 1);
                return Self { from, to };
            }
        }
        // The prefix has no end, which etcd writes as a zero byte.
        Self { from, to: vec![0] }
    }

    pub(crate) fn of_key(key: &[u8]) -> Self {
        Self { from: key.to_vec(), to: Vec::new() }
    }
}

fn compare(key: &[u8], target: CompareTarget, result: CompareResult, with: CompareWith) -> Compare {
    let (target, result) = (target as i32, result as i32);
    Compare { key: key.to_vec(), range_end: Vec::new(), target, result, with: Some(with) }
}

/// There is such a key.
pub(crate) fn exists(key: &[u8]) -> Compare {
    compare(key, CompareTarget::Version, CompareResult::Greater, CompareWith::Version(0))
}

/// There is no such key.
pub(crate) fn absent(key: &[u8]) -> Compare {
    compare(key, CompareTarget::Version, CompareResult::Equal, CompareWith::Version(0))
}

/// No key there was created after this revision.
pub(crate) fn none_since(keys: &KeyRange, revision: i64) -> Compare {
    let with = CompareWith::Create(revision + 1);
    let compare = compare(&keys.from, CompareTarget::Create, CompareResult::Less, with);
    Compare { range_end: keys.to.clone(), ..compare }
}

/// There is no key there.
pub(crate) fn empty(keys: &KeyRange) -> Compare {
    none_since(keys, 0)
}

/// There is such a key, and it belongs to this lease.
pub(crate) fn leased(key: &[u8], lease: i64) -> Compare {
    compare(key, CompareTarget::Lease, CompareResult::Equal, CompareWith::Lease(lease))
}

/// The key was created at this revision: it was not deleted and created anew since.
pub(crate) fn created(key: &[u8], revision: i64) -> Compare {
    compare(key, CompareTarget::Create, CompareResult::Equal, CompareWith::Create(revision))
}

/// The key has not been written since.
pub(crate) fn unchanged(key: &[u8], modified: i64) -> Compare {
    compare(key, CompareTarget::Mod, CompareResult::Equal, CompareWith::Mod(modified))
}

/// There is no such key, or it was not written from this revision on.
pub(crate) fn untouched_since(key: &[u8], revision: i64) -> Compare {
    compare(key, CompareTarget::Mod, CompareResult::Less, CompareWith::Mod(revision))
}

/// There is such a key, and its value sorts before this one.
pub(crate) fn below(key: &[u8], value: impl Into<Vec<u8>>) -> Compare {
    let with = CompareWith::Value(value.into());
    compare(key, CompareTarget::Value, CompareResult::Less, with)
}

fn op(request: Request) -> RequestOp {
    RequestOp { request: Some(request) }
}

pub(crate) fn put(key: &[u8], value: Vec<u8>, lease: i64) -> RequestOp {
    op(Request::Put(PutRequest { key: key.to_vec(), value, lease }))
}

pub(crate) fn delete(key: &[u8]) -> RequestOp {
    let key = key.to_vec();
    op(Request::Delete(DeleteRangeRequest { key }))
}

pub(crate) fn range(request: RangeRequest) -> RequestOp {
    op(Request::Range(request))
}

pub(crate) fn txn(request: TxnRequest) -> RequestOp {
    op(Request::Txn(request))
}

/// Reads one key.
pub(crate) fn one(key: &[u8]) -> RangeRequest {
    RangeRequest { key: key.to_vec(), ..RangeRequest::default() }
}

/// Reads one key without its value.
pub(crate) fn key_of(key: &[u8]) -> RangeRequest {
    RangeRequest { keys_only: true, ..one(key) }
}

/// Reads all keys there.
pub(crate) fn all(keys: &KeyRange) -> RangeRequest {
    let (key, range_end) = (keys.from.clone(), keys.to.clone());
    RangeRequest { key, range_end, ..RangeRequest::default() }
}

/// Of what this asks for, only the keys that were created first.
pub(crate) fn first(request: RangeRequest, limit: i64) -> RangeRequest {
    let (sort_order, sort_target) = (ASCENDING, BY_CREATION);
    RangeRequest { sort_order, sort_target, limit, ..request }
}

/// Of what this asks for, only the keys that were created last.
pub(crate) fn last(request: RangeRequest, limit: i64) -> RangeRequest {
    let (sort_order, sort_target) = (DESCENDING, BY_CREATION);
    RangeRequest { sort_order, sort_target, limit, keys_only: true, ..request }
}

/// A transaction's answer. The responses to its operations are taken out one after the other.
pub(crate) struct Answer {
    pub(crate) succeeded: bool,
    pub(crate) revision: i64,
    pub(crate) raft_term: u64,
    responses: std::vec::IntoIter<ResponseOp>,
}

impl Answer {
    pub(super) fn of(response: TxnResponse) -> Self {
        let (revision, raft_term) = (response.revision(), response.raft_term());
        let TxnResponse { succeeded, responses, .. } = response;
        Self { succeeded, revision, raft_term, responses: responses.into_iter() }
    }

    pub(crate) fn skip(&mut self, count: usize) -> &mut Self {
        self.responses.by_ref().take(count).for_each(drop);
        self
    }

    fn next(&mut self) -> Option<Response> {
        self.responses.next()?.response
    }

    pub(crate) fn range(&mut self) -> StoreResult<RangeResponse> {
        match self.next() {
            Some(Response::Range(response)) => Ok(response),
            _ => Err(malformed("a range")),
        }
    }

    /// The answer of a transaction inside this one. It has no header of its own.
    pub(crate) fn txn(&mut self) -> StoreResult<Self> {
        let (revision, raft_term) = (self.revision, self.raft_term);
        match self.next() {
            Some(Response::Txn(inner)) => Ok(Self { revision, raft_term, ..Self::of(inner) }),
            _ => Err(malformed("a transaction")),
        }
    }
}

/// Where the next page begins, if there are more keys than this one has.
pub(crate) fn next_page(page: &RangeResponse) -> Option<Vec<u8>> {
    let last = page.kvs.last().filter(|_| page.more)?;
    Some([last.key.as_slice(), &[0]].concat())
}
