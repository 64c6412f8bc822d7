//! One node of a cluster that fails while the others stay.

use crate::{
    crowd::Crowd,
    support::{Witness, awaited, keeper, keeper_for, start},
};
use lockkeeper::{Guard, Keeper, Loss};
use std::time::Duration;
use testkit::world::soon;

/// So many names that every node has some.
async fn take_many(keeper: &Keeper) -> Vec<Guard> {
    let mut guards = Vec::new();
    for n in 0..16 {
        guards.push(keeper.lock(format!("name {n}")).await.expect("free"));
    }
    guards
}

/// A session that is lost at one node is lost at all, and whoever waits anywhere is served.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_restarts_empty_ends_the_sessions_that_it_knew() {
    let Some(mut server) = start(servers::REDIS_CLUSTER) else { return };
    let (one, two) = (keeper(&server).await, keeper(&server).await);
    let guards = take_many(&one).await;
    let waiter = awaited(&one, &two, "name 0").await;
    server.nodes()[1].kill().expect("killed");
    server.restart().expect("restarted");
    for guard in &guards {
        let why = soon("the loss", guard.lost()).await;
        assert!(matches!(why, Loss::SessionGone | Loss::Expired), "{why:?}");
    }
    let next = soon("the waiter's turn", waiter).await.expect("no panic").expect("granted");
    assert!(next.fence() > guards[0].fence());
    next.release().await.expect("released");
    for guard in &guards {
        let next = soon("the next lock", two.lock(guard.name().as_str()).into_future()).await;
        assert!(next.expect("free").fence() > guard.fence());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_flushes_one_node_ends_the_sessions_that_it_knew() {
    let Some(server) = start(servers::REDIS_CLUSTER) else { return };
    let keeper = keeper(&server).await;
    let guards = take_many(&keeper).await;
    Witness::at(server.ports()[2]).await.command(&["FLUSHALL"]).await;
    for guard in &guards {
        assert_eq!(soon("the loss", guard.lost()).await, Loss::SessionGone);
        let next = soon("the next lock", keeper.lock(guard.name().as_str()).into_future()).await;
        assert!(next.expect("free").fence() > guard.fence());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_crowd_is_served_on_when_each_node_has_been_killed_once() {
    let Some(mut server) = start(servers::REDIS_CLUSTER) else { return };
    let mut keepers = Vec::new();
    for _ in 0..3 {
        keepers.push(keeper_for(&server, Duration::from_secs(15)).await);
    }
    let crowd = Crowd::of(keepers);
    crowd.all_served("at first").await;
    for node in 0..3 {
        server.nodes()[node].kill().expect("killed");
        server.restart().expect("restarted");
        crowd.all_served(&format!("after the death of node {node}")).await;
    }
    crowd.go_home().await;
}
