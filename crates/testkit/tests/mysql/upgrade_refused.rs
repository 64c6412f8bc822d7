//! An upgrade that something is in the way of: a right that is missing, an open transaction, another upgrade.

use crate::{
    setup::{documented, tables_by_a_user, url_for, user_with},
    support::{client, is_mysql, number, processes, run},
};
use lockkeeper::{
    Keeper,
    store::{migration, mysql::fence_check},
};
use mysql_async::{Conn, Row, prelude::Queryable};
use servers::Running;
use std::time::{Duration, Instant};
use testkit::{
    live,
    world::{eventually, soon},
};

testkit::tests! {
    crate::SERVERS =>
        an_upgrade_that_lacks_a_right_changes_nothing_and_names_it,
        upgrades_beside_an_open_transaction_cost_no_lock,
        the_last_layout_is_brought_up_to_date_beside_an_open_transaction,
        procedures_that_root_made_are_said_to_need_such_a_user,
        the_printed_script_stops_while_another_makes_the_tables;
}

/// Layouts, and the rights that they need to be brought up to date and new tables do not.
const WANTED: [(&str, &str); 3] = [
    (include_str!("layout_3.sql"), "ALTER"),
    (include_str!("layout_1.sql"), "ALTER"),
    (include_str!("layout_1.sql"), "DROP"),
];
/// For so long a holder is watched beside an upgrade: several of its lives.
const WATCHED: Duration = Duration::from_secs(15);
const SHORT: Duration = Duration::from_secs(6);
/// A single attempt keeps others waiting for a second.
const STALL: Duration = Duration::from_secs(3);

/// All columns and procedures of the database.
async fn schema(witness: &mut Conn) -> Vec<String> {
    let sql = "SELECT CONCAT_WS(' ', table_name, column_name, column_type) \
         FROM information_schema.columns WHERE table_schema = 'lockkeeper' \
         UNION ALL SELECT CONCAT_WS(' ', routine_name, SHA2(routine_definition, 256), created) \
         FROM information_schema.routines WHERE routine_schema = 'lockkeeper' ORDER BY 1";
    let rows: Vec<Row> = witness.query(sql).await.expect("an answer");
    rows.iter().map(|row| row.get(0).expect("a text")).collect()
}

/// The refusal names the right, and with it the upgrade comes to its end.
async fn an_upgrade_that_lacks_a_right_changes_nothing_and_names_it(server: Running) {
    let mut root = client(&server).await;
    for (at, (tables, right)) in WANTED.into_iter().enumerate() {
        tables_by_a_user(&server, tables).await;
        let rights = documented().join(", ");
        let rights: Vec<&str> = rights.split(", ").filter(|named| *named != right).collect();
        let user = format!("lacks_{at}");
        user_with(&server, &user, &rights.join(", ")).await;
        let before = schema(&mut root).await;
        let url = url_for(&server, &user);
        let e = Keeper::connect(&url).await.expect_err("a right is missing").to_string();
        assert!(schema(&mut root).await == before, "changed without {right}");
        let grant = e.split("; ").find(|part| part.starts_with("GRANT ")).expect("advice");
        assert!(grant.contains(&format!(" {right},")), "{e}");
        root.query_drop(grant).await.expect("a good statement");
        let keeper = Keeper::connect(&url).await.expect("brought up to date");
        keeper.lock("a").await.expect("free").release().await.expect("released");
        keeper.close().await;
        root.query_drop("DROP DATABASE lockkeeper").await.expect("dropped");
        root.query_drop("CREATE DATABASE lockkeeper").await.expect("made");
        root.query_drop("USE lockkeeper").await.expect("there");
    }
}

/// Makes the table of before from that of now, whose procedures do without what it lacks.
async fn back_to_layout_3(root: &mut Conn) {
    root.query_drop("ALTER TABLE lk_meta DROP script").await.expect("done");
    root.query_drop("UPDATE lk_meta SET layout = 3").await.expect("done");
}

