//! The bare floors: what one program can do with the client of a store and nothing else.

pub(crate) mod etcd;
pub(crate) mod redis;
pub(crate) mod sqlite;
pub(crate) mod zookeeper;
