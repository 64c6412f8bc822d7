//! Locks inside the users' own transactions.

use crate::support::{Process, TTL, client, is_mysql, keeper, number, processes, the_dead, waiter};
use lockkeeper::{
    Error, Keeper, Sequencer,
    store::mysql::{fence_check, lock_in},
};
use mysql_async::{IsolationLevel, TxOpts, prelude::Queryable};
use servers::Running;
use std::time::Duration;
use testkit::world::{eventually, soon};

testkit::tests! {
    crate::SERVERS =>
        a_transaction_holds_its_lock_until_it_ends_and_others_stand_in_line,
        a_transaction_does_not_get_what_a_guard_holds,
        a_transaction_that_cannot_see_how_the_lock_stands_is_refused,
        a_refused_transaction_takes_nothing_from_a_holder_that_looks_dead_to_it,
        a_paused_holders_commit_is_refused,
        a_checked_fence_is_not_overtaken_before_the_commit,
        a_release_before_the_commit_waits_for_it,
        a_time_zone_changes_no_fence,
        without_a_wait_time_a_transaction_does_not_wait,
        without_a_transaction_there_is_no_lock_and_no_check,
        a_transaction_that_takes_over_from_the_dead_delays_no_other,
        a_transaction_that_takes_over_from_the_dead_keeps_no_other_name_closed,
        a_transaction_waits_for_the_first_holder_of_a_name_and_keeps_nothing_from_it,
        two_transactions_take_over_two_names_of_one_dead_session;
}

const LEVELS: [IsolationLevel; 2] = [IsolationLevel::ReadCommitted, IsolationLevel::RepeatableRead];

fn at(level: IsolationLevel) -> TxOpts {
    let mut opts = TxOpts::new();
    opts.with_isolation_level(level);
    opts
}

async fn a_transaction_holds_its_lock_until_it_ends_and_others_stand_in_line(server: Running) {
    let (keeper, mut user) = (keeper(&server).await, client(&server).await);
    for level in LEVELS {
        for commit in [true, false] {
            let before = keeper.lock("a").await.expect("free");
            let first = before.fence();
            before.release().await.expect("released");
            let mut tx = user.start_transaction(at(level)).await.expect("begun");
            let fence = lock_in(&mut tx, "a", TTL).await.expect("free");
            assert!(fence > first);
            assert!(keeper.lock("a").try_now().await.expect("an answer").is_none());
            let waiter = waiter(&keeper, "a", 0).await;
            if commit {
                tx.commit().await.expect("committed");
            } else {
                tx.rollback().await.expect("rolled back");
            }
            let next = soon("the waiter's turn", waiter).await.expect("no panic").expect("granted");
            assert!(!commit || next.fence() > fence);
            next.release().await.expect("released");
        }
    }
    keeper.close().await;
}

async fn a_transaction_does_not_get_what_a_guard_holds(server: Running) {
    let (keeper, mut user) = (keeper(&server).await, client(&server).await);
    for level in LEVELS {
        let held = keeper.lock("a").await.expect("free");
        let mut tx = user.start_transaction(at(level)).await.expect("begun");
        let refused = lock_in(&mut tx, "a", Duration::from_millis(20)).await;
        assert!(matches!(refused, Err(Error::NotAcquired { .. })), "{refused:?}");
        tx.rollback().await.expect("rolled back");
        held.release().await.expect("released");
        let mut tx = user.start_transaction(at(level)).await.expect("begun");
        lock_in(&mut tx, "a", TTL).await.expect("free");
        tx.commit().await.expect("committed");
    }
    keeper.close().await;
}

/// In REPEATABLE READ a transaction sees what was when it first read.
async fn a_transaction_that_cannot_see_how_the_lock_stands_is_refused(server: Running) {
    let (keeper, mut user) = (keeper(&server).await, client(&server).await);
    keeper.lock("a").await.expect("free").release().await.expect("released");
    let mut tx = user.start_transaction(at(IsolationLevel::RepeatableRead)).await.expect("begun");
    tx.query_drop("SELECT COUNT(*) FROM lk_ticket").await.expect("the snapshot is made");
    let held = keeper.lock("a").await.expect("free");
    let refused = lock_in(&mut tx, "a", Duration::ZERO).await;
    assert!(matches!(refused, Err(Error::Store(_))), "{refused:?}");
    tx.rollback().await.expect("rolled back");
    assert!(held.is_held());
    keeper.close().await;
}

