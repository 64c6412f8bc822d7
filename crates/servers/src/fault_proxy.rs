//! A TCP proxy before a server that does to connections what a failing network does.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::Result;

/// How often a thread that has nothing to do looks whether anything has changed.
const STEP: Duration = Duration::from_millis(5);

/// How often a server may refuse before it is taken for gone.
const REFUSALS: u32 = 400;

/// Passes on what comes to a local port of its own, until it is told otherwise.
///
/// A closed proxy loses nothing: what was sent waits, as it would in the buffers of a network that is
/// divided for a while. Dropping it breaks its connections.
#[derive(Debug)]
pub struct FaultProxy {
    port: u16,
    state: Arc<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Where new connections go.
    to: AtomicU16,
    /// Nothing goes to the server, or comes back from it.
    there: AtomicBool,
    back: AtomicBool,
    /// Grows when all connections are broken.
    breaks: AtomicU64,
    /// Grows when all connections fall silent.
    silences: AtomicU64,
    /// For how many milliseconds what arrives is kept before it is passed on.
    delay_ms: AtomicU64,
    over: AtomicBool,
}

impl FaultProxy {
    /// A proxy for this local port.
    ///
    /// # Errors
    ///
    /// If there is no free port.
    pub fn to(port: u16) -> Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let (to, port) = (port, listener.local_addr()?.port());
        listener.set_nonblocking(true)?;
        let state = Arc::new(State { to: to.into(), ..State::default() });
        let accepting = Arc::clone(&state);
        thread::spawn(move || accept(&listener, &accepting));
        Ok(Self { port, state })
    }

    /// The port at which it begins.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Closes it in both directions. Connections stay, and new ones can be made, but nothing comes
    /// through.
    pub fn close(&self) {
        self.state.there.store(true, Ordering::SeqCst);
        self.hold_answers();
    }

    /// Requests go through, answers do not come back.
    pub fn hold_answers(&self) {
        self.state.back.store(true, Ordering::SeqCst);
    }

    /// Opens it again.
    pub fn open(&self) {
        self.state.there.store(false, Ordering::SeqCst);
        self.state.back.store(false, Ordering::SeqCst);
    }

    /// Breaks all connections. What was held back is lost with them.
    pub fn sever(&self) {
        self.state.breaks.fetch_add(1, Ordering::SeqCst);
    }

    /// From now on the connections that there are carry nothing more and do not end, as when the
    /// machine at their other end is gone. New ones are as good as ever.
    pub fn silence(&self) {
        self.state.silences.fetch_add(1, Ordering::SeqCst);
    }

    /// Leads new connections to another local port. Existing connections stay where they are.
    pub fn lead_to(&self, port: u16) {
        self.state.to.store(port, Ordering::SeqCst);
    }

    /// From now on everything takes so long to come through, in each direction.
    pub fn delay(&self, by: Duration) {
        let by = u64::try_from(by.as_millis()).unwrap_or(u64::MAX);
        self.state.delay_ms.store(by, Ordering::SeqCst);
    }

    pub(crate) fn leads_to(&self) -> u16 {
        self.state.to.load(Ordering::SeqCst)
    }
}

impl Drop for FaultProxy {
    fn drop(&mut self) {
        self.state.over.store(true, Ordering::SeqCst);
        self.sever();
    }
}

fn accept(listener: &TcpListener, state: &Arc<State>) {
    while !state.over.load(Ordering::SeqCst) {
        match listener.accept() {
            Ok((client, _)) => {
                let state = Arc::clone(state);
                thread::spawn(move || carry(&client, &state));
            }
            Err(_) => thread::sleep(STEP),
        }
    }
}

/// Carries one connection; an error is the end of it.
fn carry(client: &TcpStream, state: &Arc<State>) {
    let began = state.breaks.load(Ordering::SeqCst);
    let broken = move |state: &State| state.breaks.load(Ordering::SeqCst) != began;
    let made = state.silences.load(Ordering::SeqCst);
    let silent = move |state: &State| state.silences.load(Ordering::SeqCst) != made;
    let Some(server) = reach(state, || broken(state)) else { return };
    let closed = |proxy: &AtomicBool| proxy.load(Ordering::SeqCst) || silent(state);
    let delay = || Duration::from_millis(state.delay_ms.load(Ordering::SeqCst));
    thread::scope(|scope| {
        scope.spawn(|| pass(client, &server, || broken(state), || closed(&state.there), delay));
        pass(&server, client, || broken(state), || closed(&state.back), delay)
    });
}

