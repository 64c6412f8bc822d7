//! Making the tables, by whom, and what is said about a server's set-up.

use crate::support::{Process, client, opts, processes, run, run_as, standing, the_dead};
use lockkeeper::{Keeper, Store as _, store::migration};
use mysql_async::prelude::Queryable;
use servers::{MARIADB, MYSQL, Running};
use std::time::Duration;
use testkit::{trials::WithArgs, world::eventually};

testkit::tests! {
    crate::SERVERS =>
        a_user_without_the_right_to_make_tables_is_told_what_helps,
        missing_rights_are_named_with_the_statement_that_grants_them,
        clients_that_connect_first_together_find_one_store,
        tables_of_a_newer_lockkeeper_are_left_alone,
        a_keeper_connects_while_others_send_bytes_that_are_no_text,
        programs_that_live_shortly_leave_the_dead_not_for_ever;
    LAX =>
        a_lax_set_up_is_named_with_its_consequence;
}

/// The URL of this server for another user.
pub(crate) fn url_for(server: &Running, user: &str) -> String {
    server.url().replace("root@", &format!("{user}:secret@"))
}

/// The rights that the documentation asks for: those of who makes the tables come first.
pub(crate) fn documented() -> [&'static str; 2] {
    let text = include_str!("../../../../docs/mysql.md");
    ["| the first to connect", "| every other program"].map(|who| {
        let row = text.lines().find(|line| line.starts_with(who)).expect("a row of the table");
        row.split('`').nth(1).expect("the rights")
    })
}

/// A user with these rights on the database and no others.
pub(crate) async fn user_with(server: &Running, user: &str, rights: &str) {
    let mut root = client(server).await;
    for host in ["%", "localhost"] {
        let account = format!("{user}@'{host}'");
        for sql in [
            format!("CREATE USER IF NOT EXISTS {account} IDENTIFIED BY 'secret'"),
            format!("GRANT {rights} ON lockkeeper.* TO {account}"),
        ] {
            root.query_drop(sql).await.expect("done");
        }
    }
}

/// Tables made by a user who has the rights that the documentation names. MySQL lets no such user change the
/// procedures that `root` has made.
pub(crate) async fn tables_by_a_user(server: &Running, script: &str) {
    user_with(server, "first", &documented().join(", ")).await;
    let mut root = client(server).await;
    for host in ["%", "localhost"] {
        let sql = format!("ALTER USER first@'{host}' IDENTIFIED BY ''");
        root.query_drop(sql).await.expect("done");
    }
    run_as(server, "first", script).expect("made");
}

/// A user who may work with tables and not make any.
async fn worker(server: &Running) {
    user_with(server, "worker", documented()[1]).await;
}

async fn a_user_without_the_right_to_make_tables_is_told_what_helps(server: Running) {
    worker(&server).await;
    let url = url_for(&server, "worker");
    let e = Keeper::connect(&url).await.expect_err("no right to make tables").to_string();
    for word in ["CREATE ROUTINE", "migrate --print"] {
        assert!(e.contains(word), "{e}");
    }
    assert!(!e.contains("secret"), "{e}");
    let e = Keeper::connect(&format!("{url}?create=false")).await.expect_err("nothing is there");
    assert!(e.to_string().contains("create=false"), "{e}");
    run(&server, &migration(&url).expect("a script")).expect("it runs");
    let keeper = Keeper::connect(&url).await.expect("now the tables are there");
    keeper.lock("a").await.expect("free").release().await.expect("released");
    keeper.close().await;
}

