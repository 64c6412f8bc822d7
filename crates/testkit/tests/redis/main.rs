//! What only a real Redis server can show: how many commands a lock costs, and what becomes of locks
//! when the server dies, forgets or stands still.

use lockkeeper::{Error, Guard, Health, Keeper, Loss, Trouble};
use servers::{Recipe, Require, Running};
use std::{collections::HashMap, future::poll_fn, path::Path, task::Poll, time::Duration};
use testkit::{
    taker::Taker,
    world::{eventually, soon},
};
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

    /// How many connections the server has.
    async fn clients(&mut self) -> usize {
        let mut list = redis::cmd("CLIENT");
        let list: String = list.arg("LIST").query_async(&mut self.0).await.expect("an answer");
        list.lines().count()
    }

    /// Scripts sent by clients, and messages sent by scripts.
    async fn scripts_and_messages(&mut self) -> (u64, u64) {
        let calls = self.calls().await;
        let of = |command: &str| calls.get(command).copied().unwrap_or(0);
        (of("evalsha") + of("eval"), of("publish"))
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
        least = least.min(witness.scripts_and_messages().await);
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
    let (holder, mut witness) = (keeper(&server).await, Witness::of(&server).await);
    for waiters in [8, 80, 800] {
        let name = format!("with-{waiters}");
        let mut held = Some(holder.lock(&name).await.expect("free"));
        let mut crowd = crowd(&server, &name, waiters / PROCESSES).await;
        eventually("all stand in line", async || {
            holder.look_at(&name).await.is_ok_and(|l| l.is_some_and(|l| l.tickets.len() > waiters))
        })
        .await;
        let (mut at, mut least) = (0, (u64::MAX, u64::MAX));
        for _ in 0..8 {
            witness.command(&["CONFIG", "RESETSTAT"]).await;
            match held.take() {
                Some(guard) => guard.release().await.expect("released"),
                None => crowd[at].tell("release").await,
            }
            at = soon("the next grant", granted(&mut crowd)).await;
            least = least.min(witness.scripts_and_messages().await);
        }
        assert_eq!(least, (1, 1), "scripts and messages with {waiters} waiters");
    }
    holder.close().await;
}

/// In how many processes a crowd waits.
const PROCESSES: usize = 8;

/// Processes with so many waiters each.
async fn crowd(server: &Running, name: &str, each: usize) -> Vec<Taker> {
    let program = Path::new(env!("CARGO_BIN_EXE_taker"));
    let mut crowd = Vec::new();
    for _ in 0..PROCESSES {
        let ttl = Duration::from_secs(60);
        let mut taker = Taker::at(program, server.url(), ttl, Duration::ZERO).await;
        taker.tell(&format!("crowd {name} {each}")).await;
        crowd.push(taker);
    }
    crowd
}

/// Waits until the lock is granted in any process; says in which.
async fn granted(crowd: &mut [Taker]) -> usize {
    loop {
        let mut lines: Vec<_> = crowd.iter_mut().map(|taker| Box::pin(taker.line())).collect();
        let line = poll_fn(|cx| {
            for (at, line) in lines.iter_mut().enumerate() {
                if let Poll::Ready(line) = line.as_mut().poll(cx) {
                    return Poll::Ready((at, line));
                }
            }
            Poll::Pending
        });
        match line.await {
            (at, line) if line.starts_with("granted") => return at,
            (_, line) => assert_eq!(line, "released"),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_thousand_locks_are_one_renewal() {
    const PERIOD: Duration = Duration::from_secs(3);
    let Some(server) = start(servers::REDIS) else { return };
    let keeper = Keeper::builder().ttl(PERIOD * 3).connect(server.url()).await.expect("an answer");
    let mut witness = Witness::of(&server).await;
    let mut guards = Vec::new();
    for i in 0..10_000 {
        guards.push(keeper.lock(format!("name {i}")).await.expect("free"));
    }
    // The first renewal is followed by a poll that compares all tickets; after that only renewals are
    // left. From the first of ten to the last, nine periods pass.
    witness.command(&["CONFIG", "RESETSTAT"]).await;
    eventually("two renewals", async || witness.count("evalsha").await >= 3).await;
    witness.command(&["CONFIG", "RESETSTAT"]).await;
    let began = std::time::Instant::now();
    for n in 1..=10 {
        eventually("a renewal", async || witness.count("evalsha").await >= n).await;
    }
    let took = began.elapsed();
    assert!(took > PERIOD * 9 - PERIOD / 3, "ten renewals within {took:?}");
    assert!(guards.iter().all(Guard::is_held));
    keeper.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_keeper_that_is_gone_has_no_connection() {
    let Some(server) = start(servers::REDIS) else { return };
    let mut witness = Witness::of(&server).await;
    for closed in [true, false] {
        let keeper = keeper(&server).await;
        keeper.lock("a").await.expect("free").release().await.expect("released");
        if closed {
            keeper.close().await;
        }
        drop(keeper);
        eventually("only the witness is left", async || witness.clients().await == 1).await;
    }
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

/// Somebody uses our prefix for something else: said, with the key, and left as it is.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_that_holds_something_else_is_named_and_left_alone() {
    let Some(server) = start(servers::REDIS) else { return };
    let mut witness = Witness::of(&server).await;
    let about = |e: Error| match e {
        Error::Store(e) if e.trouble == Trouble::Misconfigured => e.what,
        other => panic!("{other:?}"),
    };
    witness.command(&["RPUSH", "lk:{0}:meta", "x"]).await;
    let refused = Keeper::connect(server.url()).await.expect_err("no such store");
    let what = about(refused);
    assert!(what.contains("lk:{0}:meta") && what.contains("a list"), "{what}");
    witness.command(&["DEL", "lk:{0}:meta"]).await;

    let keeper = keeper(&server).await;
    for key in ["lk:{0}:z:a", "lk:{0}:t:a", "lk:{0}:i", "lk:{0}:c:a"] {
        witness.command(&["SET", key, "theirs"]).await;
        let refused = match keeper.lock("a").try_now().await {
            Ok(guard) if key.contains(":c:") => {
                guard.expect("free").write(b"a cell".to_vec()).await.expect_err("it is no cell")
            }
            other => other.expect_err(key),
        };
        let what = about(refused);
        assert!(what.contains(key) && what.contains("a string"), "{what}");
        assert!(what.contains("prefix="), "{what}");
        witness.command(&["RENAME", key, "kept"]).await;
        eventually("all is well again", async || {
            keeper.lock("a").try_now().await.is_ok_and(|guard| guard.is_some())
        })
        .await;
    }
    keeper.close().await;
}
