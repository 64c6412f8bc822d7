//! What in a server's set-up can hurt locks, and what to do about it.

use super::{
    KIND,
    connection::Connections,
    error,
    reply::{field, one},
    statements::NOW,
};
use crate::{
    clock::Clock,
    error::{ErrorKind, StoreError},
    store::{
        Advice, Severity, StoreResult,
        common::{
            advice::{Facts, Findings},
            repeat::Repeat,
        },
    },
};

/// The oldest servers that can skip locked rows.
const OLDEST_MARIADB: (u32, u32) = (10, 6);
const OLDEST_MYSQL: (u32, u32) = (8, 0);

/// The settings that matter; each kind of server answers with those it knows.
const SETTINGS: &str = "SHOW VARIABLES WHERE Variable_name IN ('version', 'read_only', \
     'super_read_only', 'innodb_flush_log_at_trx_commit', 'log_bin', 'sync_binlog', 'binlog_format', \
     'innodb_rollback_on_timeout', 'wsrep_on', 'rpl_semi_sync_master_enabled', \
     'rpl_semi_sync_source_enabled')";
const REPLICAS: &str = "SHOW STATUS WHERE Variable_name IN ('Slaves_connected', \
     'Rpl_semi_sync_master_clients', 'Rpl_semi_sync_source_clients')";
/// MySQL counts its replicas nowhere; a user with the right PROCESS sees their connections. This is not read from
/// `information_schema.processlist`: there MySQL reads the statements of all connections as UTF-8, and the
/// query fails (3854) while any of them has other bytes, such as our ids.
const DUMPS: &str = "SELECT 'dumps' AS Variable_name, CAST(COUNT(*) AS CHAR) AS Value \
     FROM performance_schema.processlist WHERE command LIKE 'Binlog Dump%'";

/// What users of this server should know.
pub(super) async fn collect(connections: &Connections, clock: &Clock) -> StoreResult<Vec<Advice>> {
    let facts: Facts = pairs(connections, SETTINGS).await?.into_iter().collect();
    let version = facts.get("version");
    let mut status: Facts = pairs(connections, REPLICAS).await?.into_iter().collect();
    if !version.contains("MariaDB") {
        status.extend(dumps(connections).await?);
    }
    let mut findings = Findings::default();
    judge_settings(&mut findings, &facts);
    judge_replicas(&mut findings, &facts, &status);
    let now = format!("SELECT {NOW} AS now");
    let call = connections.call(&connections.requests, &now, Vec::new(), Repeat::Always);
    findings.compare_clocks(
        field(&one(call.await?)?, "now")?,
        clock,
        "locks do not mind; fences may fall back if a server whose clock is behind takes over without \
         the latest data",
    );
    Ok(findings.0)
}

async fn pairs(connections: &Connections, sql: &str) -> StoreResult<Vec<(String, String)>> {
    let call = connections.call(&connections.requests, sql, Vec::new(), Repeat::Always);
    let fact = |row: &mysql_async::Row| {
        let name: String = field(row, "Variable_name")?;
        Ok((name.to_ascii_lowercase(), field(row, "Value")?))
    };
    call.await?.iter().map(fact).collect()
}

/// How many replicas of a MySQL server read its log, as far as our user may see them.
async fn dumps(connections: &Connections) -> StoreResult<Vec<(String, String)>> {
    match pairs(connections, DUMPS).await {
        // Before 8.0.22 there is no such table.
        Err(e) if error::is_missing(&e) => Ok(Vec::new()),
        found => found,
    }
}

