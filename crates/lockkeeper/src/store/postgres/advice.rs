//! What in a server's set-up can hurt locks, and what to do about it.

use super::{
    KIND,
    connection::Connection,
    reply::{get, scalar},
    rights,
    statements::Statements,
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

use tokio_postgres::Row;

/// The oldest server that is known to do.
const OLDEST: i64 = 130_000;
/// A snapshot that is so many transactions old is reported. A lock and its release are two.
const OLD_SNAPSHOT: i64 = 100_000;
/// So is one that is so many seconds old, unless the server's setting `lockkeeper.old_snapshot_seconds` says otherwise.
const OLD_SNAPSHOT_SECONDS: i64 = 3_600;

async fn facts(requests: &Connection, statements: &Statements) -> StoreResult<Facts> {
    let rows = requests.call(&statements.facts, &[], Repeat::Always).await?;
    rows.iter().map(|row| Ok((get(row, "name")?, get(row, "value")?))).collect()
}

/// Refuses a server on which the store cannot work.
pub(super) async fn refuse(requests: &Connection, statements: &Statements) -> StoreResult<()> {
    let rows = requests.call(&statements.server, &[], Repeat::Always).await?;
    rows.first().map_or(Ok(()), refuse_row)
}

/// The same, by what a row tells of the server.
pub(super) fn refuse_row(row: &Row) -> StoreResult<()> {
    let (version, encoding): (String, String) = (get(row, "version")?, get(row, "encoding")?);
    let version: i64 = version.parse().unwrap_or(0);
    let what = if version < OLDEST {
        format!("the server has version {}; at least 13 is needed", version / 10_000)
    } else if encoding != "UTF8" {
        format!("the database's encoding is {encoding}; names of locks need UTF8")
    } else {
        return Ok(());
    };
    Err(StoreError::not_applied(KIND, ErrorKind::Misconfigured, what))
}

/// What users of this server should know.
pub(super) async fn collect(
    requests: &Connection,
    statements: &Statements,
    clock: &Clock,
    schema: &str,
) -> StoreResult<Vec<Advice>> {
    let facts = facts(requests, statements).await?;
    let mut findings = Findings::default();
    judge_server(&mut findings, &facts);
    judge_snapshots(&mut findings, &facts);
    judge_pooler(&mut findings, &facts, requests.is_pooled().await?);
    findings.compare_clocks(
        facts.number("now"),
        clock,
        "locks do not mind, but fences begin at the server's clock",
    );
    for (right, statement) in rights::missing(requests, statements, schema).await? {
        let what = format!("the user has no right to {right}");
        let consequence = "locks cannot be taken";
        findings.add_if(
            true,
            "missing-right",
            Severity::Availability,
            what,
            consequence,
            &statement,
        );
    }
    // A user that may not ask is among the findings already.
    let history = requests.call(&statements.history, &[], Repeat::Always).await;
    let history = history.map_or(Ok(Some(0)), |rows| scalar::<Option<i64>>(&rows))?;
    findings.add_if(
        history.is_none(),
        "hidden-history",
        Severity::Durability,
        "the server does not tell its timeline (lk_history() is NULL)",
        "after a failover that a pooler or a proxy hides, a grant that was lost while its ticket stayed is \
         not noticed",
        "GRANT EXECUTE ON FUNCTION pg_walfile_name(pg_lsn), pg_current_wal_insert_lsn() TO the user",
    );
    Ok(findings.0)
}

fn judge_server(findings: &mut Findings, facts: &Facts) {
    let replicas = facts.number("replicas");
    findings.add_if(
        facts.is_on("is_replica"),
        "replica",
        Severity::Availability,
        "the server is a replica",
        "it accepts no writes, so no lock can be taken",
        "name all servers in the URL, postgres://a,b/db: the one that can write is found",
    );
    findings.add_if(
        facts.get("synchronous_commit") == "off",
        "synchronous-commit",
        Severity::Durability,
        "synchronous_commit is off",
        "a crash of the server forgets what was done in the last fraction of a second: a lock that \
         was granted then may be granted again, with a fence that is greater all the same",
        "leave it on for the user of the locks: ALTER ROLE … SET synchronous_commit = on",
    );
    findings.add_if(
        !facts.is_on("fsync") || !facts.is_on("full_page_writes"),
        "fsync",
        Severity::Durability,
        "fsync or full_page_writes is off",
        "a crash of the machine can destroy the database, locks and fences included",
        "turn both on",
    );
    findings.add_if(
        replicas > 0 && facts.get("synchronous_replicas").is_empty(),
        "async-replicas",
        Severity::Durability,
        format!("{replicas} replicas follow asynchronously"),
        "a failover can lose the last grants: two may hold one lock until the first of them renews, \
         and fences go on from the new server's clock",
        "set synchronous_standby_names, or let resources check fences",
    );
}

fn judge_snapshots(findings: &mut Findings, facts: &Facts) {
    let (transactions, seconds) =
        (facts.number("oldest_snapshot"), facts.number("oldest_snapshot_seconds"));
    let most = facts.get("old_snapshot_seconds").parse().unwrap_or(OLD_SNAPSHOT_SECONDS);
    findings.add_if(
        transactions >= OLD_SNAPSHOT || seconds >= most,
        "old-snapshot",
        Severity::Performance,
        format!(
            "a snapshot is in use that is {seconds} s and {transactions} transactions old (backend_xmin in \
             pg_stat_activity): a backup, a long query or a forgotten transaction"
        ),
        "every earlier version of a lock's row is kept as long as it lasts, so locks in much use become \
         slower and slower",
        "take backups from a replica, end transactions that idle (idle_in_transaction_session_timeout)",
    );
}

fn judge_pooler(findings: &mut Findings, facts: &Facts, pooled: bool) {
    let isolation = facts.get("isolation");
    findings.add_if(
        pooled && isolation != "read committed",
        "pooler-isolation",
        Severity::Performance,
        format!("default_transaction_isolation is {isolation}, and a pooler stands in between"),
        "requests for one lock meet serialization errors and are repeated",
        "ALTER ROLE … SET default_transaction_isolation = 'read committed'",
    );
    findings.add_if(
        pooled,
        "pooler",
        Severity::Performance,
        "the server sees us come from another port than we do: a pooler or an address translation \
         stands in between",
        "nothing is prepared and no connection listens, so a waiter polls and gets its turn later",
        "connect to the server itself, or say pooler=false if no pooler lends connections out for a \
         transaction",
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    fn codes(pairs: &[(&str, &str)]) -> Vec<&'static str> {
        let safe = [("synchronous_commit", "on"), ("fsync", "on"), ("full_page_writes", "on")];
        let changed = safe.iter().filter(|(name, _)| pairs.iter().all(|(with, _)| with != name));
        let all = changed.chain(pairs).map(|(name, value)| ((*name).into(), (*value).into()));
        let (facts, mut findings) = (all.collect::<Facts>(), Findings::default());
        judge_server(&mut findings, &facts);
        judge_snapshots(&mut findings, &facts);
        findings.0.iter().map(|advice| advice.code).collect()
    }

    #[test]
    fn each_danger_is_named_and_a_safe_set_up_gets_no_advice() {
        assert!(codes(&[]).is_empty());
        assert_eq!(codes(&[("synchronous_commit", "off")]), ["synchronous-commit"]);
        assert_eq!(codes(&[("full_page_writes", "off")]), ["fsync"]);
        assert_eq!(codes(&[("is_replica", "on")]), ["replica"]);
        assert_eq!(codes(&[("replicas", "1")]), ["async-replicas"]);
        assert!(codes(&[("replicas", "1"), ("synchronous_replicas", "*")]).is_empty());
    }

    #[test]
    fn a_snapshot_is_old_after_an_hour_or_many_transactions() {
        let of = |transactions, seconds| {
            codes(&[("oldest_snapshot", transactions), ("oldest_snapshot_seconds", seconds)])
        };
        assert!(of("99999", "3599").is_empty());
        assert_eq!(of("100000", "1"), ["old-snapshot"]);
        assert_eq!(of("0", "3600"), ["old-snapshot"]);
        let early = [("oldest_snapshot_seconds", "2"), ("old_snapshot_seconds", "2")];
        assert_eq!(codes(&early), ["old-snapshot"], "the server's own limit");
    }
}
