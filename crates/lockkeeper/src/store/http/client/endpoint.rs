//! One instance of the service, and the connections to it that wait for the next request.

use crate::{
    clock::{Clock, Moment, timeout},
    store::common::tls::{Stream, dial, late},
    sync::Mutex,
};
use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use hyper::{
    body::Incoming,
    client::conn::http1::{SendRequest, handshake},
};
use hyper_util::rt::TokioIo;
use std::{
    fmt, io,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};
use tokio::{net::UnixStream, sync::oneshot};
use tokio_rustls::TlsConnector;

/// How long all addresses of a host together may take to answer.
const DIAL: Duration = Duration::from_secs(3);
/// How long connecting may take, the name's look-up and TLS included.
const CONNECT: Duration = Duration::from_secs(5);
/// How long a request waits for its connection: less than an attempt, so that the caller learns that
/// nothing was sent. The connection is made all the same, and the next attempt finds it.
const PATIENCE: Duration = Duration::from_millis(1200);
/// How long a connection is kept without a request: less than servers and proxies do, which close it then. A request
/// that crosses the close has an unknown outcome.
const IDLE: Duration = Duration::from_secs(8);
/// How many connections are kept.
const KEPT: usize = 16;

/// Where an instance listens.
pub(in crate::store::http) enum Address {
    Tcp { host: String, port: u16, tls: Option<TlsConnector> },
    Unix(PathBuf),
}

impl Address {
    /// The connection; names are looked up each time.
    async fn connect(&self) -> io::Result<Box<dyn Stream>> {
        match self {
            Self::Tcp { host, port, tls } => dial(host, *port, tls.as_ref(), DIAL).await,
            Self::Unix(path) => Ok(Box::new(UnixStream::connect(path).await?)),
        }
    }

    /// What the header `Host` says.
    fn host(&self) -> String {
        match self {
            Self::Unix(_) => "localhost".to_owned(),
            Self::Tcp { host, port, .. } if host.contains(':') => format!("[{host}]:{port}"),
            Self::Tcp { host, port, .. } => format!("{host}:{port}"),
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix(path) => path.display().fmt(f),
            Self::Tcp { .. } => f.write_str(&self.host()),
        }
    }
}

/// A connection that takes one request at a time.
pub(super) type Sender = SendRequest<Full<Bytes>>;

/// Why a request has no answer.
#[derive(Debug)]
pub(super) enum Broken {
    /// It was not sent.
    Unsent(String),
    /// It was sent, at least in part.
    Sent(String),
}

/// An instance, and its connections that wait for a request. Clones share them.
#[derive(Clone)]
pub(super) struct Endpoint(Arc<Shared>);

struct Shared {
    address: Address,
    host: String,
    clock: Clock,
    idle: Mutex<Vec<(Sender, Moment)>>,
}

impl Endpoint {
    /// Connects with the first request.
    pub(super) fn new(address: Address, clock: Clock) -> Self {
        let host = address.host();
        Self(Arc::new(Shared { address, host, clock, idle: Mutex::default() }))
    }

    /// What the header `Host` says.
    pub(super) fn host(&self) -> &str {
        &self.0.host
    }

    /// Is it on another machine, without TLS? Names other than `localhost` count as that.
    pub(super) fn is_open_to_see(&self) -> bool {
        match &self.0.address {
            Address::Tcp { host, tls: None, .. } => {
                let address = host.parse::<std::net::IpAddr>();
                address.map_or(host != "localhost", |address| !address.is_loopback())
            }
            _ => false,
        }
    }

    /// Closes the connections that wait: they lead to an instance that does not answer.
    pub(super) fn drop_idle(&self) {
        self.0.idle.lock().clear();
    }

    fn keep(&self, sender: Sender) {
        let mut idle = self.0.idle.lock();
        if idle.len() < KEPT && !sender.is_closed() {
            idle.push((sender, self.0.clock.now()));
        }
    }

    /// The connection that was used last: so those that are not needed grow old.
    fn kept(&self) -> Option<Sender> {
        let now = self.0.clock.now();
        let mut idle = self.0.idle.lock();
        idle.retain(|(_, since)| now.saturating_since(*since) < IDLE);
        loop {
            let (sender, _) = idle.pop()?;
            if !sender.is_closed() {
                return Some(sender);
            }
        }
    }

    async fn connect(&self) -> io::Result<Sender> {
        let stream = self.0.address.connect().await?;
        let (sender, connection) =
            handshake(TokioIo::new(stream)).await.map_err(io::Error::other)?;
        // Its end shows in the sender.
        tokio::spawn(connection);
        Ok(sender)
    }

    /// A new connection. It is made by a task of its own: callers of little patience would otherwise never get one
    /// from an instance that is slow.
    async fn connection(&self) -> Result<Sender, Broken> {
        let unsent = |why: io::Error| Broken::Unsent(format!("{self}: {why}"));
        let (made, answer) = oneshot::channel();
        let endpoint = self.clone();
        tokio::spawn(async move {
            let connect = timeout(CONNECT, endpoint.connect()).await;
            let result = connect.unwrap_or_else(|_| Err(late(CONNECT)));
            if let Err(Ok(unused)) = made.send(result) {
                endpoint.keep(unused);
            }
        });
        match timeout(PATIENCE, answer).await {
            Ok(Ok(result)) => result.map_err(unsent),
            Ok(Err(_)) => Err(unsent(io::Error::other("the runtime is shutting down"))),
            Err(_) => Err(unsent(late(PATIENCE))),
        }
    }

    /// Sends a request over a connection that waits, or a new one, and returns the head of its answer with the
    /// connection. Sets `sent` before anything may have been sent.
    pub(super) async fn send(
        &self,
        mut request: Request<Full<Bytes>>,
        sent: &AtomicBool,
    ) -> Result<(Response<Incoming>, Sender), Broken> {
        loop {
            let (mut sender, is_new) = match self.kept() {
                Some(sender) => (sender, false),
                None => (self.connection().await?, true),
            };
            if sender.ready().await.is_ok() {
                sent.store(true, Ordering::Relaxed);
                match sender.try_send_request(request).await {
                    Ok(answer) => return Ok((answer, sender)),
                    Err(mut e) => match e.take_message() {
                        None => return Err(Broken::Sent(format!("{self}: {}", e.into_error()))),
                        Some(back) => request = back,
                    },
                }
                sent.store(false, Ordering::Relaxed);
            }
            // The service has closed an idle connection, which is no reason to give up.
            if is_new {
                return Err(Broken::Unsent(format!("{self}: the connection was closed at once")));
            }
        }
    }

    /// Keeps the connection for the next request, now that its answer was read to the end.
    pub(super) fn done(&self, sender: Sender) {
        self.keep(sender);
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.address.fmt(f)
    }
}