/// Refuses a server that is too old.
pub(super) fn refuse_old(version: &str) -> StoreResult<()> {
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

fn judge_settings(findings: &mut Findings, facts: &Facts) {
    let flush = facts.get("innodb_flush_log_at_trx_commit");
    let sync = facts.get("sync_binlog");
    findings.add_if(
        facts.is_on("read_only") || facts.is_on("super_read_only"),
        "read-only",
        Severity::Availability,
        "the server is read-only",
        "no lock can be taken",
        "connect to the primary",
    );
    findings.add_if(
        !flush.is_empty() && flush != "1",
        "innodb-flush",
        Severity::Durability,
        format!("innodb_flush_log_at_trx_commit is {flush}"),
        "a crash can take back the last second of locks while their holders live; fences go on from \
         the server's clock, so fenced resources stay safe, others do not",
        "set it to 1, or check fences everywhere",
    );
    findings.add_if(
        facts.is_on("log_bin") && sync != "1",
        "sync-binlog",
        Severity::Durability,
        format!("sync_binlog is {sync}"),
        "after a crash replicas and backups may lack the last locks",
        "set sync_binlog to 1",
    );
    findings.add_if(
        facts.is_on("log_bin") && facts.get("binlog_format") == "STATEMENT",
        "binlog-format",
        Severity::Availability,
        "binlog_format is STATEMENT",
        "the server refuses our transactions, which are READ COMMITTED",
        "set binlog_format to ROW or MIXED",
    );
    findings.add_if(
        facts.is_on("innodb_rollback_on_timeout"),
        "rollback-on-timeout",
        Severity::Information,
        "innodb_rollback_on_timeout is on",
        "a transaction of yours that waits too long for lk_lock loses all it has done",
        "roll back on every error, as one should, or set it off",
    );
    findings.add_if(
        facts.is_on("wsrep_on"),
        "galera",
        Severity::Durability,
        "the server is a node of a Galera cluster",
        "a row that is locked on one node is not on another: locks stay right, because conflicting \
         commits fail, but lk_lock and lk_fence_check hold no client on another node",
        "let all that use locks connect to the same node",
    );
}

fn judge_replicas(findings: &mut Findings, facts: &Facts, status: &Facts) {
    let connected = status.number("slaves_connected").max(status.number("dumps"));
    let acknowledging = status.number("rpl_semi_sync_master_clients")
        + status.number("rpl_semi_sync_source_clients");
    let semi =
        facts.is_on("rpl_semi_sync_master_enabled") || facts.is_on("rpl_semi_sync_source_enabled");
    findings.add_if(
        connected > 0 && !(semi && acknowledging > 0),
        "async-replicas",
        Severity::Durability,
        format!("{connected} replicas follow without acknowledging"),
        "a failover can forget the last locks and fences while their holders live",
        "use semi-synchronous replication, or wait a TTL before a replica takes over",
    );
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

    fn advice(settings: &[(&str, &str)], status: &[(&str, &str)]) -> Vec<String> {
        let mut findings = Findings::default();
        judge_settings(&mut findings, &facts(settings));
        judge_replicas(&mut findings, &facts(settings), &facts(status));
        findings.0.into_iter().map(|advice| advice.what).collect()
    }

    #[test]
    fn each_danger_is_named_and_a_safe_set_up_is_not_nagged() {
        let safe = [
            ("read_only", "OFF"),
            ("innodb_flush_log_at_trx_commit", "1"),
            ("log_bin", "ON"),
            ("sync_binlog", "1"),
            ("binlog_format", "ROW"),
            ("wsrep_on", "OFF"),
        ];
        let with = |name, value| {
            let changed = safe.into_iter().filter(|(of, _)| *of != name);
            advice(&changed.chain([(name, value)]).collect::<Vec<_>>(), &[])
        };
        assert!(advice(&safe, &[]).is_empty());
        assert_eq!(with("read_only", "ON"), ["the server is read-only"]);
        let flush = "innodb_flush_log_at_trx_commit";
        assert_eq!(with(flush, "2"), [format!("{flush} is 2")]);
        assert_eq!(with("sync_binlog", "0"), ["sync_binlog is 0"]);
        assert_eq!(with("binlog_format", "STATEMENT"), ["binlog_format is STATEMENT"]);
        let rollback = "innodb_rollback_on_timeout";
        assert_eq!(with(rollback, "ON"), [format!("{rollback} is on")]);
        assert!(with("wsrep_on", "ON")[0].contains("Galera"));
        assert_eq!(advice(&safe, &[("slaves_connected", "2")]).len(), 1);
        assert_eq!(advice(&safe, &[("dumps", "1")]).len(), 1);
        assert!(advice(&safe, &[("dumps", "0")]).is_empty());
    }
}
