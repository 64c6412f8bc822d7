//! Locks in the users' own transactions.

use crate::support::{TTL, User, code, keeper, until_length};
use lockkeeper::{
    Error,
    store::postgres::{Schema, fence_check, lock_in},
};
use servers::{POSTGRES, Running};
use std::time::Duration;
use testkit::{
    trials::WithClocks,
    world::{eventually, soon},
};

testkit::tests! {
    [POSTGRES] =>
        a_lock_in_a_transaction_lives_exactly_as_long,
        a_transaction_overtakes_no_queued_ticket,
        a_paused_holders_commit_is_refused,
        what_was_checked_stays_held_until_the_commit,
        a_session_that_lost_its_lock_to_a_transaction_stays_dead,
        a_transaction_that_takes_over_from_the_dead_keeps_no_other_name_closed,
        a_fence_is_not_checked_by_an_old_snapshot,
        a_grant_after_a_transaction_has_the_greater_fence,
        sequencers_are_checked_as_text_too,
        a_lock_in_a_strict_transaction_is_refused_with_the_reason,
        another_schema_is_another_store,
        rows_are_locked_by_fields_of_their_own;
    [WithClocks(POSTGRES)] =>
        no_clock_brings_the_fence_of_the_dead_back;
}

const NO_WAIT: Duration = Duration::ZERO;

async fn a_lock_in_a_transaction_lives_exactly_as_long(server: Running) {
    let keeper = keeper(&server).await;
    let before = keeper.lock("a").await.expect("free");
    let (mut user, other) = (User::of(&server).await, User::of(&server).await);
    let held = lock_in(&*other, "a", NO_WAIT).await;
    assert!(matches!(held, Err(Error::NotAcquired { .. })), "{held:?}");
    let fence = before.fence();
    before.release().await.expect("released");

    for commit in [true, false] {
        let tx = user.transaction().await;
        let number = lock_in(&tx, "a", TTL).await.expect("free");
        assert!(number > fence);
        assert!(keeper.lock("a").try_now().await.expect("an answer").is_none());
        assert!(matches!(lock_in(&*other, "a", NO_WAIT).await, Err(Error::NotAcquired { .. })));
        let waiter = tokio::spawn(keeper.lock("a").into_future());
        until_length(&keeper, "a", 1).await;
        assert!(!waiter.is_finished());
        if commit { tx.commit().await } else { tx.rollback().await }.expect("ended");
        let guard = soon("the waiter's turn", waiter).await.expect("no panic").expect("granted");
        guard.release().await.expect("released");
    }
    keeper.close().await;
}

async fn a_transaction_overtakes_no_queued_ticket(server: Running) {
    let (one, two) = (keeper(&server).await, keeper(&server).await);
    let held = one.lock("a").await.expect("free");
    let waiter = tokio::spawn(two.lock("a").into_future());
    until_length(&one, "a", 2).await;
    let mut user = User::of(&server).await;
    let tx = user.transaction().await;
    let (locked, next) = tokio::join!(lock_in(&tx, "a", TTL * 10), async {
        held.release().await.expect("released");
        let next = soon("the waiter's turn", waiter).await.expect("no panic").expect("granted");
        let fence = next.fence();
        next.release().await.expect("released");
        fence
    });
    assert!(locked.expect("it comes free at last") > next);
}

/// A paused holder wakes up after its session is over and another has the lock: what it wanted to
/// write is refused together with the check.
async fn a_paused_holders_commit_is_refused(server: Running) {
    let mut user = User::of(&server).await;
    user.run(
        "CREATE TABLE account(id int PRIMARY KEY, amount int); INSERT INTO account VALUES (1, 0)",
    )
    .await;
    let keeper = keeper(&server).await;
    let paused = keeper.lock("account/1").lease(Duration::from_millis(300)).await.expect("free");
    let sequencer = paused.sequencer();
    let tx = user.transaction().await;
    fence_check(&tx, &sequencer).await.expect("held");
    tx.execute("UPDATE account SET amount = 1 WHERE id = 1", &[]).await.expect("an update");
    tx.commit().await.expect("committed");

    let next = soon("the next", keeper.lock("account/1").into_future()).await.expect("granted");
    let tx = user.transaction().await;
    tx.execute("UPDATE account SET amount = 666 WHERE id = 1", &[]).await.expect("an update");
    let refused = fence_check(&tx, &sequencer).await;
    assert!(matches!(refused, Err(Error::Lost { .. })), "{refused:?}");
    drop(tx);
    let tx = user.transaction().await;
    fence_check(&tx, &next.sequencer()).await.expect("held");
    let amount: i32 = tx.query_one("SELECT amount FROM account", &[]).await.expect("a row").get(0);
    assert_eq!(amount, 1);
    drop(tx);
    keeper.close().await;
}

