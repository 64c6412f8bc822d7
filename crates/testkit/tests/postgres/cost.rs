//! Statements, messages and connections.

use crate::support::{TALKATIVE, TTL, User, keeper, until_length};
use lockkeeper::{
    Guard, Keeper,
    store::{Entered, Left, PollScope, Store as _, TicketStatus},
};
use servers::{POSTGRES, Running};
use std::{fs, path::PathBuf, time::Duration};
use testkit::{
    raw_session::RawSession,
    world::{eventually, soon},
};

testkit::tests! {
    [TALKATIVE] =>
        an_uncontended_lock_and_its_release_are_two_calls_and_no_message,
        a_release_is_prepared_while_the_lock_is_held,
        a_run_for_a_moment_makes_few_requests,
        a_hand_over_is_one_call_and_one_message,
        an_enter_into_a_blocked_line_is_told_to_come_again,
        a_process_that_lives_through_an_upgrade_goes_on_by_functions;
    [crate::support::HASTY] =>
        a_thousand_locks_and_a_thousand_waiters_are_at_most_four_connections;
    [POSTGRES] =>
        transactions_that_block_rows_end_no_other_session,
        a_blocked_line_holds_up_no_other_line,
        what_was_released_is_free_though_its_line_was_blocked_just_now,
        many_tries_for_a_blocked_line_delay_no_other,
        a_blocked_line_keeps_no_session_from_closing;
}

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

/// The plain statement that takes a free lock calls no function but that for its name's key.
const WORDS: &[&str] =
    &["lk_enter", "lk_name_key", "lk_leave", "lk_pass_on", "lk_poll", "lk_stand", "pg_notify"];

/// The last of what a connection prepares for a release.
const WARM: &[&str] = &["lk_warm"];

/// Renewals and safety polls may fall into it, and once a second the whole statement has its turn, so the
/// best of several times counts.
async fn an_uncontended_lock_and_its_release_are_two_calls_and_no_message(server: Running) {
    let (keeper, mut log) = (keeper(&server).await, Log::of(&server));
    let pair = async || {
        keeper.lock("a").await.expect("free").release().await.expect("released");
    };
    // What a release needs is prepared once, while the first lock is held.
    let first = keeper.lock("a").await.expect("free");
    eventually("it is prepared", async || !log.news(WARM).is_empty()).await;
    first.release().await.expect("released");
    let mut all = Vec::new();
    for _ in 0..10 {
        log.news(WORDS);
        pair().await;
        let told = log.news(WORDS);
        assert!(!told.contains(&"pg_notify".to_owned()), "no ticket waits: {told:?}");
        all.push(told);
    }
    assert!(all.iter().any(|told| *told == ["lk_name_key", "lk_pass_on"]), "{all:?}");
    keeper.close().await;
}

/// What the first release of a connection needs is prepared when nothing is urgent: once, and without a trace.
async fn a_release_is_prepared_while_the_lock_is_held(server: Running) {
    let (keeper, user, mut log) =
        (keeper(&server).await, User::of(&server).await, Log::of(&server));
    let held = keeper.lock("a").await.expect("free");
    eventually("it is prepared", async || !log.news(WARM).is_empty()).await;
    held.release().await.expect("released");
    let strange = "SELECT (SELECT count(*) FROM lockkeeper.lk_line WHERE name <> 'a') \
                   + (SELECT count(*) FROM lockkeeper.lk_ticket)";
    assert_eq!(user.number(strange).await, 0);
    assert_eq!(user.number("SELECT count(*) FROM lockkeeper.lk_session").await, 1);
    let connections = "SELECT count(DISTINCT pid) FROM pg_stat_activity \
                       WHERE application_name = 'lockkeeper'";
    eventually("there is one for renewals too", async || user.number(connections).await == 2).await;
    let before = user.number(connections).await;
    for _ in 0..10 {
        let again = keeper.lock("a").await.expect("free");
        tokio::time::sleep(Duration::from_millis(25)).await; // it would be prepared for after 20 ms
        again.release().await.expect("released");
    }
    assert_eq!(log.news(WARM), Vec::<String>::new());
    assert_eq!(user.number(connections).await, before);
    keeper.close().await;
}

/// A program that connects, takes one lock for a moment and ends: nothing is worth being prepared.
async fn a_run_for_a_moment_makes_few_requests(server: Running) {
    let first = keeper(&server).await;
    let mut log = Log::of(&server);
    log.news(&[]);
    let mut fewest = Vec::from_iter((0..99).map(|_| String::new()));
    // On a busy machine a moment can be long enough for a release to be prepared.
    for _ in 0..100 {
        if fewest.len() <= 8 {
            break;
        }
        let brief = keeper(&server).await;
        brief.lock("a").await.expect("free").release().await.expect("released");
        brief.close().await;
        let told = log.news(&["execute <unnamed>", "execute s", "statement:"]);
        if told.len() < fewest.len() {
            fewest = told;
        }
    }
    // Settling in, the schema and the clock; open, enter; leave; close, clear, sweep.
    assert_eq!(fewest, ["execute <unnamed>"; 8]);
    first.close().await;
}

