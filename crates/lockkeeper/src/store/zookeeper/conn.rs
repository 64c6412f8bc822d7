//! One connection to one server. Answers come in the order of the requests, so several requests can
//! be sent at once and cost one round trip.

use super::wire::{
    AUTH_XID, Code, EVENT_XID, Header, Identity, Parts, Request, Stat, Welcome, hello,
};
use crate::clock::{Clock, Moment};
use std::{
    collections::VecDeque,
    io,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicI64, Ordering},
    },
    time::Duration,
};
use tokio::{
    io::{
        AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, ReadHalf, WriteHalf, split,
    },
    sync::{Notify, mpsc, oneshot},
};

/// Longer than any answer to us: a line of the greatest length is a tenth of it.
const FRAME_MAX: usize = 64 << 20;

/// What bytes go over: TCP, or TLS over it.
pub(super) trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}

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
    outbox: Option<mpsc::UnboundedSender<Vec<u8>>>,
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
        let (outbox, to_send) = mpsc::unbounded_channel();
        let heard = care.clock.now();
        let state = State { heard, next_xid: 1, pending: VecDeque::new(), outbox: Some(outbox) };
        let shared = Arc::new(Shared {
            state: Mutex::new(state),
            stirred: Notify::new(),
            last_zxid: Arc::clone(&care.last_zxid),
        });
        let driven = Arc::clone(&shared);
        tokio::spawn(async move {
            // Also when the runtime ends and drops this task half-way.
            let end = End(driven, Some(broke));
            drive(stream, to_send, &end.0, &care).await;
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
        let mut state = self.0.state();
        let outbox = state.outbox.clone()?;
        let mut bytes = Vec::new();
        let mut answers = Vec::with_capacity(requests.len());
        let idle = state.pending.is_empty();
        for request in requests {
            let xid = state.next_xid;
            state.next_xid = xid.checked_add(1).unwrap_or(1);
            bytes.extend_from_slice(&request.frame(xid));
            let (tell, answer) = oneshot::channel();
            state.pending.push_back(Pending { xid, sent: now, tell });
            answers.push(answer);
        }
        // Under the lock, so that the order on the wire is that of the list.
        let _ = outbox.send(bytes);
        drop(state);
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
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn hang_up(&self) {
        self.state().outbox = None;
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

async fn drive(
    stream: Box<dyn Stream>,
    to_send: mpsc::UnboundedReceiver<Vec<u8>>,
    shared: &Shared,
    care: &Care,
) {
    let (from, to) = split(stream);
    tokio::select! {
        () = writing(to, to_send) => {}
        () = reading(from, shared, care) => {}
        () = overdue(shared, care) => {}
    }
}

/// Ends when the server takes no more, or nobody has the connection any more.
async fn writing(
    mut to: WriteHalf<Box<dyn Stream>>,
    mut to_send: mpsc::UnboundedReceiver<Vec<u8>>,
) {
    while let Some(mut bytes) = to_send.recv().await {
        while let Ok(more) = to_send.try_recv() {
            bytes.extend_from_slice(&more);
        }
        if to.write_all(&bytes).await.is_err() || to.flush().await.is_err() {
            return;
        }
    }
}

async fn reading(mut from: ReadHalf<Box<dyn Stream>>, shared: &Shared, care: &Care) {
    let mut bytes = Vec::with_capacity(4096);
    while matches!(from.read_buf(&mut bytes).await, Ok(1..)) {
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
        let due = shared.silent_since().map_or(Moment::NEVER, |since| since + care.patience);
        if due <= care.clock.now() {
            return;
        }
        tokio::select! {
            () = care.clock.sleep_until(due) => {}
            () = shared.stirred.notified() => {}
        }
    }
}