/// A client that has reached us cannot be refused any more. Instead of a server that does not listen
/// yet it meets one that is slow.
fn reach(state: &State, broken: impl Fn() -> bool) -> Option<TcpStream> {
    let mut left = REFUSALS;
    while left > 0 && !broken() {
        if !state.there.load(Ordering::SeqCst) {
            if let Ok(server) =
                TcpStream::connect((Ipv4Addr::LOCALHOST, state.to.load(Ordering::SeqCst)))
            {
                return Some(server);
            }
            left -= 1;
        }
        thread::sleep(STEP);
    }
    None
}

fn pass(
    from: &TcpStream,
    to: &TcpStream,
    broken: impl Fn() -> bool,
    closed: impl Fn() -> bool,
    delay: impl Fn() -> Duration,
) {
    // The peer at the other end sees the end of the connection too.
    let _ = pass_on(from, to, broken, closed, delay);
    let _ = from.shutdown(Shutdown::Both);
    let _ = to.shutdown(Shutdown::Both);
}

fn pass_on(
    mut from: &TcpStream,
    mut to: &TcpStream,
    broken: impl Fn() -> bool,
    closed: impl Fn() -> bool,
    delay: impl Fn() -> Duration,
) -> io::Result<()> {
    from.set_nonblocking(false)?;
    from.set_nodelay(true)?;
    from.set_read_timeout(Some(STEP))?;
    let mut bytes = [0; 16 * 1024];
    loop {
        let length = match from.read(&mut bytes) {
            Ok(0) => return Ok(()),
            Ok(length) => length,
            Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => 0,
            Err(e) => return Err(e),
        };
        if length > 0 {
            thread::sleep(delay());
        }
        while closed() && !broken() {
            thread::sleep(STEP);
        }
        if broken() {
            return Ok(());
        }
        to.write_all(&bytes[..length])?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn echo() -> u16 {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                thread::spawn(move || io::copy(&mut &client, &mut &client));
            }
        });
        port
    }

    fn hears(mut client: &TcpStream, within: Duration) -> bool {
        client.set_read_timeout(Some(within)).unwrap();
        matches!(client.read(&mut [0]), Ok(1))
    }

    #[test]
    fn what_is_held_back_comes_later_or_is_lost_with_its_connection() {
        let (long, short) = (Duration::from_secs(30), Duration::from_millis(50));
        let proxy = FaultProxy::to(echo()).unwrap();
        let mut client = TcpStream::connect((Ipv4Addr::LOCALHOST, proxy.port())).unwrap();
        client.write_all(b"1").unwrap();
        assert!(hears(&client, long));
        for close in [FaultProxy::close, FaultProxy::hold_answers] {
            close(&proxy);
            client.write_all(b"2").unwrap();
            assert!(!hears(&client, short));
            proxy.open();
            assert!(hears(&client, long));
        }
        proxy.hold_answers();
        client.write_all(b"3").unwrap();
        proxy.sever();
        client.set_read_timeout(Some(long)).unwrap();
        assert!(!matches!(client.read(&mut [0]), Ok(1..)), "the connection has ended");
        proxy.open();
        let mut again = TcpStream::connect((Ipv4Addr::LOCALHOST, proxy.port())).unwrap();
        again.write_all(b"4").unwrap();
        assert!(hears(&again, long));
    }
    #[test]
    fn old_connections_fall_silent_and_new_ones_are_led_elsewhere() {
        let (long, short) = (Duration::from_secs(30), Duration::from_millis(50));
        let proxy = FaultProxy::to(echo()).unwrap();
        let connect = || TcpStream::connect((Ipv4Addr::LOCALHOST, proxy.port())).unwrap();
        let mut old = connect();
        old.write_all(b"1").unwrap();
        assert!(hears(&old, long));
        proxy.silence();
        proxy.lead_to(echo());
        let mut new = connect();
        for client in [&mut old, &mut new] {
            client.write_all(b"2").unwrap();
        }
        assert!(hears(&new, long) && !hears(&old, short));
        proxy.open();
        assert!(!hears(&old, short), "for ever");
    }
}
