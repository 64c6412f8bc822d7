//! A server that a test scripts, for answers that a real one gives only rarely.

use super::{Zookeeper, client::Bytes};
use crate::{
    model::ticket::{Owner, SessionId},
    store::{Open, Store as _, url::StoreUrl},
};
use std::time::Duration;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
};

/// The id of every session that this server grants.
pub(super) const SESSION: i64 = 77;
/// The timeout that it grants, in ms.
pub(super) const TIMEOUT: i32 = 90_000;

/// For how long the script waits for a request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(20);

pub(super) struct Server(TcpListener);

impl Server {
    pub(super) async fn start() -> Self {
        Self(TcpListener::bind("127.0.0.1:0").await.unwrap())
    }

    pub(super) fn url(&self) -> StoreUrl {
        StoreUrl::parse(&format!("zookeeper://{}", self.0.local_addr().unwrap())).unwrap()
    }

    /// A connection whose handshake was read and not answered.
    pub(super) async fn accept_unanswered(&self) -> ClientConnection {
        let accepted = crate::clock::timeout(REQUEST_TIMEOUT, self.0.accept()).await;
        let mut client = ClientConnection(accepted.expect("a client connects").unwrap().0);
        client.frame().await;
        client
    }

    /// A connection whose handshake was answered.
    pub(super) async fn accept(&self, timeout: i32) -> ClientConnection {
        let mut client = self.accept_unanswered().await;
        client.welcome(timeout, SESSION).await;
        client
    }

    /// A store that is connected to this server and has a session there.
    pub(super) async fn store(&self) -> (Zookeeper, SessionId, ClientConnection) {
        let (store, _common) = tokio::join!(Zookeeper::connect(self.url()), self.serve_connect());
        let (store, session) = (store.unwrap(), SessionId::random());
        let (ttl, lock_delay) = (Duration::from_secs(60), Duration::ZERO);
        let open = store.open(Open { session, ttl, lock_delay, owner: Owner::default() });
        let opening = async {
            let mut client = self.accept(TIMEOUT).await;
            let ask = client.expect("data").await;
            client.answer(&ask, &data(b"0000000000000001", 1)).await;
            client
        };
        let (opened, client) = tokio::join!(open, opening);
        opened.unwrap();
        (store, session, client)
    }

    /// The first connection of a store, for what belongs to no session.
    pub(super) async fn common(&self) -> ClientConnection {
        // The client first asks `srvr`.
        drop(self.0.accept().await.unwrap());
        self.accept(TIMEOUT).await
    }

    /// Answers what a store asks when it connects.
    async fn serve_connect(&self) -> ClientConnection {
        let mut common = self.common().await;
        let root = common.expect("data").await;
        let cells = common.expect("exists").await;
        let own = common.expect("ephemerals").await;
        common.answer(&root, &data(b"0000000000000001", 1)).await;
        common.answer(&cells, &stat(1, 0)).await;
        common.answer(&own, &names::<&str>(&[])).await;
        let mut shortest = self.accept(4_000).await;
        let close = shortest.expect("close").await;
        shortest.answer(&close, &[]).await;
        common
    }
}

/// A client's connection.
pub(super) struct ClientConnection(TcpStream);

/// A request of the client.
pub(super) struct Asked {
    xid: [u8; 4],
    pub(super) what: &'static str,
    pub(super) path: String,
}

impl ClientConnection {
    async fn frame(&mut self) -> Vec<u8> {
        let read = async {
            let mut frame = vec![0; self.0.read_u32().await.unwrap() as usize];
            self.0.read_exact(&mut frame).await.unwrap();
            frame
        };
        crate::clock::timeout(REQUEST_TIMEOUT, read).await.expect("the client sends a request")
    }

    pub(super) async fn welcome(&mut self, timeout: i32, session: i64) {
        let mut welcome = Bytes::default();
        welcome.int(0).int(timeout).long(session).buffer(&[7; 16]);
        self.send(&welcome.0).await;
    }

    async fn send(&mut self, body: &[u8]) {
        let mut frame = Bytes::default();
        frame.buffer(body);
        self.0.write_all(&frame.0).await.unwrap();
    }

    async fn asked(&mut self) -> Asked {
        let frame = self.frame().await;
        let (xid, rest) = frame.split_first_chunk::<4>().unwrap();
        let (op, body) = rest.split_first_chunk::<4>().unwrap();
        let text = |body: &[u8]| {
            let (length, rest) = body.split_first_chunk::<4>()?;
            let text = rest.get(..u32::from_be_bytes(*length) as usize)?;
            Some(String::from_utf8_lossy(text).into_owned())
        };
        let path = text(body).unwrap_or_default();
        Asked { xid: *xid, what: name_of(i32::from_be_bytes(*op)), path }
    }

    pub(super) async fn expect(&mut self, what: &str) -> Asked {
        let ask = self.asked().await;
        assert_eq!(ask.what, what, "{}", ask.path);
        ask
    }

    pub(super) async fn answer(&mut self, ask: &Asked, body: &[u8]) {
        self.reply(ask, 0, body).await;
    }

    pub(super) async fn refuse(&mut self, ask: &Asked, code: i32) {
        self.reply(ask, code, &[]).await;
    }

    async fn reply(&mut self, ask: &Asked, code: i32, body: &[u8]) {
        let (zxid, code) = (1_i64.to_be_bytes(), code.to_be_bytes());
        self.send(&[&ask.xid[..], &zxid, &code, body].concat()).await;
    }
}

fn name_of(op: i32) -> &'static str {
    match op {
        2 => "delete",
        3 => "exists",
        4 => "data",
        8 => "list",
        9 => "sync",
        14 => "multi",
        15 => "create",
        19 => "container",
        103 => "ephemerals",
        -11 => "close",
        _ => "something else",
    }
}

fn stat_in(to: &mut Bytes, czxid: i64, owner: i64) {
    to.long(czxid).long(czxid).long(0).long(0).int(0).int(0).int(0);
    to.long(owner).int(0).int(0).long(czxid);
}

pub(super) fn stat(czxid: i64, owner: i64) -> Vec<u8> {
    let mut body = Bytes::default();
    stat_in(&mut body, czxid, owner);
    body.0
}

pub(super) fn data(bytes: &[u8], czxid: i64) -> Vec<u8> {
    let mut body = Bytes::default();
    body.buffer(bytes);
    stat_in(&mut body, czxid, SESSION);
    body.0
}

pub(super) fn created(path: &str, czxid: i64) -> Vec<u8> {
    data(path.as_bytes(), czxid)
}

pub(super) fn names<T: AsRef<str>>(names: &[T]) -> Vec<u8> {
    let mut body = Bytes::default();
    body.int(i32::try_from(names.len()).unwrap());
    for name in names {
        body.text(name.as_ref());
    }
    body.0
}

/// The answer to a `multi` of one check that has found its node.
pub(super) fn checked() -> Vec<u8> {
    let mut body = Bytes::default();
    body.int(13).flag(false).int(0).int(-1).flag(true).int(-1);
    body.0
}
