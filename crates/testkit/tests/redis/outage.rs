//! One server that dies, forgets or stands still.

use crate::{
    crowd::Crowd,
    support::{
        TTL, Witness, compared, held_and_awaited, keeper, keeper_for, waiter, with_fault_store,
    },
};
use lockkeeper::{Health, Loss};
use servers::Running;
use std::time::Duration;
use testkit::{
    fault_store::Op,
    live::{crashes_and_remembers, stands_still},
    world::{eventually, soon},
};

testkit::tests! {
    [servers::REDIS] =>
        a_server_that_restarts_empty_loses_locks_and_never_fences,
        a_flush_of_the_data_ends_the_locks_in_it,
        clients_from_before_and_after_a_flush_know_each_others_locks,
        a_session_whose_key_was_evicted_is_compared_once_and_then_trusted,
        a_server_that_stands_still_loses_its_holders_and_keeps_its_waiters,
        five_seconds_of_silence_take_no_lock_of_a_server,
        a_lock_that_comes_back_from_the_past_is_left;
    [servers::REDIS_DURABLE] =>
        a_server_that_restarts_with_its_data_keeps_the_locks;
    [servers::REDIS_SENTINEL] =>
        five_seconds_of_silence_take_no_lock_behind_sentinels,
        a_power_cut_behind_sentinels_loses_locks_and_never_fences;
    [servers::REDIS_CLUSTER] =>
        five_seconds_of_silence_take_no_lock_of_a_cluster,
        a_power_cut_of_a_cluster_loses_locks_and_never_fences;
}

/// The locks are gone while their holder believes; it learns that with its next renewal, and fences
/// go on from the server's clock.
async fn a_server_that_restarts_empty_loses_locks_and_never_fences(server: Running) {
    all_is_forgotten(server).await;
}

async fn a_server_that_restarts_with_its_data_keeps_the_locks(server: Running) {
    crashes_and_remembers(server).await;
}

async fn a_flush_of_the_data_ends_the_locks_in_it(server: Running) {
    let (keeper, mut witness) = (keeper(&server).await, Witness::of(&server).await);
    let held = keeper.lock("a").await.expect("free");
    witness.command(&["FLUSHALL"]).await;
    assert_eq!(soon("the loss", held.lost()).await, Loss::SessionGone);
    let next = soon("the next lock", keeper.lock("a").into_future()).await.expect("free");
    assert!(next.fence() > held.fence());
    keeper.close().await;
}

/// The identity of the data is gone with it. A handle that is older writes its own down again, so that a client
/// that comes later knows the older one's locks; and where a newer client came first, the older handle takes
/// over what that one has written.
async fn clients_from_before_and_after_a_flush_know_each_others_locks(server: Running) {
    for newer_comes_first in [false, true] {
        let (older, mut witness) = (keeper(&server).await, Witness::of(&server).await);
        let held = older.lock("a").await.expect("free");
        witness.command(&["FLUSHALL"]).await;
        soon("the loss", held.lost()).await;
        let early = match newer_comes_first {
            true => Some(keeper(&server).await),
            false => None,
        };
        let held = soon("the next lock", older.lock("a").into_future()).await.expect("free");
        let newer = match early {
            Some(newer) => newer,
            None => keeper(&server).await,
        };
        assert!(newer.check(&held.sequencer()).await.expect("an answer"), "{newer_comes_first}");
        let others = newer.lock("b").await.expect("free");
        assert!(older.check(&others.sequencer()).await.expect("an answer"), "{newer_comes_first}");
        older.close().await;
        newer.close().await;
    }
}

/// An eviction of keys takes away what a server knows of sessions, and with it the sum of their tickets, which
/// then grew again from zero: every renewal showed other tickets than there were, and all were compared each time.
/// Lines showed a holder that lives as a lock that is kept closed.
async fn a_session_whose_key_was_evicted_is_compared_once_and_then_trusted(server: Running) {
    let (keeper, faults) = with_fault_store(server.url()).await;
    let a = keeper.lock("a").await.expect("free");
    compared(&faults).await;
    Witness::of(&server).await.command(&["DEL", "lk:{0}:s"]).await;
    let b = keeper.lock("b").await.expect("free");
    let line = keeper.get("a").await.expect("a look").expect("it is held");
    let holder = line.holders().next().expect("a holder").owner.clone();
    assert!(holder.is_some_and(|owner| owner.is_unknown()), "{line:?}");
    let renewals = async |n: usize| {
        let before = faults.count(Op::Renew);
        eventually("renewals", async || faults.count(Op::Renew) >= before + n).await;
    };
    renewals(3).await;
    let compared = faults.count(Op::PollAll);
    renewals(3).await;
    assert_eq!(faults.count(Op::PollAll), compared, "the sum agrees again");
    assert!(a.is_held() && b.is_held());
    keeper.close().await;
}

