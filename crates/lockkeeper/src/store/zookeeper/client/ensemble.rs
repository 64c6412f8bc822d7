//! The servers and how to reach them.

use crate::store::common::tls::{Stream, dial};
use std::{
    io,
    sync::{Arc, atomic::AtomicI64},
    time::Duration,
};
use tokio_rustls::TlsConnector;

/// What is the same for every session. It has no `Debug`: it may hold a password.
pub(crate) struct Ensemble {
    /// Host and port of each server.
    pub(crate) servers: Vec<(String, u16)>,
    /// `USER:PASSWORD`.
    pub(crate) credentials: Option<String>,
    pub(crate) tls: Option<TlsConnector>,
    /// The highest number of a write that any connection has seen. A server that is behind it refuses
    /// the connection, so this process never reads older data than it has read before.
    pub(crate) last_zxid: Arc<AtomicI64>,
}

impl Ensemble {
    /// A stream to one of the servers.
    pub(crate) async fn dial(&self, at: usize, within: Duration) -> io::Result<Box<dyn Stream>> {
        let (host, port) = &self.servers[at];
        dial(host, *port, self.tls.as_ref(), within).await
    }
}