/// However many wait, the one that is granted the lock learns of it by one message, and no other stirs.
async fn a_hand_over_is_one_call_and_one_message(server: Running) {
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
    // The first stood in the line's own row, the others behind it.
    let words: Vec<&str> = quietest.iter().map(String::as_str).collect();
    assert!(matches!(words[..], ["lk_leave" | "lk_pass_on", "pg_notify"]), "{words:?}");
    holder.close().await;
}

async fn a_thousand_locks_and_a_thousand_waiters_are_at_most_four_connections(server: Running) {
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

/// Users' transactions sit on a line's row, on another session's row, on a name and on a checked fence
/// for longer than several sessions live. Who wants those has to wait or is told that they are busy;
/// no other session loses anything. `LOCKKEEPER_SIT=30` says for how many seconds.
async fn transactions_that_block_rows_end_no_other_session(server: Running) {
    let sit = std::env::var("LOCKKEEPER_SIT")
        .map_or(TTL * 3, |s| Duration::from_secs(s.parse().expect("a number")));
    let (keeper, victim) = (keeper(&server).await, keeper(&server).await);
    let lock = async |name: &str| keeper.lock(name).await.expect("free");
    let (held, on_it, checked) = (lock("b").await, lock("a").await, lock("checked").await);
    let _theirs = victim.lock("theirs").await.expect("free");
    let mut users = Vec::new();
    let checking = format!("SELECT lockkeeper.lk_fence_check('{}')", checked.sequencer());
    for sql in [
        "SELECT * FROM lockkeeper.lk_line WHERE name = 'a' FOR UPDATE",
        "SELECT * FROM lockkeeper.lk_session WHERE id = \
         (SELECT session FROM lockkeeper.lk_line WHERE name = 'theirs') FOR UPDATE",
        "SELECT lockkeeper.lk_lock('in a transaction')",
        &checking,
    ] {
        let user = User::of(&server).await;
        user.run(&format!("BEGIN; {sql}")).await;
        users.push(user);
    }
    let waiter = tokio::spawn(keeper.lock("a").into_future());
    let began = std::time::Instant::now();
    let mut pairs = 0;
    while began.elapsed() < sit {
        for name in ["a", "in a transaction"] {
            let busy = keeper.lock(name).unfair().try_now().await.expect("an answer");
            assert!(busy.is_none(), "{name} is taken");
        }
        let free = soon("another lock", keeper.lock("c").into_future()).await.expect("free");
        free.release().await.expect("released");
        pairs += 1;
        for guard in [&held, &on_it, &checked] {
            assert!(guard.is_held(), "{:?}", guard.health());
        }
    }
    assert!(pairs > 10, "only {pairs} times");
    assert!(!waiter.is_finished());
    for user in &users {
        user.run("COMMIT").await;
    }
    on_it.release().await.expect("released");
    let next = soon("the waiter's turn", waiter).await.expect("no panic").expect("granted");
    next.release().await.expect("released");
    checked.release().await.expect("released");
    keeper.close().await;
}

/// A line that a transaction blocks is no reason to keep others waiting whose turn has come: who asks for both
/// hears of the other.
async fn a_blocked_line_holds_up_no_other_line(server: Running) {
    let (keeper, user) = (keeper(&server).await, User::of(&server).await);
    let dying = RawSession::open_for(keeper.store(), TTL * 2, Duration::ZERO).await;
    let raw = RawSession::open(keeper.store()).await;
    let mut waiting = Vec::new();
    for name in ["a", "b"] {
        let held = dying.take(name).await;
        waiting.push((held.name, raw.queue(name).await.0));
    }
    user.run("BEGIN; SELECT * FROM lockkeeper.lk_line WHERE name = 'a' FOR UPDATE").await;
    let stands = async || {
        let stands = keeper.store().poll(raw.session, PollScope::These(waiting.clone())).await;
        let stands = stands.expect("an answer").into_iter().map(|(_, _, stand)| stand);
        stands.map(|stand| matches!(stand, TicketStatus::Granted { .. })).collect::<Vec<_>>()
    };
    eventually("the turn of b", async || stands().await == [false, true]).await;
    user.run("COMMIT").await;
    eventually("the turn of a", async || stands().await == [true, true]).await;
}

/// A place in such a line cannot be had, and no message tells when the transaction ends: a client that would stand there
/// comes again, ever more rarely, and in no more time than a try takes.
async fn an_enter_into_a_blocked_line_is_told_to_come_again(server: Running) {
    const HURRY: &[&str] = &["lk_hurry() THEN"];
    let mut log = Log::of(&server);
    for pooler in [false, true] {
        let url = format!("{}?pooler={pooler}", server.url());
        let keeper = Keeper::builder().ttl(TTL * 30).connect(&url).await.expect("an answer");
        let user = User::of(&server).await;
        let raw = RawSession::open(keeper.store()).await;
        let held = raw.take("a").await;
        user.run("BEGIN; SELECT * FROM lockkeeper.lk_line WHERE name = 'a' FOR UPDATE").await;
        let come = async || match raw.queue("a").await.1 {
            Entered::Busy(wait) => wait.recheck,
            other => panic!("{other:?}"),
        };
        log.news(HURRY);
        let first = come().await;
        assert!(log.news(HURRY).is_empty(), "the first waits for the row in full");
        eventually("longer pauses", async || come().await > first).await;
        assert!(!log.news(HURRY).is_empty(), "the others do not");
        user.run("COMMIT").await;
        let (ticket, queued) = raw.queue("a").await;
        assert!(matches!(queued, Entered::Queued(_)), "{queued:?}");
        assert_eq!(raw.leave("a", held.ticket).await, Left::Released);
        assert_eq!(raw.leave("a", ticket).await, Left::Released);
        keeper.close().await;
    }
}

/// A line was blocked a moment ago, and its lock has been released by this very process since.
async fn what_was_released_is_free_though_its_line_was_blocked_just_now(server: Running) {
    let (keeper, user) = (keeper(&server).await, User::of(&server).await);
    let raw = RawSession::open(keeper.store()).await;
    for _ in 0..10 {
        let held = raw.take("a").await;
        user.run("BEGIN; SELECT * FROM lockkeeper.lk_line WHERE name = 'a' FOR UPDATE").await;
        let (_, busy) = raw.contend("a").await;
        assert!(matches!(busy, Entered::Busy(_)), "{busy:?}");
        user.run("COMMIT").await;
        assert_eq!(raw.leave("a", held.ticket).await, Left::Released);
    }
}

/// All tasks send by one connection: tries for a line that a transaction blocks must not fill it.
async fn many_tries_for_a_blocked_line_delay_no_other(server: Running) {
    let (keeper, user) = (keeper(&server).await, User::of(&server).await);
    let held = keeper.lock("b").await.expect("free");
    keeper.lock("a").await.expect("free").release().await.expect("released");
    let sender = "SELECT coalesce(max(pid), 0)::bigint FROM pg_stat_activity \
                  WHERE application_name = 'lockkeeper' AND query ~ 'lk_pass_on|lk_leave|lk_warm|pg_notify'";
    let before = user.number(sender).await;
    user.run("BEGIN; SELECT * FROM lockkeeper.lk_line WHERE name = 'a' FOR UPDATE").await;
    let tries: Vec<_> = (0..60)
        .map(|_| tokio::spawn(keeper.clone().lock("a").unfair().try_now().into_future()))
        .collect();
    for tried in tries {
        let answer = soon("an answer", tried).await.expect("no panic").expect("no error");
        assert!(answer.is_none());
    }
    keeper.lock("c").await.expect("free").release().await.expect("released");
    assert!(held.is_held(), "{:?}", held.health());
    let still = format!("SELECT count(*) FROM pg_stat_activity WHERE pid = {before}");
    assert_eq!(user.number(&still).await, 1, "the connection was given up");
    user.run("COMMIT").await;
    keeper.close().await;
}

/// A session is closed though a transaction blocks one of its lines: the others are free at once.
async fn a_blocked_line_keeps_no_session_from_closing(server: Running) {
    let (keeper, user) = (keeper(&server).await, User::of(&server).await);
    let mut held = Vec::new();
    for at in 0..10 {
        held.push(keeper.lock(format!("{at}")).await.expect("free"));
    }
    let sitter = User::of(&server).await;
    sitter.run("BEGIN; SELECT * FROM lockkeeper.lk_line WHERE name = '4' FOR UPDATE").await;
    keeper.close().await;
    assert_eq!(user.tickets().await, 1);
    sitter.run("COMMIT").await;
}

/// What a program sends by itself may not know all that the tables of a newer layout have, so it lets the
/// functions decide.
async fn a_process_that_lives_through_an_upgrade_goes_on_by_functions(server: Running) {
    let (keeper, mut log) = (keeper(&server).await, Log::of(&server));
    let held = keeper.lock("held").await.expect("free");
    User::of(&server).await.run("UPDATE lockkeeper.lk_meta SET layout = 999").await;
    eventually("no plain statement is sent", async || {
        log.news(&[]);
        for _ in 0..10 {
            keeper.lock("a").await.expect("free").release().await.expect("released");
        }
        log.news(&["UPDATE \"lockkeeper\".lk_line"]).is_empty()
    })
    .await;
    held.extend(TTL / 3).await.expect("still held");
    held.release().await.expect("released");
    keeper.close().await;
}