/// Each refusal names the next statement to run, until there is none left.
async fn missing_rights_are_named_with_the_statement_that_grants_them(server: Running) {
    let mut root = client(&server).await;
    for made in [false, true] {
        let user = format!("app_{made}");
        if made {
            Keeper::connect(server.url()).await.expect("the tables are made").close().await;
        }
        user_with(&server, &user, "SELECT").await;
        let mut granted = Vec::new();
        let keeper = loop {
            let e = match Keeper::connect(&url_for(&server, &user)).await {
                Ok(keeper) => break keeper,
                Err(e) => e.to_string(),
            };
            let grant = e.split("; ").find(|part| part.starts_with("GRANT "));
            let grant = grant.unwrap_or_else(|| panic!("{e}")).to_owned();
            assert!(!granted.contains(&grant) && !e.contains("secret"), "{e}");
            root.query_drop(&grant).await.expect("a good statement");
            granted.push(grant);
        };
        assert_eq!(granted.iter().any(|grant| grant.contains("CREATE")), !made, "{granted:?}");
        // Who makes a procedure may call it.
        assert!(!made || granted.iter().any(|grant| grant.contains("EXECUTE")), "{granted:?}");
        keeper.lock("a").await.expect("free").release().await.expect("released");
        keeper.close().await;
        root.query_drop("DROP DATABASE lockkeeper").await.expect("dropped");
        root.query_drop("CREATE DATABASE lockkeeper").await.expect("made");
    }
}

/// Many processes connect to an empty database at once: all of them to the same store.
async fn clients_that_connect_first_together_find_one_store(server: Running) {
    let mut comers = tokio::task::JoinSet::new();
    for _ in 0..8 {
        let url = server.url().to_owned();
        comers.spawn(async move { Keeper::connect(&url).await.expect("connected").store().id() });
    }
    let ids = comers.join_all().await;
    assert!(ids.iter().all(|id| *id == ids[0]), "{ids:?}");
}

async fn tables_of_a_newer_lockkeeper_are_left_alone(server: Running) {
    Keeper::connect(server.url()).await.expect("connected");
    client(&server).await.query_drop("UPDATE lk_meta SET layout = 999").await.expect("done");
    let e = Keeper::connect(server.url()).await.expect_err("too new").to_string();
    assert!(e.contains("newer lockkeeper") && e.contains("prefix="), "{e}");
}

/// MySQL's own tables of what runs cannot show such a statement.
async fn a_keeper_connects_while_others_send_bytes_that_are_no_text(server: Running) {
    let (mut other, mut witness) = (client(&server).await, client(&server).await);
    let its = other.id();
    let long = tokio::spawn(async move {
        other.query_drop(b"SELECT SLEEP(600), _binary'\x8e\x23\xff'".as_slice()).await
    });
    eventually("the statement runs", async || {
        let runs = |process: &Process| process.id == its && process.statement.contains("SLEEP");
        processes(&mut witness).await.iter().any(runs)
    })
    .await;
    Keeper::connect(server.url()).await.expect("connected").close().await;
    witness.query_drop(format!("KILL {its}")).await.expect("ended");
    let _ = long.await.expect("no panic");
}

/// Servers that do not write every commit to their disk.
const LAX: [WithArgs; 2] = [
    WithArgs(MYSQL, &["--innodb-flush-log-at-trx-commit=2"]),
    WithArgs(MARIADB, &["--innodb-flush-log-at-trx-commit=2"]),
];

async fn a_lax_set_up_is_named_with_its_consequence(server: Running) {
    let keeper = Keeper::connect(server.url()).await.expect("connected");
    let advice = keeper.store().advice().await.expect("an answer");
    let advice: Vec<String> = advice.iter().map(ToString::to_string).collect();
    assert!(advice.iter().any(|a| a.contains("innodb_flush_log_at_trx_commit is 2")), "{advice:?}");
    let mut plain = mysql_async::Conn::new(opts(&server)).await.expect("connected");
    plain.query_drop("SET GLOBAL innodb_flush_log_at_trx_commit = 1").await.expect("done");
    assert_eq!(keeper.store().advice().await.expect("an answer"), []);
}

/// Not even where no program lives long enough to renew anything.
async fn programs_that_live_shortly_leave_the_dead_not_for_ever(server: Running) {
    let mut witness = client(&server).await;
    let job = async || {
        let keeper = testkit::live::keeper(&server, Duration::from_secs(600)).await;
        keeper.lock("job").await.expect("free").release().await.expect("released");
        keeper.close().await;
    };
    job().await;
    the_dead(&mut witness, &["a", "b"], "job", 1).await;
    eventually("they are gone", async || {
        job().await;
        standing(&mut witness).await == 0
    })
    .await;
}
