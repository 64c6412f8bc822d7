//! A server that dies, connections that are cut, rows that others sit on.

use crate::support::{TTL, client, cut_all, keeper, standing, waiter};
use servers::Running;
use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicU64, Ordering},
};
use testkit::{
    live::{crashes_and_remembers, stands_still},
    world::{eventually, soon},
};

testkit::tests! {
    crate::SERVERS =>
        a_server_that_crashes_keeps_the_locks,
        a_server_that_stands_still_loses_its_holders_and_keeps_its_waiters,
        cut_connections_cost_no_lock_and_no_place_in_the_line,
        a_restart_under_load_leaves_no_orphan_and_no_fence_goes_back;
}

async fn a_server_that_crashes_keeps_the_locks(server: Running) {
    crashes_and_remembers(server).await;
}

/// Unknown is not lost, until the deadline; waiters are served when the server goes on.
async fn a_server_that_stands_still_loses_its_holders_and_keeps_its_waiters(server: Running) {
    stands_still(server, TTL).await;
}

async fn cut_connections_cost_no_lock_and_no_place_in_the_line(server: Running) {
    let (one, two) = (keeper(&server).await, keeper(&server).await);
    let held = one.lock("a").await.expect("free");
    let waiter = waiter(&two, "a", 1).await;
    for _ in 0..5 {
        cut_all(&server).await;
        assert!(one.lock("b").await.expect("free after a cut").is_held());
    }
    assert!(held.is_held());
    let fence = held.fence();
    held.release().await.expect("released");
    let next = soon("the waiter's turn", waiter).await.expect("no panic").expect("granted");
    assert!(next.fence() > fence);
    one.close().await;
    two.close().await;
    let mut witness = client(&server).await;
    assert_eq!(standing(&mut witness).await, 0);
}

/// Keepers that lock and release all the time while the server is killed and started again.
async fn a_restart_under_load_leaves_no_orphan_and_no_fence_goes_back(mut server: Running) {
    let stop = Arc::new(AtomicBool::new(false));
    let (mut tasks, mut keepers) = (Vec::new(), Vec::new());
    let rounds = Arc::new(AtomicU64::new(0));
    let last: Arc<[AtomicU64; 3]> = Arc::default();
    for worker in 0..6 {
        let keeper = keeper(&server).await;
        keepers.push(keeper.clone());
        let (stop, rounds, last) = (Arc::clone(&stop), Arc::clone(&rounds), Arc::clone(&last));
        tasks.push(tokio::spawn(async move {
            for turn in worker.. {
                if stop.load(Ordering::Relaxed) {
                    return;
                }
                let name = turn % 3;
                let Ok(guard) = keeper.lock(format!("name {name}")).await else { continue };
                let before = last[name].fetch_max(guard.fence(), Ordering::SeqCst);
                assert!(!guard.is_held() || guard.fence() > before, "a fence went back");
                // A lock that was lost with the server cannot be released.
                let _ = guard.release().await;
                rounds.fetch_add(1, Ordering::Relaxed);
            }
        }));
    }
    for _ in 0..2 {
        progress(&rounds).await;
        server.kill().expect("killed");
        server.restart().expect("restarted");
    }
    progress(&rounds).await;
    stop.store(true, Ordering::Relaxed);
    for task in tasks {
        soon("the end of a worker", task).await.expect("no panic");
    }
    for keeper in keepers {
        keeper.close().await;
    }
    // A session that was lost with the server expires, and another session's renewal sweeps it.
    let (sweeper, mut witness) = (keeper(&server).await, client(&server).await);
    let _held = sweeper.lock("another").await.expect("free");
    eventually("only its ticket is left", async || standing(&mut witness).await == 1).await;
}

async fn progress(rounds: &AtomicU64) {
    let before = rounds.load(Ordering::Relaxed);
    eventually("locks are taken", async || rounds.load(Ordering::Relaxed) > before + 50).await;
}
