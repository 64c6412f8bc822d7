//! Redis, version 7 or newer, in all its shapes.
//!
//! Every process has a folder of its own below the sandbox's, with its configuration file in it. A
//! file rather than arguments, because that is where a server writes down a role it has been given
//! later, and where it finds it again after a restart.

mod cluster;
mod resp;
mod sentinel;
mod tls;

use std::fs;
use std::time::Duration;

use anyhow::{Result, ensure};
use nix::sys::signal::Signal;

use crate::recipe::{Process, Recipe, Sandbox};
use crate::root::NEWEST;

pub use cluster::REDIS_CLUSTER;
pub use sentinel::REDIS_SENTINEL;
pub use tls::{REDIS_RIGHTS, REDIS_TLS};

/// A single Redis server without persistence.
///
/// Its only node is `redis`.
pub const REDIS: Recipe = Recipe {
    name: "redis",
    packages: &["redis-server"],
    programs: &["redis-server"],
    folders: &[],
    root: None,
    newest: Some(NEWEST),
    ports: 1,
    stop: Signal::SIGTERM,
    ready_within: Duration::from_secs(60),
    processes: |sandbox| Ok(vec![server(sandbox, "redis", sandbox.ports[0], "")?]),
    form: None,
    url: |sandbox| format!("redis://{}", hosts(&sandbox.ports)),
};

/// A single Redis server that has every write on disk before it answers.
///
/// Its only node is `redis`.
pub const REDIS_DURABLE: Recipe = Recipe {
    name: "redis-durable",
    processes: |sandbox| {
        let settings = "appendonly yes\nappendfsync always\n";
        Ok(vec![server(sandbox, "redis", sandbox.ports[0], settings)?])
    },
    ..REDIS
};

/// A single Valkey server without persistence.
///
/// Its only node is `valkey`.
pub const VALKEY: Recipe = Recipe {
    name: "valkey",
    packages: &["valkey-server"],
    programs: &["valkey-server"],
    root: Some(NEWEST),
    newest: None,
    processes: |sandbox| {
        let server = server(sandbox, "valkey", sandbox.ports[0], "")?;
        Ok(vec![Process { program: "valkey-server", ..server }])
    },
    ..REDIS
};

/// Five Redis servers that know nothing of each other and keep nothing on disk.
///
/// Its nodes are `redis-1` to `redis-5`, in the order of the ports and of the URL.
pub const REDLOCK: Recipe = Recipe {
    name: "redlock",
    ports: 5,
    processes: |sandbox| {
        let numbered = (1..).zip(&sandbox.ports);
        numbered
            .map(|(number, port)| server(sandbox, &format!("redis-{number}"), *port, ""))
            .collect()
    },
    url: |sandbox| format!("redlock://{}", hosts(&sandbox.ports)),
    ..REDIS
};

/// A server that keeps nothing on disk, unless the settings (lines of its configuration file) say
/// otherwise.
fn server(sandbox: &Sandbox, name: &str, port: u16, settings: &str) -> Result<Process> {
    process(sandbox, name, port, &format!("save \"\"\n{settings}"))
}

/// A `redis-server` of its own folder and port, whatever it is going to be.
///
/// Paths are relative to the sandbox's folder, where processes are started: what lies above it may
/// have a name that would have to be quoted.
fn process(sandbox: &Sandbox, name: &str, port: u16, settings: &str) -> Result<Process> {
    let file = format!("{name}/redis.conf");
    fs::create_dir(sandbox.folder.join(name))?;
    let text = format!("bind 127.0.0.1\nport {port}\ndir {name}\n{settings}");
    fs::write(sandbox.folder.join(&file), text)?;
    Ok(Process {
        name: name.to_owned(),
        program: "redis-server",
        args: vec![file.into()],
        env: Vec::new(),
        user: None,
        ready: Box::new(move || answers_ping(port)),
    })
}

fn answers_ping(port: u16) -> Result<()> {
    let answer = resp::ask(port, "PING")?;
    ensure!(answer.text() == "PONG", "PING was answered with {answer:?}");
    Ok(())
}

/// Local addresses as they stand in a URL.
fn hosts(ports: &[u16]) -> String {
    let hosts: Vec<String> = ports.iter().map(|port| format!("127.0.0.1:{port}")).collect();
    hosts.join(",")
}
