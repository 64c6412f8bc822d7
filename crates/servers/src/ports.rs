//! Free ports on the loopback interface.

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, TcpListener};
use std::sync::{Mutex, PoisonError};

use anyhow::{Context, Result};

/// Between choosing a port and the server's bind anybody may take it. Never handing out a port
/// twice keeps at least the parallel tests of one program from being that somebody; against all
/// others, a start that fails is tried again.
static HANDED_OUT: Mutex<BTreeSet<u16>> = Mutex::new(BTreeSet::new());

/// Ports that were free a moment ago, all different.
pub(crate) fn free(count: usize) -> Result<Vec<u16>> {
    let mut handed_out = HANDED_OUT.lock().unwrap_or_else(PoisonError::into_inner);
    let mut ports = Vec::with_capacity(count);
    while ports.len() < count {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("no free local port")?;
        let port = listener.local_addr()?.port();
        if handed_out.insert(port) {
            ports.push(port);
        }
    }
    Ok(ports)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_are_different_and_can_be_bound() {
        let mut ports = free(20).unwrap();
        ports.extend(free(20).unwrap());
        let listeners: Vec<_> =
            ports.iter().map(|port| TcpListener::bind((Ipv4Addr::LOCALHOST, *port))).collect();
        assert!(listeners.iter().all(Result::is_ok));
        assert_eq!(ports.iter().collect::<BTreeSet<_>>().len(), 40);
    }
}