/// While a transaction that has checked a fence is open, no other session gets the lock: not by a release,
/// not by expiry, not by an eviction, neither a keeper nor another transaction. The line itself goes
/// on: others come and wait.
async fn what_was_checked_stays_held_until_the_commit(server: Running) {
    let (user, mut other) = (User::of(&server).await, User::of(&server).await);
    let (one, two) = (keeper(&server).await, keeper(&server).await);
    let held = one.lock("a").lease(Duration::from_millis(500)).await.expect("free");
    user.run("BEGIN").await;
    fence_check(&*user, &held.sequencer()).await.expect("held");
    soon("the loss", held.lost()).await;
    eventually("the end of its time", async || {
        user.number("SELECT count(*) FROM lockkeeper.lk_standing WHERE dead_at > clock_timestamp()")
            .await
            == 0
    })
    .await;
    let taken = lock_in(&*other, "a", NO_WAIT).await;
    assert!(matches!(taken, Err(Error::NotAcquired { .. })), "{taken:?}");
    assert!(two.lock("a").try_now().await.expect("an answer").is_none());
    let waiter = tokio::spawn(two.lock("a").wait(TTL * 20).into_future());
    eventually("it stands in line", async || {
        user.number("SELECT count(*) FROM lockkeeper.lk_ticket").await == 1
    })
    .await;
    assert!(!waiter.is_finished());
    user.run("COMMIT").await;
    let next = soon("the waiter's turn", waiter).await.expect("no panic").expect("granted");
    assert!(next.fence() > held.fence());
    next.release().await.expect("released");
    let tx = other.transaction().await;
    lock_in(&tx, "a", TTL).await.expect("free at last");
    drop(tx);
    one.close().await;
}

/// A transaction that takes the lock of a dead holder ends that session: no renewal that comes late
/// makes the grant valid again beside it.
async fn a_session_that_lost_its_lock_to_a_transaction_stays_dead(server: Running) {
    let user = User::of(&server).await;
    let one = keeper(&server).await;
    let held = one.lock("a").lease(Duration::from_millis(300)).await.expect("free");
    soon("the loss", held.lost()).await;
    user.run("BEGIN").await;
    let number = eventually_locked(&user, "a").await;
    assert!(number > held.fence());
    let ended = "SELECT count(*) FROM lockkeeper.lk_session WHERE expires = '-infinity' \
                 AND id = (SELECT session FROM lockkeeper.lk_line WHERE name = 'a')";
    assert_eq!(user.number(ended).await, 1);
    user.run("COMMIT").await;
    let next = keeper(&server).await.lock("a").await.expect("free");
    assert!(next.fence() > number);
}

/// Who has lost its lock for good has no valid fence again when the server's clock is set back.
async fn no_clock_brings_the_fence_of_the_dead_back(mut server: Running) {
    let (keeper, user) = (keeper(&server).await, User::of(&server).await);
    let held = keeper.lock("a").lease(Duration::from_millis(300)).await.expect("free");
    soon("the loss", held.lost()).await;
    user.run("BEGIN").await;
    assert!(eventually_locked(&user, "a").await > held.fence());
    user.run("COMMIT").await;
    server.nodes()[0].set_clock(-3_600).expect("set back");
    let due = "SELECT count(*) FROM lockkeeper.lk_standing WHERE dead_at > clock_timestamp()";
    assert_eq!(user.number(due).await, 1, "its time has not come yet");
    let refused = fence_check(&*user, &held.sequencer()).await;
    assert!(matches!(refused, Err(Error::Lost { .. })), "{refused:?}");
    assert!(!keeper.check(&held.sequencer()).await.expect("an answer"));
    let writes =
        "SELECT count(o_seq) FROM lockkeeper.lk_line, lockkeeper.lk_held(name, id, session)";
    assert_eq!(user.number(writes).await, 0);
}

