//! What only a real Redis server can show: how many commands a lock costs, and what becomes of locks
//! when the server dies, forgets or stands still.

use lockkeeper::{Guard, Health, Keeper, Loss};
use servers::{Recipe, Require, Running};
use std::{collections::HashMap, time::Duration};
use testkit::world::{eventually, soon};
use tokio::task::JoinHandle;

const TTL: Duration = Duration::from_secs(2);

/// A running server, or nothing if it cannot be had and nobody insists.
fn start(recipe: Recipe) -> Option<Running> {
    if let Some(missing) = recipe.first_missing() {
        let must = Require::from_env().wants(recipe.name);
        assert!(!must, "{missing} is not installed, and {} asks for it", Require::VARIABLE);
        eprintln!("ignored: {missing} is not installed");
        return None;
    }
    Some(recipe.start().expect("the server starts"))
}

async fn keeper(server: &Running) -> Keeper {
    Keeper::builder().ttl(TTL).connect(server.url()).await.expect("the server answers")
}

/// A lock that one keeper holds and another waits for.
async fn held_and_awaited(server: &Running) -> (Guard, JoinHandle<lockkeeper::Result<Guard>>) {
    let (one, two) = (keeper(server).await, keeper(server).await);
    let held = one.lock("a").await.expect("free");
    let waiter = tokio::spawn(two.lock("a").into_future());
    eventually("it waits", async || {
        one.look_at("a").await.is_ok_and(|line| line.is_some_and(|line| line.tickets.len() == 2))
    })
    .await;
    (held, waiter)
}

/// A client beside the library, to see what the library did.
struct Witness(redis::aio::MultiplexedConnection);

impl Witness {
    async fn of(server: &Running) -> Self {
        let client = redis::Client::open(server.url()).expect("a URL of Redis");
        Self(client.get_multiplexed_async_connection().await.expect("the server answers"))
    }

    async fn command(&mut self, words: &[&str]) {
        let mut command = redis::cmd(words[0]);
        let () = command.arg(&words[1..]).query_async(&mut self.0).await.expect("an answer");
    }

    /// How often each command was called since the last reset.
    async fn calls(&mut self) -> HashMap<String, u64> {
        let mut info = redis::cmd("INFO");
        let text: String =
            info.arg("commandstats").query_async(&mut self.0).await.expect("an answer");
        text.lines().filter_map(call).collect()
    }

    async fn count(&mut self, command: &str) -> u64 {
        self.calls().await.get(command).copied().unwrap_or(0)
    }
}

/// `cmdstat_evalsha:calls=2,usec=…`
fn call(line: &str) -> Option<(String, u64)> {
    let (command, stats) = line.strip_prefix("cmdstat_")?.split_once(':')?;
    let calls = stats.strip_prefix("calls=")?.split(',').next()?.parse().ok()?;
    Some((command.to_owned(), calls))
}