/// Unknown is not lost, until the deadline; waiters are served when the server goes on.
async fn a_server_that_stands_still_loses_its_holders_and_keeps_its_waiters(server: Running) {
    stands_still(server, TTL).await;
}

/// With the usual TTL five seconds are nothing: no lock is lost, and all are served on. A server
/// alone, one behind sentinels (which stand still with it, as on one machine), and a cluster.
async fn five_seconds_of_silence(mut server: Running) {
    let ttl = Duration::from_secs(15);
    let (one, two) = (keeper_for(&server, ttl).await, keeper_for(&server, ttl).await);
    let held = one.lock("held").await.expect("free");
    let waiter = waiter(&two, "held", 1).await;
    let crowd = Crowd::of(vec![keeper_for(&server, ttl).await, keeper_for(&server, ttl).await]);
    crowd.all_served("at first").await;
    server.freeze().expect("frozen");
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_ne!(held.health(), Health::Lost(Loss::Expired));
    server.thaw().expect("thawed");
    crowd.all_served("afterwards").await;
    eventually("a renewal", async || held.extend(ttl / 2).await.is_ok()).await;
    assert_eq!(held.health(), Health::Held);
    assert!(two.check(&held.sequencer()).await.expect("an answer"));
    let fence = held.fence();
    held.release().await.expect("released");
    let next = soon("the waiter's turn", waiter).await.expect("no panic").expect("granted");
    assert!(next.fence() > fence);
    crowd.go_home().await;
}

async fn five_seconds_of_silence_take_no_lock_of_a_server(server: Running) {
    five_seconds_of_silence(server).await;
}

async fn five_seconds_of_silence_take_no_lock_behind_sentinels(server: Running) {
    five_seconds_of_silence(server).await;
}

async fn five_seconds_of_silence_take_no_lock_of_a_cluster(server: Running) {
    five_seconds_of_silence(server).await;
}

/// All processes die at once and come back empty, as after a power cut.
async fn all_is_forgotten(mut server: Running) {
    let (held, waiter) = held_and_awaited(&server).await;
    server.kill().expect("killed");
    server.restart().expect("restarted");
    let why = soon("the loss", held.lost()).await;
    assert!(matches!(why, Loss::SessionGone | Loss::Expired), "{why:?}");
    let next = soon("the waiter's turn", waiter).await.expect("no panic").expect("granted");
    assert!(next.fence() > held.fence());
    next.release().await.expect("released");
}

async fn a_power_cut_behind_sentinels_loses_locks_and_never_fences(server: Running) {
    all_is_forgotten(server).await;
}

async fn a_power_cut_of_a_cluster_loses_locks_and_never_fences(server: Running) {
    all_is_forgotten(server).await;
}

/// As after a failover to a replica that has the enter and not the leave, which breaks no connection here: the
/// client does not know the ticket any more, and the session that is renewed would keep it for ever.
async fn a_lock_that_comes_back_from_the_past_is_left(server: Running) {
    let (keeper, other) = (keeper(&server).await, keeper(&server).await);
    let mut witness = Witness::of(&server).await;
    let known = keeper.lock("known").await.expect("free");
    let guard = keeper.lock("haunted").await.expect("free");
    let keys = ["lk:{0}:z:haunted", "lk:{0}:t:haunted", "lk:{0}:o"];
    for key in keys {
        witness.command(&["COPY", key, &format!("copy of {key}")]).await;
    }
    guard.release().await.expect("released");
    for key in keys {
        witness.command(&["RENAME", &format!("copy of {key}"), key]).await;
    }
    assert!(other.lock("haunted").try_now().await.expect("an answer").is_none());
    let next = soon("its end", other.lock("haunted").into_future()).await.expect("granted");
    assert!(known.is_held());
    next.release().await.expect("released");
    keeper.close().await;
}
