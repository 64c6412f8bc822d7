//! MariaDB: pairs of lock and release beside a bare lock table, and the hand-off to the next in line.
//!
//! The floor is what a lock in SQL costs at the least with the same driver: one prepared upsert that
//! takes a row and answers with its number, and one update that frees it.

use super::sql::{self, Commit};
use crate::{
    args::Plan, flavour::Flavour, pair::Pair, report::Report, stats::median, turns::turns,
};
use anyhow::Result;
use mysql_async::{Conn, Opts, OptsBuilder, Statement, prelude::Queryable};
use servers::MARIADB;

const WAITERS: usize = 20;

const TABLE: &str = "CREATE TABLE IF NOT EXISTS floor(name VARBINARY(512) PRIMARY KEY, \
     owner BINARY(16), token BIGINT NOT NULL, expires DATETIME(6) NOT NULL)";
/// The owner is decided before the expiry is changed: assignments go from left to right.
const TAKE: &str = "INSERT INTO floor VALUES (?, ?, 1, NOW(6) + INTERVAL 15 SECOND) \
     ON DUPLICATE KEY UPDATE \
     token = IF(owner IS NULL OR expires < NOW(6), token + 1, token), \
     owner = IF(owner IS NULL OR expires < NOW(6), VALUES(owner), owner), \
     expires = IF(owner = VALUES(owner), VALUES(expires), expires) RETURNING owner, token";
const FREE: &str = "UPDATE floor SET owner = NULL WHERE name = ? AND owner = ?";

pub(super) fn run(plan: &Plan) -> Result<Report> {
    let mut report = Report::new("mysql");
    if let Some(missing) = MARIADB.first_missing() {
        report.note(format!("not measured: {missing} is not installed"));
        return Ok(report);
    }
    let server = MARIADB.start()?;
    let url = || server.url().to_owned();
    // The log goes to the disk with every commit, or once a second.
    let commits = [
        Commit { what: "flush_log_at_trx_commit 1", url: url() },
        Commit { what: "flush_log_at_trx_commit 0", url: url() },
    ];
    let flush = |commit| Flavour::CurrentThread.run(set(url(), [1, 0][commit]));
    sql::pairs(plan, &mut report, &commits, Floor::open, flush)?;
    report.note(format!("floor: {TAKE}; {FREE}"));
    let waiters = plan.scaled(WAITERS, 3);
    let times = Flavour::MultiThread.run(turns(server.url().to_owned(), waiters))?;
    let what = format!("the next of {waiters} in line gets its turn");
    report.row(what, &[("p50_ms", median(&times))]);
    Ok(report)
}

/// By the same road as the library. Left to itself the driver finds out that the server is on this machine
/// and changes over to its socket file, which takes a third less time.
async fn connect(url: &str) -> Result<Conn> {
    let opts = OptsBuilder::from_opts(Opts::from_url(url)?).prefer_socket(false);
    Ok(Conn::new(opts).await?)
}

async fn set(url: String, flush: u8) -> Result<()> {
    let mut client = connect(&url).await?;
    let sql = format!("SET GLOBAL innodb_flush_log_at_trx_commit = {flush}");
    client.query_drop(sql).await?;
    client.disconnect().await?;
    Ok(())
}

/// The bare lock table.
struct Floor {
    client: Conn,
    take: Statement,
    free: Statement,
    number: u128,
}

impl Floor {
    async fn open(url: String) -> Result<Self> {
        let mut client = connect(&url).await?;
        client.query_drop(TABLE).await?;
        let (take, free) = (client.prep(TAKE).await?, client.prep(FREE).await?);
        Ok(Self { client, take, free, number: 0 })
    }
}

impl Pair for Floor {
    async fn pair(&mut self) -> Result<()> {
        self.number += 1;
        let owner = self.number.to_be_bytes();
        let row: Option<(Vec<u8>, i64)> =
            self.client.exec_first(&self.take, ("pairs", &owner[..])).await?;
        anyhow::ensure!(row.is_some_and(|(by, _)| by == owner), "the row is taken");
        self.client.exec_drop(&self.free, ("pairs", &owner[..])).await?;
        Ok(())
    }
}