/// In an old snapshot a holder that has been renewed since looks dead. The refusal has changed nothing, also
/// if the transaction is committed all the same.
async fn a_refused_transaction_takes_nothing_from_a_holder_that_looks_dead_to_it(server: Running) {
    let ttl = Duration::from_secs(1);
    let (keeper, mut user) = (testkit::live::keeper(&server, ttl).await, client(&server).await);
    let held = keeper.lock("a").await.expect("free");
    let mut tx = user.start_transaction(at(IsolationLevel::RepeatableRead)).await.expect("begun");
    tx.query_drop("SELECT COUNT(*) FROM lk_session").await.expect("the snapshot is made");
    let mut witness = client(&server).await;
    let ends = "SELECT MAX(dead_at) FROM lk_session";
    let seen = number(&mut witness, ends).await;
    let now = "SELECT TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))";
    eventually("the end that was seen has passed", async || {
        number(&mut witness, now).await > seen + 100_000
    })
    .await;
    let refused = lock_in(&mut tx, "a", Duration::ZERO).await;
    assert!(matches!(refused, Err(Error::Store(_))), "{refused:?}");
    tx.commit().await.expect("committed");
    assert!(held.is_held());
    assert!(keeper.check(&held.sequencer()).await.expect("an answer"));
    let other = testkit::live::keeper(&server, ttl).await;
    assert!(other.lock("a").try_now().await.expect("an answer").is_none());
    keeper.close().await;
}

/// A holder is paused between its work and its commit; meanwhile another takes the lock over and
/// commits. What the first one does then is refused as a whole.
async fn a_paused_holders_commit_is_refused(server: Running) {
    let mut user = client(&server).await;
    user.query_drop("CREATE TABLE account(id INT PRIMARY KEY, paid INT)").await.expect("made");
    user.query_drop("INSERT INTO account VALUES (7, 0)").await.expect("written");
    let second = keeper(&server).await;
    for level in LEVELS {
        let sequencer = abandoned(server.url()).await;
        let held = soon("its expiry", second.lock("account/7").into_future()).await.expect("free");
        let mut tx = user.start_transaction(at(level)).await.expect("begun");
        tx.query_drop("UPDATE account SET paid = 1 WHERE id = 7").await.expect("written");
        let refused = fence_check(&mut tx, &sequencer).await;
        assert!(matches!(refused, Err(Error::Lost { .. })), "{refused:?}");
        tx.rollback().await.expect("rolled back");
        let mut tx = user.start_transaction(at(level)).await.expect("begun");
        tx.query_drop("UPDATE account SET paid = 2 WHERE id = 7").await.expect("written");
        fence_check(&mut tx, &held.sequencer()).await.expect("held");
        tx.commit().await.expect("committed");
        held.release().await.expect("released");
    }
    assert_eq!(number(&mut user, "SELECT paid FROM account").await, 2);
    second.close().await;
}

/// A grant of a session that is not renewed any more.
async fn abandoned(url: &str) -> Sequencer {
    let keeper = Keeper::builder().ttl(Duration::from_millis(500)).connect(url).await;
    let keeper = keeper.expect("the server answers");
    let lease = keeper.lock("account/7").lease(Duration::from_millis(500));
    let sequencer = lease.await.expect("free").sequencer();
    drop(keeper);
    sequencer
}

/// The check and the commit are one step: no other ticket is granted the lock in between, though the session
/// has expired; renewals of other sessions and other names go on.
async fn a_checked_fence_is_not_overtaken_before_the_commit(server: Running) {
    let (mut user, mut witness) = (client(&server).await, client(&server).await);
    let (first, second) = (keeper(&server).await, keeper(&server).await);
    let held = first.lock("a").lease(TTL).await.expect("free");
    let mut tx = user.start_transaction(TxOpts::new()).await.expect("begun");
    fence_check(&mut tx, &held.sequencer()).await.expect("held");
    let waiter = waiter(&second, "a", 1).await;
    held.lost().await;
    let ended = "SELECT COUNT(*) FROM lk_session \
         WHERE dead_at < TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) - 1000000";
    eventually("it is dead", async || number(&mut witness, ended).await > 0).await;
    assert!(!waiter.is_finished());
    drop(soon("another name", second.lock("b").into_future()).await.expect("free"));
    fence_check(&mut tx, &held.sequencer()).await.expect("still held by this session");
    tx.commit().await.expect("committed");
    let next = soon("the waiter's turn", waiter).await.expect("no panic").expect("granted");
    assert!(next.fence() > held.fence());
    second.close().await;
}

