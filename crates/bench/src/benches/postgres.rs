//! PostgreSQL: pairs of lock and release beside a bare lock table, and the hand-off to the next in line.
//!
//! The floor is what a lock in SQL costs at the least with the same driver: one prepared upsert that
//! takes a row and answers with its number, and one update that frees it.

use super::sql::{self, Commit};
use crate::{
    args::Plan,
    flavour::Flavour,
    machine::now,
    pair::Pair,
    report::Report,
    stats::{median, millis, percentile},
    turns::{HAND_OVERS, HELD, hand_overs, turns},
};
use anyhow::{Context as _, Result};
use servers::{POSTGRES, Running};
use std::future::poll_fn;
use tokio::sync::mpsc;
use tokio_postgres::{AsyncMessage, Client, NoTls, Statement};

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
    tell_hand_overs(plan, &server, &mut report)?;
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

/// How much longer than a warm hand-over the first one of a connection may take, and a warm one than a bare
/// durable update that is followed by a notification.
const COLD: f64 = 2.0;
const WARM: f64 = 2.0;
const PAIRS: usize = 30;

/// From a release to the grant of the one who waits: the first one of a connection, and those after it.
fn tell_hand_overs(plan: &Plan, server: &Running, report: &mut Report) -> Result<()> {
    let pairs = plan.scaled(PAIRS, 3);
    let url = server.url().to_owned();
    let (cold, warm, bare) = Flavour::MultiThread.run(async move {
        let (mut cold, mut warm, mut bare) = (Vec::new(), Vec::new(), Vec::new());
        let mut floor = Bell::open(&url).await?;
        for at in 0..pairs {
            let (first, others) = hand_overs(&url, &format!("hand-over {at}")).await?;
            cold.push(first);
            warm.extend(others);
            for _ in 0..HAND_OVERS {
                bare.push(floor.ring().await?);
            }
        }
        anyhow::Ok((median(&cold), median(&warm), median(&bare)))
    })?;
    report.row("a hand-over", &[("cold_ms", cold), ("warm_ms", warm), ("bare_ms", bare)]);
    report.note(format!(
        "cold: the first release of a connection, {HELD:?} after its lock; bare: a durable update and a \
         notification behind it"
    ));
    report.below("a cold hand-over beside a warm one", COLD, cold / warm);
    report.below("a warm hand-over beside the bare one", WARM, warm / bare);
    Ok(())
}

/// A row that is changed durably, and a connection that listens.
struct Bell {
    floor: Floor,
    notify: Statement,
    heard: mpsc::UnboundedReceiver<()>,
    _listens: Client,
}

impl Bell {
    async fn open(url: &str) -> Result<Self> {
        let (listens, mut connection) = tokio_postgres::connect(url, NoTls).await?;
        let (send, heard) = mpsc::unbounded_channel();
        tokio::spawn(async move {
            while let Some(Ok(message)) = poll_fn(|cx| connection.poll_message(cx)).await {
                if let AsyncMessage::Notification(_) = message
                    && send.send(()).is_err()
                {
                    break;
                }
            }
        });
        listens.batch_execute("LISTEN floor").await?;
        let mut floor = Floor::open(url.to_owned()).await?;
        floor.pair().await?;
        let notify = floor.client.prepare("SELECT pg_notify('floor', '')").await?;
        Ok(Self { floor, notify, heard, _listens: listens })
    }

    /// How long it takes until the change is heard of, in ms.
    async fn ring(&mut self) -> Result<f64> {
        let Floor { client, take, .. } = &self.floor;
        let (owner, began) = (rand::random::<[u8; 16]>(), now());
        client.query(take, &[&"pairs", &&owner[..]]).await?;
        client.query(&self.notify, &[]).await?;
        self.heard.recv().await.context("the listener has gone")?;
        let took = millis(u64::try_from(now().saturating_since(began).as_nanos())?);
        client.execute(&self.floor.free, &[&"pairs", &&owner[..]]).await?;
        Ok(took)
    }
}
