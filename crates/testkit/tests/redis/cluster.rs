//! One node of a cluster that fails while the others stay.

use crate::{
    crowd::Crowd,
    support::{Witness, compared, keeper, keeper_for, waiter, with_fault_store},
};
use anyhow::ensure;
use lockkeeper::{Error, ErrorKind, Guard, Keeper, Loss};
use servers::{FaultProxy, Process, Recipe, Running};
use std::{net::TcpStream, time::Duration};
use testkit::{
    RawSession,
    world::{eventually, soon},
};
use tokio::task::JoinHandle;

testkit::tests! {
    [servers::REDIS_CLUSTER] =>
        a_node_that_restarts_empty_ends_the_sessions_that_it_knew,
        a_flush_of_one_node_ends_the_sessions_that_it_knew,
        a_crowd_is_served_on_when_each_node_has_been_killed_once,
        a_release_whose_answer_is_lost_is_no_loss,
        an_eviction_whose_answer_is_lost_is_unknown,
        what_a_follower_missed_is_lost_though_no_connection_breaks,
        a_follower_takes_over_from_a_node_that_dies,
        a_follower_takes_over_from_a_node_that_falls_silent;
}

/// One more node, which can follow another one.
const FOLLOWER: Recipe = Recipe {
    ports: 2,
    processes: |sandbox| {
        let (port, bus) = (sandbox.ports[0], sandbox.ports[1]);
        let settings = format!(
            "--port {port} --bind 127.0.0.1 --save  --cluster-enabled yes --cluster-port {bus} \
             --cluster-node-timeout 2000 --cluster-announce-ip 127.0.0.1 \
             --cluster-replica-validity-factor 0 --repl-diskless-sync-delay 0"
        );
        Ok(vec![Process {
            name: "follower".into(),
            program: "redis-server",
            args: settings.split(' ').map(Into::into).collect(),
            env: Vec::new(),
            user: None,
            ready: Box::new(move || {
                ensure!(TcpStream::connect(("127.0.0.1", port)).is_ok(), "it does not listen");
                Ok(())
            }),
        }])
    },
    ..servers::REDIS
};

/// A node that follows this one of the cluster, and would take over from it.
async fn follower_of(server: &Running, node: usize) -> Running {
    let follower = FOLLOWER.start().expect("one more node starts");
    let mut there = Witness::at(follower.ports()[0]).await;
    let primary = Witness::at(server.ports()[node]).await.text(&["CLUSTER", "MYID"]).await;
    // After the ports for clients come those by which the nodes meet.
    let [port, bus] = [server.ports()[0], server.ports()[3]].map(|port| port.to_string());
    there.command(&["CLUSTER", "MEET", "127.0.0.1", &port, &bus]).await;
    eventually("it follows", async || there.accepts(&["CLUSTER", "REPLICATE", &primary]).await)
        .await;
    eventually("it has all", async || {
        there.info("replication").await.contains("master_link_status:up")
    })
    .await;
    for port in server.ports()[..3].iter().chain(&follower.ports()[..1]) {
        let mut witness = Witness::at(*port).await;
        eventually("all know that it follows", async || {
            let nodes = witness.text(&["CLUSTER", "NODES"]).await;
            nodes.lines().any(|line| line.contains("slave") && line.contains(&primary))
        })
        .await;
    }
    follower
}

/// So many names that every node has some.
async fn take_many(keeper: &Keeper) -> Vec<Guard> {
    let mut guards = Vec::new();
    for n in 0..16 {
        guards.push(keeper.lock(format!("name {n}")).await.expect("free"));
    }
    guards
}

/// A proxy before the second node, to which all clients are sent: they ask the first one where it is.
async fn proxy_to_the_second(server: &Running) -> (FaultProxy, String) {
    let proxy = FaultProxy::to(server.ports()[1]).expect("a proxy");
    let port = proxy.port().to_string();
    let mut node = Witness::at(server.ports()[1]).await;
    node.command(&["CONFIG", "SET", "cluster-announce-port", &port]).await;
    let mut first = Witness::at(server.ports()[0]).await;
    eventually("the first node knows the new address", async || {
        first.text(&["CLUSTER", "NODES"]).await.contains(&format!(":{port}@"))
    })
    .await;
    (proxy, format!("redis+cluster://127.0.0.1:{}", server.ports()[0]))
}

