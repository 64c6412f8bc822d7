//! One connection to one server. Answers come in the order of the requests, so several requests can
//! be sent at once and cost one round trip.
//!
//! A task of its own writes what callers send, and reads the answers.

use super::{
    Answer, Error, Reply,
    protocol::{
        AUTH_XID, Code, ConnectResponse, EVENT_XID, Header, Identity, Parts, Request,
        connect_request,
    },
};
use crate::{
    clock::{Clock, Moment},
    store::common::tls::Stream,
    sync::Mutex,
};
use std::{
    collections::VecDeque,
    io,
    sync::{
        Arc, MutexGuard,
        atomic::{AtomicI64, Ordering},
    },
    time::Duration,
};
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _, BufReader, WriteHalf, split},
    sync::{Notify, mpsc, oneshot},
};

/// Longer than any answer to us: the list of a line of the greatest length is a tenth of it.
const FRAME_MAX: usize = 64 << 20;

/// Is called with the path of each watch that fires.
pub(crate) type PushHandler = Arc<dyn Fn(&str) + Send + Sync>;

/// What the client says when it connects.
pub(super) struct Handshake<'a> {
    pub(super) identity: &'a Identity,
    pub(super) timeout_ms: i32,
    pub(super) last_zxid: i64,
    /// `USER:PASSWORD`.
    pub(super) credentials: Option<&'a str>,
}

/// How the server answers it.
pub(super) enum Handshaken {
    Accepted(ConnectResponse),
    /// The session has ended.
    Expired,
    /// The credentials are wrong.
    Denied,
}

/// Asks for the session, and shows the credentials.
pub(super) async fn shake_hands(
    stream: &mut dyn Stream,
    handshake: &Handshake<'_>,
) -> io::Result<Handshaken> {
    let Handshake { identity, timeout_ms, last_zxid, credentials } = handshake;
    stream.write_all(&connect_request(identity, *timeout_ms, *last_zxid)).await?;
    let answer = read_frame(stream).await?;
    let response = ConnectResponse::read(&answer).ok_or(io::ErrorKind::InvalidData)?;
    // A session that has ended has the id 0. A server that grants another session than the one asked
    // for does not have ours any more either.
    let is_another = identity.id != 0 && response.identity.id != identity.id;
    if response.timeout_ms <= 0 || response.identity.id == 0 || is_another {
        return Ok(Handshaken::Expired);
    }
    if let Some(credentials) = credentials {
        let auth = Request::auth("digest", credentials.as_bytes());
        stream.write_all(&auth.frame(AUTH_XID)).await?;
        let answer = read_frame(stream).await?;
        let header = Parts(&answer).header().ok_or(io::ErrorKind::InvalidData)?;
        if header.code != Code(0) {
            return Ok(Handshaken::Denied);
        }
    }
    Ok(Handshaken::Accepted(response))
}

