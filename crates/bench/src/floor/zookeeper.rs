//! The floor below the ZooKeeper store: bare requests, written and read by the task that asks.

use crate::{
    benches::handover::{AWAY, Queue},
    child::Child,
    pair::{At, Boxed, Pair, Ready},
};
use anyhow::{Context as _, Result, bail, ensure};
use servers::KAZOO;
use std::{path::Path, process::Command};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

/// What a request does; the numbers are the protocol's.
const DELETE: i32 = 2;
const GET_CHILDREN: i32 = 8;
const CREATE2: i32 = 15;
/// A node that ends with its session, and to whose name the server appends a number.
const EPHEMERAL_SEQUENTIAL: i32 = 3;
const PERSISTENT: i32 = 0;

const FOLDER: &str = "/bare";
/// As long as a ticket's usually is.
const NAME: &str = "/bare/_c_00112233-4455-6677-8899-aabbccddeeff-lock-";
const DATA: [u8; 60] = [b'x'; 60];
/// In ms. The session is never prolonged.
const TIMEOUT: i32 = 600_000;

/// A connection and a session, both of its own.
struct Bare {
    wire: TcpStream,
    xid: i32,
    lists: bool,
}

impl Bare {
    /// Connects to the server of a lockkeeper URL. With `lists`, the folder is listed right behind each
    /// creation, in the same round trip.
    async fn connect(url: &str, lists: bool) -> Result<Self> {
        let host = url.strip_prefix("zookeeper://").context("a URL of ZooKeeper")?;
        let wire = TcpStream::connect(host).await?;
        wire.set_nodelay(true)?;
        let mut bare = Self { wire, xid: 0, lists };
        bare.wire.write_all(&hello()).await?;
        bare.frame().await?;
        let folder = bare.request(CREATE2, &create(FOLDER, PERSISTENT));
        bare.wire.write_all(&folder).await?;
        // It may be there already.
        bare.frame().await?;
        Ok(bare)
    }

    /// A request with its length and the next number.
    fn request(&mut self, op: i32, body: &[u8]) -> Vec<u8> {
        self.xid += 1;
        framed(&[&self.xid.to_be_bytes(), &op.to_be_bytes(), body].concat())
    }

    async fn frame(&mut self) -> Result<Vec<u8>> {
        let length = self.wire.read_u32().await?;
        let mut frame = vec![0; length as usize];
        self.wire.read_exact(&mut frame).await?;
        Ok(frame)
    }

    /// The body of the next answer, which must be a good one.
    async fn answer(&mut self) -> Result<Vec<u8>> {
        let mut frame = self.frame().await?;
        let header = frame.first_chunk::<16>().context("a short answer")?;
        ensure!(header[12..] == [0; 4], "refused: {:?}", &header[12..]);
        Ok(frame.split_off(16))
    }
}

impl Pair for Bare {
    /// Creates a node and deletes it.
    async fn pair(&mut self) -> Result<()> {
        let mut requests = self.request(CREATE2, &create(NAME, EPHEMERAL_SEQUENTIAL));
        if self.lists {
            let mut body = framed(FOLDER.as_bytes());
            body.push(0);
            requests.extend(self.request(GET_CHILDREN, &body));
        }
        self.wire.write_all(&requests).await?;
        let created = self.answer().await?;
        if self.lists {
            self.answer().await?;
        }
        let path = created.get(4..4 + NAME.len() + 10).context("a short path")?;
        let delete = self.request(DELETE, &[&framed(path)[..], &(-1_i32).to_be_bytes()].concat());
        self.wire.write_all(&delete).await?;
        self.answer().await.map(drop)
    }
}

fn hello() -> Vec<u8> {
    let (version, zxid, session, password) = ([0; 4], [0; 8], [0; 8], framed(&[0; 16]));
    framed(&[&version[..], &zxid, &TIMEOUT.to_be_bytes(), &session, &password, &[0]].concat())
}

/// The rights of a node that every client may read, change and delete.
fn create(path: &str, flags: i32) -> Vec<u8> {
    let (one, all) = (1_i32.to_be_bytes(), 31_i32.to_be_bytes());
    let (scheme, id) = (framed(b"world"), framed(b"anyone"));
    let rights = [&one[..], &all, &scheme, &id].concat();
    [&framed(path.as_bytes())[..], &framed(&DATA), &rights, &flags.to_be_bytes()].concat()
}

/// With its length in front of it.
fn framed(bytes: &[u8]) -> Vec<u8> {
    let length = u32::try_from(bytes.len()).expect("short");
    [&length.to_be_bytes(), bytes].concat()
}

pub(crate) fn pair(at: At) -> Boxed<Ready> {
    Box::pin(async move { Ok(Ready::one(Bare::connect(&at.url, false).await?)) })
}

pub(crate) fn pair_with_list(at: At) -> Boxed<Ready> {
    Box::pin(async move { Ok(Ready::one(Bare::connect(&at.url, true).await?)) })
}

/// The hand-overs, in ms, of kazoo's lock.
pub(crate) fn kazoo(queue: &Queue) -> Result<Vec<f64>> {
    if let Some(missing) = servers::install_peers(&[KAZOO]).pop() {
        bail!("{missing}");
    }
    let python = KAZOO.python().context("it was installed a moment ago")?;
    let hosts = queue.url.strip_prefix("zookeeper://").context("a URL of ZooKeeper")?;
    let program = Path::new(env!("CARGO_MANIFEST_DIR")).join("peers/kazoo_line.py");
    let command = |takers: &usize| {
        let mut command = Command::new(&python);
        command.arg(&program).args([hosts, "/kazoo", &takers.to_string()]);
        command.args([queue.hold, AWAY].map(|time| time.as_millis().to_string()));
        command
    };
    queue.among(Child::start_programs(queue.takers.iter().map(command).collect())?)
}