/// Breaks all connections to the node when it has no ticket any more; no answer has come back by then.
async fn cut_when_done(proxy: &FaultProxy, node: u16) {
    let mut node = Witness::at(node).await;
    eventually("the node has carried the requests out", async || {
        node.texts(&["KEYS", "lk:{*}:t:*"]).await.is_empty()
    })
    .await;
    proxy.sever();
    proxy.open();
}

/// The cluster's client sends a request again when its connection ends before the answer. The release is
/// carried out by then, and its copy finds nothing.
async fn a_release_whose_answer_is_lost_is_no_loss(server: Running) {
    let (proxy, url) = proxy_to_the_second(&server).await;
    let keeper = Keeper::builder().ttl(Duration::from_secs(120)).connect(&url).await;
    let keeper = keeper.expect("the cluster answers");
    // Once before, so that the nodes know the scripts.
    release_all(take_many(&keeper).await).await;
    let guards = take_many(&keeper).await;
    proxy.hold_answers();
    let releases = tokio::spawn(release_all(guards));
    cut_when_done(&proxy, server.ports()[1]).await;
    soon("the releases", releases).await.expect("released");
}

async fn release_all(guards: Vec<Guard>) {
    let release = |guard: Guard| tokio::spawn(async move { guard.release().await });
    for release in guards.into_iter().map(release).collect::<Vec<_>>() {
        release.await.expect("no panic").expect("released");
    }
}

/// In the same proxy an eviction would seem to have found nothing.
async fn an_eviction_whose_answer_is_lost_is_unknown(server: Running) {
    let (proxy, url) = proxy_to_the_second(&server).await;
    let keeper = Keeper::builder().ttl(Duration::from_secs(120)).connect(&url).await;
    let keeper = keeper.expect("the cluster answers");
    // Once before, so that the nodes know the scripts.
    for eviction in evict_all(&keeper, &take_many(&keeper).await) {
        assert!(eviction.await.expect("no panic").expect("an answer"));
    }
    let guards = take_many(&keeper).await;
    proxy.hold_answers();
    let evictions = evict_all(&keeper, &guards);
    cut_when_done(&proxy, server.ports()[1]).await;
    for eviction in evictions {
        match soon("the eviction", eviction).await.expect("no panic") {
            Ok(found) => assert!(found, "it was there"),
            Err(Error::Store(e)) => assert_eq!(e.kind, ErrorKind::Unavailable, "{e}"),
            Err(e) => panic!("{e}"),
        }
    }
}

fn evict_all(keeper: &Keeper, guards: &[Guard]) -> Vec<JoinHandle<Result<bool, Error>>> {
    let evict = |guard: &Guard| {
        let (keeper, name, ticket) = (keeper.clone(), guard.name().clone(), guard.ticket());
        tokio::spawn(async move { keeper.evict(name.as_str(), ticket).await })
    };
    guards.iter().map(evict).collect()
}

