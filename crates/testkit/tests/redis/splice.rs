//! A proxy that speaks Redis's protocol, as far as it must: it can lead a client's connection to another
//! server without the client noticing.

use std::{
    io::{self, ErrorKind, Read, Write},
    net::{Ipv4Addr, TcpListener, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU16, AtomicUsize, Ordering::SeqCst},
    },
    thread,
    time::{Duration, Instant},
};

/// For how long a read waits.
const STEP: Duration = Duration::from_millis(1);
/// A connection on which nothing has come for so long stands between two requests.
const QUIET: Duration = Duration::from_millis(100);

/// Passes connections on to a server, and to another one when it is told to.
pub(crate) struct Splice {
    port: u16,
    state: Arc<State>,
}

#[derive(Default)]
struct State {
    to: AtomicU16,
    /// How many connections there are, and how many of them have been led elsewhere.
    connections: AtomicUsize,
    led: AtomicUsize,
    over: AtomicBool,
}

impl Splice {
    pub(crate) fn to(port: u16) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
        let (to, port) = (port, listener.local_addr().expect("an address").port());
        let state = Arc::new(State { to: to.into(), ..State::default() });
        let accepting = Arc::clone(&state);
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                if accepting.over.load(SeqCst) {
                    return;
                }
                let state = Arc::clone(&accepting);
                thread::spawn(move || carry(client, &state));
            }
        });
        Self { port, state }
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// Leads all connections, those that there are too, to another server. None of them breaks.
    pub(crate) async fn lead_to(&self, port: u16) {
        self.state.led.store(0, SeqCst);
        self.state.to.store(port, SeqCst);
        testkit::world::eventually("all connections lead to the other server", async || {
            self.state.led.load(SeqCst) == self.state.connections.load(SeqCst)
        })
        .await;
    }

    /// How many connections have been made and have not ended.
    pub(crate) fn connections(&self) -> usize {
        self.state.connections.load(SeqCst)
    }
}

impl Drop for Splice {
    fn drop(&mut self) {
        self.state.over.store(true, SeqCst);
        let _ = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port));
    }
}

fn carry(client: TcpStream, state: &State) {
    state.connections.fetch_add(1, SeqCst);
    let _ = pass(client, state);
    state.connections.fetch_sub(1, SeqCst);
}

fn pass(mut client: TcpStream, state: &State) -> io::Result<()> {
    let mut port = state.to.load(SeqCst);
    let mut server = connect(port)?;
    client.set_read_timeout(Some(STEP))?;
    client.set_nodelay(true)?;
    let mut last = Instant::now();
    while !state.over.load(SeqCst) {
        if move_on(&mut client, &mut server)? || move_on(&mut server, &mut client)? {
            last = Instant::now();
        }
        let wanted = state.to.load(SeqCst);
        if wanted != port && last.elapsed() > QUIET {
            server = connect(wanted)?;
            greet(&mut server)?;
            port = wanted;
            state.led.fetch_add(1, SeqCst);
        }
    }
    Ok(())
}

fn connect(port: u16) -> io::Result<TcpStream> {
    let server = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
    server.set_read_timeout(Some(STEP))?;
    server.set_nodelay(true)?;
    Ok(server)
}

/// What the client has said at the beginning, as a proxy says it again; the answer is not for the client.
fn greet(server: &mut TcpStream) -> io::Result<()> {
    server.write_all(b"HELLO 3\r\nECHO end-of-greeting\r\n")?;
    let mut heard = Vec::new();
    while !heard.ends_with(b"end-of-greeting\r\n") {
        heard.extend(read(server)?);
    }
    Ok(())
}

fn move_on(from: &mut TcpStream, to: &mut TcpStream) -> io::Result<bool> {
    let bytes = read(from)?;
    to.write_all(&bytes)?;
    Ok(!bytes.is_empty())
}

/// What has come, perhaps nothing; an error at the end of the connection.
fn read(from: &mut TcpStream) -> io::Result<Vec<u8>> {
    let mut bytes = [0; 16 * 1024];
    match from.read(&mut bytes) {
        Ok(0) => Err(ErrorKind::UnexpectedEof.into()),
        Ok(length) => Ok(bytes[..length].to_vec()),
        Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => Ok(Vec::new()),
        Err(e) => Err(e),
    }
}
