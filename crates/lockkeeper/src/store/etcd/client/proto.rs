//! The part of etcd's protocol that lockkeeper speaks: messages with the fields in use, by the numbers
//! of etcd's published API. A field that is left out here is skipped on receipt.
//!
//! The messages are few and never change, so they are written down instead of generated: the build
//! needs no protobuf compiler and does not get slower.

use prost::{Message, Oneof};

/// Declares messages with a field on each line, as etcd's `.proto` files have it. In brackets stands
/// what prost has to know of the field.
macro_rules! messages {
    ($($(#[$doc:meta])* $name:ident { $($(#[$about:meta])* [$($kind:tt)*] $field:ident: $type:ty,)* })*) => {
        $($(#[$doc])*
        #[derive(Clone, PartialEq, Message)]
        pub(crate) struct $name {
            $($(#[$about])* #[prost($($kind)*)] pub(crate) $field: $type,)*
        })*
    };
}

/// Declares enums of which a message carries one variant.
macro_rules! choices {
    ($($name:ident { $([$($kind:tt)*] $variant:ident($type:ty),)* })*) => {
        $(#[derive(Clone, PartialEq, Oneof)]
        pub(crate) enum $name { $(#[prost($($kind)*)] $variant($type),)* })*
    };
}

messages! {
    ResponseHeader {
        [uint64, tag = 1] cluster_id: u64,
        [int64, tag = 3] revision: i64,
        [uint64, tag = 4] raft_term: u64,
    }

    KeyValue {
        [bytes = "vec", tag = 1] key: Vec<u8>,
        [int64, tag = 2] create_revision: i64,
        [int64, tag = 3] mod_revision: i64,
        [int64, tag = 4] version: i64,
        [bytes = "vec", tag = 5] value: Vec<u8>,
        [int64, tag = 6] lease: i64,
    }

    RangeRequest {
        [bytes = "vec", tag = 1] key: Vec<u8>,
        [bytes = "vec", tag = 2] range_end: Vec<u8>,
        [int64, tag = 3] limit: i64,
        [int64, tag = 4] revision: i64,
        [int32, tag = 5] sort_order: i32,
        [int32, tag = 6] sort_target: i32,
        /// The member answers from its own data, which may be old.
        [bool, tag = 7] serializable: bool,
        [bool, tag = 8] keys_only: bool,
        [int64, tag = 13] max_create_revision: i64,
    }

    RangeResponse {
        [message, optional, tag = 1] header: Option<ResponseHeader>,
        [message, repeated, tag = 2] kvs: Vec<KeyValue>,
        [bool, tag = 3] more: bool,
        [int64, tag = 4] count: i64,
    }

    PutRequest {
        [bytes = "vec", tag = 1] key: Vec<u8>,
        [bytes = "vec", tag = 2] value: Vec<u8>,
        [int64, tag = 3] lease: i64,
    }

    PutResponse {}

    DeleteRangeRequest {
        [bytes = "vec", tag = 1] key: Vec<u8>,
    }

    DeleteRangeResponse {}

    RequestOp {
        [oneof = "Request", tags = "1, 2, 3, 4"] request: Option<Request>,
    }

    ResponseOp {
        [oneof = "Response", tags = "1, 2, 3, 4"] response: Option<Response>,
    }

    Compare {
        [enumeration = "CompareResult", tag = 1] result: i32,
        [enumeration = "CompareTarget", tag = 2] target: i32,
        [bytes = "vec", tag = 3] key: Vec<u8>,
        [bytes = "vec", tag = 64] range_end: Vec<u8>,
        [oneof = "CompareWith", tags = "4, 5, 6, 7, 8"] with: Option<CompareWith>,
    }

    TxnRequest {
        [message, repeated, tag = 1] compare: Vec<Compare>,
        [message, repeated, tag = 2] success: Vec<RequestOp>,
        [message, repeated, tag = 3] failure: Vec<RequestOp>,
    }

    TxnResponse {
        [message, optional, tag = 1] header: Option<ResponseHeader>,
        [bool, tag = 2] succeeded: bool,
        [message, repeated, tag = 3] responses: Vec<ResponseOp>,
    }

    CompactionRequest {
        [int64, tag = 1] revision: i64,
    }

    CompactionResponse {
        [message, optional, tag = 1] header: Option<ResponseHeader>,
    }

    LeaseGrantRequest {
        [int64, tag = 1] ttl: i64,
        [int64, tag = 2] id: i64,
    }

    LeaseGrantResponse {
        [message, optional, tag = 1] header: Option<ResponseHeader>,
        [int64, tag = 3] ttl: i64,
    }

    /// What a revocation and a keep-alive ask with.
    LeaseRequest {
        [int64, tag = 1] id: i64,
    }

    LeaseRevokeResponse {
        [message, optional, tag = 1] header: Option<ResponseHeader>,
    }

    LeaseKeepAliveResponse {
        [message, optional, tag = 1] header: Option<ResponseHeader>,
        [int64, tag = 3] ttl: i64,
    }

    LeaseTimeToLiveRequest {
        [int64, tag = 1] id: i64,
        [bool, tag = 2] keys: bool,
    }

    LeaseTimeToLiveResponse {
        [message, optional, tag = 1] header: Option<ResponseHeader>,
        /// The rest of the lease's time in seconds; below zero if there is no such lease.
        [int64, tag = 3] ttl: i64,
        [int64, tag = 4] granted_ttl: i64,
        [bytes = "vec", repeated, tag = 5] keys: Vec<Vec<u8>>,
    }

    WatchRequest {
        [oneof = "WatchCommand", tags = "1, 2"] command: Option<WatchCommand>,
    }

    WatchCreateRequest {
        [bytes = "vec", tag = 1] key: Vec<u8>,
        [bytes = "vec", tag = 2] range_end: Vec<u8>,
        [int64, tag = 3] start_revision: i64,
        [int32, repeated, tag = 5] filters: Vec<i32>,
        [int64, tag = 7] watch_id: i64,
    }

    WatchCancelRequest {
        [int64, tag = 1] watch_id: i64,
    }

    WatchResponse {
        [message, optional, tag = 1] header: Option<ResponseHeader>,
        [int64, tag = 2] watch_id: i64,
        [bool, tag = 3] created: bool,
        [bool, tag = 4] canceled: bool,
        [message, repeated, tag = 11] events: Vec<Event>,
    }

    Event {
        [message, optional, tag = 2] kv: Option<KeyValue>,
    }

    AuthenticateRequest {
        [string, tag = 1] name: String,
        [string, tag = 2] password: String,
    }

    AuthenticateResponse {
        [string, tag = 2] token: String,
    }

    StatusRequest {}

    StatusResponse {
        [message, optional, tag = 1] header: Option<ResponseHeader>,
        [string, tag = 2] version: String,
        /// The size of the member's file in bytes.
        [int64, tag = 3] db_size: i64,
        [string, repeated, tag = 8] errors: Vec<String>,
        [int64, tag = 9] db_size_in_use: i64,
        /// The file's largest size. Servers before 3.6 leave it out.
        [int64, tag = 12] db_size_quota: i64,
    }
}

choices! {
    Request {
        [message, tag = 1] Range(RangeRequest),
        [message, tag = 2] Put(PutRequest),
        [message, tag = 3] Delete(DeleteRangeRequest),
        [message, tag = 4] Txn(TxnRequest),
    }

    Response {
        [message, tag = 1] Range(RangeResponse),
        [message, tag = 2] Put(PutResponse),
        [message, tag = 3] Delete(DeleteRangeResponse),
        [message, tag = 4] Txn(TxnResponse),
    }

    CompareWith {
        [int64, tag = 4] Version(i64),
        [int64, tag = 5] Create(i64),
        [int64, tag = 6] Mod(i64),
        [bytes, tag = 7] Value(Vec<u8>),
        [int64, tag = 8] Lease(i64),
    }

    WatchCommand {
        [message, tag = 1] Create(WatchCreateRequest),
        [message, tag = 2] Cancel(WatchCancelRequest),
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, prost::Enumeration)]
#[repr(i32)]
pub(crate) enum CompareResult {
    Equal = 0,
    Greater = 1,
    Less = 2,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, prost::Enumeration)]
#[repr(i32)]
pub(crate) enum CompareTarget {
    Version = 0,
    Create = 1,
    Mod = 2,
    Value = 3,
    Lease = 4,
}

/// A [`RangeRequest::sort_order`].
pub(crate) const ASCENDING: i32 = 1;
/// A [`RangeRequest::sort_order`].
pub(crate) const DESCENDING: i32 = 2;
/// A [`RangeRequest::sort_target`].
pub(crate) const BY_CREATION: i32 = 2;
/// A [`WatchCreateRequest::filters`] that lets no puts through.
pub(crate) const NO_PUT: i32 = 0;

/// A response that says which cluster answered, and as of which revision.
pub(crate) trait HasHeader {
    fn header(&self) -> Option<&ResponseHeader>;

    fn revision(&self) -> i64 {
        self.header().map_or(0, |header| header.revision)
    }

    fn raft_term(&self) -> u64 {
        self.header().map_or(0, |header| header.raft_term)
    }
}

macro_rules! has_header {
    ($($message:ty),+ $(,)?) => {
        $(impl HasHeader for $message {
            fn header(&self) -> Option<&ResponseHeader> {
                self.header.as_ref()
            }
        })+
    };
}
has_header!(
    RangeResponse,
    TxnResponse,
    CompactionResponse,
    LeaseGrantResponse,
    LeaseRevokeResponse,
    LeaseKeepAliveResponse,
    LeaseTimeToLiveResponse,
    WatchResponse,
    StatusResponse,
);
