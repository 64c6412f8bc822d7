//! One connection to one server. Answers come in the order of the requests, so several requests can
//! be sent at once and cost one round trip.
//!
//! Whoever asks writes to the stream himself, which saves waking a task for it. The connection's task
//! reads the answers, and writes only what the stream would not take at once.

use super::wire::{
    AUTH_XID, Code, EVENT_XID, Header, Identity, Parts, Request, Stat, Welcome, hello,
};
use crate::{
    clock::{Clock, Moment},
    store::common::tls::Stream,
    sync::Mutex,
};
use std::{
    collections::VecDeque,
    future::poll_fn,
    io,
    mem::MaybeUninit,
    pin::Pin,
    sync::{
        Arc, MutexGuard,
        atomic::{AtomicI64, Ordering},
    },
    task::{Context, Poll, Waker, ready},
    time::Duration,
};
use tokio::{
    io::{AsyncRead as _, AsyncReadExt as _, AsyncWrite as _, AsyncWriteExt as _, ReadBuf},
    sync::{Notify, oneshot},
};

/// Longer than any answer to us: a line of the greatest length is a tenth of it.
const FRAME_MAX: usize = 64 << 20;
/// How much is read at once.
const PIECE: usize = 8 << 10;

/// Is told the paths of watches that have fired.
pub(super) type Ear = Arc<dyn Fn(&str) + Send + Sync>;

/// Why there is no good answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// The server says no.
    Refused(Code),
    /// The connection broke before the answer came, or the answer makes no sense.
    Broken,
}

/// What a server answers to one request.
pub(super) type Answer = Result<Reply, Fault>;

/// The body of a good answer.
#[derive(Debug)]
pub(super) struct Reply(Vec<u8>);

impl Reply {
    fn read<T>(&self, read: impl FnOnce(&mut Parts<'_>) -> Option<T>) -> Result<T, Fault> {
        read(&mut Parts(&self.0)).ok_or(Fault::Broken)
    }

    /// To a create.
    pub(super) fn created(&self) -> Result<(String, Stat), Fault> {
        self.read(|parts| Some((parts.text()?, parts.stat()?)))
    }

    /// To a request for data.
    pub(super) fn data(&self) -> Result<(Vec<u8>, Stat), Fault> {
        self.read(|parts| Some((parts.buffer()?.to_vec(), parts.stat()?)))
    }

    /// To a request for children or ephemerals.
    pub(super) fn names(&self) -> Result<Vec<String>, Fault> {
        self.read(|parts| parts.texts())
    }

    pub(super) fn stat(&self) -> Result<Stat, Fault> {
        self.read(|parts| parts.stat())
    }

    /// To several writes as one.
    pub(super) fn multi(&self) -> Result<(), Fault> {
        self.read(|parts| parts.multi())?.map_err(Fault::Refused)
    }
}

/// How a connection is begun.
pub(super) struct Greeting<'a> {
    pub(super) identity: &'a Identity,
    pub(super) timeout_ms: i32,
    pub(super) last_zxid: i64,
    /// `USER:PASSWORD`.
    pub(super) credentials: Option<&'a str>,
}

/// What came of it.
pub(super) enum Greeted {
    Welcome(Welcome),
    /// The session is over.
    Over,
    /// The credentials are no good.
    Denied,
}

/// Says hello, and who we are.
pub(super) async fn greet(stream: &mut dyn Stream, greeting: &Greeting<'_>) -> io::Result<Greeted> {
    let Greeting { identity, timeout_ms, last_zxid, credentials } = greeting;
    stream.write_all(&hello(identity, *timeout_ms, *last_zxid)).await?;
    let answer = read_frame(stream).await?;
    let welcome = Welcome::read(&answer).ok_or(io::ErrorKind::InvalidData)?;
    // A session that is over has the number 0. A server that quietly gives us another session than
    // the one we asked for has lost ours too.
    let strange = identity.id != 0 && welcome.identity.id != identity.id;
    if welcome.timeout_ms <= 0 || welcome.identity.id == 0 || strange {
        return Ok(Greeted::Over);
    }
    if let Some(credentials) = credentials {
        let auth = Request::auth("digest", credentials.as_bytes());
        stream.write_all(&auth.frame(AUTH_XID)).await?;
        let answer = read_frame(stream).await?;
        let header = Parts(&answer).header().ok_or(io::ErrorKind::InvalidData)?;
        if header.code != Code(0) {
            return Ok(Greeted::Denied);
        }
    }
    Ok(Greeted::Welcome(welcome))
}

