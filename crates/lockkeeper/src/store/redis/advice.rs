//! What in a server's set-up can hurt locks, and what to do about it.

use super::{KIND, connection::Connection};
use crate::{
    clock::Clock,
    error::{ErrorKind, StoreError},
    store::{Advice, Severity, StoreResult, common::advice::Findings},
};
use redis::Value;
use std::collections::HashMap;

/// The oldest server whose scripts and messages suffice.
const OLDEST: (u32, u32) = (6, 2);

/// Refuses a server that is too old.
pub(super) async fn refuse(connection: &Connection) -> StoreResult<()> {
    let infos = texts(connection.query(redis::cmd("INFO").arg("server")).await?);
    infos.iter().try_for_each(|info| refuse_old(&facts(info)))
}

/// What users of this server, or of this cluster, should know.
pub(super) async fn of(connection: &Connection, clock: &Clock) -> StoreResult<Vec<Advice>> {
    let infos = infos(connection).await?;
    let (mut findings, clustered) = (Findings::default(), connection.is_cluster());
    // A cluster answers for all its nodes, each with a set-up of its own.
    for info in &infos {
        let facts = facts(info);
        judge_memory(&mut findings, &facts);
        judge_persistence(&mut findings, &facts);
        if !clustered {
            judge_replication(&mut findings, &facts);
        }
    }
    judge_cluster(&mut findings, clustered);
    if let ([info], false) = (&infos[..], clustered) {
        judge_fsync(&mut findings, &facts(info), appendfsync(connection).await.as_deref());
        let (seconds, micros): (i64, i64) = connection.query(&redis::cmd("TIME")).await?;
        findings.compare_clocks(
            seconds * 1_000_000 + micros,
            clock,
            "locks do not mind; fences may fall back if a server whose clock is behind takes over without \
             the latest data",
        );
    }
    Ok(findings.without_repeats())
}

/// What one server says of itself, or each node of a cluster.
pub(in crate::store) async fn infos(connection: &Connection) -> StoreResult<Vec<String>> {
    Ok(texts(connection.query(&redis::cmd("INFO")).await?))
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

pub(in crate::store) type Facts<'a> = HashMap<&'a str, &'a str>;

pub(in crate::store) fn facts(info: &str) -> Facts<'_> {
    info.lines().filter_map(|line| line.trim_end().split_once(':')).collect()
}

