//! A service in this process, and a client that speaks HTTP/1.1 over TCP.

use lockkeeper::{Keeper, store::AnyStore};
use lockkeeper_server::{Address, Listener, Options, Service, serve};
use serde_json::Value;
use std::{
    net::SocketAddr,
    sync::Arc,
    sync::atomic::{AtomicU32, Ordering},
    time::Duration,
};
use tempfile::TempDir;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    task::JoinHandle,
    time::{Instant, timeout},
};

/// For what must happen; never waited for in vain.
const PATIENCE: Duration = Duration::from_secs(30);

/// A service that runs. Its store goes with it.
#[derive(Clone)]
pub(crate) struct Running(Arc<Inner>);

struct Inner {
    url: String,
    address: SocketAddr,
    service: Service,
    serving: tokio::sync::Mutex<Option<JoinHandle<()>>>,
    /// Keeps the connection to the store.
    keeper: Keeper,
    _folder: TempDir,
}

impl Running {
    pub(crate) async fn on(store: &str) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let folder = TempDir::new().unwrap();
        let url = match store {
            "memory" => format!("memory://events-{}", NEXT.fetch_add(1, Ordering::Relaxed)),
            _ => format!("sqlite:{}", folder.path().join("locks.db").display()),
        };
        let keeper = Keeper::connect(&url).await.unwrap();
        let store: AnyStore = keeper.store().clone();
        let service = Service::new(store, Options::default());
        let any: Address = "127.0.0.1:0".parse().unwrap();
        let listener = Listener::bind(&any, 0o600).await.unwrap();
        let Address::Tcp(address) = listener.address().unwrap() else { panic!("no TCP") };
        let serving = serve(service.clone(), vec![listener]);
        let serving = tokio::spawn(async move { serving.await.unwrap() });
        let serving = tokio::sync::Mutex::new(Some(serving));
        Self(Arc::new(Inner { url, address, service, serving, keeper, _folder: folder }))
    }

    /// Another program on the same store.
    pub(crate) async fn other_client(&self) -> Keeper {
        Keeper::connect(&self.0.url).await.unwrap()
    }

    pub(crate) async fn stop(&self) {
        self.0.service.stop();
        if let Some(serving) = self.0.serving.lock().await.take() {
            timeout(PATIENCE, serving).await.expect("the service ends").unwrap();
        }
        self.0.keeper.close().await;
    }

    pub(crate) async fn send(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &Value,
    ) -> Answered {
        let mut stream = TcpStream::connect(self.0.address).await.unwrap();
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let mut head =
            format!("{method} {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n");
        for (name, value) in headers {
            head += &format!("{name}: {value}\r\n");
        }
        if !body.is_empty() {
            head +=
                &format!("content-type: application/json\r\ncontent-length: {}\r\n", body.len());
        }
        stream.write_all(format!("{head}\r\n{body}").as_bytes()).await.unwrap();
        let mut answer = Vec::new();
        let reading = stream.read_to_end(&mut answer);
        timeout(PATIENCE * 2, reading).await.expect("an answer").unwrap();
        let answer = String::from_utf8(answer).unwrap();
        let (head, text) = answer.split_once("\r\n\r\n").expect("headers");
        Answered { head: head.to_owned(), text: text.to_owned() }
    }

    pub(crate) async fn get(&self, path: &str) -> Answered {
        self.send("GET", path, &[], &Value::Null).await
    }

    /// The same for a task of its own.
    pub(crate) async fn get_owned(self, path: String) -> Answered {
        self.get(&path).await
    }

    pub(crate) async fn post(
        &self,
        path: &str,
        headers: &[(&str, &str)],
        body: &Value,
    ) -> Answered {
        self.send("POST", path, headers, body).await
    }

    /// A metric without labels; 0 if it is not there yet.
    pub(crate) async fn figure(&self, name: &str) -> f64 {
        let text = self.get("/metrics").await.text;
        let mut figures = text.lines().filter_map(|line| line.split_once(' '));
        figures.find(|(found, _)| *found == name).map_or(0.0, |(_, value)| value.parse().unwrap())
    }

    /// Waits until this is so.
    pub(crate) async fn until(&self, what: &str, mut is_so: impl AsyncFnMut(&Self) -> bool) {
        let deadline = Instant::now() + PATIENCE;
        while !is_so(self).await {
            assert!(Instant::now() < deadline, "in vain: {what}");
            tokio::task::yield_now().await;
        }
    }
}

