//! What in a server's set-up can hurt locks, and what to do about it.

use super::{KIND, connection::Connection};
use crate::{
    clock::Clock,
    error::{ErrorKind, StoreError},
    store::{Advice, StoreResult},
};
use redis::Value;
use std::collections::HashMap;

/// The oldest server whose scripts and messages suffice.
const OLDEST: (u32, u32) = (6, 2);
/// The difference between the clocks that is worth a word, in microseconds.
const SKEW_MICROS: u64 = 30_000_000;

/// Refuses a server that is too old, and says what else should be known about it.
pub(super) async fn of(connection: &Connection, clock: &Clock) -> StoreResult<Vec<Advice>> {
    let mut advice = Vec::new();
    let infos = texts(connection.query(&redis::cmd("INFO")).await?);
    for info in &infos {
        let facts = facts(info);
        refuse_old(&facts)?;
        advice.extend([role(&facts), persistence(&facts)].into_iter().flatten());
    }
    advice.dedup();
    // A cluster answers for all its nodes, each with a set-up of its own; the rest is one server's.
    let [info] = &infos[..] else { return Ok(advice) };
    let facts = facts(info);
    // Hosted servers often forbid CONFIG; then only INFO speaks.
    if let Ok(config) = config(connection).await {
        advice.extend([eviction(&config), fsync(&facts, &config)].into_iter().flatten());
    }
    advice.extend(skew(connection, clock).await?);
    Ok(advice)
}

/// The texts in an answer: one from a server, one for each node from a cluster.
fn texts(answer: Value) -> Vec<String> {
    match answer {
        Value::Map(nodes) => nodes.into_iter().flat_map(|(_, text)| texts(text)).collect(),
        Value::VerbatimString { text, .. } | Value::SimpleString(text) => vec![text],
        Value::BulkString(bytes) => vec![String::from_utf8_lossy(&bytes).into_owned()],
        _ => Vec::new(),
    }
}

type Facts<'a> = HashMap<&'a str, &'a str>;

fn facts(info: &str) -> Facts<'_> {
    info.lines().filter_map(|line| line.trim_end().split_once(':')).collect()
}

async fn config(connection: &Connection) -> StoreResult<HashMap<String, String>> {
    let mut get = redis::cmd("CONFIG");
    connection.query(get.arg("GET").arg("maxmemory*").arg("appendfsync")).await
}

fn refuse_old(facts: &Facts<'_>) -> StoreResult<()> {
    let version = facts.get("redis_version").copied().unwrap_or_default();
    let mut numbers = version.split('.').map(|n| n.parse().unwrap_or(0));
    let found = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    if found >= OLDEST {
        return Ok(());
    }
    let what = format!("the server has version {version}; at least 6.2 is needed");
    Err(StoreError::not_applied(KIND, ErrorKind::Misconfigured, what))
}

fn role(facts: &Facts<'_>) -> Option<Advice> {
    (facts.get("role") == Some(&"slave")).then(|| Advice {
        what: "the server is a replica".into(),
        consequence: "it accepts no writes, so no lock can be taken".into(),
        remedy: "connect to the primary, or through redis+sentinel://".into(),
    })
}

fn persistence(facts: &Facts<'_>) -> Option<Advice> {
    (facts.get("aof_enabled") == Some(&"0")).then(|| Advice {
        what: "the server keeps no append-only file".into(),
        consequence: "a restart forgets all locks while their holders live; fences go on from the \
             server's clock, so fenced resources stay safe, others do not"
            .into(),
        remedy: "set appendonly yes and appendfsync always, or check fences everywhere".into(),
    })
}

fn fsync(facts: &Facts<'_>, config: &HashMap<String, String>) -> Option<Advice> {
    let lax = config.get("appendfsync").is_some_and(|f| f != "always");
    (lax && facts.get("aof_enabled") == Some(&"1")).then(|| Advice {
        what: "the append-only file is not synced with every write".into(),
        consequence: "a crash can take back the last second of locks, and more under load".into(),
        remedy: "set appendfsync always, or check fences everywhere".into(),
    })
}

fn eviction(config: &HashMap<String, String>) -> Option<Advice> {
    let limited = config.get("maxmemory").is_some_and(|m| m != "0");
    let policy = config.get("maxmemory-policy").filter(|p| p.as_str() != "noeviction")?;
    limited.then(|| Advice {
        what: format!("the server may evict keys when memory is short ({policy})"),
        consequence: "a lock can vanish while it is held".into(),
        remedy: "set maxmemory-policy noeviction, or give locks a server of their own".into(),
    })
}

async fn skew(connection: &Connection, clock: &Clock) -> StoreResult<Option<Advice>> {
    let (seconds, micros): (u64, u64) = connection.query(&redis::cmd("TIME")).await?;
    let apart = (seconds * 1_000_000 + micros).abs_diff(clock.wall_micros());
    Ok((apart > SKEW_MICROS).then(|| Advice {
        what: format!("the server's clock and ours are {} s apart", apart / 1_000_000),
        consequence: "locks do not mind; fences may fall back if a server whose clock is behind \
             takes over without the latest data"
            .into(),
        remedy: "keep clocks in step (NTP)".into(),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_old_server_is_refused_with_what_is_needed() {
        let e = refuse_old(&facts("redis_version:5.0.7\r\n")).unwrap_err().to_string();
        assert!(e.contains("5.0.7") && e.contains("6.2"), "{e}");
        assert!(refuse_old(&facts("redis_version:6.2.14\r\n")).is_ok());
        assert!(refuse_old(&facts("redis_version:8.0.1\r\n")).is_ok());
    }

    #[test]
    fn each_danger_is_named_and_a_safe_set_up_is_not_nagged() {
        let config = |policy: &str, max: &str, fsync: &str| {
            HashMap::from([
                ("maxmemory-policy".to_owned(), policy.to_owned()),
                ("maxmemory".to_owned(), max.to_owned()),
                ("appendfsync".to_owned(), fsync.to_owned()),
            ])
        };
        assert!(eviction(&config("allkeys-lru", "100mb", "always")).is_some());
        assert!(eviction(&config("allkeys-lru", "0", "always")).is_none());
        assert!(eviction(&config("noeviction", "100mb", "always")).is_none());
        let aof = facts("aof_enabled:1\r\nrole:master\r\n");
        assert!(fsync(&aof, &config("noeviction", "0", "everysec")).is_some());
        assert!(fsync(&aof, &config("noeviction", "0", "always")).is_none());
        assert!(persistence(&aof).is_none() && role(&aof).is_none());
        assert!(role(&facts("role:slave\r\n")).is_some());
    }
}
