//! Transactions, said shortly.

use super::{
    error::nonsense,
    keys::Span,
    proto::{
        ASCENDING, BY_CREATION, Compare, CompareResult, CompareTarget, CompareWith, DESCENDING,
        DeleteRangeRequest, PutRequest, RangeRequest, RangeResponse, Request, RequestOp, Response,
        ResponseOp, TxnRequest, TxnResponse,
    },
};
use crate::store::StoreResult;

/// The most operations that a server takes in one transaction, unless it was told otherwise.
pub(super) const OPS_MAX: usize = 128;

fn compare(key: &[u8], target: CompareTarget, result: CompareResult, with: CompareWith) -> Compare {
    let (target, result) = (target as i32, result as i32);
    Compare { key: key.to_vec(), range_end: Vec::new(), target, result, with: Some(with) }
}

/// There is such a key.
pub(super) fn exists(key: &[u8]) -> Compare {
    compare(key, CompareTarget::Version, CompareResult::Greater, CompareWith::Version(0))
}

/// There is no such key.
pub(super) fn absent(key: &[u8]) -> Compare {
    compare(key, CompareTarget::Version, CompareResult::Equal, CompareWith::Version(0))
}

/// No key there was created after this revision.
pub(super) fn none_since(span: &Span, revision: i64) -> Compare {
    let with = CompareWith::Create(revision + 1);
    let compare = compare(&span.from, CompareTarget::Create, CompareResult::Less, with);
    Compare { range_end: span.to.clone(), ..compare }
}

/// There is no key there.
pub(super) fn empty(span: &Span) -> Compare {
    none_since(span, 0)
}

/// The key belongs to this lease; so there is such a key.
pub(super) fn leased(key: &[u8], lease: i64) -> Compare {
    compare(key, CompareTarget::Lease, CompareResult::Equal, CompareWith::Lease(lease))
}

/// The key was created at this revision, and so it is the same ticket's.
pub(super) fn created(key: &[u8], revision: i64) -> Compare {
    compare(key, CompareTarget::Create, CompareResult::Equal, CompareWith::Create(revision))
}

/// The key has not been written since.
pub(super) fn unchanged(key: &[u8], modified: i64) -> Compare {
    compare(key, CompareTarget::Mod, CompareResult::Equal, CompareWith::Mod(modified))
}

/// The key was not written from this revision on; there need be none.
pub(super) fn untouched_since(key: &[u8], revision: i64) -> Compare {
    compare(key, CompareTarget::Mod, CompareResult::Less, CompareWith::Mod(revision))
}

/// There is such a key, and its value sorts before this one.
pub(super) fn below(key: &[u8], value: impl Into<Vec<u8>>) -> Compare {
    let with = CompareWith::Value(value.into());
    compare(key, CompareTarget::Value, CompareResult::Less, with)
}

fn op(request: Request) -> RequestOp {
    RequestOp { request: Some(request) }
}

pub(super) fn put(key: &[u8], value: Vec<u8>, lease: i64) -> RequestOp {
    op(Request::Put(PutRequest { key: key.to_vec(), value, lease }))
}

pub(super) fn delete(key: &[u8]) -> RequestOp {
    let key = key.to_vec();
    op(Request::Delete(DeleteRangeRequest { key, range_end: Vec::new() }))
}

pub(super) fn range(ask: RangeRequest) -> RequestOp {
    op(Request::Range(ask))
}

pub(super) fn txn(ask: TxnRequest) -> RequestOp {
    op(Request::Txn(ask))
}

/// Reads one key.
pub(super) fn one(key: &[u8]) -> RangeRequest {
    RangeRequest { key: key.to_vec(), ..RangeRequest::default() }
}

/// Reads one key without its value.
pub(super) fn key_of(key: &[u8]) -> RangeRequest {
    RangeRequest { keys_only: true, ..one(key) }
}

/// Reads all keys there.
pub(super) fn all(span: &Span) -> RangeRequest {
    let (key, range_end) = (span.from.clone(), span.to.clone());
    RangeRequest { key, range_end, ..RangeRequest::default() }
}

/// Of what this asks for, only the keys that were created first.
pub(super) fn first(ask: RangeRequest, limit: i64) -> RangeRequest {
    let (sort_order, sort_target) = (ASCENDING, BY_CREATION);
    RangeRequest { sort_order, sort_target, limit, ..ask }
}

/// Of what this asks for, only the keys that were created last.
pub(super) fn last(ask: RangeRequest, limit: i64) -> RangeRequest {
    let (sort_order, sort_target) = (DESCENDING, BY_CREATION);
    RangeRequest { sort_order, sort_target, limit, keys_only: true, ..ask }
}

/// Takes a transaction's answers apart, one after the other.
pub(super) struct Answers(std::vec::IntoIter<ResponseOp>);

impl Answers {
    pub(super) fn of(answer: TxnResponse) -> Self {
        Self(answer.responses.into_iter())
    }

    fn next(&mut self) -> Option<Response> {
        self.0.next()?.response
    }

    pub(super) fn skip(&mut self) -> &mut Self {
        self.0.next();
        self
    }

    pub(super) fn range(&mut self) -> StoreResult<RangeResponse> {
        match self.next() {
            Some(Response::Range(answer)) => Ok(answer),
            _ => Err(nonsense("a range")),
        }
    }

    pub(super) fn txn(&mut self) -> StoreResult<TxnResponse> {
        match self.next() {
            Some(Response::Txn(answer)) => Ok(answer),
            _ => Err(nonsense("a transaction")),
        }
    }
}