/// A transaction that takes over from a dead session has ended it, and may be long: what else that session
/// had is free for others, keepers and transactions.
async fn a_transaction_that_takes_over_from_the_dead_keeps_no_other_name_closed(server: Running) {
    let (keeper, user) = (keeper(&server).await, User::of(&server).await);
    keeper.lock("d").await.expect("free").release().await.expect("released");
    user.run("SELECT lockkeeper.lk_open('\\x01', 300000, 0, 'c', 'h', 1, 'p')").await;
    for name in ["a", "b", "c"] {
        user.run(&format!(
            "SELECT lockkeeper.lk_enter('{name}', '{name}', '\\x01', capacity, capacity, true, '', NULL, 9) \
               FROM lockkeeper.lk_line WHERE name = 'd'"
        ))
        .await;
    }
    assert_eq!(user.tickets().await, 3);
    user.run("BEGIN").await;
    eventually_locked(&user, "a").await;
    let next = keeper.lock("b").wait(TTL * 5).await.expect("its holder is dead");
    next.release().await.expect("released");
    let mut other = User::of(&server).await;
    let tx = other.transaction().await;
    lock_in(&tx, "c", TTL * 5).await.expect("its holder is dead");
    assert!(keeper.lock("a").try_now().await.expect("an answer").is_none(), "a is the user's");
    user.run("COMMIT").await;
}

/// Takes the lock in the user's open transaction, as soon as the server's clock says that it is free.
async fn eventually_locked(user: &User, name: &str) -> u64 {
    let number = std::sync::atomic::AtomicI64::new(0);
    eventually("the lock", async || {
        let sql = format!("SELECT coalesce(lockkeeper.lk_try_lock('{name}'), 0)");
        number.store(user.number(&sql).await, std::sync::atomic::Ordering::Relaxed);
        number.load(std::sync::atomic::Ordering::Relaxed) > 0
    })
    .await;
    number.into_inner().cast_unsigned()
}

/// What a stricter transaction sees may be older than the end of the session.
async fn a_fence_is_not_checked_by_an_old_snapshot(server: Running) {
    let (keeper, user) = (keeper(&server).await, User::of(&server).await);
    let held = keeper.lock("a").await.expect("free");
    for isolation in ["REPEATABLE READ", "SERIALIZABLE"] {
        user.run(&format!("BEGIN ISOLATION LEVEL {isolation}")).await;
        let e = fence_check(&*user, &held.sequencer()).await.expect_err("refused").to_string();
        assert!(e.contains("READ COMMITTED"), "{e}");
        user.run("ROLLBACK").await;
    }
    keeper.close().await;
}

/// An enter that waits for its row while a transaction has the lock draws a greater number than that.
async fn a_grant_after_a_transaction_has_the_greater_fence(server: Running) {
    let (one, two) = (keeper(&server).await, keeper(&server).await);
    one.lock("a").await.expect("free").release().await.expect("released");
    let (sitter, user) = (User::of(&server).await, User::of(&server).await);
    for _ in 0..3 {
        sitter.run("BEGIN; SELECT * FROM lockkeeper.lk_line WHERE name = 'a' FOR UPDATE").await;
        let waiter = tokio::spawn(two.lock("a").wait(TTL * 20).into_future());
        let blocked = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'";
        eventually("it waits for the row", async || user.number(blocked).await > 0).await;
        let number = eventually_locked(&user, "a").await;
        sitter.run("COMMIT").await;
        let next = soon("the waiter's turn", waiter).await.expect("no panic").expect("granted");
        assert!(next.fence() > number, "{} after {number}", next.fence());
        next.release().await.expect("released");
    }
}

