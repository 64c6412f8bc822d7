//! A server, keepers of it, and a client beside them.

use lockkeeper::Keeper;
use mysql_async::{Conn, Opts, OptsBuilder, Row, prelude::*};
use servers::{MARIADB, Running};
use std::time::Duration;
use testkit::live;

pub(crate) use testkit::live::{start as start_as, waiter};

pub(crate) const TTL: Duration = Duration::from_secs(3);

/// A running server, or nothing if it cannot be had and nobody insists.
pub(crate) fn start() -> Option<Running> {
    live::start(MARIADB)
}

pub(crate) async fn keeper(server: &Running) -> Keeper {
    live::keeper(server, TTL).await
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

/// Ends every connection but its own.
pub(crate) async fn cut_all(server: &Running) {
    let mut witness = client(server).await;
    let others = "SELECT id FROM information_schema.processlist \
         WHERE id <> CONNECTION_ID() AND user = 'root'";
    for id in witness.query::<u64, _>(others).await.expect("an answer") {
        // It may have ended by itself.
        let _ = witness.query_drop(format!("KILL {id}")).await;
    }
}

/// How many tickets stand in all lines.
pub(crate) async fn standing(client: &mut Conn) -> i64 {
    let sql = "SELECT (SELECT COUNT(*) FROM lk_gate WHERE fence > 0) \
         + (SELECT COUNT(*) FROM lk_ticket)";
    number(client, sql).await
}

/// A session that has died long ago and is not swept before this moment of the server's clock, with a lock for
/// each name. A lock `like` must have been taken before.
pub(crate) async fn the_dead(client: &mut Conn, names: &[&str], like: &str, sweep_at: i64) {
    let session = "UNHEX(MD5('the dead'))";
    let sql = format!(
        "INSERT INTO lk_session(id, ttl, delay, expires, dead_at, sweep_at, host, pid, program) \
         VALUES ({session}, 1, 0, 1, 1, {sweep_at}, '', 1, '')"
    );
    client.query_drop(sql).await.expect("written");
    for name in names {
        for sql in [
            format!("INSERT INTO lk_line(name) VALUES ('{name}')"),
            format!(
                "INSERT INTO lk_gate(name, last, fence, id, session, weight, capacity) SELECT \
                 '{name}', 1, 1, UNHEX(MD5('{name}')), {session}, capacity, capacity FROM lk_gate \
                 WHERE name = '{like}'"
            ),
        ] {
            client.query_drop(sql).await.expect("written");
        }
    }
}
