//! The bare floors: what one program can do with the client of a store and nothing else.

pub(crate) mod etcd;
pub(crate) mod mysql;
pub(crate) mod postgres;
pub(crate) mod redis;
pub(crate) mod redis_messages;
pub(crate) mod sqlite;
pub(crate) mod wake;
pub(crate) mod zookeeper;
