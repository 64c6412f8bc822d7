//! The floor below the PostgreSQL store: what a lock in SQL costs at the least with the same driver.
//!
//! One prepared upsert takes a row and answers with its number, and one update frees it.

use crate::{
    machine::now,
    pair::{At, Boxed, Pair, Ready},
    stats::millis_between,
};
use anyhow::{Context as _, Result};
use std::future::poll_fn;
use tokio::sync::mpsc;
use tokio_postgres::{AsyncMessage, Client, NoTls, Statement, error::SqlState};

const TABLE: &str = "CREATE TABLE IF NOT EXISTS floor(name text PRIMARY KEY, owner bytea, \
     token bigint NOT NULL, expires timestamptz NOT NULL) WITH (fillfactor = 50)";
/// As the library's own connections have them.
const SETTINGS: &str =
    "SET plan_cache_mode = force_generic_plan; SET enable_seqscan = off; SET jit = off";
const TAKE: &str = "INSERT INTO floor AS f VALUES ($1, $2, 1, now() + interval '15 s') \
     ON CONFLICT (name) DO UPDATE SET owner = excluded.owner, token = f.token + 1, \
     expires = excluded.expires WHERE f.owner IS NULL OR f.expires < now() RETURNING token";
const FREE: &str = "UPDATE floor SET owner = NULL WHERE name = $1 AND owner = $2";

/// What the floor asks for.
pub(crate) const STATEMENTS: &[&str] = &[TAKE, FREE];

/// The URL of a second database, in which commits are not waited for.
pub(crate) async fn without_waiting(url: String) -> Result<String> {
    let (client, connection) = tokio_postgres::connect(&url, NoTls).await?;
    tokio::spawn(connection);
    match client.batch_execute("CREATE DATABASE postgres_hasty").await {
        Err(e) if e.code() == Some(&SqlState::DUPLICATE_DATABASE) => {}
        done => done?,
    }
    client.batch_execute("ALTER DATABASE postgres_hasty SET synchronous_commit = off").await?;
    Ok(format!("{url}_hasty"))
}

pub(crate) fn floor(at: At) -> Boxed<Ready> {
    Box::pin(async { Ok(Ready::one(Floor::open(at.url).await?)) })
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

/// A row that is changed durably, and a connection that listens.
pub(crate) struct Bell {
    floor: Floor,
    notify: Statement,
    heard: mpsc::UnboundedReceiver<()>,
    _listens: Client,
}

impl Bell {
    pub(crate) async fn open(url: &str) -> Result<Self> {
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
    pub(crate) async fn ring(&mut self) -> Result<f64> {
        let Floor { client, take, .. } = &self.floor;
        let (owner, began) = (rand::random::<[u8; 16]>(), now());
        client.query(take, &[&"pairs", &&owner[..]]).await?;
        client.query(&self.notify, &[]).await?;
        self.heard.recv().await.context("the listener has gone")?;
        let took = millis_between(began, now());
        client.execute(&self.floor.free, &[&"pairs", &&owner[..]]).await?;
        Ok(took)
    }
}
