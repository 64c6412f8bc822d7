//! HTTP/2 to one endpoint: a connection that is made when it is needed, and made anew when it broke.
//!
//! tonic encodes the requests; h2 carries them. tonic's own channel would hand each request and each answer
//! through two more tasks, and could not tell whether a request was sent at all.

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
    future::poll_fn,
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};
use tokio::sync::watch;
use tokio_rustls::TlsConnector;
use tonic::{body::Body, client::GrpcService};

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// How long all addresses of a host together may take to answer.
const DIAL: Duration = Duration::from_secs(3);
/// How long connecting may take, the name's look-up and TLS included. Far links need several round trips.
const CONNECT: Duration = Duration::from_secs(5);
/// How long a request waits for its connection: less than an attempt, so that the caller learns that
/// nothing was sent. The connection is made all the same, and the next attempt finds it.
const PATIENCE: Duration = Duration::from_millis(1200);
/// How often a connection is probed. A server that is probed more often than every five seconds takes it
/// for an attack.
const PING: Duration = Duration::from_secs(6);
/// How long the answer to a probe may take.
const PONG: Duration = Duration::from_secs(3);
/// How much of one answer a server may send ahead; twice as much of all answers together.
const WINDOW: u32 = 2 << 20;

/// The address of a server, and TLS for it.
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
    /// How the URIs of requests to it begin.
    pub(super) fn origin(&self) -> Result<Uri, http::uri::InvalidUri> {
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        format!("{scheme}://{self}").parse()
    }

    async fn connect(
        &self,
    ) -> io::Result<(SendRequest<Bytes>, Connection<Box<dyn Stream>, Bytes>)> {
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

/// There was no connection to send the request on.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{0}")]
pub(super) struct Unsent(Arc<str>);

pub(super) fn unsent(why: impl fmt::Display) -> Unsent {
    Unsent(why.to_string().into())
}

#[derive(Clone)]
enum State {
    Connecting,
    Open(SendRequest<Bytes>),
    Closed(Unsent),
}

/// The state of a connection. The connection lives as long as there is a receiver of it, also when the
/// server accepts no more requests on it.
type Connected = watch::Receiver<State>;

/// The present connection to an endpoint, or its last one. Clones share it.
#[derive(Clone)]
pub(super) struct Wire(Arc<Shared>);

struct Shared {
    endpoint: Arc<Endpoint>,
    clock: Clock,
    current: Mutex<Connected>,
}

impl Wire {
    /// Connects with the first request.
    pub(super) fn new(endpoint: Endpoint, clock: Clock) -> Self {
        let closed = State::Closed(unsent("not connected"));
        let current = Mutex::new(watch::channel(closed).1);
        Self(Arc::new(Shared { endpoint: Arc::new(endpoint), clock, current }))
    }

    /// The current connection; a new one if it is closed, or `spent`.
    fn connection(&self, spent: Option<&Connected>) -> Connected {
        let Shared { endpoint, clock, current } = &*self.0;
        let mut current = current.lock();
        // A connection without its task, which may have gone with its runtime, is closed too.
        let closed =
            current.has_changed().is_err() || matches!(*current.borrow(), State::Closed(_));
        if closed || spent.is_some_and(|spent| spent.same_channel(&current)) {
            let (state, connected) = watch::channel(State::Connecting);
            tokio::spawn(keep_connection(Arc::clone(endpoint), clock.clone(), state));
            *current = connected;
        }
        current.clone()
    }

    /// A connection that takes a request.
    async fn open(&self) -> Result<(SendRequest<Bytes>, Connected), Unsent> {
        let mut connected = self.connection(None);
        let mut is_second_try = false;
        loop {
            let state = connected.wait_for(|state| !matches!(state, State::Connecting));
            let Ok(state) = timeout(PATIENCE, state).await else {
                let endpoint = &self.0.endpoint;
                return Err(unsent(format_args!("{endpoint}: {}", late(PATIENCE))));
            };
            let state = state.map(|state| state.clone());
            let why = match state.unwrap_or_else(|_| State::Closed(unsent("its task was ended"))) {
                State::Open(sender) => match sender.ready().await {
                    Ok(sender) => return Ok((sender, connected)),
                    Err(e) => unsent(e),
                },
                State::Closed(why) => return Err(why),
                State::Connecting => unreachable!("waited for the end of it"),
            };
            // The server has closed an idle connection, which is no reason to give up.
            if is_second_try {
                return Err(why);
            }
            is_second_try = true;
            connected = self.connection(Some(&connected));
        }
    }

    async fn send(self, request: Request<Body>) -> Result<Response<ResponseBody>, BoxError> {
        let (mut sender, connected) = self.open().await?;
        let (head, body) = request.into_parts();
        let request = Request::from_parts(head, ());
        let (answer, to) = sender.send_request(request, false).map_err(unsent)?;
        let mut writer = BodyWriter { body, to, next: None };
        let written = poll_fn(|cx| Poll::Ready(writer.poll(cx))).await;
        if written.is_pending() {
            tokio::spawn(poll_fn(move |cx| writer.poll(cx)));
        }
        let answer = answer.await?;
        Ok(answer.map(|stream| ResponseBody { stream, ended: false, _connected: connected }))
    }
}

impl GrpcService<Body> for Wire {
    type ResponseBody = ResponseBody;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<Response<ResponseBody>, BoxError>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        Box::pin(self.clone().send(request))
    }
}

/// Makes a connection and drives it until it breaks, falls silent, or has no receiver of its state left.
/// What is under way then fails.
async fn keep_connection(endpoint: Arc<Endpoint>, clock: Clock, state: watch::Sender<State>) {
    let closed = |why: io::Error| State::Closed(unsent(format_args!("{endpoint}: {why}")));
    let made = timeout(CONNECT, endpoint.connect()).await;
    let (sender, mut connection) = match made.unwrap_or_else(|_| Err(late(CONNECT))) {
        Ok(made) => made,
        Err(e) => return drop(state.send_replace(closed(e))),
    };
    let pings = connection.ping_pong();
    state.send_replace(State::Open(sender));
    let why = tokio::select! {
        // What has arrived comes first: it may be the answer to a ping.
        biased;
        end = connection => io::Error::other(end.err().map_or("closed".into(), BoxError::from)),
        () = silence(pings, &clock) => io::Error::other(format!("silent for {PONG:.1?}")),
        () = state.closed() => io::Error::other("not needed any more"),
    };
    state.send_replace(closed(why));
}

/// Ends when the server does not answer probes any more.
async fn silence(pings: Option<PingPong>, clock: &Clock) {
    let Some(mut pings) = pings else { return std::future::pending().await };
    loop {
        clock.sleep(PING).await;
        let Ok(Ok(_)) = timeout(PONG, pings.ping(Ping::opaque())).await else { return };
    }
}

/// Writes a request's body. The last part says that it is the last one.
struct BodyWriter {
    body: Body,
    to: SendStream<Bytes>,
    next: Option<Bytes>,
}

impl BodyWriter {
    /// The answer tells what goes wrong here.
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

/// An answer's body.
pub(super) struct ResponseBody {
    stream: RecvStream,
    /// Only the trailers are missing.
    ended: bool,
    _connected: Connected,
}

impl http_body::Body for ResponseBody {
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

    fn ask(wire: &Wire) -> tokio::task::JoinHandle<Result<Response<ResponseBody>, BoxError>> {
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
        let e = ask(&wire).await.unwrap().err().expect("no server listens");
        assert!(e.is::<Unsent>(), "{e}");
    }
}
