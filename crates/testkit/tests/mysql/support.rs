//! A server, keepers of it, and a client beside them.

use lockkeeper::Keeper;
use mysql_async::{Conn, Opts, OptsBuilder, Row, prelude::*};
use servers::Running;
use std::{
    io::Write as _,
    process::{Command, Stdio},
    time::Duration,
};
use testkit::live;

pub(crate) use testkit::live::waiter;

pub(crate) const TTL: Duration = Duration::from_secs(3);

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

/// Is the server MySQL, and not MariaDB?
pub(crate) async fn is_mysql(client: &mut Conn) -> bool {
    let version: Option<String> = client.query_first("SELECT VERSION()").await.expect("an answer");
    !version.expect("a version").contains("MariaDB")
}

/// A counter of the server's.
pub(crate) async fn status(client: &mut Conn, name: &str) -> u64 {
    let sql = format!("SHOW GLOBAL STATUS LIKE '{name}'");
    let row: Option<(String, String)> = client.query_first(sql).await.expect("an answer");
    row.and_then(|(_, value)| value.parse().ok()).expect("a number")
}

/// How many deadlocks the server has met. Only MariaDB has a counter of them in its status.
pub(crate) async fn deadlocks(client: &mut Conn) -> i64 {
    let sql = "SELECT `count` FROM information_schema.innodb_metrics WHERE name = 'lock_deadlocks'";
    number(client, sql).await
}

/// Gives a script to the server's own client; the error is what the client says.
pub(crate) fn run(server: &Running, script: &str) -> Result<(), String> {
    run_as(server, "root", script)
}

/// The same as another user who needs no password.
pub(crate) fn run_as(server: &Running, user: &str, script: &str) -> Result<(), String> {
    let mut client = Command::new("mariadb")
        .args(["--no-defaults", "--protocol=tcp", "-h127.0.0.1", "lockkeeper"])
        .arg(format!("-u{user}"))
        .arg(format!("-P{}", server.ports()[0]))
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the client starts");
    // A client that was refused reads no further.
    let _ = client.stdin.take().expect("a pipe").write_all(script.as_bytes());
    let end = client.wait_with_output().expect("its end");
    match end.status.success() {
        true => Ok(()),
        false => Err(String::from_utf8_lossy(&end.stderr).into_owned()),
    }
}

/// Ends every connection but its own.
pub(crate) async fn cut_all(server: &Running) {
    let mut witness = client(server).await;
    for Process { id, .. } in processes(&mut witness).await {
        // It may have ended by itself.
        let _ = witness.query_drop(format!("KILL {id}")).await;
    }
}

/// A connection of the user `root`, as the server lists it.
pub(crate) struct Process {
    pub(crate) id: u32,
    pub(crate) state: String,
    pub(crate) statement: String,
}

/// The connections of the user `root` but this one. Not from a table: MySQL reads all statements as text for its
/// own, and ours hold bytes that are none.
pub(crate) async fn processes(client: &mut Conn) -> Vec<Process> {
    let own = client.id();
    let rows: Vec<Row> = client.query("SHOW FULL PROCESSLIST").await.expect("an answer");
    let text = |row: &Row, column: &str| {
        let bytes: Option<Vec<u8>> = row.get(column).expect("a column");
        String::from_utf8_lossy(&bytes.unwrap_or_default()).into_owned()
    };
    let roots = rows.iter().filter(|row| text(row, "User") == "root");
    roots
        .map(|row| Process {
            id: row.get("Id").expect("a column"),
            state: text(row, "State"),
            statement: text(row, "Info"),
        })
        .filter(|process| process.id != own)
        .collect()
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
    let session = "UNHEX(LEFT(SHA2('the dead', 256), 32))";
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
                 '{name}', 1, 1, UNHEX(LEFT(SHA2('{name}', 256), 32)), {session}, capacity, capacity FROM lk_gate \
                 WHERE name = '{like}'"
            ),
        ] {
            client.query_drop(sql).await.expect("written");
        }
    }
}
