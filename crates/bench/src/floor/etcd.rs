//! The floor below the etcd store: bare requests, and the lock that etcd's server offers itself.

use crate::pair::{At, Boxed, Pair, Ready};
use anyhow::{Context as _, Result};
use http::uri::PathAndQuery;
use prost::Message;
use tonic::{
    Request,
    client::Grpc,
    transport::{Channel, Endpoint},
};
use tonic_prost::ProstCodec;

/// Messages of the protocol, with the fields that are used.
macro_rules! messages {
    ($($(#[$doc:meta])* $name:ident { $(#[$how:meta] $field:ident: $type:ty),* })*) => { $(
        $(#[$doc])*
        #[derive(Clone, PartialEq, Message)]
        struct $name { $(#[$how] $field: $type),* }
    )* };
}

messages! {
    Put {
        #[prost(bytes = "vec", tag = "1")] key: Vec<u8>,
        #[prost(bytes = "vec", tag = "2")] value: Vec<u8>,
        #[prost(int64, tag = "3")] lease: i64
    }
    /// A comparison with version 0, which is what a message without fields says.
    Absent { #[prost(bytes = "vec", tag = "3")] key: Vec<u8> }
    PutOp { #[prost(message, optional, tag = "2")] put: Option<Put> }
    Txn {
        #[prost(message, repeated, tag = "1")] compare: Vec<Absent>,
        #[prost(message, repeated, tag = "2")] success: Vec<PutOp>
    }
    Succeeded { #[prost(bool, tag = "2")] succeeded: bool }
    /// A delete, and what unlocking asks with.
    Key { #[prost(bytes = "vec", tag = "1")] key: Vec<u8> }
    Deleted { #[prost(int64, tag = "2")] deleted: i64 }
    Grant { #[prost(int64, tag = "1")] ttl: i64 }
    Granted { #[prost(int64, tag = "2")] id: i64 }
    Lock {
        #[prost(bytes = "vec", tag = "1")] name: Vec<u8>,
        #[prost(int64, tag = "2")] lease: i64
    }
    Locked { #[prost(bytes = "vec", tag = "2")] key: Vec<u8> }
    Nothing {}
}

/// A connection and a lease, both of its own.
pub(crate) struct Bare {
    wire: Channel,
    lease: i64,
}

impl Bare {
    /// Connects to the first server of a lockkeeper URL.
    pub(crate) async fn connect(url: &str) -> Result<Self> {
        let host = url.strip_prefix("etcd://").context("a URL of etcd")?;
        let endpoint = Endpoint::from_shared(format!("http://{host}"))?.tcp_nodelay(true);
        let mut bare = Self { wire: endpoint.connect().await?, lease: 0 };
        let granted: Granted =
            bare.ask("/etcdserverpb.Lease/LeaseGrant", Grant { ttl: 600 }).await?;
        bare.lease = granted.id;
        Ok(bare)
    }

    async fn ask<Q, A>(&self, path: &'static str, ask: Q) -> Result<A>
    where
        Q: Message + 'static,
        A: Message + Default + 'static,
    {
        let mut grpc = Grpc::new(self.wire.clone());
        grpc.ready().await?;
        let codec = ProstCodec::<Q, A>::default();
        let path = PathAndQuery::from_static(path);
        Ok(grpc.unary(Request::new(ask), path, codec).await?.into_inner())
    }

    /// Takes a lock by the server's own lock service; the answer is what releases it.
    pub(crate) async fn lock(&self, name: &str) -> Result<Vec<u8>> {
        let lock = Lock { name: name.as_bytes().to_vec(), lease: self.lease };
        Ok(self.ask::<_, Locked>("/v3lockpb.Lock/Lock", lock).await?.key)
    }

    pub(crate) async fn unlock(&self, key: Vec<u8>) -> Result<()> {
        self.ask::<_, Nothing>("/v3lockpb.Lock/Unlock", Key { key }).await.map(drop)
    }
}

impl Pair for Bare {
    /// Puts a key that is not there, and deletes it.
    async fn pair(&mut self) -> Result<()> {
        let key = b"pairs".to_vec();
        let put = Put { key: key.clone(), value: vec![b'x'; 60], lease: self.lease };
        let compare = vec![Absent { key: key.clone() }];
        let txn = Txn { compare, success: vec![PutOp { put: Some(put) }] };
        let put: Succeeded = self.ask("/etcdserverpb.KV/Txn", txn).await?;
        let gone: Deleted = self.ask("/etcdserverpb.KV/DeleteRange", Key { key }).await?;
        anyhow::ensure!(put.succeeded && gone.deleted == 1, "the key was there already");
        Ok(())
    }
}

pub(crate) fn pair(at: At) -> Boxed<Ready> {
    Box::pin(async move { Ok(Ready::one(Bare::connect(&at.url).await?)) })
}
