//! One server, with and without a memory that outlasts it.

use anyhow::Result;
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
