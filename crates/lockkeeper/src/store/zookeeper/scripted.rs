//! A server that answers as it is told, for what a real one does only once in a long while.

use super::{Zookeeper, wire::Bytes};
use crate::{
    model::ticket::{Owner, SessionId},
    store::{Open, Store as _, url::StoreUrl},
};
use std::time::Duration;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
};

/// The number of every session that this server grants.
pub(super) const SESSION: i64 = 77;
/// What it grants, in ms.
pub(super) const TIMEOUT: i32 = 90_000;

/// For how long a request may be awaited.
const PATIENCE: Duration = Duration::from_secs(20);

pub(super) struct Server(TcpListener);

impl Server {
    pub(super) async fn start() -> Self {
        Self(TcpListener::bind("127.0.0.1:0").await.unwrap())
    }

    pub(super) fn url(&self) -> StoreUrl {
        StoreUrl::parse(&format!("zookeeper://{}", self.0.local_addr().unwrap())).unwrap()
    }

    /// A client that has said hello, and has not been answered.
    pub(super) async fn caller(&self) -> Guest {
        let accepted = tokio::time::timeout(PATIENCE, self.0.accept()).await;
        let mut guest = Guest(accepted.expect("somebody comes").unwrap().0);
        guest.frame().await;
        guest
    }

    /// A client whose hello was answered.
    pub(super) async fn guest(&self, timeout: i32) -> Guest {
        let mut guest = self.caller().await;
        guest.welcome(timeout, SESSION).await;
        guest
    }

    /// A store that is connected to this server and has a session there.
    pub(super) async fn store(&self) -> (Zookeeper, SessionId, Guest) {
        let (store, _common) = tokio::join!(Zookeeper::connect(self.url()), self.be_met());
        let (store, session) = (store.unwrap(), SessionId::random());
        let (ttl, lock_delay) = (Duration::from_secs(60), Duration::ZERO);
        let open = store.open(Open { session, ttl, lock_delay, owner: Owner::default() });
        let greet = async {
            let mut guest = self.guest(TIMEOUT).await;
            let ask = guest.expect("data").await;
            guest.answer(&ask, &data(b"0000000000000001", 1)).await;
            guest
        };
        let (opened, guest) = tokio::join!(open, greet);
        opened.unwrap();
        (store, session, guest)
    }

    /// The first connection of a store, for what belongs to no session.
    pub(super) async fn common(&self) -> Guest {
        // How the server is, by a word of four letters.
        drop(self.0.accept().await.unwrap());
        self.guest(TIMEOUT).await
    }

    /// What every store asks first.
    async fn be_met(&self) -> Guest {
        let mut common = self.common().await;
        let root = common.expect("data").await;
        let cells = common.expect("exists").await;
        let own = common.expect("ephemerals").await;
        common.answer(&root, &data(b"0000000000000001", 1)).await;
        common.answer(&cells, &stat(1, 0)).await;
        common.answer(&own, &names::<&str>(&[])).await;
        let mut shortest = self.guest(4_000).await;
        let close = shortest.expect("close").await;
        shortest.answer(&close, &[]).await;
        common
    }
}

/// A connection of a client.
pub(super) struct Guest(TcpStream);

/// What it asks.
pub(super) struct Ask {
    xid: [u8; 4],
    pub(super) what: &'static str,
    pub(super) path: String,
}

impl Guest {
    async fn frame(&mut self) -> Vec<u8> {
        let read = async {
            let mut frame = vec![0; self.0.read_u32().await.unwrap() as usize];
            self.0.read_exact(&mut frame).await.unwrap();
            frame
        };
        tokio::time::timeout(PATIENCE, read).await.expect("something is asked")
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

    pub(super) async fn ask(&mut self) -> Ask {
        let frame = self.frame().await;
        let (xid, rest) = frame.split_first_chunk::<4>().unwrap();
        let (op, body) = rest.split_first_chunk::<4>().unwrap();
        let text = |body: &[u8]| {
            let (length, rest) = body.split_first_chunk::<4>()?;
            let text = rest.get(..u32::from_be_bytes(*length) as usize)?;
            Some(String::from_utf8_lossy(text).into_owned())
        };
        let path = text(body).unwrap_or_default();
        Ask { xid: *xid, what: word(i32::from_be_bytes(*op)), path }
    }

    pub(super) async fn expect(&mut self, what: &str) -> Ask {
        let ask = self.ask().await;
        assert_eq!(ask.what, what, "{}", ask.path);
        ask
    }

    pub(super) async fn answer(&mut self, ask: &Ask, body: &[u8]) {
        self.reply(ask, 0, body).await;
    }

    pub(super) async fn refuse(&mut self, ask: &Ask, code: i32) {
        self.reply(ask, code, &[]).await;
    }

    async fn reply(&mut self, ask: &Ask, code: i32, body: &[u8]) {
        let (zxid, code) = (1_i64.to_be_bytes(), code.to_be_bytes());
        self.send(&[&ask.xid[..], &zxid, &code, body].concat()).await;
    }
}

fn word(op: i32) -> &'static str {
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

/// A check that found what it looked for.
pub(super) fn checked() -> Vec<u8> {
    let mut body = Bytes::default();
    body.int(13).flag(false).int(0).int(-1).flag(true).int(-1);
    body.0
}
