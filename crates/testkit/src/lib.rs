//! The tree's own tests: the suite of `lockkeeper-testkit` over every store of the library, with real servers, and what
//! one store alone promises. The suite itself is published; all of it can be named through this crate.

pub mod etcd;
mod failover;
pub mod live;
pub mod peers;
mod redlock;
pub mod servers;
pub mod service;
pub mod trials;
mod zookeeper;

pub use lockkeeper_testkit::*;
