//! What about a server's set-up can hurt locks, and what to do about it.

use super::{
    KIND,
    connection::Link,
    error,
    reply::{field, one},
};
use crate::{
    clock::Clock,
    error::{ErrorKind, StoreError},
    store::{Advice, StoreResult},
};
use std::collections::HashMap;

/// The oldest servers that can skip locked rows.
const OLDEST_MARIADB: (u32, u32) = (10, 6);
const OLDEST_MYSQL: (u32, u32) = (8, 0);
/// From here on a difference of clocks is worth a word, in microseconds.
const SKEW_MICROS: u64 = 30_000_000;

/// The settings that are looked at; each kind of server has those it knows.
const SETTINGS: &str = "SHOW VARIABLES WHERE Variable_name IN ('version', 'read_only', \
     'super_read_only', 'innodb_flush_log_at_trx_commit', 'log_bin', 'sync_binlog', 'binlog_format', \
     'innodb_rollback_on_timeout', 'wsrep_on', 'rpl_semi_sync_master_enabled', \
     'rpl_semi_sync_source_enabled')";
const REPLICAS: &str = "SHOW STATUS WHERE Variable_name IN ('Slaves_connected', \
     'Rpl_semi_sync_master_clients', 'Rpl_semi_sync_source_clients')";
/// MySQL counts its replicas nowhere; a user with the right PROCESS sees their connections. Not from
/// `information_schema.processlist`: MySQL reads the statements of all connections for it as UTF-8, and the
/// query fails (3854) while any of them holds bytes that are none, such as our ids.
const DUMPS: &str = "SELECT 'dumps' AS Variable_name, CAST(COUNT(*) AS CHAR) AS Value \
     FROM performance_schema.processlist WHERE command LIKE 'Binlog Dump%'";
const NOW: &str = "SELECT TIMESTAMPDIFF(MICROSECOND, '1970-01-01', SYSDATE(6)) AS now";

type Facts = HashMap<String, String>;

/// Refuses a server that is too old, and says what else should be known about it.
pub(super) async fn of(link: &Link, clock: &Clock) -> StoreResult<Vec<Advice>> {
    let facts = facts(link, SETTINGS).await?;
    refuse_old(said(&facts, "version"))?;
    let mut status = self::facts(link, REPLICAS).await?;
    if !said(&facts, "version").contains("MariaDB") {
        status.extend(dumps(link).await?);
    }
    let replicas = replicas(&facts, &status);
    let found = [read_only(&facts), flush(&facts), binlog(&facts), statements(&facts)];
    let mut advice: Vec<Advice> = found.into_iter().flatten().collect();
    advice.extend([rollback(&facts), galera(&facts), replicas].into_iter().flatten());
    let row = one(link.insist(link.lines(), NOW, Vec::new()).await?.rows)?;
    advice.extend(skew(field::<i64>(&row, "now")?.cast_unsigned(), clock.wall_micros()));
    Ok(advice)
}

async fn facts(link: &Link, sql: &str) -> StoreResult<Facts> {
    let rows = link.insist(link.lines(), sql, Vec::new()).await?.rows;
    let fact = |row: &mysql_async::Row| {
        let name: String = field(row, "Variable_name")?;
        Ok((name.to_ascii_lowercase(), field(row, "Value")?))
    };
    rows.iter().map(fact).collect()
}

/// How many replicas of a MySQL server read its log, as far as our user may see them.
async fn dumps(link: &Link) -> StoreResult<Facts> {
    match facts(link, DUMPS).await {
        // Before 8.0.22 there is no such table.
        Err(e) if error::is_missing(&e) => Ok(Facts::new()),
        found => found,
    }
}

fn said<'a>(facts: &'a Facts, name: &str) -> &'a str {
    facts.get(name).map_or("", String::as_str)
}

fn is_on(facts: &Facts, name: &str) -> bool {
    matches!(said(facts, name), "ON" | "1")
}

fn refuse_old(version: &str) -> StoreResult<()> {
    let (kind, oldest) = match version.contains("MariaDB") {
        true => ("MariaDB", OLDEST_MARIADB),
        false => ("MySQL", OLDEST_MYSQL),
    };
    // Behind some proxies MariaDB says that it is 5.5.5 first.
    let numbers = version.strip_prefix("5.5.5-").unwrap_or(version);
    let mut numbers = numbers.split(['.', '-']).map(|n| n.parse().unwrap_or(0));
    let found = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    if found >= oldest {
        return Ok(());
    }
    let (major, minor) = oldest;
    let what =
        format!("the server has version {version}; at least {kind} {major}.{minor} is needed");
    Err(StoreError::not_applied(KIND, ErrorKind::Misconfigured, what))
}

fn read_only(facts: &Facts) -> Option<Advice> {
    (is_on(facts, "read_only") || is_on(facts, "super_read_only")).then(|| Advice {
        what: "the server is read-only".into(),
        consequence: "no lock can be taken".into(),
        remedy: "connect to the primary".into(),
    })
}

fn flush(facts: &Facts) -> Option<Advice> {
    let flush = said(facts, "innodb_flush_log_at_trx_commit");
    (!flush.is_empty() && flush != "1").then(|| Advice {
        what: format!("innodb_flush_log_at_trx_commit is {flush}"),
        consequence: "a crash can take back the last second of locks while their holders live; \
             fences go on from the server's clock, so fenced resources stay safe, others do not"
            .into(),
        remedy: "set it to 1, or check fences everywhere".into(),
    })
}

