//! The history of a cluster: another one behind the same address, and one that grows.

use crate::{
    ask,
    clients::{Etcdctl, etcdctl},
    cost::counted,
    keeper, revision, until_length,
};
use lockkeeper::{Keeper, Loss, Store as _};
use serde_json::json;
use servers::{FaultProxy, Running};
use std::time::Duration;
use testkit::{
    RawSession,
    world::{eventually, soon},
};

testkit::tests! {
    [servers::ETCD] =>
        another_history_behind_the_same_address_is_noticed_within_two_renewals,
        a_key_deleted_by_hand_is_noticed_within_two_renewals,
        a_waiter_whose_key_is_deleted_by_hand_enters_again,
        with_compact_the_history_stops_growing_and_waiters_are_woken,
        compacting_on_a_slow_server_leaves_one_lease_for_the_interval,
        a_handle_that_is_dropped_while_it_compacts_leaves_no_lease,
        a_history_that_only_grows_is_advised_about;
}

/// Starts another server from a snapshot of the first one, as if it were the same.
async fn twin(server: &Running, snapshot: &str) -> Running {
    let mut twin = servers::ETCD.start().expect("the server starts");
    twin.stop().expect("stopped");
    let data = twin.folder().join("etcd-1");
    std::fs::remove_dir_all(&data).expect("removed");
    let peers = format!("http://127.0.0.1:{}", server.ports()[1]);
    let restore = [
        format!("--data-dir={}", data.display()),
        "--name=etcd-1".to_owned(),
        format!("--initial-cluster=etcd-1={peers}"),
        format!("--initial-advertise-peer-urls={peers}"),
    ];
    let mut words = vec!["snapshot", "restore", snapshot];
    words.extend(restore.iter().map(String::as_str));
    etcdctl(server, &words).await;
    twin.restart().expect("restarted");
    twin
}

/// Behind the address is now a cluster that was restored from a snapshot. Its id is the same, and others
/// have written so much there that its revision is higher than ours was. What was locked after the
/// snapshot is lost, what was released after it is left again, and what was locked before it is held.
///
/// A proxy of TCP has to break the connection in order to lead it elsewhere, so the client does see a
/// connection break, as it often does. What tells it of the other history is the data alone: nothing that
/// the twin says of itself (the cluster's id, its revision, the lease) differs from what the client expects.
async fn another_history_behind_the_same_address_is_noticed_within_two_renewals(server: Running) {
    let proxy = FaultProxy::to(server.ports()[0]).expect("a proxy");
    let url = format!("etcd://127.0.0.1:{}", proxy.port());
    let keeper = Keeper::builder().ttl(Duration::from_secs(12)).connect(&url).await;
    let keeper = keeper.expect("it answers");
    let early = keeper.lock("early").await.expect("free");
    let ghost = keeper.lock("ghost").await.expect("free");
    let again = keeper.lock("again").await.expect("free");
    let snapshot = server.folder().join("snapshot").display().to_string();
    etcdctl(&server, &["snapshot", "save", &snapshot]).await;
    ghost.release().await.expect("released");
    // At the same key as before the snapshot, but another grant.
    again.release().await.expect("released");
    let again = keeper.lock("again").await.expect("free");
    let late = keeper.lock("late").await.expect("free");
    let twin = twin(&server, &snapshot).await;
    // All tickets were compared once, as they always are.
    let renewals = |server: &Running| counted(server).get("LeaseKeepAlive").copied().unwrap_or(0);
    let before = renewals(&server);
    eventually("two renewals", async || renewals(&server) >= before + 2).await;
    let passed = revision(&server) + 100;
    eventually("the twin's revision is higher", async || {
        ask(&twin, "/v3/kv/put", &json!({ "key": "eA==", "value": "eA==" }));
        revision(&twin) > passed
    })
    .await;
    proxy.lead_to(twin.ports()[0]);
    proxy.sever();
    assert_eq!(soon("the loss", late.lost()).await, Loss::Evicted);
    assert_eq!(soon("the loss", again.lost()).await, Loss::Evicted);
    eventually("the ghost is left", async || keeper.get("ghost").await.expect("a look").is_none())
        .await;
    let renewals = renewals(&twin);
    assert!(renewals <= 3, "noticed after {renewals} renewals");
    assert!(early.is_held() && keeper.check(&early.sequencer()).await.expect("an answer"));
    keeper.close().await;
}