/// Scripts sent by clients, and messages sent by scripts, while `work` was done. Renewals and safety
/// polls may fall into it, so the quietest of several times counts.
async fn cost<F: Future<Output = ()>>(
    witness: &mut Witness,
    mut work: impl FnMut() -> F,
) -> (u64, u64) {
    let mut least = (u64::MAX, u64::MAX);
    for _ in 0..10 {
        witness.command(&["CONFIG", "RESETSTAT"]).await;
        work().await;
        let calls = witness.calls().await;
        let of = |command: &str| calls.get(command).copied().unwrap_or(0);
        least = least.min((of("evalsha") + of("eval"), of("publish")));
    }
    least
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_uncontended_lock_and_its_release_are_two_commands() {
    let Some(server) = start(servers::REDIS) else { return };
    let (keeper, mut witness) = (keeper(&server).await, Witness::of(&server).await);
    let pair = async || {
        keeper.lock("a").await.expect("free").release().await.expect("released");
    };
    pair().await;
    assert_eq!(cost(&mut witness, pair).await, (2, 0));
    keeper.close().await;
}

/// However many wait, the one whose turn it is learns of it by one message, and nobody else stirs.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hand_over_is_one_script_and_one_message() {
    let Some(server) = start(servers::REDIS) else { return };
    let mut witness = Witness::of(&server).await;
    for waiters in [8, 80] {
        let holder = keeper(&server).await;
        let name = format!("with {waiters}");
        let mut held = holder.lock(&name).await.expect("free");
        let mut line = Vec::new();
        for at in 0..waiters {
            let waiter = keeper(&server).await;
            let lock = waiter.lock(&name);
            line.push((tokio::spawn(lock.into_future()), waiter));
            eventually("it stands in line", async || {
                holder
                    .look_at(&name)
                    .await
                    .is_ok_and(|l| l.is_some_and(|l| l.tickets.len() == at + 2))
            })
            .await;
        }
        let mut least = (u64::MAX, u64::MAX);
        for (next, _keeper) in line.iter_mut().take(8) {
            witness.command(&["CONFIG", "RESETSTAT"]).await;
            held.release().await.expect("released");
            held = soon("the grant", next).await.expect("no panic").expect("granted");
            let calls = witness.calls().await;
            let of = |command: &str| calls.get(command).copied().unwrap_or(0);
            least = least.min((of("evalsha"), of("publish")));
        }
        assert_eq!(least, (1, 1), "scripts and messages with {waiters} waiters");
        drop(line);
        holder.close().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_locks_are_one_renewal() {
    let Some(server) = start(servers::REDIS) else { return };
    let (keeper, mut witness) = (keeper(&server).await, Witness::of(&server).await);
    let mut guards = Vec::new();
    for i in 0..1_000 {
        guards.push(keeper.lock(format!("name {i}")).await.expect("free"));
    }
    // The first renewal is followed by one poll that compares all tickets; after that only renewals
    // are left. Between the first and the third of them lie two periods.
    let mut longest = Duration::ZERO;
    for _ in 0..3 {
        witness.command(&["CONFIG", "RESETSTAT"]).await;
        let began = std::time::Instant::now();
        eventually("three renewals", async || witness.count("evalsha").await >= 3).await;
        longest = longest.max(began.elapsed());
    }
    assert!(longest > TTL / 3 * 2 - TTL / 10, "three renewals within {longest:?}");
    assert!(guards.iter().all(Guard::is_held));
    keeper.close().await;
}

/// The locks are gone while their holder believes; it learns that with its next renewal, and fences
/// go on from the server's clock.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_restarts_empty_loses_locks_and_never_fences() {
    let Some(mut server) = start(servers::REDIS) else { return };
    let (held, waiter) = held_and_awaited(&server).await;
    server.kill().expect("killed");
    server.restart().expect("restarted");
    let why = soon("the loss", held.lost()).await;
    assert!(matches!(why, Loss::SessionGone | Loss::Expired), "{why:?}");
    let next = soon("the waiter's turn", waiter).await.expect("no panic").expect("granted");
    assert!(next.fence() > held.fence());
    next.release().await.expect("released");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_restarts_with_its_data_keeps_the_locks() {
    let Some(mut server) = start(servers::REDIS_DURABLE) else { return };
    let keeper = Keeper::builder().ttl(Duration::from_secs(30)).connect(server.url()).await;
    let keeper = keeper.expect("the server answers");
    let held = keeper.lock("a").await.expect("free");
    server.kill().expect("killed");
    server.restart().expect("restarted");
    eventually("a renewal", async || held.extend(Duration::from_secs(20)).await.is_ok()).await;
    assert_eq!(held.health(), Health::Held);
    assert!(keeper.check(&held.sequencer()).await.expect("an answer"));
    let fence = held.fence();
    held.release().await.expect("released");
    assert!(keeper.lock("a").await.expect("free").fence() > fence);
    keeper.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_flushes_the_data_ends_the_locks_in_it() {
    let Some(server) = start(servers::REDIS) else { return };
    let (keeper, mut witness) = (keeper(&server).await, Witness::of(&server).await);
    let held = keeper.lock("a").await.expect("free");
    witness.command(&["FLUSHALL"]).await;
    assert_eq!(soon("the loss", held.lost()).await, Loss::SessionGone);
    let next = soon("the next lock", keeper.lock("a").into_future()).await.expect("free");
    assert!(next.fence() > held.fence());
    keeper.close().await;
}

/// Unknown is not lost, until the deadline; those who wait are served when the server goes on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_stands_still_loses_its_holders_and_keeps_its_waiters() {
    let Some(mut server) = start(servers::REDIS) else { return };
    let (held, waiter) = held_and_awaited(&server).await;
    server.freeze().expect("frozen");
    assert_eq!(soon("the loss", held.lost()).await, Loss::Expired);
    server.thaw().expect("thawed");
    let next = soon("the waiter's turn", waiter).await.expect("no panic").expect("granted");
    assert!(next.fence() > held.fence());
    next.release().await.expect("released");
}

/// The replica has all that the primary had, takes over, and the keepers find it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn behind_sentinels_another_server_takes_over() {
    let Some(mut server) = start(servers::REDIS_SENTINEL) else { return };
    let keeper = Keeper::builder().ttl(Duration::from_secs(60)).connect(server.url()).await;
    let keeper = keeper.expect("the primary answers");
    let before = keeper.lock("a").await.expect("free");
    let fence = before.fence();
    // The replica must have it before the primary goes.
    server.nodes()[0].kill().expect("killed");
    eventually("a renewal at the new primary", async || {
        before.extend(Duration::from_secs(40)).await.is_ok() || !before.is_held()
    })
    .await;
    drop(before);
    let after = soon("the next lock", keeper.lock("a").into_future()).await.expect("free");
    assert!(after.fence() > fence);
    keeper.close().await;
}