fn binlog(facts: &Facts) -> Option<Advice> {
    (is_on(facts, "log_bin") && said(facts, "sync_binlog") != "1").then(|| Advice {
        what: format!("sync_binlog is {}", said(facts, "sync_binlog")),
        consequence: "after a crash replicas and backups may lack the last locks".into(),
        remedy: "set sync_binlog to 1".into(),
    })
}

fn statements(facts: &Facts) -> Option<Advice> {
    (is_on(facts, "log_bin") && said(facts, "binlog_format") == "STATEMENT").then(|| Advice {
        what: "binlog_format is STATEMENT".into(),
        consequence: "the server refuses our transactions, which are READ COMMITTED".into(),
        remedy: "set binlog_format to ROW or MIXED".into(),
    })
}

fn rollback(facts: &Facts) -> Option<Advice> {
    is_on(facts, "innodb_rollback_on_timeout").then(|| Advice {
        what: "innodb_rollback_on_timeout is on".into(),
        consequence: "a transaction of yours that waits too long for lk_lock loses all it has done"
            .into(),
        remedy: "roll back on every error, as one should, or set it off".into(),
    })
}

fn galera(facts: &Facts) -> Option<Advice> {
    is_on(facts, "wsrep_on").then(|| Advice {
        what: "the server is a node of a Galera cluster".into(),
        consequence:
            "a row that is locked on one node is not on another: locks stay right, because \
             conflicting commits fail, but lk_lock and lk_fence_check hold nobody on another node"
                .into(),
        remedy: "let all that use locks connect to the same node".into(),
    })
}

fn replicas(facts: &Facts, status: &Facts) -> Option<Advice> {
    let count = |name: &str| said(status, name).parse().unwrap_or(0);
    let connected: u64 = count("slaves_connected").max(count("dumps"));
    let acknowledging =
        count("rpl_semi_sync_master_clients") + count("rpl_semi_sync_source_clients");
    let semi = is_on(facts, "rpl_semi_sync_master_enabled")
        || is_on(facts, "rpl_semi_sync_source_enabled");
    (connected > 0 && !(semi && acknowledging > 0)).then(|| Advice {
        what: format!("{connected} replicas follow without acknowledging"),
        consequence: "a failover can forget the last locks and fences while their holders live"
            .into(),
        remedy: "use semi-synchronous replication, or wait a TTL before a replica takes over"
            .into(),
    })
}

fn skew(server: u64, ours: u64) -> Option<Advice> {
    let apart = server.abs_diff(ours);
    (apart > SKEW_MICROS).then(|| Advice {
        what: format!("the server's clock and ours are {} s apart", apart / 1_000_000),
        consequence: "locks do not mind; fences may fall back if a server whose clock is behind \
             takes over without the latest data"
            .into(),
        remedy: "keep clocks in step (NTP)".into(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts(pairs: &[(&str, &str)]) -> Facts {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn an_old_server_is_refused_with_what_is_needed() {
        for good in ["10.11.19-MariaDB-0+deb12u1", "8.0.36", "5.5.5-10.6.1-MariaDB", "9.1.0"] {
            assert!(refuse_old(good).is_ok(), "{good}");
        }
        let e = refuse_old("10.5.2-MariaDB").unwrap_err().to_string();
        assert!(e.contains("10.5.2") && e.contains("MariaDB 10.6"), "{e}");
        assert!(refuse_old("5.7.44-log").unwrap_err().to_string().contains("MySQL 8.0"));
    }

    #[test]
    fn each_danger_is_named_and_a_safe_set_up_is_not_nagged() {
        let safe = facts(&[
            ("read_only", "OFF"),
            ("innodb_flush_log_at_trx_commit", "1"),
            ("log_bin", "ON"),
            ("sync_binlog", "1"),
            ("binlog_format", "ROW"),
            ("wsrep_on", "OFF"),
        ]);
        let none = Facts::new();
        assert!(read_only(&safe).is_none() && flush(&safe).is_none() && binlog(&safe).is_none());
        assert!(statements(&safe).is_none() && galera(&safe).is_none());
        assert!(replicas(&safe, &none).is_none() && skew(5, 6).is_none());
        assert!(read_only(&facts(&[("read_only", "ON")])).is_some());
        assert!(flush(&facts(&[("innodb_flush_log_at_trx_commit", "2")])).is_some());
        assert!(binlog(&facts(&[("log_bin", "ON"), ("sync_binlog", "0")])).is_some());
        assert!(statements(&facts(&[("log_bin", "ON"), ("binlog_format", "STATEMENT")])).is_some());
        assert!(galera(&facts(&[("wsrep_on", "ON")])).is_some());
        assert!(replicas(&none, &facts(&[("slaves_connected", "2")])).is_some());
        assert!(replicas(&none, &facts(&[("dumps", "1")])).is_some());
        assert!(replicas(&none, &facts(&[("dumps", "0")])).is_none());
        assert!(skew(0, SKEW_MICROS + 1).is_some());
    }
}
