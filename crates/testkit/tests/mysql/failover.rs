//! A replica takes over behind a proxy, without what it had not been sent yet.

use crate::support::{client, is_mysql, number};
use lockkeeper::{Keeper, Loss};
use mysql_async::prelude::Queryable;
use servers::{FaultProxy, MARIADB, MYSQL, Recipe, Running};
use std::time::{Duration, Instant};
use testkit::{
    trials::WithArgs,
    world::{eventually, soon},
};

testkit::tests! {
    [pair(MYSQL), pair(MARIADB)] =>
        a_lock_that_the_promoted_replica_never_had_is_lost_within_two_renewals;
}

/// A primary and what becomes its replica: both write a log for replicas, which know them by their number.
const fn pair(server: Recipe) -> (WithArgs, WithArgs) {
    (
        WithArgs(server, &["--server-id=1", "--log-bin=log", "--binlog-format=ROW"]),
        WithArgs(server, &["--server-id=2", "--log-bin=log", "--binlog-format=ROW"]),
    )
}

/// Lets the second server follow the first, from the beginning of its log.
async fn follow(primary: &Running, replica: &Running) {
    let port = primary.ports()[0];
    let mut replica = client(replica).await;
    let sql = if is_mysql(&mut replica).await {
        format!(
            "CHANGE REPLICATION SOURCE TO SOURCE_HOST = '127.0.0.1', SOURCE_PORT = {port}, \
             SOURCE_USER = 'root', GET_SOURCE_PUBLIC_KEY = 1"
        )
    } else {
        format!(
            "CHANGE MASTER TO MASTER_HOST = '127.0.0.1', MASTER_PORT = {port}, MASTER_USER = 'root'"
        )
    };
    replica.query_drop(sql).await.expect("it knows its primary");
    replica.query_drop("START REPLICA").await.expect("it follows");
}

/// How many locks this server has seen to be held.
async fn held(server: &Running) -> i64 {
    let mut client = client(server).await;
    let sql = "SELECT COUNT(*) FROM lk_gate WHERE fence > 0";
    let there = "SELECT COUNT(*) FROM information_schema.tables WHERE table_name = 'lk_gate'";
    if number(&mut client, there).await > 0 { number(&mut client, sql).await } else { 0 }
}

async fn a_lock_that_the_promoted_replica_never_had_is_lost_within_two_renewals(
    (mut primary, replica): (Running, Running),
) {
    follow(&primary, &replica).await;
    let proxy = FaultProxy::to(primary.ports()[0]).expect("a proxy");
    let url = format!("mysql://root@127.0.0.1:{}/lockkeeper", proxy.port());
    // A renewal comes after a third of it, and after two thirds.
    let ttl = Duration::from_secs(30);
    let keeper = Keeper::builder().ttl(ttl).connect(&url).await.expect("connected");
    let kept = keeper.lock("kept").await.expect("free");
    eventually("the replica has it", async || held(&replica).await == 1).await;
    client(&replica).await.query_drop("STOP REPLICA").await.expect("stopped");
    let missed = keeper.lock("missed").await.expect("free");

    proxy.lead_to(replica.ports()[0]);
    primary.kill().expect("killed");
    let promoted = Instant::now();
    assert_eq!(soon("the loss", missed.lost()).await, Loss::Evicted);
    assert!(promoted.elapsed() < ttl, "{:?}", promoted.elapsed());
    assert!(kept.is_held());
    let again = soon("it is free", keeper.lock("missed").into_future()).await.expect("free");
    assert!(again.fence() > missed.fence());
    assert!(keeper.check(&kept.sequencer()).await.expect("an answer"));
    keeper.close().await;
}
