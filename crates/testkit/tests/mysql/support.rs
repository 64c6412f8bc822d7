//! A server, keepers of it, and a client beside them.

use lockkeeper::{Guard, Keeper};
use mysql_async::{Conn, Opts, OptsBuilder, Row, prelude::*};
use servers::{MARIADB, Recipe, Require, Running};
use std::time::Duration;
use testkit::world::eventually;
use tokio::task::JoinHandle;

pub(crate) const TTL: Duration = Duration::from_secs(3);

/// A running server, or nothing if it cannot be had and nobody insists.
pub(crate) fn start() -> Option<Running> {
    start_as(MARIADB)
}

pub(crate) fn start_as(recipe: Recipe) -> Option<Running> {
    if let Some(missing) = recipe.first_missing() {
        let must = Require::from_env().wants(recipe.name);
        assert!(!must, "{missing} is not installed, and {} asks for it", Require::VARIABLE);
        eprintln!("ignored: {missing} is not installed");
        return None;
    }
    Some(recipe.start().expect("the server starts"))
}

pub(crate) async fn keeper(server: &Running) -> Keeper {
    Keeper::builder().ttl(TTL).connect(server.url()).await.expect("the server answers")
}

/// Waits for a lock, and returns when its ticket stands in line behind one other.
pub(crate) async fn waiter(
    keeper: &Keeper,
    name: &str,
    ahead: usize,
) -> JoinHandle<lockkeeper::Result<Guard>> {
    let task = tokio::spawn(keeper.lock(name).into_future());
    eventually("it waits", async || {
        let line = keeper.look_at(name).await;
        line.is_ok_and(|line| line.is_some_and(|line| line.tickets.len() == ahead + 1))
    })
    .await;
    task
}

/// A client beside the library, as a user has one.
pub(crate) async fn client(server: &Running) -> Conn {
    Conn::new(opts(server)).await.expect("the server answers")
}

pub(crate) fn opts(server: &Running) -> OptsBuilder {
    let opts = Opts::from_url(server.url()).expect("a URL of MySQL");
    OptsBuilder::from_opts(opts).prefer_socket(false)
}

/// The first column of the first row.
pub(crate) async fn number(client: &mut Conn, sql: &str) -> i64 {
    let row: Option<Row> = client.query_first(sql).await.expect("an answer");
    row.and_then(|row| row.get_opt(0)?.ok()).expect("a number")
}

/// A counter of the server's.
pub(crate) async fn status(client: &mut Conn, name: &str) -> u64 {
    let sql = format!("SHOW GLOBAL STATUS LIKE '{name}'");
    let row: Option<(String, String)> = client.query_first(sql).await.expect("an answer");
    row.and_then(|(_, value)| value.parse().ok()).expect("a number")
}
