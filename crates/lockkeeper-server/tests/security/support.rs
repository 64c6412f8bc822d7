//! A service on a free port, and a client that sends what it is told.

use bytes::Bytes;
use http::{HeaderMap, Method, Request};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use lockkeeper::store::{AnyStore, memory::Memory};
use lockkeeper_server::{
    Address, Listener, NewToken, Options, Security, SecurityOptions, Service, serve,
};
use std::{
    fs,
    net::SocketAddr,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};
use tempfile::TempDir;
use tokio::{io::AsyncRead, io::AsyncWrite, net::TcpStream, task::JoinHandle};

/// Far more than any condition here needs.
const DEADLINE: Duration = Duration::from_secs(30);

pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    pub(crate) security: Arc<Security>,
    pub(crate) service: Service,
    task: JoinHandle<()>,
}

impl Server {
    /// On a store of its own in memory.
    pub(crate) async fn start(options: SecurityOptions) -> Self {
        Self::on(AnyStore::new(Memory::new()), options).await
    }

    pub(crate) async fn on(store: AnyStore, options: SecurityOptions) -> Self {
        let security = Arc::new(Security::open(options).unwrap());
        let mut options = Options::default();
        options.security = Arc::clone(&security);
        let service = Service::new(store, options);
        let listener = Listener::bind(&"127.0.0.1:0".parse().unwrap(), 0o600).await.unwrap();
        let Address::Tcp(address) = listener.address().unwrap() else { panic!("not TCP") };
        let serving = serve(service.clone(), vec![listener]);
        let task = tokio::spawn(async move { serving.await.unwrap() });
        Self { address, security, service, task }
    }

    /// Sends a request with a token, if one is given, and a body, if it is not empty.
    pub(crate) async fn ask(
        &self,
        method: Method,
        path: &str,
        token: Option<&str>,
        body: &str,
    ) -> Answer {
        let authorization = token.map(|token| format!("Bearer {token}"));
        let headers: Vec<(&str, &str)> =
            authorization.iter().map(|value| ("authorization", value.as_str())).collect();
        self.send(method, path, &headers, body).await
    }

    /// Sends a request with these headers.
    pub(crate) async fn send(
        &self,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
        body: &str,
    ) -> Answer {
        let stream = TcpStream::connect(self.address).await.unwrap();
        let host = self.address.to_string();
        let headers = [&[("host", host.as_str())], headers].concat();
        send(stream, method, path, &headers, body).await
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.service.stop();
        self.task.abort();
    }
}

/// The start of an answer; the body is read by [`Answer::text`].
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
    body: Incoming,
    /// The connection lives as long as the answer.
    _connection: JoinHandle<()>,
}

impl Answer {
    pub(crate) fn is_stream(&self) -> bool {
        let media = self.headers.get("content-type");
        media.is_some_and(|media| media.as_bytes().starts_with(b"text/event-stream"))
    }

    /// All headers and the body, as a reader of the wire sees them.
    pub(crate) async fn text(self) -> String {
        let body = self.body.collect().await.unwrap().to_bytes();
        format!("{:?}\n{}", self.headers, String::from_utf8_lossy(&body))
    }

    pub(crate) async fn json(self) -> serde_json::Value {
        let body = self.body.collect().await.unwrap().to_bytes();
        serde_json::from_slice(&body).unwrap_or_else(|e| panic!("{e}: {body:?}"))
    }

    /// Reads a stream to its end.
    pub(crate) async fn ended(mut self) {
        let reading = async { while let Some(Ok(_)) = self.body.frame().await {} };
        tokio::time::timeout(DEADLINE, reading).await.expect("the stream ends");
    }

    /// The kind of the problem, if it is one.
    pub(crate) async fn kind(self) -> Option<String> {
        let media = self.headers.get("content-type").map(|value| value.as_bytes().to_owned());
        if media.as_deref() != Some(b"application/problem+json") {
            return None;
        }
        Some(self.json().await["kind"].as_str().unwrap().to_owned())
    }
}

/// Sends one request over this connection.
pub(crate) async fn send<I>(
    stream: I,
    method: Method,
    path: &str,
    headers: &[(&str, &str)],
    body: &str,
) -> Answer
where
    I: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.unwrap();
    let connection = tokio::spawn(async move {
        let _ = connection.await;
    });
    let mut request = Request::builder().method(method).uri(path);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    if !body.is_empty() {
        request = request.header("content-type", "application/json");
    }
    let request = request.body(Full::new(Bytes::copy_from_slice(body.as_bytes()))).unwrap();
    let answer = sender.send_request(request).await.unwrap();
    let (parts, body) = answer.into_parts();
    let (status, headers) = (parts.status.as_u16(), parts.headers);
    Answer { status, headers, body, _connection: connection }
}

/// Waits until it is so.
pub(crate) async fn eventually<F: Future<Output = bool>>(
    what: &str,
    mut condition: impl FnMut() -> F,
) {
    let start = Instant::now();
    while !condition().await {
        assert!(start.elapsed() < DEADLINE, "not in time: {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// A folder with files that this user alone may read.
pub(crate) struct Folder(TempDir);

impl Folder {
    pub(crate) fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Writes a file in one step, as an editor does.
    pub(crate) fn write(&self, name: &str, text: &str) -> PathBuf {
        let (path, draft) = (self.path(name), self.path("draft"));
        fs::write(&draft, text).unwrap();
        set_mode(&draft, 0o600);
        fs::rename(&draft, &path).unwrap();
        path
    }

    pub(crate) fn read(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap()
    }
}

pub(crate) fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

/// A token, and its line for the file.
pub(crate) fn token(name: &str, scopes: &[&str]) -> NewToken {
    let scopes: Vec<String> = scopes.iter().map(|scope| (*scope).to_owned()).collect();
    NewToken::draw(name, &scopes, None).unwrap()
}

/// With this file of principals.
pub(crate) fn principals(path: PathBuf) -> SecurityOptions {
    let mut options = SecurityOptions::default();
    options.principals = Some(path);
    options
}
