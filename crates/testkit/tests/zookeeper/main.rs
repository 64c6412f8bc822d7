//! What only a real ZooKeeper server can show.

mod cost;
mod data;
mod interop;
mod raw;
mod session;
mod tls;

use lockkeeper::{Guard, Keeper};
use servers::{FaultProxy, Running};
use std::{
    io::{Read as _, Write as _},
    net::{Ipv4Addr, TcpStream},
    process::ExitCode,
    time::Duration,
};
use testkit::{trials, world::until_length};
use tokio::task::JoinHandle;

fn main() -> ExitCode {
    trials::main([
        cost::tests(),
        data::tests(),
        interop::tests(),
        raw::tests(),
        session::tests(),
        tls::tests(),
    ])
}

const TTL: Duration = Duration::from_secs(20);

/// With this one no renewal falls into a test.
const LONG: Duration = Duration::from_secs(600);

async fn keeper_at(url: &str, ttl: Duration) -> Keeper {
    Keeper::builder().ttl(ttl).connect(url).await.expect("the server answers")
}

async fn keeper(server: &Running) -> Keeper {
    keeper_at(server.url(), TTL).await
}

/// What the server says of itself, beside its protocol.
fn says(server: &Running, word: &str) -> String {
    let mut stream =
        TcpStream::connect((Ipv4Addr::LOCALHOST, server.ports()[0])).expect("a connection");
    stream.write_all(word.as_bytes()).expect("sent");
    let mut text = String::new();
    stream.read_to_string(&mut text).expect("an answer");
    text
}

fn told(server: &Running, word: &str, field: &str) -> u64 {
    let text = says(server, word);
    let value = text.lines().find_map(|line| line.strip_prefix(field));
    value.expect("a field").trim().parse().expect("a number")
}

/// A keeper that reaches the server through a proxy, and one that sees all.
async fn through_a_proxy(server: &Running) -> (FaultProxy, Keeper, Keeper) {
    let proxy = FaultProxy::to(server.ports()[0]).expect("a proxy");
    let url = format!("zookeeper://127.0.0.1:{}", proxy.port());
    let (there, witness) = (keeper_at(&url, LONG).await, keeper(server).await);
    // The session is open, and the node of the line is made.
    there.lock("a").await.expect("free").release().await.expect("released");
    (proxy, there, witness)
}

async fn begun(keeper: &Keeper, witness: &Keeper) -> JoinHandle<lockkeeper::Result<Guard>> {
    let lock = tokio::spawn(keeper.lock("a").into_future());
    until_length(witness.store(), "a", 1).await;
    lock
}
