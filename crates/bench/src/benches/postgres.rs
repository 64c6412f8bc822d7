//! PostgreSQL: pairs of lock and release beside a bare lock table, and the hand-off to the next in line.
//!
//! The floor is what a lock in SQL costs at the least with the same driver: one prepared upsert that
//! takes a row and answers with its number, and one update that frees it.

use super::sql::{self, Commit};
use crate::{
    args::Plan, flavour::Flavour, pair::Pair, report::Report, stats::percentile, turns::turns,
};
use anyhow::Result;
use servers::{POSTGRES, Running};
use tokio_postgres::{Client, NoTls, Statement};

/// How long the next in line may wait for its turn, in the middle of all turns.
const TURN_MS: f64 = 5.0;
const WAITERS: usize = 100;

const TABLE: &str = "CREATE TABLE IF NOT EXISTS floor(name text PRIMARY KEY, owner bytea, \
     token bigint NOT NULL, expires timestamptz NOT NULL) WITH (fillfactor = 50)";
/// As the library's own connections have them.
const SETTINGS: &str =
    "SET plan_cache_mode = force_generic_plan; SET enable_seqscan = off; SET jit = off";
const TAKE: &str = "INSERT INTO floor AS f VALUES ($1, $2, 1, now() + interval '15 s') \
     ON CONFLICT (name) DO UPDATE SET owner = excluded.owner, token = f.token + 1, \
     expires = excluded.expires WHERE f.owner IS NULL OR f.expires < now() RETURNING token";
const FREE: &str = "UPDATE floor SET owner = NULL WHERE name = $1 AND owner = $2";

pub(super) fn run(plan: &Plan) -> Result<Report> {
    let mut report = Report::new("postgres");
    if let Some(obstacle) = POSTGRES.obstacle() {
        report.note(format!("not measured: {obstacle}"));
        return Ok(report);
    }
    let server = POSTGRES.start()?;
    Flavour::CurrentThread.run(prepare(server.url().to_owned()))?;
    let commits = [
        Commit { what: "synchronous_commit on", url: server.url().to_owned() },
        Commit { what: "synchronous_commit off", url: format!("{}_hasty", server.url()) },
    ];
    sql::pairs(plan, &mut report, &commits, Floor::open, |_| Ok(()))?;
    report.note(format!("floor: {TAKE}; {FREE}"));
    tell_turns(plan, &server, &mut report)?;
    Ok(report)
}

/// A second database, in which commits are not waited for.
async fn prepare(url: String) -> Result<()> {
    let (client, connection) = tokio_postgres::connect(&url, NoTls).await?;
    tokio::spawn(connection);
    client.batch_execute("CREATE DATABASE postgres_hasty").await?;
    client.batch_execute("ALTER DATABASE postgres_hasty SET synchronous_commit = off").await?;
    Ok(())
}

/// The bare lock table.
struct Floor {
    client: Client,
    take: Statement,
    free: Statement,
}

impl Floor {
    async fn open(url: String) -> Result<Self> {
        let (client, connection) = tokio_postgres::connect(&url, NoTls).await?;
        tokio::spawn(connection);
        client.batch_execute(TABLE).await?;
        client.batch_execute(SETTINGS).await?;
        let (take, free) = (client.prepare(TAKE).await?, client.prepare(FREE).await?);
        Ok(Self { client, take, free })
    }
}

impl Pair for Floor {
    async fn pair(&mut self) -> Result<()> {
        let owner: [u8; 16] = rand::random();
        let row = self.client.query_one(&self.take, &[&"pairs", &&owner[..]]).await?;
        let _token: i64 = row.try_get(0)?;
        self.client.execute(&self.free, &[&"pairs", &&owner[..]]).await?;
        Ok(())
    }
}

/// From a release to the grant of the next of a hundred in line, each with connections of its own.
fn tell_turns(plan: &Plan, server: &Running, report: &mut Report) -> Result<()> {
    let waiters = plan.scaled(WAITERS, 5);
    let times = Flavour::MultiThread.run(turns(server.url().to_owned(), waiters))?;
    let at = |percent| percentile(&times, percent);
    let what = format!("the next of {waiters} in line gets its turn");
    report.row(what.clone(), &[("p50_ms", at(50)), ("p90_ms", at(90)), ("p99_ms", at(99))]);
    report.below(format!("{what}, p50 in ms"), TURN_MS, at(50));
    Ok(())
}
