//! A replica that takes over without any connection breaking: a proxy stands between. What a client
//! has, it must learn from the data.

use crate::{
    splice::Splice,
    support::{Witness, compared, with_fault_store},
};
use lockkeeper::{Guard, Keeper, Loss};
use servers::{FaultProxy, Running};
use std::{
    sync::Arc,
    time::{Duration, Instant},
};
use testkit::{
    RawSession,
    fault_store::{FaultStore, Op},
    live::waiter,
    world::{eventually, soon},
};

testkit::tests! {
    [(servers::REDIS, servers::REDIS)] =>
        a_lock_that_the_replica_missed_is_lost_though_no_connection_breaks,
        a_release_that_the_replica_missed_is_made_again_though_no_connection_breaks,
        a_hand_over_that_the_replica_missed_is_lost_though_the_ticket_stayed,
        a_grant_that_comes_by_a_connection_that_was_given_up_is_not_believed;
    [servers::REDIS] =>
        a_grant_that_only_a_message_tells_of_is_lost_within_two_renewals;
}

/// A primary, its replica, and the proxy before them.
struct Pair {
    primary: Running,
    replica: Running,
    proxy: Splice,
}

impl Pair {
    async fn of((primary, replica): (Running, Running)) -> Self {
        let proxy = Splice::to(primary.ports()[0]);
        let pair = Self { primary, replica, proxy };
        let port = pair.primary.ports()[0].to_string();
        pair.primary().await.command(&["CONFIG", "SET", "repl-diskless-sync-delay", "0"]).await;
        let mut replica = pair.replica().await;
        replica.command(&["REPLICAOF", "127.0.0.1", &port]).await;
        eventually("the replica follows", async || {
            replica.info("replication").await.contains("master_link_status:up")
        })
        .await;
        pair
    }

    async fn primary(&self) -> Witness {
        Witness::of(&self.primary).await
    }

    async fn replica(&self) -> Witness {
        Witness::of(&self.replica).await
    }

    async fn keeper(&self) -> (Keeper, Arc<FaultStore>) {
        with_fault_store(&self.proxy.url()).await
    }

    /// What is written from now on the replica will not hear of; all that was written before it has.
    async fn cut(&self) {
        let mut primary = self.primary().await;
        eventually("the replica has all", async || {
            primary.number(&["WAIT", "1", "1000"]).await == 1
        })
        .await;
        primary.command(&["ACL", "SETUSER", "default", "-sync", "-psync"]).await;
        primary.command(&["CLIENT", "KILL", "TYPE", "replica"]).await;
        let mut replica = self.replica().await;
        eventually("the replica has no link", async || {
            replica.info("replication").await.contains("master_link_status:down")
        })
        .await;
    }

    /// The replica takes over, and the proxy leads to it.
    async fn switch(&self) {
        let connections = self.proxy.connections();
        self.replica().await.command(&["REPLICAOF", "NO", "ONE"]).await;
        self.proxy.lead_to(self.replica.ports()[0]).await;
        assert_eq!(self.proxy.connections(), connections, "no connection has ended");
    }
}

async fn take(keeper: &Keeper, name: &str) -> Guard {
    keeper.lock(name).await.expect("free")
}

/// Waits for the loss, which must be noticed by the data: the proxy has broken nothing.
async fn is_lost(pair: &Pair, guard: &Guard) {
    let connections = pair.proxy.connections();
    assert_eq!(soon("the loss", guard.lost()).await, Loss::Evicted);
    assert_eq!(pair.proxy.connections(), connections);
}

async fn a_lock_that_the_replica_missed_is_lost_though_no_connection_breaks(
    servers: (Running, Running),
) {
    let pair = Pair::of(servers).await;
    let (keeper, faults) = pair.keeper().await;
    let known = take(&keeper, "known").await;
    compared(&faults).await;
    pair.cut().await;
    let missed = take(&keeper, "missed").await;
    pair.switch().await;
    is_lost(&pair, &missed).await;
    assert!(known.is_held() && keeper.check(&known.sequencer()).await.expect("an answer"));
    let next = pair.keeper().await.0.lock("missed").await.expect("free");
    assert!(next.fence() > missed.fence());
}

async fn a_release_that_the_replica_missed_is_made_again_though_no_connection_breaks(
    servers: (Running, Running),
) {
    let pair = Pair::of(servers).await;
    let (keeper, faults) = pair.keeper().await;
    let (known, released) = (take(&keeper, "known").await, take(&keeper, "a").await);
    compared(&faults).await;
    pair.cut().await;
    released.release().await.expect("released");
    pair.switch().await;
    let next = soon("the lock", pair.keeper().await.0.lock("a").into_future()).await;
    next.expect("granted").release().await.expect("released");
    assert!(known.is_held());
}

