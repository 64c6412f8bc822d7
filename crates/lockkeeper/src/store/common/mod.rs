//! What several stores share.

#[cfg(any(feature = "mysql", feature = "postgres", feature = "redis"))]
pub(crate) mod advice;
#[cfg(any(feature = "mysql", feature = "postgres"))]
pub(crate) mod decode;
#[cfg(any(feature = "mysql", feature = "postgres"))]
pub(crate) mod duplicates;
#[cfg(any(feature = "mysql", feature = "postgres"))]
pub(crate) mod fast_path;
#[cfg(any(feature = "redis", feature = "etcd", feature = "zookeeper"))]
pub(crate) mod join;
#[cfg(any(feature = "mysql", feature = "postgres"))]
pub(crate) mod layout;
#[cfg(feature = "postgres")]
pub(crate) mod reconnect;
#[cfg(any(feature = "etcd", feature = "zookeeper"))]
pub(crate) mod refusal;
#[cfg(any(feature = "mysql", feature = "postgres"))]
pub(crate) mod repeat;
#[cfg(any(feature = "http", feature = "mysql", feature = "postgres", feature = "redis"))]
pub(crate) mod server_clock;
#[cfg(any(feature = "etcd", feature = "zookeeper"))]
pub(crate) mod text;
#[cfg(feature = "_tls")]
pub(crate) mod tls;