async fn read_frame(stream: &mut (impl AsyncRead + Unpin + ?Sized)) -> io::Result<Vec<u8>> {
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
pub(super) struct Connection(Arc<Shared>);

struct Shared {
    state: Mutex<State>,
    /// A request was sent while none was pending.
    first_sent: Notify,
    hung_up: Notify,
}

struct State {
    /// When the last answer came.
    last_answer: Moment,
    next_xid: i32,
    pending: VecDeque<Pending>,
    /// To the connection's task; `None` when the connection is broken.
    outgoing: Option<mpsc::UnboundedSender<Vec<u8>>>,
}

struct Pending {
    xid: i32,
    sent: Moment,
    answer: oneshot::Sender<Answer>,
}

/// What a connection needs besides its stream.
#[derive(Clone)]
pub(super) struct Settings {
    pub(super) clock: Clock,
    /// If requests are pending and no answer comes for this long, the connection is given up.
    pub(super) answer_timeout: Duration,
    pub(super) on_watch: PushHandler,
    /// The highest number of a write that was seen.
    pub(super) last_zxid: Arc<AtomicI64>,
}

impl Connection {
    /// Puts a stream to use after its handshake. `on_end` is called when the connection has ended.
    pub(super) fn new(
        stream: Box<dyn Stream>,
        settings: Settings,
        on_end: impl FnOnce() + Send + 'static,
    ) -> Self {
        let (outgoing, requests) = mpsc::unbounded_channel();
        let state = State {
            last_answer: settings.clock.now(),
            next_xid: 1,
            pending: VecDeque::new(),
            outgoing: Some(outgoing),
        };
        let (first_sent, hung_up) = Default::default();
        let shared = Arc::new(Shared { state: Mutex::new(state), first_sent, hung_up });
        let driven = Arc::clone(&shared);
        tokio::spawn(async move {
            // A drop guard, because a runtime that ends drops the task half-way.
            let end = End(driven, Some(on_end));
            let (reads, writes) = split(stream);
            tokio::select! {
                biased;
                () = end.0.hung_up.notified() => {}
                () = write_requests(requests, writes) => {}
                () = read_answers(&end.0, &settings, reads) => {}
                () = answer_overdue(&end.0, &settings) => {}
            }
        });
        Self(shared)
    }

    /// Sends requests one right after the other, with no other task's requests between them. `None` if
    /// the connection is broken: then nothing was sent.
    pub(super) fn send(
        &self,
        requests: &[Request],
        now: Moment,
    ) -> Option<Vec<oneshot::Receiver<Answer>>> {
        let mut guard = self.0.state();
        let state = &mut *guard;
        let outgoing = state.outgoing.as_ref()?;
        let (mut bytes, mut answers) = (Vec::new(), Vec::with_capacity(requests.len()));
        let idle = state.pending.is_empty();
        for request in requests {
            let xid = state.next_xid;
            state.next_xid = xid.checked_add(1).unwrap_or(1);
            request.write(xid, &mut bytes);
            let (answer, receiver) = oneshot::channel();
            state.pending.push_back(Pending { xid, sent: now, answer });
            answers.push(receiver);
        }
        // Under the lock, so that the order on the wire is that of the list. If the task has ended, so has the
        // wait for the answers.
        let _ = outgoing.send(bytes);
        drop(guard);
        if idle {
            self.0.first_sent.notify_one();
        }
        Some(answers)
    }

    pub(super) fn hang_up(&self) {
        self.0.hang_up();
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.0.hang_up();
    }
}

/// Ends the connection when its task ends.
struct End<F: FnOnce()>(Arc<Shared>, Option<F>);

impl<F: FnOnce()> Drop for End<F> {
    fn drop(&mut self) {
        self.0.hang_up();
        // The waiting receivers see that no answer will come.
        self.0.state().pending.clear();
        if let Some(on_end) = self.1.take() {
            on_end();
        }
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    fn hang_up(&self) {
        self.state().outgoing = None;
        self.hung_up.notify_one();
    }

    /// Since when no answer has come although requests are pending.
    fn silent_since(&self) -> Option<Moment> {
        let state = self.state();
        state.pending.front().map(|pending| pending.sent.max(state.last_answer))
    }

    /// Takes in a frame. `None` if the server breaks the protocol, or serves the session no longer.
    fn take(&self, frame: &[u8], settings: &Settings) -> Option<()> {
        let mut parts = Parts(frame);
        let Header { xid, zxid, code } = parts.header()?;
        if zxid > 0 {
            settings.last_zxid.fetch_max(zxid, Ordering::Relaxed);
        }
        if xid == EVENT_XID {
            (settings.on_watch)(&parts.event()?);
            return Some(());
        }
        let pending = {
            let mut state = self.state();
            state.last_answer = settings.clock.now();
            state.pending.pop_front()?
        };
        if pending.xid != xid {
            return None;
        }
        let answer = match code {
            Code(0) => Ok(Reply(parts.0.to_vec())),
            code => Err(Error::Refused(code)),
        };
        // The task that asked may have been cancelled.
        let _ = pending.answer.send(answer);
        let is_final = [Code::SESSION_EXPIRED, Code::SESSION_MOVED].contains(&code);
        (!is_final).then_some(())
    }
}

/// Ends when the server hangs up or breaks the protocol, or when the stream fails.
async fn read_answers(shared: &Shared, settings: &Settings, stream: impl AsyncRead + Unpin) {
    let mut stream = BufReader::new(stream);
    while let Ok(frame) = read_frame(&mut stream).await {
        if shared.take(&frame, settings).is_none() {
            return;
        }
    }
}

/// Ends when the stream fails.
async fn write_requests(
    mut requests: mpsc::UnboundedReceiver<Vec<u8>>,
    mut stream: WriteHalf<Box<dyn Stream>>,
) {
    while let Some(bytes) = requests.recv().await {
        if stream.write_all(&bytes).await.is_err() || stream.flush().await.is_err() {
            return;
        }
    }
}

/// Ends when an answer is overdue.
async fn answer_overdue(shared: &Shared, settings: &Settings) {
    loop {
        let Some(since) = shared.silent_since() else {
            shared.first_sent.notified().await;
            continue;
        };
        let due = since + settings.answer_timeout;
        if due <= settings.clock.now() {
            return;
        }
        // Requests that are sent meanwhile are due later.
        settings.clock.sleep_until(due).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The stream takes little at a time. Time stands still as long as
    /// any task can run, so the test fails if one of them waits for time to pass.
    #[tokio::test(start_paused = true)]
    async fn requests_reach_a_slow_server_in_their_order() {
        let (ours, mut theirs) = tokio::io::duplex(64);
        let (clock, answer_timeout) = (Clock::system(), Duration::from_secs(60));
        let (now, last_zxid) = (clock.now(), Arc::default());
        let settings = Settings { clock, answer_timeout, on_watch: Arc::new(|_| {}), last_zxid };
        let connection = Connection::new(Box::new(ours), settings, || {});
        let short = Request::delete("/a");
        let mut wanted = short.frame(1);
        connection.send(&[short], now).unwrap();
        // Now the connection's task waits for an answer, and only a send wakes it.
        tokio::task::yield_now().await;
        for n in 2..=9 {
            let request = Request::delete_version("/longer/than/what/is/taken/at/once", n);
            wanted.extend(request.frame(n));
            connection.send(&[request], now).unwrap();
        }
        let mut came = vec![0; wanted.len()];
        let reading = theirs.read_exact(&mut came);
        crate::clock::timeout(Duration::from_millis(1), reading).await.unwrap().unwrap();
        assert_eq!(came, wanted);
    }
}