/// The holder's own release waits for its transaction too, and comes through after it.
async fn a_release_before_the_commit_waits_for_it(server: Running) {
    let (keeper, mut user) = (keeper(&server).await, client(&server).await);
    let held = keeper.lock("a").await.expect("free");
    let sequencer = held.sequencer();
    let mut tx = user.start_transaction(TxOpts::new()).await.expect("begun");
    fence_check(&mut tx, &sequencer).await.expect("held");
    let release = tokio::spawn(held.release());
    // The lock is held as long as the transaction lives.
    assert!(keeper.lock("a").try_now().await.expect("an answer").is_none());
    tx.commit().await.expect("committed");
    soon("the release", release).await.expect("no panic").expect("released");
    keeper.close().await;
}

/// All time is the server's, in UTC, whatever a connection of a user's thinks of it.
async fn a_time_zone_changes_no_fence(server: Running) {
    let (keeper, mut user) = (keeper(&server).await, client(&server).await);
    let mut last = 0;
    for zone in ["+05:00", "-11:00", "+00:00"] {
        let guard = keeper.lock("a").await.expect("free");
        user.query_drop(format!("SET time_zone = '{zone}'")).await.expect("set");
        let mut tx = user.start_transaction(TxOpts::new()).await.expect("begun");
        fence_check(&mut tx, &guard.sequencer()).await.expect("held");
        tx.rollback().await.expect("rolled back");
        let held = guard.fence();
        guard.release().await.expect("released");
        let mut tx = user.start_transaction(TxOpts::new()).await.expect("begun");
        let fence = lock_in(&mut tx, "a", TTL).await.expect("free");
        tx.commit().await.expect("committed");
        // Within an hour: it counts from the same clock.
        assert!(last < held && held < fence && fence - held < 3_600_000_000, "{held} and {fence}");
        last = fence;
        let same = format!("SELECT @@session.time_zone = '{zone}'");
        assert_eq!(number(&mut user, &same).await, 1, "it is as the user has set it");
    }
    keeper.close().await;
}

async fn without_a_wait_time_a_transaction_does_not_wait(server: Running) {
    let (keeper, mut user) = (keeper(&server).await, client(&server).await);
    let _held = keeper.lock("a").await.expect("free");
    let mut tx = user.start_transaction(at(IsolationLevel::ReadCommitted)).await.expect("begun");
    let refused = soon("an answer", tx.query_drop("CALL lk_lock('a', NULL)")).await;
    assert!(refused.expect_err("it is held").to_string().contains("LK001"));
    drop(tx);
    keeper.close().await;
}

async fn without_a_transaction_there_is_no_lock_and_no_check(server: Running) {
    let (keeper, mut user) = (keeper(&server).await, client(&server).await);
    let held = keeper.lock("a").await.expect("free");
    for refused in [
        lock_in(&mut user, "b", TTL).await.map(|_| ()),
        fence_check(&mut user, &held.sequencer()).await,
    ] {
        let e = refused.expect_err("there is no transaction").to_string();
        assert!(e.contains("no transaction"), "{e}");
    }
    keeper.close().await;
}

/// The dead session's row is the transaction's until it ends. No client waits for that: one that asks for the name
/// is told that it is busy or stands in line, and others are served.
async fn a_transaction_that_takes_over_from_the_dead_delays_no_other(server: Running) {
    let (keeper, mut user) = (keeper(&server).await, client(&server).await);
    abandoned(server.url()).await;
    let mut tx = user.start_transaction(at(IsolationLevel::ReadCommitted)).await.expect("begun");
    lock_in(&mut tx, "account/7", Duration::from_secs(60)).await.expect("its holder is dead");
    assert!(keeper.lock("account/7").try_now().await.expect("an answer").is_none());
    let next = tokio::spawn(keeper.lock("account/7").into_future());
    eventually("it stands in line", async || {
        let line = keeper.get("account/7").await.expect("an answer");
        line.is_some_and(|line| line.tickets.iter().any(|ticket| ticket.fence.is_none()))
    })
    .await;
    drop(soon("another name", keeper.lock("b").into_future()).await.expect("free"));
    tx.commit().await.expect("committed");
    drop(soon("its turn", next).await.expect("no panic").expect("granted"));
    keeper.close().await;
}