/// A change of a table that the transaction has read makes all later statements wait.
async fn upgrades_beside_an_open_transaction_cost_no_lock(server: Running) {
    let keeper = live::keeper(&server, SHORT).await;
    let held = keeper.lock("held").await.expect("free");
    let (mut root, mut user) = (client(&server).await, client(&server).await);
    back_to_layout_3(&mut root).await;
    user.query_drop("START TRANSACTION").await.expect("begun");
    fence_check(&mut user, &held.sequencer()).await.expect("held");
    let mut comers = tokio::task::JoinSet::new();
    for _ in 0..3 {
        let url = server.url().to_owned();
        comers.spawn(async move {
            loop {
                if let Ok(keeper) = Keeper::connect(&url).await {
                    return keeper.close().await;
                }
            }
        });
    }
    eventually("an upgrade waits", async || {
        processes(&mut root).await.iter().any(|one| one.state.contains("etadata lock"))
    })
    .await;
    let (begun, mut longest) = (Instant::now(), Duration::ZERO);
    while begun.elapsed() < WATCHED {
        let sent = Instant::now();
        number(&mut root, "SELECT layout FROM lk_meta").await;
        longest = longest.max(sent.elapsed());
    }
    assert!(longest < STALL, "others waited for {longest:?}");
    assert!(held.is_held(), "the lock was lost");
    user.query_drop("ROLLBACK").await.expect("ended");
    while let Some(comer) = soon("an upgrade", comers.join_next()).await {
        comer.expect("connected");
    }
    assert!(number(&mut root, "SELECT layout FROM lk_meta").await > 3);
    held.release().await.expect("still held");
    keeper.close().await;
}

/// The layout before this one has the same tables.
async fn the_last_layout_is_brought_up_to_date_beside_an_open_transaction(server: Running) {
    let keeper = live::keeper(&server, SHORT).await;
    let held = keeper.lock("held").await.expect("free");
    let (mut root, mut user) = (client(&server).await, client(&server).await);
    root.query_drop("UPDATE lk_meta SET layout = 4").await.expect("done");
    user.query_drop("START TRANSACTION").await.expect("begun");
    fence_check(&mut user, &held.sequencer()).await.expect("held");
    // MySQL keeps the procedure that the transaction has called.
    if is_mysql(&mut root).await {
        user.query_drop("ROLLBACK").await.expect("ended");
    }
    let next = soon("no table is changed", Keeper::connect(server.url())).await.expect("connected");
    assert!(number(&mut root, "SELECT layout FROM lk_meta").await > 4);
    user.query_drop("ROLLBACK").await.expect("ended");
    assert!(next.lock("held").try_now().await.expect("an answer").is_none());
    held.release().await.expect("still held");
    next.close().await;
    keeper.close().await;
}

/// Only MySQL has that right.
async fn procedures_that_root_made_are_said_to_need_such_a_user(server: Running) {
    let mut root = client(&server).await;
    if !is_mysql(&mut root).await {
        return;
    }
    run(&server, WANTED[0].0).expect("made");
    user_with(&server, "maker", &documented().join(", ")).await;
    let e = Keeper::connect(&url_for(&server, "maker")).await.expect_err("not root").to_string();
    assert!(e.contains("made by a user with SYSTEM_USER") && !e.contains("; GRANT"), "{e}");
    assert_eq!(number(&mut root, "SELECT layout FROM lk_meta").await, 3);
}

async fn the_printed_script_stops_while_another_makes_the_tables(server: Running) {
    let mut other = client(&server).await;
    let turn = "SELECT GET_LOCK('lockkeeper making lk', 0)";
    assert_eq!(number(&mut other, turn).await, 1);
    let script = migration(server.url()).expect("a script");
    let hasty = script.replace(", 30)", ", 0)");
    assert_ne!(hasty, script, "it waits for its turn");
    let refusal = run(&server, &hasty).expect_err("not its turn");
    assert!(refusal.contains("another process"), "{refusal}");
    let made = "SELECT COUNT(*) FROM information_schema.tables WHERE table_schema = 'lockkeeper'";
    assert_eq!(number(&mut other, made).await, 0);
    assert_eq!(number(&mut other, "SELECT RELEASE_LOCK('lockkeeper making lk')").await, 1);
    run(&server, &script).expect("it runs");
    Keeper::connect(&format!("{}?create=false", server.url())).await.expect("made").close().await;
}
