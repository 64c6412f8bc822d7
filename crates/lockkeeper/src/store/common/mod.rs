//! What several stores share.

#[cfg(any(feature = "mysql", feature = "postgres"))]
pub(crate) mod duplicates;
#[cfg(any(feature = "mysql", feature = "postgres"))]
pub(crate) mod fast_path;
#[cfg(any(feature = "redis", feature = "etcd", feature = "zookeeper"))]
pub(crate) mod join;
#[cfg(feature = "_tls")]
pub(crate) mod tls;
