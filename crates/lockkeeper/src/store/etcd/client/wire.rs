//! HTTP/2 to one endpoint: a connection that is made when it is needed, and anew when it broke.
//!
//! Whoever asks writes to the stream himself, all of the request at once; mostly the connection's task
//! reads the answer. Every task between the two would cost a lock more than all that lockkeeper does
//! for it.

use crate::clock::timeout;
use crate::{
    clock::Clock,
    store::common::tls::{Stream, dial, late},
    sync::Mutex,
};
use bytes::Bytes;
use h2::{
    Ping, PingPong, RecvStream, SendStream,
    client::{Connection, SendRequest},
};
use http::{Request, Response, Uri};
use http_body::{Body as _, Frame};
use std::{
    fmt,
    future::{Future, poll_fn},
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, Waker, ready},
    time::Duration,
};
use tokio::sync::watch;
use tokio_rustls::TlsConnector;
use tonic::{body::Body, client::GrpcService};

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// For how long the addresses of a host may take to answer, all together.
const DIAL: Duration = Duration::from_secs(3);
/// For how long connecting may take, looking up the name and TLS included. Far links need several
/// round trips.
const CONNECT: Duration = Duration::from_secs(5);
/// For how long a request waits for its connection: less than an attempt, so that it is known that
/// nothing was sent. The connection is made all the same, and the next attempt finds it.
const PATIENCE: Duration = Duration::from_millis(1200);
/// How often a connection is tried. A server that is asked more often than every five seconds takes it
/// for an attack.
const PING: Duration = Duration::from_secs(6);
/// For how long the answer to that may take.
const PONG: Duration = Duration::from_secs(3);
/// How much of an answer, and of all answers, a server may send ahead.
const WINDOW: u32 = 2 << 20;

/// Where a server is, and how to speak with it.
pub(crate) struct Endpoint {
    pub(crate) host: String,
    pub(crate) port: u16,
    pub(crate) tls: Option<TlsConnector>,
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.host.contains(':') {
            true => write!(f, "[{}]:{}", self.host, self.port),
            false => write!(f, "{}:{}", self.host, self.port),
        }
    }
}

impl Endpoint {
    /// What requests to it begin with.
    pub(super) fn origin(&self) -> Result<Uri, http::uri::InvalidUri> {
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        format!("{scheme}://{self}").parse()
    }

    async fn reach(&self) -> io::Result<Made> {
        let stream = dial(&self.host, self.port, self.tls.as_ref(), DIAL).await?;
        h2::client::Builder::new()
            .enable_push(false)
            .initial_window_size(WINDOW)
            .initial_connection_window_size(WINDOW * 2)
            .handshake(stream)
            .await
            .map_err(io::Error::other)
    }
}

type Made = (SendRequest<Bytes>, Connection<Box<dyn Stream>, Bytes>);

/// There was no connection to send the request on.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{0}")]
pub(super) struct Unsent(Arc<str>);

pub(super) fn unsent(why: impl fmt::Display) -> Unsent {
    Unsent(why.to_string().into())
}

#[derive(Clone)]
enum State {
    Making,
    Open(SendRequest<Bytes>, Arc<Engine>),
    Over(Unsent),
}

/// What moves a connection's bytes. Its task does, and whoever has something to send.
struct Engine(Mutex<Moving>);

struct Moving {
    connection: Option<Connection<Box<dyn Stream>, Bytes>>,
    /// The task's, for what is to be read and what could not be written.
    waker: Waker,
    end: Option<Result<(), h2::Error>>,
}

impl Moving {
    fn turn(&mut self) {
        let mut cx = Context::from_waker(&self.waker);
        let turned = self.connection.as_mut().map(|connection| Pin::new(connection).poll(&mut cx));
        if let Some(Poll::Ready(end)) = turned {
            (self.connection, self.end) = (None, Some(end));
        }
    }
}

impl Engine {
    fn new(connection: Connection<Box<dyn Stream>, Bytes>) -> Self {
        let (connection, waker) = (Some(connection), Waker::noop().clone());
        Self(Mutex::new(Moving { connection, waker, end: None }))
    }

    /// The task's part; ends with the connection.
    fn poll(&self, cx: &Context<'_>) -> Poll<Result<(), h2::Error>> {
        let Some(mut moving) = self.0.try_lock() else {
            // Somebody is at it, and may have seen too little.
            cx.waker().wake_by_ref();
            return Poll::Pending;
        };
        moving.waker.clone_from(cx.waker());
        moving.turn();
        moving.end.take().map_or(Poll::Pending, Poll::Ready)
    }

    /// Queues something and writes it, if nobody else is at it; else the task will.
    fn with<T>(&self, queue: impl FnOnce() -> T) -> T {
        let moving = self.0.try_lock();
        let queued = queue();
        if let Some(mut moving) = moving {
            moving.turn();
            if moving.end.is_some() {
                moving.waker.wake_by_ref();
            }
        }
        queued
    }
}