/// A key that is deleted by hand is noticed likewise.
async fn a_key_deleted_by_hand_is_noticed_within_two_renewals(server: Running) {
    let keeper = Keeper::builder().ttl(Duration::from_secs(9)).connect(server.url()).await;
    let keeper = keeper.expect("it answers");
    let (kept, gone) = (keeper.lock("kept").await, keeper.lock("gone").await);
    let (kept, gone) = (kept.expect("free"), gone.expect("free"));
    let renewals = || counted(&server).get("LeaseKeepAlive").copied().unwrap_or(0);
    eventually("two renewals", async || renewals() >= 2).await;
    let before = renewals();
    etcdctl(&server, &["del", "--prefix", "lockkeeper/l/gone!"]).await;
    assert_eq!(soon("the loss", gone.lost()).await, Loss::Evicted);
    assert!(renewals() <= before + 3, "{} renewals", renewals() - before);
    assert!(kept.is_held());
    keeper.close().await;
}

/// Only a poll can find this: no watch is on a waiter's own key, and the holder stays.
async fn a_waiter_whose_key_is_deleted_by_hand_enters_again(server: Running) {
    let (holder, waiter) = (keeper(&server).await, keeper(&server).await);
    let guard = holder.lock("a").await.expect("free");
    let waiting = tokio::spawn(waiter.lock("a").into_future());
    until_length(&holder, "a", 2).await;
    let second = async || {
        let line = holder.get("a").await.expect("a look")?;
        line.tickets.get(1).map(|ticket| ticket.id)
    };
    let before = second().await.expect("a waiter");
    let mut newest = Etcdctl::command(&server);
    newest.args(["get", "--prefix", "--keys-only", "--sort-by=CREATE", "--order=DESCEND"]);
    let newest = newest.args(["--limit=1", "lockkeeper/l/a!"]).output().await.expect("etcdctl");
    let key = String::from_utf8(newest.stdout).expect("a key");
    etcdctl(&server, &["del", key.trim()]).await;
    eventually("it stands in line again", async || {
        second().await.is_some_and(|ticket| ticket != before)
    })
    .await;
    guard.release().await.expect("released");
    let granted = soon("the grant", waiting).await.expect("no panic").expect("granted");
    granted.release().await.expect("released");
    holder.close().await;
    waiter.close().await;
}

/// The oldest revision that can still be read, as far as this one can.
fn is_compacted(server: &Running, revision: u64) -> bool {
    let ask_for = json!({ "key": "eA==", "revision": revision.to_string() });
    let answer = ask(server, "/v3/kv/range", &ask_for);
    // Where the words stand differs from version to version.
    answer.to_string().contains("has been compacted")
}

async fn pairs(keeper: &Keeper, times: usize) {
    for _ in 0..times {
        keeper.lock("busy").await.expect("free").release().await.expect("released");
    }
}

/// Old revisions go, young ones stay, and waiters are woken, also when their watches are new.
async fn with_compact_the_history_stops_growing_and_waiters_are_woken(server: Running) {
    let proxy = FaultProxy::to(server.ports()[0]).expect("a proxy");
    let ttl = Duration::from_secs(6);
    let connect = async |port: u16| {
        let url = format!("etcd://127.0.0.1:{port}?compact=2s");
        Keeper::builder().ttl(ttl).connect(&url).await.expect("it answers")
    };
    let (one, two) = (connect(server.ports()[0]).await, connect(proxy.port()).await);
    let held = one.lock("a").await.expect("free");
    let waiter = tokio::spawn(two.lock("a").into_future());
    crate::until_length(&one, "a", 2).await;
    let old = revision(&server);
    pairs(&one, 20).await;
    let times = counted(&server).get("Compact").copied().unwrap_or(0);
    let began = std::time::Instant::now();
    eventually("the old revisions are compacted", async || {
        pairs(&one, 1).await;
        is_compacted(&server, old)
    })
    .await;
    assert!(!is_compacted(&server, revision(&server) - 1), "the young ones are not");
    // However many clients there are, they do it once in the interval.
    eventually("a few intervals", async || began.elapsed() > Duration::from_secs(10)).await;
    let times = counted(&server).get("Compact").copied().unwrap_or(0) - times;
    assert!(times <= began.elapsed().as_secs() / 2 + 1, "{times} in {:?}", began.elapsed());
    proxy.sever();
    pairs(&one, 5).await;
    held.release().await.expect("released");
    let next = soon("the waiter's turn", waiter).await.expect("no panic").expect("granted");
    next.release().await.expect("released");
    for keeper in [one, two] {
        keeper.close().await;
    }
}

