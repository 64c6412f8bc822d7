//! Real sockets: HTTP/1.1 and HTTP/2, slow clients, the shutdown, sockets in the file system.

use crate::support::{Api, PATIENCE, fresh};
use lockkeeper_server::{Address, Limits, Listener, Options, serve};
use serde_json::json;
use std::{io, os::unix::fs::PermissionsExt as _, time::Duration};
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpStream, UnixStream},
    task::JoinHandle,
    time::{Instant, sleep, timeout},
};

struct Server {
    api: Api,
    address: Address,
    running: JoinHandle<io::Result<()>>,
}

impl Server {
    async fn start(at: &str, limits: impl Fn(&mut Limits)) -> Self {
        let mut options = Options::default();
        limits(&mut options.limits);
        let api = Api::at(&format!("memory://{}", fresh()), options).await;
        let listener = Listener::bind(&at.parse().unwrap(), 0o600).await.unwrap();
        let address = listener.address().unwrap();
        let running = tokio::spawn(serve(api.service.clone(), vec![listener]));
        Self { api, address, running }
    }

    async fn tcp() -> Self {
        Self::start("127.0.0.1:0", |_| ()).await
    }

    async fn connect(&self) -> TcpStream {
        let Address::Tcp(address) = self.address else { panic!("{} is no TCP", self.address) };
        TcpStream::connect(address).await.unwrap()
    }

    async fn stopped(self) {
        timeout(PATIENCE, self.running).await.expect("it stops").unwrap().unwrap();
    }
}

const LIVEZ: &[u8] = b"GET /livez HTTP/1.1\r\nhost: localhost\r\n\r\n";

/// All that comes until the other side closes.
async fn rest(stream: &mut (impl AsyncRead + Unpin)) -> String {
    let mut text = Vec::new();
    // A reset is an end, too.
    let _ = timeout(PATIENCE, stream.read_to_end(&mut text)).await.expect("the connection ends");
    String::from_utf8_lossy(&text).into_owned()
}

/// One answer without a body that is chunked.
async fn answer(stream: &mut TcpStream) -> String {
    let mut text = Vec::new();
    while !text.ends_with(b"}") {
        let mut byte = [0; 1];
        timeout(PATIENCE, stream.read_exact(&mut byte)).await.expect("an answer").unwrap();
        text.push(byte[0]);
    }
    String::from_utf8(text).unwrap()
}

#[tokio::test]
async fn a_connection_serves_one_request_after_the_other() {
    let server = Server::tcp().await;
    let mut stream = server.connect().await;
    for _ in 0..2 {
        stream.write_all(LIVEZ).await.unwrap();
        assert!(answer(&mut stream).await.starts_with("HTTP/1.1 200 OK\r\n"));
    }
}

#[tokio::test]
async fn a_client_may_speak_http_2_from_the_start() {
    let server = Server::tcp().await;
    let mut stream = server.connect().await;
    // The preface and empty settings; the answer begins with a frame of settings (type 4).
    stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").await.unwrap();
    let mut head = [0; 9];
    timeout(PATIENCE, stream.read_exact(&mut head)).await.expect("an answer").unwrap();
    assert_eq!(head[3], 4);
}

#[tokio::test]
async fn slow_clients_are_cut_off() {
    let short = Duration::from_millis(200);
    let server = Server::start("127.0.0.1:0", |limits| {
        (limits.header_time, limits.body_time) = (short, short);
    });
    let server = server.await;
    let cut = async |request: &'static [u8]| {
        let (mut read, mut write) = server.connect().await.into_split();
        let sending = tokio::spawn(async move {
            for byte in request.iter().cycle() {
                if write.write_all(&[*byte]).await.is_err() {
                    return;
                }
                sleep(Duration::from_millis(20)).await;
            }
        });
        let said = rest(&mut read).await;
        sending.abort();
        said
    };
    // Nothing but letters: never the end of a header. `PRI * HTT`: never clear which version it is.
    for request in [&b"G"[..], b"PRI * HTTP/2.0\r\n\r\nSM"] {
        let said = cut(request).await;
        assert!(said.is_empty() || said.contains(" 408 ") || said.contains(" 400 "), "{said}");
    }
    let mut silent = server.connect().await;
    assert_eq!(rest(&mut silent).await, "");
    let mut stream = server.connect().await;
    let head = b"POST /v1/locks/a HTTP/1.1\r\nhost: localhost\r\ncontent-length: 9\r\n\r\n{";
    stream.write_all(head).await.unwrap();
    assert!(answer(&mut stream).await.contains("\"kind\":\"slow\""));
}

