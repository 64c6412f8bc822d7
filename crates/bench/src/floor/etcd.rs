//! The floor below the etcd store: bare requests, and the lock that etcd's server offers itself.

use anyhow::{Context as _, Result};
use http::uri::PathAndQuery;
use prost::Message;
use tonic::{
    Request,
    client::Grpc,
    transport::{Channel, Endpoint},
};
use tonic_prost::ProstCodec;

#[derive(Clone, PartialEq, Message)]
struct Put {
    #[prost(bytes = "vec", tag = "1")]
    key: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    value: Vec<u8>,
    #[prost(int64, tag = "3")]
    lease: i64,
}

/// A comparison with version 0, which is what a message without fields says.
#[derive(Clone, PartialEq, Message)]
struct Absent {
    #[prost(bytes = "vec", tag = "3")]
    key: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
struct PutOp {
    #[prost(message, optional, tag = "2")]
    put: Option<Put>,
}

#[derive(Clone, PartialEq, Message)]
struct Txn {
    #[prost(message, repeated, tag = "1")]
    compare: Vec<Absent>,
    #[prost(message, repeated, tag = "2")]
    success: Vec<PutOp>,
}

#[derive(Clone, PartialEq, Message)]
struct Succeeded {
    #[prost(bool, tag = "2")]
    succeeded: bool,
}

/// A delete, and what unlocking asks with.
#[derive(Clone, PartialEq, Message)]
struct Key {
    #[prost(bytes = "vec", tag = "1")]
    key: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
struct Deleted {
    #[prost(int64, tag = "2")]
    deleted: i64,
}

#[derive(Clone, PartialEq, Message)]
struct Grant {
    #[prost(int64, tag = "1")]
    ttl: i64,
}

#[derive(Clone, PartialEq, Message)]
struct Granted {
    #[prost(int64, tag = "2")]
    id: i64,
}

#[derive(Clone, PartialEq, Message)]
struct Lock {
    #[prost(bytes = "vec", tag = "1")]
    name: Vec<u8>,
    #[prost(int64, tag = "2")]
    lease: i64,
}

#[derive(Clone, PartialEq, Message)]
struct Locked {
    #[prost(bytes = "vec", tag = "2")]
    key: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
struct Nothing {}

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

    /// Puts a key that is not there, and deletes it.
    pub(crate) async fn pair(&self, key: &[u8]) -> Result<()> {
        let put = Put { key: key.to_vec(), value: vec![b'x'; 60], lease: self.lease };
        let txn = Txn {
            compare: vec![Absent { key: key.to_vec() }],
            success: vec![PutOp { put: Some(put) }],
        };
        let put: Succeeded = self.ask("/etcdserverpb.KV/Txn", txn).await?;
        let gone: Deleted =
            self.ask("/etcdserverpb.KV/DeleteRange", Key { key: key.to_vec() }).await?;
        anyhow::ensure!(put.succeeded && gone.deleted == 1, "the key was there already");
        Ok(())
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
