//! A real Redis through all that can happen to it.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use libtest_mimic::{Arguments, Trial};
use servers::{REDIS, Require, Unavailable, install_missing};

const NAME: &str = "redis_is_frozen_thawed_killed_restarted_and_stopped";

/// Without the usual harness, which has no way to say at run time that a test could not be run.
fn main() -> ExitCode {
    let arguments = Arguments::from_args();
    let trial = match install_missing(&[REDIS]).pop() {
        None => Trial::test(NAME, || Ok(whole_life()?)),
        Some(missing) => failure_or_ignored(missing),
    };
    libtest_mimic::run(&arguments, vec![trial]).exit_code()
}

fn failure_or_ignored(missing: Unavailable) -> Trial {
    let required = Require::from_env().wants(missing.store);
    if !required {
        eprintln!("ignored, {missing}");
    }
    Trial::test(NAME, move || Err(missing.into())).with_ignored_flag(!required)
}

fn whole_life() -> Result<()> {
    let mut redis = REDIS.start()?;
    let (port, first) = (redis.ports()[0], redis.pids());
    assert_eq!(redis.url(), format!("redis://127.0.0.1:{port}"));

    let mut client = connect(port)?;
    assert_eq!(say(&mut client, "SET colour blue")?, "+OK\r\n");

    redis.freeze()?;
    client.set_read_timeout(Some(Duration::from_millis(100)))?;
    let silence = say(&mut client, "GET colour").unwrap_err();
    assert!(matches!(silence.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut));
    redis.thaw()?;
    client.set_read_timeout(Some(Duration::from_secs(30)))?;
    assert_eq!(hear(&mut client)?, "$4\r\nblue\r\n");

    redis.kill()?;
    assert!(redis.pids().is_empty());
    assert!(connect(port).is_err());
    redis.restart()?;
    assert_eq!(redis.ports(), [port]);
    assert_ne!(redis.pids(), first);
    let mut client = connect(port)?;
    assert_eq!(say(&mut client, "GET colour")?, "$-1\r\n", "nothing is kept on disk");

    let (last, folder) = (redis.pids(), redis.folder().to_owned());
    redis.stop()?;
    assert!(connect(port).is_err());
    assert!(!Path::new(&format!("/proc/{}", last[0])).exists());
    drop(redis);
    assert!(!folder.exists());
    Ok(())
}

fn connect(port: u16) -> io::Result<TcpStream> {
    TcpStream::connect((Ipv4Addr::LOCALHOST, port))
}

fn say(client: &mut TcpStream, words: &str) -> io::Result<String> {
    client.write_all(format!("{words}\r\n").as_bytes())?;
    hear(client)
}

/// The replies of this test are so short that they come in one piece.
fn hear(client: &mut TcpStream) -> io::Result<String> {
    let mut reply = [0; 64];
    let length = client.read(&mut reply)?;
    Ok(String::from_utf8_lossy(&reply[..length]).into_owned())
}
