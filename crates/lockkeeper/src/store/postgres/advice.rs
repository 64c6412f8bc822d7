//! What about a server's set-up can hurt locks, and what to do about it.

use super::{
    KIND,
    connection::{Link, Repeat},
    reply::{get, one},
    statements::Calls,
};
use crate::{
    clock::Clock,
    error::{ErrorKind, StoreError},
    store::{Advice, StoreResult},
};

/// The oldest server that is known to do.
const OLDEST: i32 = 130_000;
/// From here on a difference of clocks is worth a word, in microseconds.
const SKEW_MICROS: u64 = 30_000_000;
/// And a snapshot so many transactions old, two of which are a use of a lock.
const HELD_BACK: i64 = 100_000;

/// What there is to know about a server.
struct Facts {
    version: i32,
    encoding: String,
    isolation: String,
    commit: String,
    fsync: String,
    full_page_writes: String,
    recovery: bool,
    /// Replicas, and how many of them commits wait for.
    replicas: i64,
    synchronous: String,
    /// How many transactions ago the oldest snapshot was taken that a transaction still uses.
    held_back: i64,
    now: i64,
}

impl Facts {
    async fn of(link: &Link, calls: &Calls) -> StoreResult<Self> {
        let rows = link.call(&calls.facts, &[], Repeat::Always).await?;
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

/// Refuses a server that cannot do.
pub(super) async fn refuse(link: &Link, calls: &Calls) -> StoreResult<()> {
    let facts = Facts::of(link, calls).await?;
    let what = if facts.version < OLDEST {
        format!("the server has version {}; at least 13 is needed", facts.version / 10_000)
    } else if facts.encoding != "UTF8" {
        format!("the database's encoding is {}; names of locks need UTF8", facts.encoding)
    } else {
        return Ok(());
    };
    Err(StoreError::not_applied(KIND, ErrorKind::Misconfigured, what))
}

/// Says what should be known about a server.
pub(super) async fn of(
    link: &Link,
    calls: &Calls,
    clock: &Clock,
    schema: &str,
) -> StoreResult<Vec<Advice>> {
    let facts = Facts::of(link, calls).await?;
    let mut advice: Vec<Advice> = [
        replica(&facts),
        commits(&facts),
        disk(&facts),
        failover(&facts),
        isolation(&facts, link.is_pooled().await?),
        pooler(link.is_pooled().await?),
        skew(&facts, clock),
        snapshot(&facts),
    ]
    .into_iter()
    .flatten()
    .collect();
    let missing = missing_rights(link, calls, schema).await?;
    advice.extend(missing.into_iter().map(|(right, statement)| Advice {
        what: format!("the user has no right to {right}"),
        consequence: "locks cannot be taken".into(),
        remedy: statement,
    }));
    Ok(advice)
}

/// The rights that the user lacks, each with the statement that grants it.
async fn missing_rights(
    link: &Link,
    calls: &Calls,
    schema: &str,
) -> StoreResult<Vec<(String, String)>> {
    let rows = link.call(&calls.rights, &[&schema], Repeat::Always).await?;
    rows.iter().map(|row| Ok((get(row, "privilege")?, get(row, "remedy")?))).collect()
}

/// The error, and what to grant, if it is about rights.
pub(super) async fn with_rights(
    mut e: StoreError,
    link: &Link,
    calls: &Calls,
    schema: &str,
) -> StoreError {
    if e.kind == ErrorKind::Denied
        && let Ok(missing) = missing_rights(link, calls, schema).await
    {
        for (_, statement) in missing {
            e.what.push_str("; ");
            e.what.push_str(&statement);
        }
    }
    e
}

fn advice(what: impl Into<String>, consequence: &str, remedy: &str) -> Option<Advice> {
    let (consequence, remedy) = (consequence.to_owned(), remedy.to_owned());
    Some(Advice { what: what.into(), consequence, remedy })
}

fn replica(facts: &Facts) -> Option<Advice> {
    if !facts.recovery {
        return None;
    }
    advice(
        "the server is a replica",
        "it accepts no writes, so no lock can be taken",
        "name all servers in the URL, postgres://a,b/db: the one that can write is found",
    )
}

fn commits(facts: &Facts) -> Option<Advice> {
    if facts.commit != "off" {
        return None;
    }
    advice(
        "synchronous_commit is off",
        "a crash of the server forgets what was done in the last fraction of a second: a lock that \
         was granted then may be granted again, with a fence that is greater all the same",
        "leave it on for the user of the locks: ALTER ROLE … SET synchronous_commit = on",
    )
}

fn disk(facts: &Facts) -> Option<Advice> {
    if facts.fsync == "on" && facts.full_page_writes == "on" {
        return None;
    }
    advice(
        "fsync or full_page_writes is off",
        "a crash of the machine can destroy the database, locks and fences included",
        "turn both on",
    )
}

fn failover(facts: &Facts) -> Option<Advice> {
    if facts.replicas == 0 || !facts.synchronous.is_empty() {
        return None;
    }
    advice(
        format!("{} replicas follow asynchronously", facts.replicas),
        "a failover can lose the last grants: two may hold one lock until the first of them renews, \
         and fences go on from the new server's clock",
        "set synchronous_standby_names, or let resources check fences",
    )
}

fn isolation(facts: &Facts, pooled: bool) -> Option<Advice> {
    if !pooled || facts.isolation == "read committed" {
        return None;
    }
    advice(
        format!(
            "default_transaction_isolation is {}, and a pooler stands in between",
            facts.isolation
        ),
        "requests for one lock meet serialization errors and are repeated",
        "ALTER ROLE … SET default_transaction_isolation = 'read committed'",
    )
}

fn pooler(pooled: bool) -> Option<Advice> {
    if !pooled {
        return None;
    }
    advice(
        "the server sees us come from another port than we do: a pooler or an address translation \
         stands in between",
        "nothing is prepared and nobody listens, so a waiter polls and gets its turn later",
        "connect to the server itself, or say pooler=false if no pooler lends connections out for a \
         transaction",
    )
}

fn skew(facts: &Facts, clock: &Clock) -> Option<Advice> {
    let ours = i64::try_from(clock.wall_micros()).unwrap_or(i64::MAX);
    let apart = facts.now.abs_diff(ours);
    if apart < SKEW_MICROS {
        return None;
    }
    advice(
        format!("the server's clock and ours are {} seconds apart", apart / 1_000_000),
        "locks do not mind, but fences begin at the server's clock",
        "let both machines keep time (NTP)",
    )
}

fn snapshot(facts: &Facts) -> Option<Advice> {
    if facts.held_back < HELD_BACK {
        return None;
    }
    advice(
        format!(
            "a snapshot is in use that is {} transactions old (backend_xmin in pg_stat_activity): a backup, \
             a long query or a forgotten transaction",
            facts.held_back
        ),
        "every earlier version of a lock's row is kept as long as it lasts, so locks in much use become \
         slower and slower",
        "take backups from a replica, end transactions that idle (idle_in_transaction_session_timeout)",
    )
}