async fn sequencers_are_checked_as_text_too(server: Running) {
    let (keeper, user) = (keeper(&server).await, User::of(&server).await);
    let held = keeper.lock("Grüße/a b:%").await.expect("free");
    let text = held.sequencer().to_string();
    let check = |text: String| async {
        let text = text;
        user.execute("SELECT lockkeeper.lk_fence_check($1)", &[&text]).await.map_err(|e| code(&e))
    };
    assert_eq!(check(text.clone()).await, Ok(1));
    assert!(check(text.replacen("lk1:", "lk1:0", 1)).await.is_err());
    held.release().await.expect("released");
    assert_eq!(check(text).await, Err("LK003".to_owned()));
    keeper.close().await;
}

async fn a_lock_in_a_strict_transaction_is_refused_with_the_reason(server: Running) {
    let (keeper, user) = (keeper(&server).await, User::of(&server).await);
    user.run("BEGIN ISOLATION LEVEL SERIALIZABLE").await;
    let e = lock_in(&*user, "a", NO_WAIT).await.expect_err("refused").to_string();
    assert!(e.contains("READ COMMITTED"), "{e}");
    keeper.close().await;
}

async fn another_schema_is_another_store(server: Running) {
    let url = format!("{}?schema=My%20Locks", server.url());
    let there = lockkeeper::Keeper::connect(&url).await.expect("the server answers");
    let (here, user) = (keeper(&server).await, User::of(&server).await);
    let held = there.lock("a").await.expect("free");
    user.run("BEGIN").await;
    Schema::new("My Locks").fence_check(&*user, &held.sequencer()).await.expect("held there");
    lock_in(&*user, "a", NO_WAIT).await.expect("free here");
    let refused = fence_check(&*user, &held.sequencer()).await;
    assert!(matches!(refused, Err(Error::Lost { .. })), "{refused:?}");
    user.run("ROLLBACK").await;
    there.close().await;
    here.close().await;
}

/// Lock fields on the user's own table: taken, kept, renewed, released, lost by expiry.
async fn rows_are_locked_by_fields_of_their_own(server: Running) {
    let (_keeper, user) = (keeper(&server).await, User::of(&server).await);
    user.run(
        "CREATE TABLE job(id bigint PRIMARY KEY, state text, written_by bigint NOT NULL DEFAULT 0,
           lock_owner text, lock_fence bigint NOT NULL DEFAULT 0, lock_expires timestamptz);
         INSERT INTO job VALUES (7, 'new')",
    )
    .await;
    let lock = |owner: &str, ttl_ms: i64| {
        user_number(&user, format!("lk_row_lock('job', 'id', '7', '{owner}', {ttl_ms})"))
    };
    let mine = lock("me", 60_000).await;
    assert!(mine > 0);
    assert_eq!(lock("me", 60_000).await, mine, "the same owner keeps its fence");
    assert_eq!(lock("you", 60_000).await, 0, "taken");
    let renew = user_number(&user, format!("lk_row_renew('job', 'id', '7', {mine}, 50)"));
    assert_eq!(renew.await, mine);
    let yours = {
        let mut yours = 0;
        eventually("it expires", async || {
            yours = lock("you", 60_000).await;
            yours > 0
        })
        .await;
        yours
    };
    assert!(yours > mine);
    let guarded = |fence: i64| {
        let sql = format!(
            "UPDATE job SET state = 'by {fence}', written_by = {fence} \
             WHERE id = 7 AND written_by <= {fence} AND lock_fence <= {fence}"
        );
        let user = &user;
        async move { user.execute(&sql, &[]).await.expect("an update") }
    };
    assert_eq!(guarded(yours).await, 1);
    assert_eq!(guarded(mine).await, 0, "an older holder writes nothing");
    for (fence, released) in [(mine, 0), (yours, yours), (yours, 0)] {
        let answer = user_number(&user, format!("lk_row_release('job', 'id', '7', {fence})"));
        assert_eq!(answer.await, released);
    }
    assert_eq!(user_number(&user, "lk_row_lock('job', 'id', '8', 'me', 1)".into()).await, 0);
}

async fn user_number(user: &User, call: String) -> i64 {
    user.number(&format!("SELECT lockkeeper.{call}")).await
}