/// A session that is lost at one node is lost at all, and waiters at every node are served.
async fn a_node_that_restarts_empty_ends_the_sessions_that_it_knew(mut server: Running) {
    let (one, two) = (keeper(&server).await, keeper(&server).await);
    let guards = take_many(&one).await;
    let waiter = waiter(&two, "name 0", 1).await;
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

async fn a_flush_of_one_node_ends_the_sessions_that_it_knew(server: Running) {
    let keeper = keeper(&server).await;
    let guards = take_many(&keeper).await;
    Witness::at(server.ports()[2]).await.command(&["FLUSHALL"]).await;
    for guard in &guards {
        assert_eq!(soon("the loss", guard.lost()).await, Loss::SessionGone);
        let next = soon("the next lock", keeper.lock(guard.name().as_str()).into_future()).await;
        assert!(next.expect("free").fence() > guard.fence());
    }
}

async fn a_crowd_is_served_on_when_each_node_has_been_killed_once(mut server: Running) {
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

/// The follower has missed grants and a hand-over, and takes over without any connection breaking: the client
/// is told where to go, renews there, and must learn from the data what it has.
async fn what_a_follower_missed_is_lost_though_no_connection_breaks(server: Running) {
    let follower = follower_of(&server, 1).await;
    let (keeper, faults) = with_fault_store(server.url()).await;
    let other = RawSession::open(keeper_for(&server, Duration::from_secs(120)).await.store()).await;
    // All sessions are known wherever they will be needed, and to the follower too.
    for guard in take_many(&keeper).await {
        guard.release().await.expect("released");
    }
    let (mut held, mut waiting) = (Vec::new(), Vec::new());
    for n in 0..16 {
        let name = format!("handed over {n}");
        held.push(other.take(&name).await);
        waiting.push(waiter(&keeper, &name, 1).await);
    }
    compared(&faults).await;
    let mut primary = Witness::at(server.ports()[1]).await;
    eventually("the follower has all", async || primary.number(&["WAIT", "1", "1000"]).await == 1)
        .await;
    primary.command(&["ACL", "SETUSER", "default", "-sync", "-psync"]).await;
    primary.command(&["CLIENT", "KILL", "TYPE", "replica"]).await;
    let mut guards = take_many(&keeper).await;
    for (claim, waiter) in held.iter().zip(waiting) {
        other.leave(claim.name.as_str(), claim.ticket).await;
        guards.push(soon("the hand-over", waiter).await.expect("no panic").expect("granted"));
    }
    let mut heir = Witness::at(follower.ports()[0]).await;
    heir.command(&["CLUSTER", "FAILOVER", "TAKEOVER"]).await;
    for guard in &guards {
        eventually("the client knows what the store knows", async || {
            let held = keeper.check(&guard.sequencer()).await;
            held.is_ok_and(|held| held == guard.is_held())
        })
        .await;
    }
    let lost = |some: &[Guard]| some.iter().filter(|guard| !guard.is_held()).count();
    let lost = [lost(&guards[..16]), lost(&guards[16..])];
    assert!(lost.iter().all(|lost| (1..16).contains(lost)), "those of one node of three: {lost:?}");
}

/// The follower takes over, whether the primary's connections break or it only falls silent.
async fn a_follower_takes_over(mut server: Running, fail: fn(&mut Running)) {
    let follower = follower_of(&server, 1).await;
    let ttl = Duration::from_secs(45);
    let (one, two) = (keeper_for(&server, ttl).await, keeper_for(&server, ttl).await);
    let guards = take_many(&one).await;
    let crowd = Crowd::of(vec![keeper_for(&server, ttl).await, keeper_for(&server, ttl).await]);
    crowd.all_served("at first").await;
    fail(&mut server);
    let mut heir = Witness::at(follower.ports()[0]).await;
    eventually("the follower has taken over", async || {
        heir.info("replication").await.contains("role:master")
    })
    .await;
    eventually("a renewal at all nodes", async || {
        guards[0].extend(ttl * 9 / 10).await.is_ok() || !guards[0].is_held()
    })
    .await;
    crowd.all_served("by the follower").await;
    for guard in guards {
        let (name, fence) = (guard.name().clone(), guard.fence());
        drop(guard);
        let next = soon("the next lock", two.lock(name.as_str()).into_future()).await;
        assert!(next.expect("free").fence() > fence);
    }
    crowd.go_home().await;
}

async fn a_follower_takes_over_from_a_node_that_dies(server: Running) {
    a_follower_takes_over(server, |server| server.nodes()[1].kill().expect("killed")).await;
}

async fn a_follower_takes_over_from_a_node_that_falls_silent(server: Running) {
    a_follower_takes_over(server, |server| server.nodes()[1].freeze().expect("frozen")).await;
}
