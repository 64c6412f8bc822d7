//! MariaDB: pairs of lock and release beside a bare lock table, and the hand-off to the next in line.
//!
//! The floor is what a lock in SQL costs at the least with the same driver: one prepared upsert that
//! takes a row and answers with its number, and one update that frees it.

use crate::{
    args::Plan,
    flavour::Flavour,
    pair::{Pair, Speed, speed, stack_speed},
    report::Report,
    rounds::Rounds,
    stats::median,
    turns::turns,
};
use anyhow::Result;
use mysql_async::{Conn, Opts, Statement, prelude::Queryable};
use servers::MARIADB;
use std::time::Duration;

/// The share of the floor that the whole stack must reach.
const SHARE: f64 = 0.8;
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

/// How the server writes its log: to the disk with every commit, or once a second.
#[derive(Clone, Copy)]
enum Flush {
    Commit,
    Second,
}

impl Flush {
    fn setting(self) -> u8 {
        match self {
            Self::Commit => 1,
            Self::Second => 0,
        }
    }
}

#[derive(Clone, Copy)]
enum Variant {
    Floor(Flush),
    Stack(Flush, Flavour),
}

impl Variant {
    /// Each floor comes before those that are compared with it.
    const ALL: [Self; 6] = [
        Self::Floor(Flush::Commit),
        Self::Stack(Flush::Commit, Flavour::CurrentThread),
        Self::Stack(Flush::Commit, Flavour::MultiThread),
        Self::Floor(Flush::Second),
        Self::Stack(Flush::Second, Flavour::CurrentThread),
        Self::Stack(Flush::Second, Flavour::MultiThread),
    ];

    fn flush(self) -> Flush {
        let (Self::Floor(flush) | Self::Stack(flush, _)) = self;
        flush
    }

    fn what(self) -> String {
        let flush = format!("flush_log_at_trx_commit {}", self.flush().setting());
        match self {
            Self::Floor(_) => format!("floor: upsert and update, {flush}"),
            Self::Stack(_, flavour) => format!("whole stack, {flush}, {}", flavour.word()),
        }
    }

    fn floor(self) -> usize {
        match self.flush() {
            Flush::Commit => 0,
            Flush::Second => 3,
        }
    }

    fn measure(self, url: &str, time: Duration) -> Result<Speed> {
        let url = url.to_owned();
        Flavour::CurrentThread.run(set(url.clone(), self.flush()))?;
        match self {
            Self::Floor(_) => Flavour::CurrentThread
                .run(async move { speed(vec![Floor::open(&url).await?], time, None).await }),
            Self::Stack(_, flavour) => flavour.run(stack_speed(url, time)),
        }
    }
}

pub(super) fn run(plan: &Plan) -> Result<Report> {
    let mut report = Report::new("mysql");
    if let Some(missing) = MARIADB.first_missing() {
        report.note(format!("not measured: {missing} is not installed"));
        return Ok(report);
    }
    let server = MARIADB.start()?;
    let rounds = Rounds::run(plan.rounds, &Variant::ALL, |variant| {
        variant.measure(server.url(), plan.round())
    })?;
    for (i, variant) in Variant::ALL.into_iter().enumerate() {
        let share = rounds.ratio(i, variant.floor(), |speed| speed.pairs_per_s);
        report.row(
            variant.what(),
            &[
                ("pairs_per_s", rounds.median(i, |speed| speed.pairs_per_s)),
                ("of_floor", share),
                ("cpu_us_per_pair", rounds.median(i, |speed| speed.cpu_us)),
            ],
        );
        if let Variant::Stack(..) = variant {
            report.at_least(format!("share of the floor: {}", variant.what()), SHARE, share);
        }
    }
    report.note(format!("floor: {TAKE}; {FREE}"));
    let waiters = plan.scaled(WAITERS, 3);
    let times = Flavour::MultiThread.run(turns(server.url().to_owned(), waiters))?;
    let what = format!("the next of {waiters} in line gets its turn");
    report.row(what, &[("p50_ms", median(&times))]);
    Ok(report)
}

async fn connect(url: &str) -> Result<Conn> {
    Ok(Conn::new(Opts::from_url(url)?).await?)
}

async fn set(url: String, flush: Flush) -> Result<()> {
    let mut client = connect(&url).await?;
    let sql = format!("SET GLOBAL innodb_flush_log_at_trx_commit = {}", flush.setting());
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
    async fn open(url: &str) -> Result<Self> {
        let mut client = connect(url).await?;
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