/// The present connection to an endpoint, or its last one. Clones share it.
#[derive(Clone)]
pub(super) struct Wire(Arc<Shared>);

struct Shared {
    endpoint: Arc<Endpoint>,
    clock: Clock,
    line: Mutex<watch::Receiver<State>>,
}

/// Where a request goes. Its connection lives as long as anybody has its line, also if the server wants no
/// more requests on it.
struct Way {
    send: SendRequest<Bytes>,
    engine: Arc<Engine>,
    line: watch::Receiver<State>,
}

impl Wire {
    /// Nothing is sent before the first request.
    pub(super) fn new(endpoint: Endpoint, clock: Clock) -> Self {
        let nothing = State::Over(unsent("not connected"));
        let line = Mutex::new(watch::channel(nothing).1);
        Self(Arc::new(Shared { endpoint: Arc::new(endpoint), clock, line }))
    }

    /// The connection that stands or is just being made; a new one if it is over, or `spent`.
    fn line(&self, spent: Option<&watch::Receiver<State>>) -> watch::Receiver<State> {
        let Shared { endpoint, clock, line } = &*self.0;
        let mut line = line.lock();
        // Without its task, which may have gone with its runtime, a connection is over too.
        let over = line.has_changed().is_err() || matches!(*line.borrow(), State::Over(_));
        if over || spent.is_some_and(|spent| spent.same_channel(&line)) {
            let (state, news) = watch::channel(State::Making);
            tokio::spawn(keep(Arc::clone(endpoint), clock.clone(), state));
            *line = news;
        }
        line.clone()
    }

    /// A way to send one request.
    async fn open(&self) -> Result<Way, Unsent> {
        let mut line = self.line(None);
        let mut tries = 0;
        loop {
            let made = line.wait_for(|state| !matches!(state, State::Making));
            let Ok(found) = timeout(PATIENCE, made).await else {
                let endpoint = &self.0.endpoint;
                return Err(unsent(format_args!("{endpoint}: {}", late(PATIENCE))));
            };
            let found = found.map(|state| state.clone());
            let why = match found.unwrap_or_else(|_| State::Over(unsent("its task was ended"))) {
                State::Open(send, engine) => match send.ready().await {
                    Ok(send) => return Ok(Way { send, engine, line }),
                    Err(e) => unsent(e),
                },
                State::Over(why) => return Err(why),
                State::Making => unreachable!("waited for the end of it"),
            };
            // Closed while nobody used it, which is no reason to give up.
            tries += 1;
            if tries > 1 {
                return Err(why);
            }
            line = self.line(Some(&line));
        }
    }

    async fn send(self, request: Request<Body>) -> Result<Response<Answer>, BoxError> {
        let Way { mut send, engine, line } = self.open().await?;
        let mut request = Some(request);
        let sent = poll_fn(|cx| {
            Poll::Ready(engine.with(|| {
                let (head, body) = request.take().expect("polled once").into_parts();
                let (answer, to) = send.send_request(Request::from_parts(head, ()), false)?;
                let mut pour = Pour { body, to, next: None };
                let poured = pour.poll(cx);
                Ok::<_, h2::Error>((answer, poured.is_pending().then_some(pour)))
            }))
        });
        let (answer, rest) = sent.await.map_err(unsent)?;
        if let Some(mut pour) = rest {
            tokio::spawn(poll_fn(move |cx| pour.poll(cx)));
        }
        let answer = answer.await?;
        Ok(answer.map(|stream| Answer { stream, ended: false, _line: line }))
    }
}

impl GrpcService<Body> for Wire {
    type ResponseBody = Answer;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Answer>, BoxError>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        Box::pin(self.clone().send(request))
    }
}

/// Makes a connection and keeps it until it breaks, falls silent, or nobody is there to use it.
async fn keep(endpoint: Arc<Endpoint>, clock: Clock, state: watch::Sender<State>) {
    let over = |why: io::Error| State::Over(unsent(format_args!("{endpoint}: {why}")));
    let made = timeout(CONNECT, endpoint.reach()).await;
    let (send, mut connection) = match made.unwrap_or_else(|_| Err(late(CONNECT))) {
        Ok(made) => made,
        Err(e) => return drop(state.send_replace(over(e))),
    };
    let pings = connection.ping_pong();
    let engine = Arc::new(Engine::new(connection));
    let _stop = Stop(Arc::clone(&engine));
    state.send_replace(State::Open(send, Arc::clone(&engine)));
    let why = tokio::select! {
        // First what has come, which may be the answer to a ping.
        biased;
        end = poll_fn(|cx| engine.poll(cx)) => {
            io::Error::other(end.err().map_or("closed".into(), BoxError::from))
        }
        () = silence(pings, &clock) => io::Error::other(format!("silent for {PONG:.1?}")),
        () = state.closed() => io::Error::other("not needed any more"),
    };
    state.send_replace(over(why));
}

/// Whatever is under way fails with its connection's task, however that ends.
struct Stop(Arc<Engine>);

impl Drop for Stop {
    fn drop(&mut self) {
        self.0.0.lock().connection = None;
    }
}

