//! How many packets and wake-ups a lock costs.

use crate::{LONG, TTL, begun, keeper, keeper_at, through_a_proxy, told};
use lockkeeper::{Guard, Keeper};
use servers::{Running, ZOOKEEPER};
use std::{collections::VecDeque, path::Path, time::Duration};
use testkit::{
    taker::{crowd, granted_in},
    world::{eventually, length, soon, tickets, until_length},
};

testkit::tests! {
    [ZOOKEEPER] =>
        a_lock_is_two_packets_at_once_and_its_release_another,
        a_try_on_a_taken_lock_only_reads,
        a_hand_over_wakes_one_waiter_which_reads_once,
        a_release_wakes_one_of_all_waiters_in_many_processes,
        a_released_permit_wakes_no_more_than_there_are_permits,
        a_waiter_behind_very_many_watches_the_line,
        thousands_of_locks_are_a_renewal_of_two_packets_for_a_few_sessions,
        long_names_are_spread_over_several_sessions;
}

/// The creation and the list that follows it are sent together, whichever client had the lock before.
async fn a_lock_is_two_packets_at_once_and_its_release_another(server: Running) {
    let (one, two) = (keeper(&server).await, keeper(&server).await);
    let alternating = async || {
        for keeper in [&one, &one, &two] {
            keeper.lock("a").await.expect("free").release().await.expect("released");
        }
    };
    alternating().await;
    assert_eq!(cost(&server, alternating).await, 9);
    // As long as nothing is answered, nothing comes that depends on an answer.
    let (proxy, there, witness) = through_a_proxy(&server).await;
    let (over, before, mut looks) = (overhead(&server), packets(&server), 0);
    proxy.hold_answers();
    let lock = begun(&there, &witness).await;
    eventually("both are there", async || {
        looks += 1;
        packets(&server) >= before + looks * over + 2
    })
    .await;
    proxy.open();
    let guard = soon("the grant", lock).await.expect("no panic").expect("granted");
    guard.release().await.expect("released");
}

async fn a_try_on_a_taken_lock_only_reads(server: Running) {
    let (one, two) = (keeper(&server).await, keeper(&server).await);
    let held = one.lock("a").await.expect("free");
    let busy = async || assert!(two.lock("a").try_now().await.expect("an answer").is_none());
    busy().await;
    assert_eq!(cost(&server, busy).await, 2, "sync and list, sent together");
    assert_eq!(length(one.store(), "a").await, 1);
    held.release().await.expect("released");
}

/// However many wait, one of them is woken and reads the line once.
async fn a_hand_over_wakes_one_waiter_which_reads_once(server: Running) {
    for waiters in [8, 80] {
        let holder = keeper(&server).await;
        let name = format!("with {waiters}");
        let mut held = holder.lock(&name).await.expect("free");
        let mut line = Vec::new();
        for at in 0..waiters {
            let waiter = keeper_at(server.url(), LONG).await;
            line.push((tokio::spawn(waiter.lock(&name).into_future()), waiter));
            until_length(holder.store(), &name, at + 2).await;
        }
        // Until hints are in place the core polls; then only the safety polls of once a second are
        // left, and between two of them there is room for a hand-over.
        let (over, mut least) = (overhead(&server), u64::MAX);
        for (next, _keeper) in line.iter_mut().take(8) {
            let before = packets(&server);
            held.release().await.expect("released");
            held = soon("the grant", next).await.expect("no panic").expect("granted");
            least = least.min(packets(&server) - before - over);
        }
        assert_eq!(least, 2, "the deletion and one read, with {waiters} waiters");
        drop(line);
        holder.close().await;
    }
}

/// A number that people can make greater than a run of all tests allows.
fn number(variable: &str, usual: usize) -> usize {
    std::env::var(variable).map_or(usual, |n| n.parse().expect("a number"))
}

/// In how many processes a crowd waits.
const PROCESSES: usize = 8;

/// Polls cannot be told from what a wake-up causes, but the server counts whom it tells.
/// `LOCKKEEPER_WAITERS=800` makes the crowd as great as one likes.
async fn a_release_wakes_one_of_all_waiters_in_many_processes(server: Running) {
    let (each, holder) = (number("LOCKKEEPER_WAITERS", 64) / PROCESSES, keeper(&server).await);
    let mut held = Some(holder.lock("a").await.expect("free"));
    let program = Path::new(env!("CARGO_BIN_EXE_taker"));
    let mut crowd = crowd(program, server.url(), "a", PROCESSES, each).await;
    let waiters = PROCESSES * each;
    for some in 1..=10 {
        let many = waiters * some / 10;
        let stand = async || length(holder.store(), "a").await > many;
        eventually("they stand in line", stand).await;
    }
    // Each of them watches the one before it, and itself.
    let all = 2 * u64::try_from(waiters).expect("not so many");
    eventually("they watch", async || watches(&server) == all).await;
    let (mut before, mut at) = (wake_ups(&server), 0);
    for turn in 0..5 {
        match held.take() {
            Some(guard) => guard.release().await.expect("released"),
            None => crowd[at].tell("release").await,
        }
        at = soon("the next grant", granted_in(&mut crowd)).await;
        // A client that had to wait for the lock has watched its own node, too.
        let own = u64::from(turn > 0);
        assert_eq!(wake_ups(&server) - before, 1 + own, "turn {turn}, {waiters} waiters");
        before = wake_ups(&server);
    }
}

