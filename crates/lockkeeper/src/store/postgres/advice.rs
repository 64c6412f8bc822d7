//! What in a server's set-up can hurt locks, and what to do about it.

use super::{
    KIND,
    connection::Connection,
    reply::{get, one},
    rights,
    statements::Statements,
};
use crate::{
    clock::Clock,
    error::{ErrorKind, StoreError},
    store::{
        Advice, StoreResult,
        common::{advice::Findings, repeat::Repeat},
    },
};

/// The oldest server that is known to do.
const OLDEST: i32 = 130_000;
/// A snapshot that is so many transactions old is reported. A lock and its release are two.
const OLD_SNAPSHOT: i64 = 100_000;

/// What the store asks about a server.
struct Facts {
    version: i32,
    encoding: String,
    isolation: String,
    commit: String,
    fsync: String,
    full_page_writes: String,
    recovery: bool,
    /// Replicas, and which of them commits wait for.
    replicas: i64,
    synchronous: String,
    /// How many transactions ago the oldest snapshot was taken that a transaction still uses.
    held_back: i64,
    now: i64,
}

impl Facts {
    async fn ask(requests: &Connection, statements: &Statements) -> StoreResult<Self> {
        let rows = requests.call(&statements.facts, &[], Repeat::Always).await?;
        let row = one(&rows)?;
        Ok(Self {
            version: get(row, "version")?,
            encoding: get(row, "encoding")?,
            isolation: get(row, "isolation")?,
            commit: get(row, "commit")?,
            fsync: get(row, "fsync")?,
            full_page_writes: get(row, "full_page_writes")?,
            recovery: get(row, "recovery")?,
            replicas: get(row, "replicas")?,
            synchronous: get(row, "synchronous")?,
            held_back: get(row, "held_back")?,
            now: get(row, "now")?,
        })
    }
}

/// Refuses a server on which the store cannot work.
pub(super) async fn refuse(requests: &Connection, statements: &Statements) -> StoreResult<()> {
    let facts = Facts::ask(requests, statements).await?;
    let what = if facts.version < OLDEST {
        format!("the server has version {}; at least 13 is needed", facts.version / 10_000)
    } else if facts.encoding != "UTF8" {
        format!("the database's encoding is {}; names of locks need UTF8", facts.encoding)
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
    let facts = Facts::ask(requests, statements).await?;
    let mut findings = Findings::default();
    judge_server(&mut findings, &facts);
    judge_pooler(&mut findings, &facts, requests.is_pooled().await?);
    findings.compare_clocks(
        facts.now,
        clock,
        "locks do not mind, but fences begin at the server's clock",
    );
    for (right, statement) in rights::missing(requests, statements, schema).await? {
        let what = format!("the user has no right to {right}");
        findings.add_if(true, what, "locks cannot be taken", &statement);
    }
    Ok(findings.0)
}

fn judge_server(findings: &mut Findings, facts: &Facts) {
    findings.add_if(
        facts.recovery,
        "the server is a replica",
        "it accepts no writes, so no lock can be taken",
        "name all servers in the URL, postgres://a,b/db: the one that can write is found",
    );
    findings.add_if(
        facts.commit == "off",
        "synchronous_commit is off",
        "a crash of the server forgets what was done in the last fraction of a second: a lock that \
         was granted then may be granted again, with a fence that is greater all the same",
        "leave it on for the user of the locks: ALTER ROLE … SET synchronous_commit = on",
    );
    findings.add_if(
        facts.fsync != "on" || facts.full_page_writes != "on",
        "fsync or full_page_writes is off",
        "a crash of the machine can destroy the database, locks and fences included",
        "turn both on",
    );
    findings.add_if(
        facts.replicas > 0 && facts.synchronous.is_empty(),
        format!("{} replicas follow asynchronously", facts.replicas),
        "a failover can lose the last grants: two may hold one lock until the first of them renews, \
         and fences go on from the new server's clock",
        "set synchronous_standby_names, or let resources check fences",
    );
    findings.add_if(
        facts.held_back >= OLD_SNAPSHOT,
        format!(
            "a snapshot is in use that is {} transactions old (backend_xmin in pg_stat_activity): a backup, \
             a long query or a forgotten transaction",
            facts.held_back
        ),
        "every earlier version of a lock's row is kept as long as it lasts, so locks in much use become \
         slower and slower",
        "take backups from a replica, end transactions that idle (idle_in_transaction_session_timeout)",
    );
}

fn judge_pooler(findings: &mut Findings, facts: &Facts, pooled: bool) {
    findings.add_if(
        pooled && facts.isolation != "read committed",
        format!(
            "default_transaction_isolation is {}, and a pooler stands in between",
            facts.isolation
        ),
        "requests for one lock meet serialization errors and are repeated",
        "ALTER ROLE … SET default_transaction_isolation = 'read committed'",
    );
    findings.add_if(
        pooled,
        "the server sees us come from another port than we do: a pooler or an address translation \
         stands in between",
        "nothing is prepared and nobody listens, so a waiter polls and gets its turn later",
        "connect to the server itself, or say pooler=false if no pooler lends connections out for a \
         transaction",
    );
}
