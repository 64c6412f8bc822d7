//! The floor below the MySQL store: what a lock in SQL costs at the least with the same driver.
//!
//! One prepared upsert takes a row and answers with its number, and one update frees it. MariaDB answers with a row,
//! MySQL with the number in the packet that ends a statement.

use crate::pair::{At, Boxed, Pair, Ready};
use anyhow::Result;
use mysql_async::{Conn, Opts, OptsBuilder, Statement, prelude::Queryable};

const TABLE: &str = "CREATE TABLE IF NOT EXISTS floor(name VARBINARY(512) PRIMARY KEY, \
     owner BINARY(16), token BIGINT NOT NULL, expires DATETIME(6) NOT NULL)";
/// The owner is decided before the expiry is changed: assignments go from left to right.
pub(crate) const TAKE_MARIADB: &str = "INSERT INTO floor VALUES (?, ?, 1, NOW(6) + INTERVAL 15 SECOND) \
     ON DUPLICATE KEY UPDATE \
     token = IF(owner IS NULL OR expires < NOW(6), token + 1, token), \
     owner = IF(owner IS NULL OR expires < NOW(6), VALUES(owner), owner), \
     expires = IF(owner = VALUES(owner), VALUES(expires), expires) RETURNING owner, token";
/// A row that is taken stays as it is, and the statement has changed none.
pub(crate) const TAKE_MYSQL: &str = "INSERT INTO floor VALUES (?, ?, LAST_INSERT_ID(1), \
     NOW(6) + INTERVAL 15 SECOND) AS new ON DUPLICATE KEY UPDATE \
     token = IF(floor.owner IS NULL OR floor.expires < NOW(6), \
     LAST_INSERT_ID(floor.token + 1), floor.token), \
     owner = IF(floor.owner IS NULL OR floor.expires < NOW(6), new.owner, floor.owner), \
     expires = IF(floor.owner = new.owner, new.expires, floor.expires)";
pub(crate) const FREE: &str = "UPDATE floor SET owner = NULL WHERE name = ? AND owner = ?";

/// By the same way as the library. Left to itself the driver finds out that the server is on this machine
/// and changes over to its socket file, which takes a third less time.
async fn connect(url: &str) -> Result<Conn> {
    let opts = OptsBuilder::from_opts(Opts::from_url(url)?).prefer_socket(false);
    Ok(Conn::new(opts).await?)
}

/// When the server writes its log to the disk; returns the URL.
pub(crate) async fn flush(url: String, flush: u8) -> Result<String> {
    let mut client = connect(&url).await?;
    let sql = format!("SET GLOBAL innodb_flush_log_at_trx_commit = {flush}");
    client.query_drop(sql).await?;
    client.disconnect().await?;
    Ok(url)
}

/// The bare lock table.
struct Floor {
    client: Conn,
    take: Statement,
    free: Statement,
    /// The server answers with the row.
    returns: bool,
    number: u128,
}

pub(crate) fn mariadb(at: At) -> Boxed<Ready> {
    Box::pin(async { Ok(Ready::one(Floor::open(at.url, TAKE_MARIADB, true).await?)) })
}

pub(crate) fn mysql(at: At) -> Boxed<Ready> {
    Box::pin(async { Ok(Ready::one(Floor::open(at.url, TAKE_MYSQL, false).await?)) })
}

impl Floor {
    async fn open(url: String, take: &'static str, returns: bool) -> Result<Self> {
        let mut client = connect(&url).await?;
        client.query_drop(TABLE).await?;
        let (take, free) = (client.prep(take).await?, client.prep(FREE).await?);
        Ok(Self { client, take, free, returns, number: 0 })
    }

    /// Whether the row is this owner's now.
    async fn take(&mut self, owner: &[u8]) -> Result<bool> {
        if self.returns {
            let row: Option<(Vec<u8>, i64)> =
                self.client.exec_first(&self.take, ("pairs", owner)).await?;
            return Ok(row.is_some_and(|(by, _)| by == owner));
        }
        self.client.exec_drop(&self.take, ("pairs", owner)).await?;
        Ok(self.client.affected_rows() > 0 && self.client.last_insert_id().is_some())
    }
}

impl Pair for Floor {
    async fn pair(&mut self) -> Result<()> {
        self.number += 1;
        let owner = self.number.to_be_bytes();
        anyhow::ensure!(self.take(&owner).await?, "the row is taken");
        self.client.exec_drop(&self.free, ("pairs", &owner[..])).await?;
        Ok(())
    }
}