/// Ends when the server does not answer any more.
async fn silence(pings: Option<PingPong>, clock: &Clock) {
    let Some(mut pings) = pings else { return std::future::pending().await };
    loop {
        clock.sleep(PING).await;
        let Ok(Ok(_)) = timeout(PONG, pings.ping(Ping::opaque())).await else { return };
    }
}

/// Sends what a body brings. The last part says that it is the last one.
struct Pour {
    body: Body,
    to: SendStream<Bytes>,
    next: Option<Bytes>,
}

impl Pour {
    /// What goes wrong here is told by the answer.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        loop {
            let frame = Pin::new(&mut self.body).poll_frame(cx);
            let last = matches!(frame, Poll::Ready(None));
            if self.next.is_some() || last {
                let part = self.next.take().unwrap_or_default();
                if self.to.send_data(part, last).is_err() {
                    return Poll::Ready(());
                }
            }
            match ready!(frame) {
                Some(Ok(frame)) => self.next = frame.into_data().ok(),
                Some(Err(_)) => {
                    self.to.send_reset(h2::Reason::CANCEL);
                    return Poll::Ready(());
                }
                None => return Poll::Ready(()),
            }
        }
    }
}

/// The body of an answer.
pub(super) struct Answer {
    stream: RecvStream,
    /// Only the trailers are missing.
    ended: bool,
    _line: watch::Receiver<State>,
}

impl http_body::Body for Answer {
    type Data = Bytes;
    type Error = h2::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, h2::Error>>> {
        if !self.ended {
            match ready!(self.stream.poll_data(cx)) {
                Some(Ok(part)) => {
                    let _ = self.stream.flow_control().release_capacity(part.len());
                    return Poll::Ready(Some(Ok(Frame::data(part))));
                }
                Some(Err(e)) => return Poll::Ready(Some(Err(e))),
                None => self.ended = true,
            }
        }
        let trailers = ready!(self.stream.poll_trailers(cx));
        Poll::Ready(trailers.map(|all| all.map(Frame::trailers)).transpose())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use h2::server::SendResponse;
    use tokio::net::{TcpListener, TcpStream};

    type Server = h2::server::Connection<TcpStream, Bytes>;

    async fn listen() -> (TcpListener, Wire) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let endpoint = Endpoint { host: "127.0.0.1".to_owned(), port, tls: None };
        (listener, Wire::new(endpoint, Clock::system()))
    }

    async fn accept(listener: &TcpListener) -> Server {
        let (stream, _) = listener.accept().await.unwrap();
        h2::server::handshake(stream).await.unwrap()
    }

    fn ask(wire: &Wire) -> tokio::task::JoinHandle<Result<Response<Answer>, BoxError>> {
        let mut request = Request::new(Body::empty());
        *request.uri_mut() = wire.0.endpoint.origin().unwrap();
        tokio::spawn(wire.clone().send(request))
    }

    async fn next(server: &mut Server) -> SendResponse<Bytes> {
        server.accept().await.expect("a request").unwrap().1
    }

    fn answer(mut to: SendResponse<Bytes>) {
        to.send_response(Response::new(()), true).unwrap();
    }

    #[tokio::test]
    async fn what_is_under_way_is_answered_though_the_server_wants_no_more() {
        let (listener, wire) = listen().await;
        let first = ask(&wire);
        let mut old = accept(&listener).await;
        let under_way = next(&mut old).await;
        old.graceful_shutdown();
        let old = tokio::spawn(async move { while old.accept().await.is_some() {} });
        // Until the client has heard of it, requests still come there and are left unanswered.
        let mut new = loop {
            let again = ask(&wire);
            match timeout(Duration::from_millis(50), accept(&listener)).await {
                Ok(new) => break new,
                Err(_) => again.abort(),
            }
        };
        answer(next(&mut new).await);
        let new = tokio::spawn(async move { while new.accept().await.is_some() {} });
        answer(under_way);
        let got = timeout(Duration::from_secs(20), first).await.expect("an answer").unwrap();
        assert_eq!(got.expect("a good one").status(), 200);
        for task in [old, new] {
            task.abort();
        }
    }

    #[tokio::test]
    async fn a_connection_that_was_closed_while_idle_is_made_anew() {
        let (listener, wire) = listen().await;
        for _ in 0..3 {
            let asked = ask(&wire);
            let mut server = accept(&listener).await;
            answer(next(&mut server).await);
            let drive = tokio::spawn(async move { server.accept().await.is_none() });
            assert_eq!(asked.await.unwrap().expect("an answer").status(), 200);
            drive.abort();
            assert!(drive.await.unwrap_err().is_cancelled(), "the server is gone");
        }
    }

    #[tokio::test]
    async fn what_cannot_be_connected_to_was_never_sent() {
        let (listener, wire) = listen().await;
        drop(listener);
        let e = ask(&wire).await.unwrap().err().expect("nobody listens");
        assert!(e.is::<Unsent>(), "{e}");
    }
}
