//! Redis: one server, nothing written to disk.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::{Result, ensure};
use nix::sys::signal::Signal;

use crate::recipe::{Process, Recipe, Site};

/// A single Redis server without persistence.
pub const REDIS: Recipe = Recipe {
    name: "redis",
    packages: &["redis-server"],
    programs: &["redis-server"],
    folders: &[],
    ports: 1,
    stop: Signal::SIGTERM,
    ready_within: Duration::from_secs(60),
    processes: |site| Ok(vec![node("redis", site, site.ports[0])]),
    url: |site| format!("redis://127.0.0.1:{}", site.ports[0]),
};

fn node(name: &str, site: &Site, port: u16) -> Process {
    let mut args = vec!["--port".into(), port.to_string().into()];
    args.extend(["--dir".into(), site.folder.clone().into_os_string()]);
    args.extend(["--bind", "127.0.0.1", "--save", "", "--appendonly", "no"].map(Into::into));
    Process {
        name: name.to_owned(),
        program: "redis-server",
        args,
        ready: Box::new(move || answers_ping(port)),
    }
}

fn answers_ping(port: u16) -> Result<()> {
    let patience = Duration::from_secs(1);
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let mut stream = TcpStream::connect_timeout(&address, patience)?;
    stream.set_read_timeout(Some(patience))?;
    stream.set_write_timeout(Some(patience))?;
    stream.write_all(b"PING\r\n")?;
    let mut answer = [0; 7];
    stream.read_exact(&mut answer)?;
    ensure!(&answer == b"+PONG\r\n", "PING was answered with {}", answer.escape_ascii());
    Ok(())
}
