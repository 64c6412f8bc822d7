//! One server, with and without a memory that outlasts it.

use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use servers::{REDIS, REDIS_DURABLE};

use crate::support::{ask, connect, hear, say, say_in_vain, stop_and_look_around};

pub(crate) fn whole_life() -> Result<()> {
    let mut redis = REDIS.start()?;
    let (port, first) = (redis.ports()[0], redis.pids());
    assert_eq!(redis.url(), format!("redis://127.0.0.1:{port}"));

    let mut client = connect(port)?;
    assert_eq!(say(&mut client, "SET colour blue")?, "+OK\r\n");

    redis.freeze()?;
    say_in_vain(&mut client, "GET colour")?;
    redis.thaw()?;
    assert_eq!(hear(&mut client)?, "$4\r\nblue\r\n");

    redis.kill()?;
    assert!(redis.pids().is_empty());
    assert!(connect(port).is_err());
    redis.restart()?;
    assert_eq!(redis.ports(), [port]);
    assert_ne!(redis.pids(), first);
    assert_eq!(ask(port, "GET colour")?, "$-1\r\n", "nothing is kept on disk");

    stop_and_look_around(redis)
}

pub(crate) fn durable() -> Result<()> {
    let mut redis = REDIS_DURABLE.start()?;
    let port = redis.ports()[0];
    assert_eq!(redis.url(), format!("redis://127.0.0.1:{port}"));
    assert_eq!(ask(port, "SET colour blue")?, "+OK\r\n");
    redis.kill()?;
    redis.restart()?;
    assert_eq!(ask(port, "GET colour")?, "$4\r\nblue\r\n");
    redis.stop()?;
    redis.restart()?;
    assert_eq!(ask(port, "GET colour")?, "$4\r\nblue\r\n");
    stop_and_look_around(redis)
}

/// The server's own command and its scripts tell the moved time, at once and after a restart.
pub(crate) fn moved_clock() -> Result<()> {
    let mut redis = REDIS.start_with_clocks()?;
    let port = redis.ports()[0];
    let time = |command: &str| -> Result<i64> {
        let answer = ask(port, command)?;
        answer.lines().find_map(|line| line.parse().ok()).context("no number")
    };
    let ahead = |seconds: i64| -> Result<bool> {
        let in_script = "EVAL \"return {redis.call('TIME')[1]}\" 0";
        let near = (seconds - 30)..=(seconds + 30);
        let right = i64::try_from(SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs())?;
        Ok(near.contains(&(time("TIME")? - right)) && near.contains(&(time(in_script)? - right)))
    };
    assert!(ahead(0)?);
    redis.nodes()[0].set_clock(120)?;
    assert!(ahead(120)?);
    redis.kill()?;
    redis.restart()?;
    assert!(ahead(120)?);
    redis.nodes()[0].set_clock(-120)?;
    assert!(ahead(-120)?);
    let fixed = REDIS.start()?.nodes()[0].set_clock(1);
    assert!(fixed.is_err());
    stop_and_look_around(redis)
}
