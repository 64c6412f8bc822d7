//! Connections: accepted, bounded in number, in size and in time, and ended in order at a shutdown.

use crate::{
    auth::tls::{self, ClientName},
    listen::Listener,
    routes::router,
    service::Service,
};
use axum::{Router, extract::Request};
use hyper::{body::Incoming, service::service_fn};
use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    server::conn::auto::Builder,
};
use std::{
    io,
    net::SocketAddr,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
    sync::{OwnedSemaphorePermit, Semaphore, mpsc},
    task::JoinSet,
    time::sleep,
};
use tower_service::Service as _;

/// What a connection may take.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Limits {
    /// How many connections there may be at a time. The next ones wait in the system's queue.
    pub connections: usize,
    /// For how long the headers of a request may take to arrive, and for how long a connection may lie idle.
    pub header_time: Duration,
    /// For how long a body may take to arrive.
    pub body_time: Duration,
    /// For how long requests under way may take to end at a shutdown.
    pub shutdown_time: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 10_000,
            header_time: Duration::from_secs(30),
            body_time: Duration::from_secs(30),
            shutdown_time: Duration::from_secs(5),
        }
    }
}

/// The most bytes that a request's headers may have.
const HEADERS_MAX: usize = 16 * 1024;
/// The most requests at a time on one connection of HTTP/2.
const STREAMS_MAX: u32 = 1_000;
/// The pause after an accept that failed for want of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Where a request came from, as an extension of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Peer {
    /// From this address.
    Tcp(SocketAddr),
    /// Through the socket in the file system.
    Unix,
}

/// Serves until the service [stops](Service::stop): then no connection is accepted any more, requests under way are
/// answered, and connections that do not end in time are cut.
///
/// # Errors
/// An error of a listener that does not pass; an address beyond loopback without authentication.
pub async fn serve(service: Service, listeners: Vec<Listener>) -> io::Result<()> {
    for listener in &listeners {
        let allowed = service.options.security.allow(&listener.address()?);
        allowed.map_err(|e| io::Error::new(io::ErrorKind::PermissionDenied, e))?;
    }
    let security = Arc::clone(&service.options.security);
    let mut watching = JoinSet::new();
    watching.spawn(async move { security.watch().await });
    let limits = service.options.limits.clone();
    let room = Arc::new(Semaphore::new(limits.connections));
    let app = router(&service);
    let (open, mut all_closed) = mpsc::channel::<()>(1);
    let mut accepting = JoinSet::new();
    for listener in listeners {
        let front = Front {
            app: app.clone(),
            service: service.clone(),
            room: Arc::clone(&room),
            _open: open.clone(),
        };
        accepting.spawn(front.accept(listener));
    }
    drop(open);
    while let Some(ended) = accepting.join_next().await {
        ended.map_err(io::Error::other)??;
    }
    let _ = tokio::time::timeout(limits.shutdown_time, all_closed.recv()).await;
    Ok(())
}

/// What every connection gets.
#[derive(Clone)]
struct Front {
    app: Router,
    service: Service,
    room: Arc<Semaphore>,
    /// Closed when the last connection has ended.
    _open: mpsc::Sender<()>,
}

impl Front {
    async fn accept(self, listener: Listener) -> io::Result<()> {
        let stopped = self.service.clone();
        tokio::select! {
            () = stopped.stopped() => Ok(()),
            failed = self.accept_all(listener) => failed,
        }
    }

    async fn accept_all(self, listener: Listener) -> io::Result<()> {
        loop {
            let room = Arc::clone(&self.room).acquire_owned().await.map_err(io::Error::other)?;
            let accepted = match &listener {
                Listener::Tcp(listener) => listener.accept().await.map(|(stream, peer)| {
                    // An answer is one small packet: it must not wait for the last one's acknowledgement.
                    let _ = stream.set_nodelay(true);
                    self.welcome(stream, Peer::Tcp(peer), room);
                }),
                Listener::Unix(listener, _) => listener.accept().await.map(|(stream, _)| {
                    self.spawn(stream, Peer::Unix, None, room);
                }),
            };
            match accepted {
                Ok(()) => {}
                Err(e) if is_of_the_client(&e) => {}
                Err(e) => {
                    tracing::warn!(error = %e, "cannot accept a connection");
                    sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }

    /// A connection by TCP: with TLS, the handshake comes first.
    fn welcome(&self, stream: TcpStream, peer: Peer, room: OwnedSemaphorePermit) {
        let Some(config) = self.service.options.security.tls() else {
            return self.spawn(stream, peer, None, room);
        };
        let front = self.clone();
        tokio::spawn(async move {
            match tls::accept(stream, config).await {
                Ok((stream, client)) => front.talk(stream, peer, client).await,
                Err(e) => tracing::debug!(error = %e, "a TLS handshake failed"),
            }
            drop(room);
        });
    }

    fn spawn<I>(
        &self,
        stream: I,
        peer: Peer,
        client: Option<ClientName>,
        room: OwnedSemaphorePermit,
    ) where
        I: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let front = self.clone();
        tokio::spawn(async move {
            front.talk(stream, peer, client).await;
            drop(room);
        });
    }

    /// One connection, to its end.
    async fn talk<I>(self, stream: I, peer: Peer, client: Option<ClientName>)
    where
        I: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let limits = &self.service.options.limits;
        let asked = Arc::new(AtomicBool::new(false));
        let service = {
            let (app, asked) = (self.app.clone(), Arc::clone(&asked));
            service_fn(move |mut request: Request<Incoming>| {
                asked.store(true, Ordering::Relaxed);
                request.extensions_mut().insert(peer);
                if let Some(client) = &client {
                    request.extensions_mut().insert(client.clone());
                }
                app.clone().call(request)
            })
        };
        let builder = builder(limits);
        let mut connection =
            pin!(builder.serve_connection_with_upgrades(TokioIo::new(stream), service));
        let mut first = pin!(sleep(limits.header_time));
        let (mut is_young, mut is_stopping) = (true, false);
        loop {
            tokio::select! {
                ended = connection.as_mut() => {
                    if let Err(e) = ended {
                        tracing::debug!(error = %e, "a connection broke");
                    }
                    return;
                }
                // Before the first request, and before it is clear which version of HTTP it is, no other timer runs.
                () = first.as_mut(), if is_young => {
                    is_young = false;
                    if !asked.load(Ordering::Relaxed) {
                        return;
                    }
                }
                () = self.service.stopped(), if !is_stopping => {
                    is_stopping = true;
                    connection.as_mut().graceful_shutdown();
                }
            }
        }
    }
}

fn builder(limits: &Limits) -> Builder<TokioExecutor> {
    let mut builder = Builder::new(TokioExecutor::new());
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.header_time)
        .max_buf_size(HEADERS_MAX + 8 * 1024)
        .max_headers(64);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_header_list_size(HEADERS_MAX as u32)
        .max_concurrent_streams(STREAMS_MAX)
        .keep_alive_interval(limits.header_time)
        .keep_alive_timeout(limits.header_time);
    builder
}

/// A connection that broke before it was accepted says nothing about the listener.
fn is_of_the_client(e: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset, Interrupted};
    matches!(e.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset | Interrupted)
}