/// An answer.
pub(crate) struct Answered {
    /// The status line and the headers.
    pub(crate) head: String,
    pub(crate) text: String,
}

impl Answered {
    /// The JSON of an answer that must have this status.
    #[track_caller]
    pub(crate) fn expect(&self, status: u16) -> Value {
        let first = self.head.lines().next().unwrap_or_default();
        assert!(first.contains(&format!(" {status} ")), "{first}: {}", self.text);
        serde_json::from_str(&self.text).unwrap_or(Value::Null)
    }
}

/// A viewer of a stream of server-sent events.
pub(crate) struct Viewer {
    stream: TcpStream,
    pub(crate) head: String,
    /// Bytes of chunks that are not whole yet.
    raw: Vec<u8>,
    /// Text of messages that are not whole yet.
    text: String,
    /// All that was read.
    pub(crate) seen: String,
    pub(crate) last_id: String,
}

impl Viewer {
    pub(crate) async fn open(service: &Running, path: &str, last_id: Option<&str>) -> Self {
        let mut stream = TcpStream::connect(service.0.address).await.unwrap();
        let last = last_id.map(|id| format!("last-event-id: {id}\r\n")).unwrap_or_default();
        let head = format!("GET {path} HTTP/1.1\r\nhost: localhost\r\n{last}\r\n");
        stream.write_all(head.as_bytes()).await.unwrap();
        let mut viewer = Self {
            stream,
            head: String::new(),
            raw: Vec::new(),
            text: String::new(),
            seen: String::new(),
            last_id: String::new(),
        };
        loop {
            if let Some(end) = viewer.raw.windows(4).position(|four| four == b"\r\n\r\n") {
                let rest = viewer.raw.split_off(end + 4);
                viewer.head = String::from_utf8(std::mem::replace(&mut viewer.raw, rest)).unwrap();
                break;
            }
            assert!(viewer.read().await, "the connection has ended");
        }
        assert!(viewer.head.starts_with("HTTP/1.1 200 "), "{}", viewer.head);
        viewer
    }

    /// The next message with data.
    pub(crate) async fn event(&mut self) -> Value {
        loop {
            while let Some(end) = self.text.find("\n\n") {
                let rest = self.text.split_off(end + 2);
                let message = std::mem::replace(&mut self.text, rest);
                if let Some(event) = self.message(&message) {
                    return event;
                }
            }
            assert!(self.more().await, "the stream has ended; seen:\n{}", self.seen);
        }
    }

    fn message(&mut self, message: &str) -> Option<Value> {
        let fields = message.lines().filter_map(|line| line.split_once(": "));
        let field = |wanted: &str| fields.clone().find(|(name, _)| *name == wanted);
        if let Some((_, id)) = field("id") {
            id.clone_into(&mut self.last_id);
        }
        let event: Value = serde_json::from_str(field("data")?.1).expect("JSON");
        assert_eq!(event["type"], field("event").expect("a type").1);
        Some(event)
    }

    /// Does the stream end, without another message?
    pub(crate) async fn is_over(&mut self) -> bool {
        while self.more().await {}
        self.text.is_empty()
    }

    /// Reads another chunk; `false` at the end.
    async fn more(&mut self) -> bool {
        loop {
            if let Some((data, rest)) = chunk(&self.raw) {
                let (text, rest) = (String::from_utf8(data.to_vec()).unwrap(), rest.to_vec());
                self.raw = rest;
                self.seen += &text;
                self.text += &text;
                return !text.is_empty();
            }
            if !self.read().await {
                return false;
            }
        }
    }

    async fn read(&mut self) -> bool {
        let mut buffer = [0; 4096];
        let reading = self.stream.read(&mut buffer);
        let read = timeout(PATIENCE, reading).await.unwrap_or_else(|_| {
            panic!("no news for {PATIENCE:?}; seen:\n{}", self.seen);
        });
        let count = read.unwrap_or(0);
        self.raw.extend_from_slice(&buffer[..count]);
        count > 0
    }
}

/// The first chunk of a chunked body, and what is behind it.
fn chunk(raw: &[u8]) -> Option<(&[u8], &[u8])> {
    let end = raw.windows(2).position(|two| two == b"\r\n")?;
    let size = usize::from_str_radix(std::str::from_utf8(&raw[..end]).ok()?, 16).ok()?;
    let body = &raw[end + 2..];
    (body.len() >= size + 2).then(|| (&body[..size], &body[size + 2..]))
}
