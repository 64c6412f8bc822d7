//! Free ports on the loopback interface.

use std::collections::BTreeSet;
use std::fs;
use std::hash::{BuildHasher as _, RandomState};
use std::net::{Ipv4Addr, TcpListener};
use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use anyhow::{Result, ensure};

/// The first port that we take: below it there are the well known ones.
const FIRST: u16 = 10_000;

/// From here on the system gives ports to connections that go out, if it does not tell.
const OUTGOING: u16 = 32_768;

/// How often a port is looked for.
const ATTEMPTS: usize = 1000;

/// Between choosing a port and the server's bind another process may take it, and again whenever the server
/// is down for a while. Ports that no outgoing connection is given keep the many clients of all
/// tests from being that process, and never handing out a port twice the parallel tests of one
/// program; against all others, a start that fails is tried again.
static HANDED_OUT: Mutex<BTreeSet<u16>> = Mutex::new(BTreeSet::new());

/// Ports that were free a moment ago, all different.
pub(crate) fn free(count: usize) -> Result<Vec<u16>> {
    let mut handed_out = HANDED_OUT.lock().unwrap_or_else(PoisonError::into_inner);
    let (range, random) = (ours(), RandomState::new());
    let mut ports = Vec::with_capacity(count);
    for attempt in 0.. {
        if ports.len() == count {
            break;
        }
        ensure!(attempt < ATTEMPTS, "no free local port in {range:?}");
        let port = range.start + (random.hash_one(attempt) % range.len() as u64) as u16;
        let is_free = || TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok();
        if !handed_out.contains(&port) && is_free() {
            handed_out.insert(port);
            ports.push(port);
        }
    }
    Ok(ports)
}

/// The ports below those that the system gives to connections that go out.
fn ours() -> Range<u16> {
    let told = fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").unwrap_or_default();
    let first = told.split_whitespace().next().and_then(|first| first.parse().ok());
    match first.unwrap_or(OUTGOING) {
        // Hardly any are left, so there is no better place than among the others.
        first if first < FIRST + 1000 => first.max(FIRST)..u16::MAX,
        first => FIRST..first,
    }
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

    #[test]
    fn no_connection_that_goes_out_is_given_one_of_ours() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let given = listener.local_addr().unwrap().port();
        let ours = ours();
        assert!(ours.end == u16::MAX || !ours.contains(&given), "{given} is in {ours:?}");
    }
}