/// However many wait; and a client that comes wakes no other.
async fn a_released_permit_wakes_no_more_than_there_are_permits(server: Running) {
    const PERMITS: u32 = 2;
    const WAITERS: usize = 12;
    let holder = keeper(&server).await;
    let take =
        async |keeper: &Keeper| keeper.semaphore("a", PERMITS).acquire(1).await.expect("granted");
    let mut held = VecDeque::from([take(&holder).await, take(&holder).await]);
    let (mut line, before) = (Vec::new(), wake_ups(&server));
    for at in 0..WAITERS {
        let waiter = keeper_at(server.url(), LONG).await;
        line.push(tokio::spawn(async move { (take(&waiter).await, waiter) }));
        until_length(holder.store(), "a", 2 + at + 1).await;
    }
    // Each of them watches two before it, and itself.
    eventually("they watch", async || watches(&server) == 3 * WAITERS as u64).await;
    assert_eq!(wake_ups(&server), before);
    let mut keepers = Vec::new();
    for (turn, next) in line.into_iter().enumerate() {
        let before = wake_ups(&server);
        held.pop_front().expect("two hold").release().await.expect("released");
        let (guard, keeper) = soon("its turn", next).await.expect("no panic");
        held.push_back(guard);
        keepers.push(keeper);
        let woken = wake_ups(&server) - before;
        // A client that had to wait has watched its own node, too.
        assert!(woken <= u64::from(PERMITS) + 1, "{woken} in turn {turn}");
    }
}

/// Watches on all of them would be more than the line is worth.
async fn a_waiter_behind_very_many_watches_the_line(server: Running) {
    let (holder, waiter) = (keeper(&server).await, keeper_at(server.url(), LONG).await);
    let mut held = Vec::new();
    for _ in 0..40 {
        held.push(holder.semaphore("a", 40).acquire(1).await.expect("free"));
    }
    let next = tokio::spawn(waiter.semaphore("a", 40).acquire(1).into_future());
    eventually("the line and itself are watched", async || watches(&server) == 2).await;
    held.swap_remove(20).release().await.expect("released");
    drop(soon("its turn", next).await.expect("no panic").expect("granted"));
}

/// `LOCKKEEPER_LOCKS=10000` makes it as many as one likes.
async fn thousands_of_locks_are_a_renewal_of_two_packets_for_a_few_sessions(server: Running) {
    let (keeper, locks) = (keeper(&server).await, number("LOCKKEEPER_LOCKS", 1_000));
    let mut guards = Vec::new();
    for i in 0..locks {
        guards.push(keeper.lock(format!("name {i}")).await.expect("free"));
    }
    let renew = async || {
        guards[0].extend(Duration::from_secs(1)).await.expect("renewed");
    };
    renew().await;
    let cost = cost(&server, renew).await;
    let most = 2 * locks.div_ceil(1_000);
    assert!(cost <= u64::try_from(most).expect("few"), "{cost} packets for {locks} locks");
    assert!(guards.iter().all(Guard::is_held));
    keeper.close().await;
}

/// What ends with a ZooKeeper session is one write, and what is longer than a megabyte no server can
/// read back.
async fn long_names_are_spread_over_several_sessions(server: Running) {
    let (keeper, witness) = (keeper(&server).await, keeper_at(server.url(), TTL).await);
    let sessions = || told(&server, "mntr", "zk_num_alive_connections\t");
    keeper.lock("first").await.expect("free").release().await.expect("released");
    let before = sessions();
    let name = |i: usize| format!("{i:03}{}", "/".repeat(509));
    let mut guards = Vec::new();
    for i in 0..500 {
        guards.push(keeper.lock(name(i)).await.expect("free"));
    }
    assert_eq!(sessions() - before, 2, "of 238 such names each");
    let renew = async || {
        guards[0].extend(Duration::from_secs(1)).await.expect("renewed");
    };
    renew().await;
    assert_eq!(cost(&server, renew).await, 6);
    // A ticket waits in each of them, and is woken.
    for at in [499, 250, 0] {
        let next = tokio::spawn(witness.lock(name(at)).into_future());
        until_length(witness.store(), &name(at), 2).await;
        guards.remove(at).release().await.expect("released");
        let next = soon("its turn", next).await.expect("no panic").expect("granted");
        let again = tokio::spawn(keeper.lock(name(at)).into_future());
        until_length(witness.store(), &name(at), 2).await;
        next.release().await.expect("released");
        guards.push(soon("the last turn", again).await.expect("no panic").expect("granted"));
    }
    assert!(guards.iter().all(Guard::is_held));
    keeper.close().await;
    assert_eq!(tickets(witness.store()).await, 0);
}

/// Packets that the server has received so far, from all clients.
fn packets(server: &Running) -> u64 {
    told(server, "srvr", "Received: ")
}

/// How many watches there are now.
fn watches(server: &Running) -> u64 {
    told(server, "mntr", "zk_watch_count\t")
}

/// How often a client was told so far that a node has gone, or that a line has changed.
fn wake_ups(server: &Running) -> u64 {
    let [gone, changed] = ["deleted", "children"]
        .map(|what| told(server, "mntr", &format!("zk_sum_node_{what}_watch_count\t")));
    gone + changed
}

/// What the counting itself costs, at the quietest of several times.
fn overhead(server: &Running) -> u64 {
    let once = |_| {
        let before = packets(server);
        packets(server) - before
    };
    (0..10).map(once).min().expect("several times")
}

/// Packets received while `work` was done. Renewals may fall into it, so the quietest of several times
/// counts.
async fn cost(server: &Running, mut work: impl AsyncFnMut()) -> u64 {
    let (over, mut least) = (overhead(server), u64::MAX);
    for _ in 0..10 {
        let before = packets(server);
        work().await;
        least = least.min(packets(server) - before - over);
    }
    least
}