/// How the append-only file is synced. Hosted servers often forbid to ask for it.
async fn appendfsync(connection: &Connection) -> Option<String> {
    let mut get = redis::cmd("CONFIG");
    let answer: StoreResult<HashMap<String, String>> =
        connection.query(get.arg("GET").arg("appendfsync")).await;
    answer.ok()?.remove("appendfsync")
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

/// Keys that the server may remove by itself.
pub(in crate::store) fn judge_memory(findings: &mut Findings, facts: &Facts<'_>) {
    let limited = facts.get("maxmemory").is_some_and(|most| *most != "0");
    let policy = facts.get("maxmemory_policy").copied().unwrap_or("noeviction");
    findings.add_if(
        policy != "noeviction",
        "eviction",
        if limited { Severity::Exclusion } else { Severity::Information },
        match limited {
            true => format!("the server may evict keys when memory is short ({policy})"),
            false => format!(
                "maxmemory-policy is {policy}, which takes effect as soon as maxmemory is set"
            ),
        },
        "a lock can vanish while it is held",
        "set maxmemory-policy noeviction, or give locks a server of their own",
    );
}

/// What a restart forgets.
pub(in crate::store) fn judge_persistence(findings: &mut Findings, facts: &Facts<'_>) {
    findings.add_if(
        facts.get("aof_enabled") == Some(&"0"),
        "no-aof",
        Severity::Durability,
        "the server keeps no append-only file",
        "a restart forgets all locks while their holders live; fences go on from the server's clock, so \
         fenced resources stay safe, others do not",
        "set appendonly yes and appendfsync always, or check fences everywhere",
    );
    let failed = |name| facts.get(name) == Some(&"err");
    findings.add_if(
        failed("aof_last_write_status") || failed("rdb_last_bgsave_status"),
        "failed-save",
        Severity::Availability,
        "the server could not write its data to disk when it last tried",
        "it may refuse all writes, so that no lock can be taken or renewed",
        "see the server's log: is its disk full, may it write there?",
    );
}

fn judge_fsync(findings: &mut Findings, facts: &Facts<'_>, appendfsync: Option<&str>) {
    let kept = facts.get("aof_enabled") == Some(&"1");
    findings.add_if(
        kept && appendfsync.is_some_and(|when| when != "always"),
        "aof-fsync",
        Severity::Durability,
        "the append-only file is not synced with every write",
        "a crash can take back the last second of locks, and more under load",
        "set appendfsync always, or check fences everywhere",
    );
    findings.add_if(
        kept && appendfsync.is_none(),
        "hidden-settings",
        Severity::Information,
        "the server does not tell how it syncs its append-only file (CONFIG GET is refused)",
        "unless it syncs with every write, a crash can take back the last locks",
        "ask its operator for appendfsync",
    );
}

fn judge_replication(findings: &mut Findings, facts: &Facts<'_>) {
    findings.add_if(
        facts.get("role") == Some(&"slave"),
        "replica",
        Severity::Availability,
        "the server is a replica",
        "it accepts no writes, so no lock can be taken",
        "connect to the primary, or through redis+sentinel://",
    );
    let replicas = facts.get("connected_slaves").copied().unwrap_or("0");
    findings.add_if(
        replicas != "0",
        "async-replicas",
        Severity::Durability,
        format!("{replicas} replicas follow asynchronously"),
        "a failover can forget the last grants while their holders live",
        "keep the clocks of all servers in step, set min-replicas-to-write 1 and min-replicas-max-lag, and \
         check fences; or use redlock://",
    );
}

fn judge_cluster(findings: &mut Findings, clustered: bool) {
    findings.add_if(
        clustered,
        "cluster",
        Severity::Durability,
        "the store is a Redis Cluster, whose replicas follow asynchronously",
        "a failover can forget the last grants of one node while their holders live",
        "keep the clocks of all nodes in step, set min-replicas-to-write 1 and min-replicas-max-lag, and \
         check fences; or use redlock://",
    );
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

    fn found(info: &str, appendfsync: Option<&str>) -> Vec<(&'static str, Severity)> {
        let (facts, mut findings) = (facts(info), Findings::default());
        judge_memory(&mut findings, &facts);
        judge_persistence(&mut findings, &facts);
        judge_fsync(&mut findings, &facts, appendfsync);
        judge_replication(&mut findings, &facts);
        judge_cluster(&mut findings, false);
        findings.0.iter().map(|advice| (advice.code, advice.severity)).collect()
    }

    #[test]
    fn each_danger_is_named_and_a_safe_set_up_is_not_nagged() {
        let aof = "aof_enabled:1\r\nrole:master\r\nconnected_slaves:0\r\n";
        assert!(found(aof, Some("always")).is_empty());
        let evicting = |max: u32, policy| {
            found(&format!("{aof}maxmemory:{max}\r\nmaxmemory_policy:{policy}\r\n"), Some("always"))
        };
        assert_eq!(evicting(100, "allkeys-lru"), [("eviction", Severity::Exclusion)]);
        assert_eq!(evicting(0, "allkeys-lru"), [("eviction", Severity::Information)]);
        assert!(evicting(100, "noeviction").is_empty());
        let all = Some("always");
        assert_eq!(found(aof, Some("everysec")), [("aof-fsync", Severity::Durability)]);
        assert_eq!(found(aof, None), [("hidden-settings", Severity::Information)]);
        assert_eq!(found("aof_enabled:0\r\n", None), [("no-aof", Severity::Durability)]);
        let replica = "aof_enabled:1\r\nrole:slave\r\n";
        assert_eq!(found(replica, all), [("replica", Severity::Availability)]);
        let followed = "aof_enabled:1\r\nrole:master\r\nconnected_slaves:2\r\n";
        assert_eq!(found(followed, all), [("async-replicas", Severity::Durability)]);
        let failing = "aof_enabled:1\r\naof_last_write_status:err\r\n";
        assert_eq!(found(failing, all), [("failed-save", Severity::Availability)]);
    }
}
