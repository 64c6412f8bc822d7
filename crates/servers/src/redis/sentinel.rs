//! A Redis with a replica, and sentinels that make the replica the primary when it must be.

use anyhow::{Result, bail, ensure};

use super::resp::{Reply, ask};
use super::{REDIS, hosts, process, server};
use crate::recipe::{Process, Recipe, Sandbox};

/// The name under which the sentinels know the primary.
const SERVICE: &str = "mymaster";

/// How many of the three sentinels must agree that the primary is down.
const QUORUM: usize = 2;

/// What the sentinels are told about their patience, in milliseconds.
const SETTINGS: [(&str, &str); 2] =
    [("down-after-milliseconds", "2000"), ("failover-timeout", "5000")];

/// What primary and replica have in common, as each may take the other's place.
///
/// The replica gets its first copy at once, not after the usual five seconds, and leaves no file
/// behind from which it could load old data later; and no server waits long for another one that
/// may be frozen before it stops.
const PAIR: &str = "repl-diskless-sync-delay 0\nrdb-del-sync-files yes\nshutdown-timeout 1\n";

/// A primary, its replica and three sentinels with the service name `mymaster`, without
/// persistence.
///
/// Its nodes are `primary`, `replica`, `sentinel-1`, `sentinel-2` and `sentinel-3`, and its ports
/// have the same order. A name stays with its node when the roles have changed, and the URL names
/// only the sentinels.
///
/// They hold a server for down after two seconds. A sentinel that was frozen for more than two
/// seconds trusts no clock for the next thirty and starts no change of roles in that time.
pub const REDIS_SENTINEL: Recipe = Recipe {
    name: "redis-sentinel",
    ports: 5,
    processes,
    form: Some(form),
    url: |sandbox| format!("redis+sentinel://{}/{SERVICE}", hosts(&sandbox.ports[2..])),
    ..REDIS
};

fn processes(sandbox: &Sandbox) -> Result<Vec<Process>> {
    let [primary, replica, sentinels @ ..] = &sandbox.ports[..] else { bail!("too few ports") };
    let copying = format!("{PAIR}replicaof 127.0.0.1 {primary}\n");
    let mut processes = vec![
        server(sandbox, "primary", *primary, PAIR)?,
        server(sandbox, "replica", *replica, &copying)?,
    ];
    for (number, port) in (1..).zip(sentinels) {
        let mut sentinel = process(sandbox, &format!("sentinel-{number}"), *port, "")?;
        sentinel.args.push("--sentinel".into());
        processes.push(sentinel);
    }
    Ok(processes)
}

/// The sentinels are told what to watch only when there is a sound pair. If it were in their files
/// from the beginning, they could take a slow start for a failure and change the roles.
fn form(sandbox: &Sandbox) -> Result<()> {
    let [one, other, sentinels @ ..] = &sandbox.ports[..] else { bail!("too few ports") };
    let primary = primary_of(*one, *other)?;
    // All of them before the first is asked, since they find each other only then.
    sentinels.iter().try_for_each(|port| watch(*port, primary))?;
    sentinels.iter().try_for_each(|port| sees_all(*port, primary))
}

/// The port of the primary, if the other one is its replica and in touch with it.
fn primary_of(one: u16, other: u16) -> Result<u16> {
    let ask_role = |port| ask(port, "INFO replication");
    let (first, second) = (ask_role(one)?, ask_role(other)?);
    let (port, primary, replica) = match (first.field("role"), second.field("role")) {
        ("master", "slave") => (one, first, second),
        ("slave", "master") => (other, second, first),
        roles => bail!("the two servers have the roles {roles:?}"),
    };
    ensure!(replica.field("master_link_status") == "up", "the replica has no link");
    ensure!(replica.field("master_port") == port.to_string(), "the replica follows a stranger");
    ensure!(primary.field("connected_slaves") == "1", "the primary has no replica");
    Ok(port)
}

/// Tells a sentinel about the primary, as far as it does not know yet.
fn watch(sentinel: u16, primary: u16) -> Result<()> {
    let known = ask(sentinel, "SENTINEL MASTERS")?;
    if known.parts().is_empty() {
        ask(sentinel, &format!("SENTINEL MONITOR {SERVICE} 127.0.0.1 {primary} {QUORUM}"))?;
    }
    let known = ask(sentinel, &format!("SENTINEL MASTER {SERVICE}"))?;
    for (name, value) in SETTINGS {
        if known.field(name) != value {
            ask(sentinel, &format!("SENTINEL SET {SERVICE} {name} {value}"))?;
        }
    }
    Ok(())
}

/// Whether a sentinel is in touch with the primary, with its replica and with the other sentinels.
fn sees_all(sentinel: u16, primary: u16) -> Result<()> {
    let seen = ask(sentinel, &format!("SENTINEL MASTER {SERVICE}"))?;
    ensure!(seen.field("port") == primary.to_string(), "a sentinel names another primary");
    is_sound(&seen, "master")?;
    let replicas = ask(sentinel, &format!("SENTINEL REPLICAS {SERVICE}"))?;
    let [replica] = replicas.parts() else { bail!("a sentinel does not know one replica") };
    is_sound(replica, "slave")?;
    ensure!(replica.field("master-link-status") == "ok", "a sentinel sees no link of the replica");
    let others = ask(sentinel, &format!("SENTINEL SENTINELS {SERVICE}"))?;
    ensure!(others.parts().len() == 2, "a sentinel does not know both others");
    others.parts().iter().try_for_each(|other| is_sound(other, "sentinel"))
}

/// Whether the flags name nothing but the kind: all others tell of trouble or of being in between.
fn is_sound(instance: &Reply, kind: &str) -> Result<()> {
    let flags = instance.field("flags");
    ensure!(flags == kind, "a sentinel sees {flags} at port {}", instance.field("port"));
    Ok(())
}