async fn read_frame(stream: &mut dyn Stream) -> io::Result<Vec<u8>> {
    let mut length = [0; 4];
    stream.read_exact(&mut length).await?;
    let length = u32::from_be_bytes(length) as usize;
    if length > FRAME_MAX {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut frame = vec![0; length];
    stream.read_exact(&mut frame).await?;
    Ok(frame)
}

/// A connection in use. Dropping it hangs up.
pub(super) struct Conn(Arc<Shared>);

struct Shared {
    state: Mutex<State>,
    /// Something was sent while nothing was under way.
    stirred: Notify,
    last_zxid: Arc<AtomicI64>,
}

struct State {
    /// When an answer came last.
    heard: Moment,
    next_xid: i32,
    pending: VecDeque<Pending>,
    /// `None` when the connection is broken.
    wire: Option<Wire>,
    /// Wakes the connection's task.
    driver: Option<Waker>,
}

/// A stream, and what it has not taken yet.
struct Wire {
    stream: Box<dyn Stream>,
    unsent: Vec<u8>,
    /// The connection's task writes on as soon as the stream takes more; nobody else may meanwhile.
    stuck: bool,
}

impl Wire {
    fn push(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !self.unsent.is_empty() {
            match ready!(Pin::new(&mut self.stream).poll_write(cx, &self.unsent))? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                taken => drop(self.unsent.drain(..taken)),
            }
        }
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    /// Some of what has come; nothing if the server has hung up.
    fn pull(&mut self, cx: &mut Context<'_>, into: &mut Vec<u8>) -> Poll<io::Result<usize>> {
        let mut piece = [MaybeUninit::uninit(); PIECE];
        let mut piece = ReadBuf::uninit(&mut piece);
        ready!(Pin::new(&mut self.stream).poll_read(cx, &mut piece))?;
        into.extend_from_slice(piece.filled());
        Poll::Ready(Ok(piece.filled().len()))
    }
}

struct Pending {
    xid: i32,
    sent: Moment,
    tell: oneshot::Sender<Answer>,
}

/// What a connection needs besides its stream.
#[derive(Clone)]
pub(super) struct Care {
    pub(super) clock: Clock,
    /// For how long no answer may come to what was asked before the connection is given up.
    pub(super) patience: Duration,
    pub(super) ear: Ear,
    /// The highest number of a write that was seen.
    pub(super) last_zxid: Arc<AtomicI64>,
}

impl Conn {
    /// Puts a greeted stream to use. `broke` is called when the connection has ended.
    pub(super) fn new(
        stream: Box<dyn Stream>,
        care: Care,
        broke: impl FnOnce() + Send + 'static,
    ) -> Self {
        let state = State {
            heard: care.clock.now(),
            next_xid: 1,
            pending: VecDeque::new(),
            wire: Some(Wire { stream, unsent: Vec::new(), stuck: false }),
            driver: None,
        };
        let shared = Arc::new(Shared {
            state: Mutex::new(state),
            stirred: Notify::new(),
            last_zxid: Arc::clone(&care.last_zxid),
        });
        let driven = Arc::clone(&shared);
        tokio::spawn(async move {
            // Also when the runtime ends and drops this task half-way.
            let end = End(driven, Some(broke));
            tokio::select! {
                () = reading(&end.0, &care) => {}
                () = overdue(&end.0, &care) => {}
            }
        });
        Self(shared)
    }

    /// Sends requests, one right after the other, with nothing of others between them. `None` if the
    /// connection is broken: then nothing was sent.
    pub(super) fn send(
        &self,
        requests: &[Request],
        now: Moment,
    ) -> Option<Vec<oneshot::Receiver<Answer>>> {
        let mut guard = self.0.state();
        let state = &mut *guard;
        let wire = state.wire.as_mut()?;
        let mut answers = Vec::with_capacity(requests.len());
        let idle = state.pending.is_empty();
        for request in requests {
            let xid = state.next_xid;
            state.next_xid = xid.checked_add(1).unwrap_or(1);
            request.write(xid, &mut wire.unsent);
            let (tell, answer) = oneshot::channel();
            state.pending.push_back(Pending { xid, sent: now, tell });
            answers.push(answer);
        }
        // Under the lock, so that the order on the wire is that of the list.
        let mut driver = None;
        if !wire.stuck {
            let pushed = wire.push(&mut Context::from_waker(Waker::noop()));
            wire.stuck = !matches!(pushed, Poll::Ready(Ok(())));
            driver = state.driver.take_if(|_| wire.stuck);
        }
        drop(guard);
        if let Some(driver) = driver {
            driver.wake();
        }
        if idle {
            self.0.stirred.notify_one();
        }
        Some(answers)
    }

    pub(super) fn hang_up(&self) {
        self.0.hang_up();
    }
}

impl Drop for Conn {
    fn drop(&mut self) {
        self.0.hang_up();
    }
}

struct End<F: FnOnce()>(Arc<Shared>, Option<F>);

impl<F: FnOnce()> Drop for End<F> {
    fn drop(&mut self) {
        self.0.hang_up();
        // Those who wait for an answer see that none will come.
        self.0.state().pending.clear();
        if let Some(broke) = self.1.take() {
            broke();
        }
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    fn hang_up(&self) {
        let (wire, driver) = {
            let mut state = self.state();
            (state.wire.take(), state.driver.take())
        };
        drop(wire);
        if let Some(driver) = driver {
            driver.wake();
        }
    }

    /// Writes what is left to write, and reads. Nothing comes any more from a connection that is broken.
    fn exchange(&self, cx: &mut Context<'_>, into: &mut Vec<u8>) -> Poll<io::Result<usize>> {
        let mut guard = self.state();
        let state = &mut *guard;
        let Some(wire) = &mut state.wire else { return Poll::Ready(Ok(0)) };
        if wire.stuck {
            wire.stuck = wire.push(cx)?.is_pending();
        }
        let read = wire.pull(cx, into);
        if read.is_pending() {
            state.driver.get_or_insert_with(|| cx.waker().clone()).clone_from(cx.waker());
        }
        read
    }

    /// Since when nothing has come although something is under way.
    fn silent_since(&self) -> Option<Moment> {
        let state = self.state();
        state.pending.front().map(|pending| pending.sent.max(state.heard))
    }

    /// Takes in a frame. `None` if the server does not keep to the protocol, or is done with us.
    fn take(&self, frame: &[u8], care: &Care) -> Option<()> {
        let mut parts = Parts(frame);
        let Header { xid, zxid, code } = parts.header()?;
        if zxid > 0 {
            self.last_zxid.fetch_max(zxid, Ordering::Relaxed);
        }
        if xid == EVENT_XID {
            (care.ear)(&parts.event()?);
            return Some(());
        }
        let pending = {
            let mut state = self.state();
            state.heard = care.clock.now();
            state.pending.pop_front()?
        };
        if pending.xid != xid {
            return None;
        }
        let answer = match code {
            Code(0) => Ok(Reply(parts.0.to_vec())),
            code => Err(Fault::Refused(code)),
        };
        // Whoever asked may have lost interest.
        let _ = pending.tell.send(answer);
        let is_final = [Code::SESSION_EXPIRED, Code::SESSION_MOVED].contains(&code);
        (!is_final).then_some(())
    }
}

/// Ends when the server has hung up, takes no more or makes no sense, or nobody has the connection any
/// more.
async fn reading(shared: &Shared, care: &Care) {
    let mut bytes = Vec::with_capacity(PIECE);
    while matches!(poll_fn(|cx| shared.exchange(cx, &mut bytes)).await, Ok(1..)) {
        let mut at = 0;
        while let Some((length, rest)) = bytes[at..].split_at_checked(4) {
            let length = u32::from_be_bytes(length.try_into().expect("four bytes")) as usize;
            if length > FRAME_MAX {
                return;
            }
            let Some(frame) = rest.get(..length) else { break };
            if shared.take(frame, care).is_none() {
                return;
            }
            at += 4 + length;
        }
        bytes.drain(..at);
    }
}

/// Ends when an answer is overdue.
async fn overdue(shared: &Shared, care: &Care) {
    loop {
        let Some(since) = shared.silent_since() else {
            shared.stirred.notified().await;
            continue;
        };
        let due = since + care.patience;
        if due <= care.clock.now() {
            return;
        }
        // What is sent meanwhile is due later.
        care.clock.sleep_until(due).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the stream does not take at once is written on by the connection's task. Time stands still as
    /// long as anybody has something to do, so nothing may wait for it.
    #[tokio::test(start_paused = true)]
    async fn requests_reach_a_server_that_takes_them_slowly_in_their_order() {
        let (ours, mut theirs) = tokio::io::duplex(64);
        let (clock, patience) = (Clock::system(), Duration::from_secs(60));
        let (now, last_zxid) = (clock.now(), Arc::default());
        let care = Care { clock, patience, ear: Arc::new(|_| {}), last_zxid };
        let conn = Conn::new(Box::new(ours), care, || {});
        let short = Request::delete("/a", -1);
        let mut wanted = short.frame(1);
        conn.send(&[short], now).unwrap();
        // Now the connection's task waits for an answer, and nothing but a send wakes it.
        tokio::task::yield_now().await;
        for n in 2..=9 {
            let request = Request::delete("/longer/than/what/is/taken/at/once", n);
            wanted.extend(request.frame(n));
            conn.send(&[request], now).unwrap();
        }
        let mut came = vec![0; wanted.len()];
        let reading = theirs.read_exact(&mut came);
        tokio::time::timeout(Duration::from_millis(1), reading).await.unwrap().unwrap();
        assert_eq!(came, wanted);
    }
}
