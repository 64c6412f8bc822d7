//! What the tests of all shapes need: a client, waiting, and a look at what is left.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;
use servers::Running;

/// Longer than any answer takes that comes at all.
const PATIENCE: Duration = Duration::from_secs(30);

/// The time in which a frozen server shows that it does not answer.
const SILENCE: Duration = Duration::from_millis(100);

pub(crate) fn connect(port: u16) -> io::Result<TcpStream> {
    let client = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
    client.set_read_timeout(Some(PATIENCE))?;
    Ok(client)
}

pub(crate) fn say(client: &mut TcpStream, words: &str) -> io::Result<String> {
    client.write_all(format!("{words}\r\n").as_bytes())?;
    hear(client)
}

/// The replies of these tests are so short that they come in one piece.
pub(crate) fn hear(client: &mut TcpStream) -> io::Result<String> {
    let mut reply = [0; 4096];
    let length = client.read(&mut reply)?;
    Ok(String::from_utf8_lossy(&reply[..length]).into_owned())
}

/// Says it on a connection of its own.
pub(crate) fn ask(port: u16, words: &str) -> io::Result<String> {
    say(&mut connect(port)?, words)
}

/// Says it to a frozen server, whose answer can be heard once it goes on.
pub(crate) fn say_in_vain(client: &mut TcpStream, words: &str) -> io::Result<()> {
    client.set_read_timeout(Some(SILENCE))?;
    let silence = say(client, words).unwrap_err();
    assert!(matches!(silence.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut));
    client.set_read_timeout(Some(PATIENCE))
}

pub(crate) fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !condition() {
        assert!(Instant::now() < deadline, "still not so: {what}");
        thread::sleep(Duration::from_millis(10));
    }
}

pub(crate) fn names(running: &mut Running) -> Vec<String> {
    running.nodes().iter().map(|node| node.name().to_owned()).collect()
}

/// Stops it, and makes sure that neither processes nor open ports nor files are left.
pub(crate) fn stop_and_look_around(mut running: Running) -> Result<()> {
    let (pids, ports) = (running.pids(), running.ports().to_vec());
    let folder = running.folder().to_owned();
    assert_eq!(pids.len(), running.nodes().len(), "all are up");
    running.stop()?;
    assert!(pids.iter().all(|pid| !Path::new(&format!("/proc/{pid}")).exists()));
    assert!(ports.iter().all(|port| connect(*port).is_err()));
    drop(running);
    assert!(!folder.exists());
    Ok(())
}