#[tokio::test]
async fn headers_that_are_too_large_are_refused() {
    let server = Server::tcp().await;
    let mut stream = server.connect().await;
    let large =
        format!("GET /livez HTTP/1.1\r\nhost: localhost\r\nx: {}\r\n\r\n", "x".repeat(64 * 1024));
    let _ = stream.write_all(large.as_bytes()).await;
    let said = rest(&mut stream).await;
    assert!(said.is_empty() || said.starts_with("HTTP/1.1 431"), "{said}");
}

#[tokio::test]
async fn a_closed_connection_withdraws_its_ticket() {
    let server = Server::tcp().await;
    let holder = server.api.open().await;
    holder.hold("a").await;
    let mut stream = server.connect().await;
    let body = json!({"wait_ms": 60_000}).to_string();
    let head = "POST /v1/locks/a HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n";
    let request = format!("{head}content-length: {}\r\n\r\n{body}", body.len());
    stream.write_all(request.as_bytes()).await.unwrap();
    server.api.stands("a", 2).await;
    drop(stream);
    server.api.stands("a", 1).await;
}

#[tokio::test]
async fn a_shutdown_answers_long_polls_ends_streams_and_refuses_new_connections() {
    let server = Server::tcp().await;
    let holder = server.api.open().await;
    let taken = holder.hold("a").await;
    let mut waiting = server.connect().await;
    let body = json!({"wait_ms": 60_000}).to_string();
    let head = "POST /v1/locks/a HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n";
    let request = format!("{head}content-length: {}\r\n\r\n{body}", body.len());
    waiting.write_all(request.as_bytes()).await.unwrap();
    let mut stream = server.connect().await;
    stream.write_all(b"GET /v1/events HTTP/1.1\r\nhost: localhost\r\n\r\n").await.unwrap();
    let mut first = [0; 15];
    timeout(PATIENCE, stream.read_exact(&mut first)).await.expect("an answer").unwrap();
    server.api.stands("a", 2).await;
    let (api, address, began) = (server.api.clone(), server.address.clone(), Instant::now());
    api.service.stop();
    let answered = rest(&mut waiting).await;
    assert!(answered.starts_with("HTTP/1.1 503"), "{answered}");
    assert!(answered.contains("retry-after: 0\r\n"), "{answered}");
    rest(&mut stream).await;
    server.stopped().await;
    assert!(began.elapsed() < Limits::default().shutdown_time, "{:?}", began.elapsed());
    let Address::Tcp(address) = address else { panic!("{address} is no TCP") };
    assert!(TcpStream::connect(address).await.is_err());
    assert_eq!(api.tickets("a").await[0]["ticket"], taken["ticket"]);
}

#[tokio::test]
async fn a_socket_in_the_file_system_is_for_this_user_and_replaces_a_dead_one() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("lock.sock");
    let at = format!("unix:{}", path.display());
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    let server = Server::start(&at, |_| ()).await;
    let mode = std::fs::metadata(&path).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let mut stream = UnixStream::connect(&path).await.unwrap();
    stream
        .write_all(b"GET /livez HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
        .await
        .unwrap();
    assert!(rest(&mut stream).await.starts_with("HTTP/1.1 200"));
    let second = Listener::bind(&at.parse().unwrap(), 0o600).await;
    assert_eq!(second.unwrap_err().kind(), io::ErrorKind::AddrInUse);
    server.api.service.stop();
    server.stopped().await;
    assert!(!path.exists());
    std::fs::write(&path, "no socket").unwrap();
    let third = Listener::bind(&at.parse().unwrap(), 0o600).await;
    assert_eq!(third.unwrap_err().kind(), io::ErrorKind::AlreadyExists);
}