/// One name of the dead is the transaction's. The others are free.
async fn a_transaction_that_takes_over_from_the_dead_keeps_no_other_name_closed(server: Running) {
    let (keeper, mut user) = (keeper(&server).await, client(&server).await);
    let _held = keeper.lock("held").await.expect("free");
    the_dead(&mut user, &["a", "b"], "held", i64::MAX).await;
    let mut tx = user.start_transaction(at(IsolationLevel::ReadCommitted)).await.expect("begun");
    lock_in(&mut tx, "a", Duration::ZERO).await.expect("its holder is dead");
    let other = soon("the other name", keeper.lock("b").into_future()).await.expect("free");
    other.release().await.expect("released");
    assert!(keeper.lock("a").try_now().await.expect("an answer").is_none());
    tx.commit().await.expect("committed");
    drop(soon("the first name", keeper.lock("a").into_future()).await.expect("free"));
    keeper.close().await;
}

/// The first who uses a name makes its gate, which another transaction meets before the commit: it waits for the
/// lock, and its holder can leave meanwhile. MySQL waits for the commit instead, and tells the transaction to begin
/// again.
async fn a_transaction_waits_for_the_first_holder_of_a_name_and_keeps_nothing_from_it(
    server: Running,
) {
    let (keeper, mut maker) = (keeper(&server).await, client(&server).await);
    let (mut user, mut witness) = (client(&server).await, client(&server).await);
    let _like = keeper.lock("like").await.expect("free");
    maker.query_drop("BEGIN").await.expect("begun");
    let copy = "INSERT INTO lk_gate(name, last, fence, id, session, weight, capacity) SELECT 'new', \
         last, fence, id, session, weight, capacity FROM lk_gate WHERE name = 'like'";
    maker.query_drop(copy).await.expect("not committed yet");
    let (its, mut may_be_refused) = (user.id(), is_mysql(&mut witness).await);
    let waiting = tokio::spawn(async move {
        loop {
            let level = at(IsolationLevel::ReadCommitted);
            let mut tx = user.start_transaction(level).await.expect("begun");
            match lock_in(&mut tx, "new", Duration::from_secs(600)).await {
                Err(Error::Store(_)) if may_be_refused => may_be_refused = false,
                locked => return locked,
            }
            tx.rollback().await.expect("rolled back");
        }
    });
    eventually("the transaction waits", async || {
        let waits = |process: &Process| {
            process.id == its
                && (process.state == "User sleep" || process.statement.starts_with("INSERT"))
        };
        processes(&mut witness).await.iter().any(waits)
    })
    .await;
    maker.query_drop("COMMIT").await.expect("committed");
    let leave = maker.query_drop("UPDATE lk_gate SET fence = 0 WHERE name = 'new'");
    soon("the first holder leaves", leave).await.expect("left");
    soon("its turn", waiting).await.expect("no panic").expect("granted");
    keeper.close().await;
}

/// The row of the dead session is the first transaction's. The second waits for that, and is not told that its
/// snapshot is old.
async fn two_transactions_take_over_two_names_of_one_dead_session(server: Running) {
    let keeper = keeper(&server).await;
    let (mut one, mut two) = (client(&server).await, client(&server).await);
    let _held = keeper.lock("held").await.expect("free");
    the_dead(&mut one, &["a", "b"], "held", i64::MAX).await;
    let mut first = one.start_transaction(at(IsolationLevel::ReadCommitted)).await.expect("begun");
    lock_in(&mut first, "a", Duration::ZERO).await.expect("its holder is dead");
    let mut second = two.start_transaction(at(IsolationLevel::ReadCommitted)).await.expect("begun");
    let refused = lock_in(&mut second, "b", Duration::from_millis(20)).await;
    assert!(matches!(refused, Err(Error::NotAcquired { .. })), "{refused:?}");
    first.commit().await.expect("committed");
    lock_in(&mut second, "b", Duration::from_secs(60)).await.expect("its holder is dead");
    second.commit().await.expect("committed");
    keeper.close().await;
}
