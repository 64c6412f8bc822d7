//! Three nodes that share the keys.

use anyhow::{Context, Result};
use servers::{Detached, REDIS_CLUSTER};
use tempfile::tempdir;

use crate::support::{ask, connect, hear, names, say_in_vain, stop_and_look_around, wait_until};

/// Keys of the slots 5061, 9995 and 12182, so one of each node.
const KEYS: [&str; 3] = ["bar", "qux", "foo"];

pub(crate) fn parts() -> Result<()> {
    let mut cluster = REDIS_CLUSTER.start()?;
    let ports = cluster.ports()[..3].to_vec();
    let hosts: Vec<String> = ports.iter().map(|port| format!("127.0.0.1:{port}")).collect();
    assert_eq!(cluster.url(), format!("redis+cluster://{}", hosts.join(",")));
    assert_eq!(names(&mut cluster), ["redis-1", "redis-2", "redis-3"]);

    for (key, host) in KEYS.iter().zip(&hosts) {
        for (port, asked) in ports.iter().zip(&hosts) {
            let reply = ask(*port, &format!("SET {key} blue"))?;
            let moved = reply.starts_with("-MOVED") && reply.ends_with(&format!(" {host}\r\n"));
            assert!(if host == asked { reply == "+OK\r\n" } else { moved }, "{reply}");
        }
    }

    let mut client = connect(ports[1])?;
    cluster.nodes()[1].freeze()?;
    say_in_vain(&mut client, "PING")?;
    cluster.nodes()[1].thaw()?;
    assert_eq!(hear(&mut client)?, "+PONG\r\n");

    cluster.nodes()[2].kill()?;
    assert!(connect(ports[2]).is_err());
    wait_until("the others miss the third", || {
        ports[..2].iter().all(|port| state(*port).is_ok_and(|state| state == "fail"))
    });
    cluster.restart()?;
    assert!(ports.iter().all(|port| state(*port).is_ok_and(|state| state == "ok")));
    assert_eq!(ask(ports[0], "GET bar")?, "$4\r\nblue\r\n");
    assert_eq!(ask(ports[2], "GET foo")?, "$-1\r\n", "nothing is kept on disk");

    stop_and_look_around(cluster)
}

pub(crate) fn power_cut() -> Result<()> {
    let mut cluster = REDIS_CLUSTER.start()?;
    let before = myself(cluster.ports()[1])?;
    cluster.kill()?;
    assert!(cluster.pids().is_empty());
    cluster.restart()?;
    assert_eq!(myself(cluster.ports()[1])?, before, "the same node as before");
    assert_eq!(ask(cluster.ports()[2], "SET foo blue")?, "+OK\r\n");
    stop_and_look_around(cluster)
}

/// Nothing here may fail between the start and the stop, or it would be left behind.
pub(crate) fn detached() -> Result<()> {
    let scratch = tempdir()?;
    let folder = scratch.path().join("a folder with spaces");
    let started = REDIS_CLUSTER.start_detached(&folder)?;
    let found = Detached::load(&folder);
    let up: Vec<bool> = started.processes.iter().map(|process| process.is_up()).collect();
    let state = state(started.ports[0]);
    started.stop(REDIS_CLUSTER.stop)?;
    assert!(!started.is_up());
    assert_eq!(found?, Some(started));
    assert_eq!((up, state?.as_str()), (vec![true; 3], "ok"));
    Ok(())
}

fn state(port: u16) -> Result<String> {
    let info = ask(port, "CLUSTER INFO")?;
    let state = info.lines().find_map(|line| line.strip_prefix("cluster_state:"));
    Ok(state.context("no state")?.to_owned())
}

fn myself(port: u16) -> Result<String> {
    Ok(ask(port, "CLUSTER MYID")?)
}
