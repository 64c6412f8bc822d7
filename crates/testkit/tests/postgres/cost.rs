//! Statements, messages and connections.

use crate::support::{TALKATIVE, TTL, User, keeper, start, until_length};
use lockkeeper::Guard;
use servers::{POSTGRES, Running};
use std::{fs, path::PathBuf, time::Duration};
use testkit::world::{eventually, soon};

/// What the server was told, from here on.
struct Log {
    file: PathBuf,
    seen: usize,
}

impl Log {
    fn of(server: &Running) -> Self {
        Self { file: server.folder().join("postgres.log"), seen: 0 }
    }

    /// The statements since the last look, in which one of the words stands.
    fn news(&mut self, words: &[&str]) -> Vec<String> {
        let bytes = fs::read(&self.file).expect("the server has a log");
        let text = String::from_utf8_lossy(&bytes[self.seen..]).into_owned();
        self.seen = bytes.len();
        let told = text.lines().filter(|line| line.contains("LOG:"));
        let found = told.filter_map(|line| words.iter().find(|word| line.contains(**word)));
        found.map(|word| (*word).to_owned()).collect()
    }
}

const WORDS: &[&str] = &["lk_enter", "lk_leave", "lk_poll", "lk_stand", "pg_notify"];

/// Renewals and safety polls may fall into it, so the quietest of several times counts.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_uncontended_lock_and_its_release_are_two_calls_and_no_message() {
    let Some(server) = start(TALKATIVE) else { return };
    let (keeper, mut log) = (keeper(&server).await, Log::of(&server));
    let pair = async || {
        keeper.lock("a").await.expect("free").release().await.expect("released");
    };
    pair().await;
    let mut quietest = Vec::from_iter((0..99).map(|_| String::new()));
    for _ in 0..10 {
        log.news(WORDS);
        pair().await;
        let told = log.news(WORDS);
        assert!(!told.contains(&"pg_notify".to_owned()), "nobody waits: {told:?}");
        if told.len() < quietest.len() {
            quietest = told;
        }
    }
    assert_eq!(quietest, ["lk_enter", "lk_leave"]);
    keeper.close().await;
}

/// However many wait, the one whose turn it is learns of it by one message, and nobody else stirs.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hand_over_is_one_call_and_one_message() {
    let Some(server) = start(TALKATIVE) else { return };
    let (holder, mut log) = (keeper(&server).await, Log::of(&server));
    let mut held = holder.lock("a").await.expect("free");
    let mut line = Vec::new();
    for at in 0..20 {
        let waiter = keeper(&server).await;
        line.push((tokio::spawn(waiter.lock("a").into_future()), waiter));
        until_length(&holder, "a", at + 2).await;
    }
    let mut quietest = Vec::from_iter((0..99).map(|_| String::new()));
    for (next, _keeper) in line.iter_mut().take(10) {
        log.news(WORDS);
        held.release().await.expect("released");
        held = soon("the grant", next).await.expect("no panic").expect("granted");
        let told = log.news(WORDS);
        if told.len() < quietest.len() {
            quietest = told;
        }
    }
    assert_eq!(quietest, ["lk_leave", "pg_notify"]);
    holder.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_locks_and_a_thousand_waiters_are_at_most_four_connections() {
    let Some(server) = start(crate::support::HASTY) else { return };
    let user = User::of(&server).await;
    let long = Duration::from_secs(60);
    let builder = || lockkeeper::Keeper::builder().ttl(long);
    let other = builder().connect(server.url()).await.expect("the server answers");
    let mut theirs = Vec::new();
    for i in 0..1_000 {
        theirs.push(other.lock(format!("theirs {i}")).await.expect("free"));
    }
    let before = connections(&user).await;
    let keeper = builder().connect(server.url()).await.expect("the server answers");
    let mut guards = Vec::new();
    let mut waiters = Vec::new();
    for i in 0..1_000 {
        guards.push(keeper.lock(format!("ours {i}")).await.expect("free"));
        waiters.push(tokio::spawn(keeper.lock(format!("theirs {i}")).into_future()));
    }
    eventually("all stand in line", async || {
        user.number("SELECT count(*) FROM lockkeeper.lk_ticket").await == 1_000
    })
    .await;
    let most = connections(&user).await - before;
    assert!((1..=4).contains(&most), "{most} connections");
    drop(theirs);
    for waiter in waiters {
        guards.push(soon("its turn", waiter).await.expect("no panic").expect("granted"));
    }
    assert!(guards.iter().all(Guard::is_held));
    assert!(connections(&user).await - before <= 4);
    drop(guards);
    keeper.close().await;
    other.close().await;
    assert_eq!(user.tickets().await, 0);
}

async fn connections(user: &User) -> i64 {
    let sql = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'lockkeeper'";
    user.number(sql).await
}

/// Somebody's transaction sits on a line for longer than several sessions live. Who wants that line has
/// to wait or is told that it is busy; nobody else loses anything.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_transaction_that_sits_on_a_line_costs_nobody_its_life() {
    let Some(server) = start(POSTGRES) else { return };
    let (keeper, user) = (keeper(&server).await, User::of(&server).await);
    let (held, on_it) =
        (keeper.lock("b").await.expect("free"), keeper.lock("a").await.expect("free"));
    user.run("BEGIN; SELECT * FROM lockkeeper.lk_line WHERE name = 'a' FOR UPDATE").await;
    let waiter = tokio::spawn(keeper.lock("a").wait(TTL * 20).into_future());
    let began = std::time::Instant::now();
    let mut pairs = 0;
    while began.elapsed() < TTL * 3 {
        let busy = keeper.lock("a").unfair().try_now().await.expect("an answer");
        assert!(busy.is_none());
        let free = soon("another lock", keeper.lock("c").into_future()).await.expect("free");
        free.release().await.expect("released");
        pairs += 1;
        assert!(held.is_held() && on_it.is_held(), "{:?}", held.health());
    }
    assert!(pairs > 1);
    user.run("COMMIT").await;
    on_it.release().await.expect("released");
    let next = soon("the waiter's turn", waiter).await.expect("no panic").expect("granted");
    next.release().await.expect("released");
    keeper.close().await;
}
