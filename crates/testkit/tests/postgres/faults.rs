//! Connections that are killed, servers that die and stand still.

use crate::support::{HASTY, TTL, User, held_and_awaited, keeper, start};
use lockkeeper::Keeper;
use servers::{POSTGRES, Running};
use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};
use testkit::{
    live::{crashes_and_remembers, stands_still},
    world::{eventually, soon},
};
use tokio::task::JoinHandle;

/// Ends every connection of every keeper, as a DBA or a failing network would.
const CUT: &str = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity \
                   WHERE application_name = 'lockkeeper'";

/// Workers that lock and release, and check what they are given.
#[derive(Default)]
struct Load {
    over: AtomicBool,
    pairs: AtomicUsize,
    inside: Mutex<HashMap<String, usize>>,
    last: Mutex<HashMap<String, u64>>,
}

impl Load {
    /// `names` names, taken by turns.
    async fn work(self: Arc<Self>, keeper: Keeper, names: usize, seed: usize) {
        let mut at = seed;
        while !self.over.load(Ordering::Relaxed) {
            at += 1;
            let name = format!("name {}", at % names);
            let lock = keeper.lock(&name).wait(Duration::from_secs(60));
            let guard = lock.await.expect("no trouble reaches the caller");
            self.check(&name, guard.fence(), guard.is_held());
            // Lost meanwhile, it is freed by its expiry.
            let _ = guard.release().await;
            self.pairs.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn check(&self, name: &str, fence: u64, held: bool) {
        let mut last = self.last.lock().expect("not poisoned");
        let last = last.entry(name.to_owned()).or_insert(0);
        // Only who still holds it must come behind all others.
        assert!(fence > *last || !held, "fence {fence} of {name:?} after {last}");
        *last = fence.max(*last);
    }

    fn start(self: &Arc<Self>, keeper: &Keeper, names: usize, seed: usize) -> JoinHandle<()> {
        tokio::spawn(Arc::clone(self).work(keeper.clone(), names, seed))
    }

    async fn some_more(&self) {
        let now = self.pairs.load(Ordering::Relaxed);
        eventually("some more pairs", async || self.pairs.load(Ordering::Relaxed) > now + 50).await;
    }
}

async fn load(server: &Running, keepers: usize, names: usize) -> (Arc<Load>, Vec<JoinHandle<()>>) {
    let load = Arc::<Load>::default();
    let mut tasks = Vec::new();
    for at in 0..keepers {
        let keeper = keeper(server).await;
        tasks.extend((0..2).map(|task| load.start(&keeper, names, at * 2 + task)));
    }
    (load, tasks)
}

async fn finish(load: &Load, tasks: Vec<JoinHandle<()>>, user: &User) {
    load.over.store(true, Ordering::Relaxed);
    for task in tasks {
        soon("the worker's end", task).await.expect("no panic");
    }
    let left = "SELECT count(*) FROM lockkeeper.lk_standing WHERE dead_at > clock_timestamp()";
    eventually("no ticket is left", async || user.number(left).await == 0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_that_are_killed_under_load_are_made_again() {
    let Some(server) = start(HASTY) else { return };
    let user = User::of(&server).await;
    let keeper = keeper(&server).await;
    let held = keeper.lock("held").await.expect("free");
    let (load, tasks) = load(&server, 4, 3).await;
    for _ in 0..10 {
        load.some_more().await;
        assert!(user.number(CUT).await >= 4);
    }
    load.some_more().await;
    assert!(held.is_held(), "a lost connection is no lost session: {:?}", held.health());
    held.release().await.expect("released");
    finish(&load, tasks, &user).await;
    keeper.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_restarts_under_load_loses_no_order() {
    let Some(mut server) = start(POSTGRES) else { return };
    // The keeper's connection for the schema comes first.
    drop(keeper(&server).await);
    let (load, tasks) = load(&server, 3, 2).await;
    for crash in [true, false] {
        load.some_more().await;
        if crash {
            server.kill().expect("killed");
        } else {
            server.stop().expect("stopped");
        }
        server.restart().expect("restarted");
        load.some_more().await;
    }
    finish(&load, tasks, &User::of(&server).await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_restarts_keeps_the_locks() {
    let Some(server) = start(POSTGRES) else { return };
    crashes_and_remembers(server).await;
}

/// Unknown is not lost, until the deadline; those who wait are served when the server goes on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_stands_still_loses_its_holders_and_keeps_its_waiters() {
    let Some(server) = start(POSTGRES) else { return };
    stands_still(server, TTL).await;
}

/// The waiter's process has lost the connection by which it listens, and hears of its turn all the same.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_whose_connections_are_cut_gets_its_turn() {
    let Some(server) = start(POSTGRES) else { return };
    let user = User::of(&server).await;
    let (held, waiter) = held_and_awaited(&server).await;
    user.number(CUT).await;
    held.release().await.expect("released");
    let next = soon("the waiter's turn", waiter).await.expect("no panic").expect("granted");
    next.release().await.expect("released");
}

/// Many processes on few names: no deadlock, no serialization error, and nobody is left behind.
/// `LOCKKEEPER_PAIRS=5000` makes it as long as one likes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn twelve_clients_on_eight_names_meet_no_error() {
    let Some(server) = start(HASTY) else { return };
    let user = User::of(&server).await;
    let pairs: usize =
        std::env::var("LOCKKEEPER_PAIRS").map_or(100, |n| n.parse().expect("a number"));
    let load = Arc::<Load>::default();
    let mut tasks = Vec::new();
    for seed in 0..12 {
        let (keeper, load) = (keeper(&server).await, Arc::clone(&load));
        tasks.push(tokio::spawn(async move {
            for at in 0..pairs {
                let name = format!("name {}", (at * 7 + seed) % 8);
                let guard = keeper.lock(&name).await.expect("granted");
                load.check(&name, guard.fence(), true);
                {
                    let mut inside = load.inside.lock().expect("not poisoned");
                    let inside = inside.entry(name.clone()).or_insert(0);
                    *inside += 1;
                    assert_eq!(*inside, 1, "two are inside of {name:?}");
                }
                *load.inside.lock().expect("not poisoned").get_mut(&name).expect("is in") -= 1;
                guard.release().await.expect("released");
            }
            keeper.close().await;
        }));
    }
    for task in tasks {
        task.await.expect("no error");
    }
    assert_eq!(user.tickets().await, 0);
    let deadlocks = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()";
    assert_eq!(user.number(deadlocks).await, 0);
}