/// How many leases the server has.
fn leases(server: &Running) -> usize {
    ask(server, "/v3/lease/leases", &json!({}))["leases"].as_array().map_or(0, Vec::len)
}

/// Is there the key whose lease lives until compacting is due again?
fn has_compacted(server: &Running) -> bool {
    let ask_for = json!({ "key": "bG9ja2tlZXBlci9jb21wYWN0L2R1ZQ==" });
    ask(server, "/v3/kv/range", &ask_for)["kvs"].is_array()
}

/// Every request takes more than half a second. Two clients find at the same time that compacting is due:
/// one of them does it, and no lease stays but its own and those of the sessions.
async fn compacting_on_a_slow_server_leaves_one_lease_for_the_interval(server: Running) {
    let proxy = FaultProxy::to(server.ports()[0]).expect("a proxy");
    let url = format!("etcd://127.0.0.1:{}?compact=1h", proxy.port());
    let stores = [store(&url).await, store(&url).await];
    let raw_sessions = [RawSession::open(&stores[0]).await, RawSession::open(&stores[1]).await];
    assert_eq!(leases(&server), 2);
    proxy.delay(Duration::from_millis(300));
    let granted = || counted(&server).get("LeaseGrant").copied().unwrap_or(0);
    let before = granted();
    let lives = tokio::join!(raw_sessions[0].lives(), raw_sessions[1].lives());
    assert_eq!(lives, (true, true));
    eventually("an attempt to compact", async || granted() > before).await;
    for raw in &raw_sessions {
        assert!(raw.lives().await);
    }
    eventually("one client has compacted", async || has_compacted(&server)).await;
    eventually("the other one's lease is revoked", async || leases(&server) == 3).await;
    // Those that look once more find that it is not due.
    let before = granted();
    for raw in &raw_sessions {
        assert!(raw.lives().await);
    }
    assert_eq!((granted(), leases(&server)), (before, 3));
}

/// The handle is dropped while the answer to the grant of the lease is under way.
async fn a_handle_that_is_dropped_while_it_compacts_leaves_no_lease(server: Running) {
    let proxy = FaultProxy::to(server.ports()[0]).expect("a proxy");
    let store = store(&format!("etcd://127.0.0.1:{}?compact=1h", proxy.port())).await;
    let raw = RawSession::open(&store).await;
    proxy.delay(Duration::from_secs(1));
    assert!(raw.lives().await);
    eventually("the grant of a lease", async || leases(&server) == 2).await;
    proxy.hold_answers();
    drop((raw, store));
    proxy.delay(Duration::ZERO);
    proxy.open();
    eventually("the session's lease alone is left", async || leases(&server) == 1).await;
    assert!(!has_compacted(&server));
}

async fn store(url: &str) -> lockkeeper::store::AnyStore {
    Keeper::connect(url).await.expect("it answers").store().clone()
}

/// By default nothing is compacted; then the advice says so, with the server's own figures.
async fn a_history_that_only_grows_is_advised_about(server: Running) {
    let keeper = crate::keeper(&server).await;
    let advice = async |keeper: &Keeper| {
        let advice = keeper.store().advice().await.expect("an answer");
        advice.iter().find(|advice| advice.what.contains("history")).map(ToString::to_string)
    };
    assert_eq!(advice(&keeper).await, None, "it is young");
    let put = json!({ "request_put": { "key": "eA==", "value": "eA==" } });
    eventually("it has a history", async || {
        for _ in 0..500 {
            ask(&server, "/v3/kv/txn", &json!({ "success": [put] }));
        }
        revision(&server) > 10_000
    })
    .await;
    let said = advice(&keeper).await.expect("an advice");
    for word in ["MB", "compact=", "--auto-compaction-retention"] {
        assert!(said.contains(word), "{said}");
    }
    let url = format!("{}?compact=1h", server.url());
    let compacts = Keeper::connect(&url).await.expect("it answers");
    assert_eq!(advice(&compacts).await, None, "these clients compact it");
    let revision = revision(&server);
    ask(&server, "/v3/kv/compaction", &json!({ "revision": revision.to_string() }));
    assert_eq!(advice(&keeper).await, None, "it is compacted");
    for keeper in [keeper, compacts] {
        keeper.close().await;
    }
}