/// The replica has the waiter's ticket and not the hand-over, and the same number of tickets.
async fn a_hand_over_that_the_replica_missed_is_lost_though_the_ticket_stayed(
    servers: (Running, Running),
) {
    let pair = Pair::of(servers).await;
    let ((one, _), (two, faults)) = (pair.keeper().await, pair.keeper().await);
    // Nothing of this session changes afterwards: nothing but the hand-over is missed.
    let holder = RawSession::open(one.store()).await;
    let held = holder.take("a").await;
    let waiter = waiter(&two, "a", 1).await;
    compared(&faults).await;
    pair.cut().await;
    holder.leave("a", held.ticket).await;
    let granted = soon("the hand-over", waiter).await.expect("no panic").expect("granted");
    pair.switch().await;
    assert!(!two.check(&granted.sequencer()).await.expect("an answer"), "it waits again there");
    is_lost(&pair, &granted).await;
}

/// The old primary has handed the lock over, and its message comes when the client has already compared its
/// tickets with those of the new primary, which knows nothing of that.
async fn a_grant_that_comes_by_a_connection_that_was_given_up_is_not_believed(
    servers: (Running, Running),
) {
    let pair = Pair::of(servers).await;
    let old = FaultProxy::to(pair.primary.ports()[0]).expect("a proxy");
    let proxy = FaultProxy::to(old.port()).expect("a proxy");
    let (keeper, faults) = with_fault_store(&format!("redis://127.0.0.1:{}", proxy.port())).await;
    let direct = Keeper::connect(pair.primary.url()).await.expect("the server answers");
    let holder = RawSession::open(direct.store()).await;
    let held = holder.take("a").await;
    let known = take(&keeper, "known").await;
    let waiter = waiter(&keeper, "a", 1).await;
    compared(&faults).await;
    pair.cut().await;
    pair.replica().await.command(&["REPLICAOF", "NO", "ONE"]).await;
    old.hold_answers();
    proxy.lead_to(pair.replica.ports()[0]);
    holder.leave("a", held.ticket).await;

    // Requests without an answer keep the old connection alive for five seconds after the last of them. After
    // three seconds without an answer it is given up.
    let (began, mut asked) = (Instant::now(), Vec::new());
    while began.elapsed() < Duration::from_millis(2700) {
        let keeper = keeper.clone();
        asked.push(tokio::spawn(async move { keeper.get("b").await }));
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    eventually("a renewal at the new primary", async || {
        began.elapsed() > Duration::from_millis(3100)
            && known.extend(Duration::from_secs(100)).await.is_ok()
    })
    .await;
    let comparisons = faults.count(Op::PollAll);
    eventually("the tickets are compared there", async || faults.count(Op::PollAll) > comparisons)
        .await;
    let renewals = faults.count(Op::Renew);
    eventually("and renewed", async || faults.count(Op::Renew) > renewals).await;
    old.open();
    // On a machine that is too slow for this test there is no answer, and was no message.
    let answer = asked.pop().expect("many were asked").await.expect("no panic");
    assert!(answer.is_ok() || began.elapsed() > Duration::from_secs(7), "{answer:?}");
    let renewals = faults.count(Op::Renew);
    eventually("renewals", async || faults.count(Op::Renew) > renewals + 1).await;
    assert!(!waiter.is_finished(), "granted, although another one holds it: {:?}", waiter.await);
    assert!(known.is_held());
}

/// The same by a proxy that keeps a connection of its own for messages: that is no connection that the client
/// could give up. The test sends the late message itself.
async fn a_grant_that_only_a_message_tells_of_is_lost_within_two_renewals(server: Running) {
    let (keeper, faults) = with_fault_store(server.url()).await;
    let direct = Keeper::connect(server.url()).await.expect("the server answers");
    let held = RawSession::open(direct.store()).await.take("a").await;
    let waiter = waiter(&keeper, "a", 1).await;
    compared(&faults).await;
    let ticket = keeper.get("a").await.expect("an answer").expect("a line").tickets[1].id;
    let mut witness = Witness::of(&server).await;
    let channels = witness.texts(&["PUBSUB", "CHANNELS", "lk:n:*"]).await;
    let late = format!("{ticket} {}", held.fence + 1);
    for channel in channels {
        witness.command(&["PUBLISH", &channel, &late]).await;
    }
    let granted = soon("the message", waiter).await.expect("no panic").expect("granted");
    assert!(!keeper.check(&granted.sequencer()).await.expect("an answer"));
    assert_eq!(soon("the loss", granted.lost()).await, Loss::Evicted);
}
