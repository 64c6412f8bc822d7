//! What only a real etcd can show: how many requests a lock costs, and how its own clients and ours
//! stand in one line.

mod clients;
mod cost;
mod edge_cases;
mod history;
mod interop;
mod network;
mod newer;
mod raw;
mod slots;

use lockkeeper::Keeper;
use serde_json::Value;
use servers::Running;
use std::{
    io::{Read as _, Write as _},
    net::{Ipv4Addr, TcpStream},
    process::ExitCode,
    time::Duration,
};
use testkit::{trials, world::eventually};

fn main() -> ExitCode {
    trials::main([
        clients::tests(),
        cost::tests(),
        edge_cases::tests(),
        history::tests(),
        interop::tests(),
        network::tests(),
        newer::tests(),
        raw::tests(),
        slots::tests(),
    ])
}

async fn keeper(server: &Running) -> Keeper {
    Keeper::builder()
        .ttl(Duration::from_secs(30))
        .connect(server.url())
        .await
        .expect("the server answers")
}

async fn until_length(keeper: &Keeper, name: &str, wanted: usize) {
    eventually(&format!("{wanted} stand in the line"), async || {
        let line = keeper.get(name).await.expect("a look");
        line.map_or(0, |line| line.tickets.len()) == wanted
    })
    .await;
}

/// Asks the server something beside the library, by its gateway for JSON.
fn ask(server: &Running, path: &str, body: &Value) -> Value {
    let mut member =
        TcpStream::connect((Ipv4Addr::LOCALHOST, server.ports()[0])).expect("it is up");
    let body = body.to_string();
    let length = body.len();
    let head = format!("POST {path} HTTP/1.0\r\nContent-Length: {length}\r\n\r\n");
    member.write_all((head + &body).as_bytes()).expect("it listens");
    let mut text = String::new();
    member.read_to_string(&mut text).expect("it answers");
    let (_, answer) = text.split_once("\r\n\r\n").expect("an answer");
    serde_json::from_str(answer).expect("JSON")
}

/// The revision of the server's data.
fn revision(server: &Running) -> u64 {
    let answer = ask(server, "/v3/kv/range", &serde_json::json!({ "key": "eA==" }));
    answer["header"]["revision"].as_str().expect("a revision").parse().expect("a number")
}
