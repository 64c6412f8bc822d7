//! What is said about a server's set-up, and about rights that are missing.

use crate::support::{HASTY, User, until_length};
use lockkeeper::{
    Keeper,
    store::{Advice, Store as _},
};
use servers::{PGBOUNCER, POSTGRES, Running};
use testkit::world::soon;

testkit::tests! {
    [POSTGRES] =>
        a_sound_server_needs_no_advice,
        missing_rights_are_named_with_the_statement_that_grants_them;
    [HASTY] =>
        what_a_hasty_commit_means_is_said,
        a_long_snapshot_is_said;
    [PGBOUNCER] =>
        a_pooler_is_recognized;
}

async fn advice(url: &str) -> Vec<Advice> {
    let keeper = Keeper::connect(url).await.expect("connected");
    keeper.store().advice().await.expect("an answer")
}

async fn a_sound_server_needs_no_advice(server: Running) {
    assert_eq!(advice(server.url()).await, []);
}

async fn what_a_hasty_commit_means_is_said(server: Running) {
    let advice = advice(server.url()).await;
    assert!(advice.iter().any(|a| a.what.contains("synchronous_commit")), "{advice:?}");
}

async fn a_long_snapshot_is_said(server: Running) {
    let (user, dump) = (User::of(&server).await, User::of(&server).await);
    dump.run("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT * FROM pg_class").await;
    user.run(
        "DO $$ BEGIN FOR i IN 1 .. 100100 LOOP PERFORM txid_current(); COMMIT; END LOOP; END $$",
    )
    .await;
    let found = advice(server.url()).await;
    assert!(found.iter().any(|a| a.what.contains("backend_xmin")), "{found:?}");
    dump.run("COMMIT").await;
    assert!(!advice(server.url()).await.iter().any(|a| a.what.contains("backend_xmin")));
}

async fn a_pooler_is_recognized(server: Running) {
    let found = advice(server.url()).await;
    assert!(found.iter().any(|a| a.what.contains("pooler")), "{found:?}");
    let keeper = Keeper::connect(server.url()).await.expect("connected");
    assert!(!keeper.capabilities().wakes);
}

async fn missing_rights_are_named_with_the_statement_that_grants_them(server: Running) {
    Keeper::connect(server.url()).await.expect("connected").close().await;
    let owner = User::of(&server).await;
    owner.run("CREATE ROLE app LOGIN").await;
    owner.run("REVOKE EXECUTE ON ALL FUNCTIONS IN SCHEMA lockkeeper FROM PUBLIC").await;
    let url = server.url().replace("postgres@", "app@");
    let mut granted = 0;
    // Each refusal names the next statements to run, until there is none left.
    let keeper = loop {
        let e = match Keeper::connect(&url).await {
            Ok(keeper) => break keeper,
            Err(e) => e.to_string(),
        };
        let grants: Vec<&str> = e.split("; ").filter(|part| part.starts_with("GRANT ")).collect();
        assert!(!grants.is_empty() && granted < 100, "{e}");
        owner.run(&grants.join("; ")).await;
        granted += grants.len();
    };
    assert!(granted > 4);
    // An uncontended lock needs less.
    let other = Keeper::connect(&url).await.expect("connected");
    let held = keeper.lock("a").await.expect("free");
    let waiter = tokio::spawn(other.lock("a").into_future());
    until_length(&keeper, "a", 2).await;
    assert!(keeper.check(&held.sequencer()).await.expect("an answer"));
    held.release().await.expect("released");
    drop(soon("its turn", waiter).await.expect("no panic").expect("granted"));
    assert_eq!(keeper.store().advice().await.expect("an answer"), []);
    keeper.close().await;
}
