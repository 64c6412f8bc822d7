//! The service as a store.

pub mod wire;
