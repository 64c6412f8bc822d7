//! PostgreSQL: pairs of lock and release beside a bare lock table, and the hand-off to the next in line.
//!
//! The floor is what a lock in SQL costs at the least with the same driver: one prepared upsert that
//! takes a row and answers with its number, and one update that frees it.

use crate::{
    args::Plan,
    flavour::Flavour,
    pair::{Pair, Speed, speed, stack_speed},
    report::Report,
    rounds::Rounds,
    stats::percentile,
    turns::turns,
};
use anyhow::Result;
use servers::{POSTGRES, Running};
use std::time::Duration;
use tokio_postgres::{Client, NoTls, Statement};

/// The share of the floor that the whole stack must reach.
const SHARE: f64 = 0.8;
/// How long the next in line may wait for its turn, in the middle of all turns.
const TURN_MS: f64 = 5.0;
const WAITERS: usize = 100;

const TABLE: &str = "CREATE TABLE IF NOT EXISTS floor(name text PRIMARY KEY, owner bytea, \
     token bigint NOT NULL, expires timestamptz NOT NULL) WITH (fillfactor = 50)";
const TAKE: &str = "INSERT INTO floor AS f VALUES ($1, $2, 1, now() + interval '15 s') \
     ON CONFLICT (name) DO UPDATE SET owner = excluded.owner, token = f.token + 1, \
     expires = excluded.expires WHERE f.owner IS NULL OR f.expires < now() RETURNING token";
const FREE: &str = "UPDATE floor SET owner = NULL WHERE name = $1 AND owner = $2";

#[derive(Clone, Copy)]
enum Variant {
    Floor { hasty: bool },
    Stack { hasty: bool, flavour: Flavour },
}

impl Variant {
    /// Each floor comes before those that are compared with it.
    const ALL: [Self; 6] = [
        Self::Floor { hasty: false },
        Self::Stack { hasty: false, flavour: Flavour::CurrentThread },
        Self::Stack { hasty: false, flavour: Flavour::MultiThread },
        Self::Floor { hasty: true },
        Self::Stack { hasty: true, flavour: Flavour::CurrentThread },
        Self::Stack { hasty: true, flavour: Flavour::MultiThread },
    ];

    fn what(self) -> String {
        let commit = |hasty| if hasty { "off" } else { "on" };
        match self {
            Self::Floor { hasty } => {
                format!("floor: upsert and update, synchronous_commit {}", commit(hasty))
            }
            Self::Stack { hasty, flavour } => {
                format!("whole stack, synchronous_commit {}, {}", commit(hasty), flavour.word())
            }
        }
    }

    fn floor(self) -> usize {
        let (Self::Floor { hasty } | Self::Stack { hasty, .. }) = self;
        if hasty { 3 } else { 0 }
    }

    fn measure(self, url: &str, time: Duration) -> Result<Speed> {
        let (Self::Floor { hasty } | Self::Stack { hasty, .. }) = self;
        let url = if hasty { format!("{url}_hasty") } else { url.to_owned() };
        match self {
            Self::Floor { .. } => Flavour::CurrentThread
                .run(async move { speed(vec![Floor::open(&url).await?], time, None).await }),
            Self::Stack { flavour, .. } => flavour.run(stack_speed(url, time)),
        }
    }
}

pub(super) fn run(plan: &Plan) -> Result<Report> {
    let mut report = Report::new("postgres");
    if let Some(missing) = POSTGRES.first_missing() {
        report.note(format!("not measured: {missing} is not installed"));
        return Ok(report);
    }
    let server = POSTGRES.start()?;
    Flavour::CurrentThread.run(prepare(server.url().to_owned()))?;
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
        if let Variant::Stack { .. } = variant {
            report.at_least(format!("share of the floor: {}", variant.what()), SHARE, share);
        }
    }
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
    async fn open(url: &str) -> Result<Self> {
        let (client, connection) = tokio_postgres::connect(url, NoTls).await?;
        tokio::spawn(connection);
        client.batch_execute(TABLE).await?;
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
