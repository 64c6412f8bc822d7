//! Users' transactions that sit on rows of the store, for long.
//!
//! `LOCKKEEPER_SIT` says for how many seconds; by default for three times the life that a session has
//! without a renewal.

use crate::support::{TTL, client, keeper, number, standing, waiter};
use lockkeeper::{
    Guard, Keeper,
    store::mysql::{fence_check, lock_in},
};
use mysql_async::{Conn, prelude::Queryable};
use servers::Running;
use std::{
    env,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};
use testkit::world::{eventually, soon};
use tokio::task::JoinSet;

testkit::tests! {
    crate::SERVERS =>
        a_lock_in_a_long_transaction_costs_no_guard_its_life,
        a_checked_fence_in_a_long_transaction_costs_no_guard_its_life,
        locked_rows_cost_no_guard_its_life,
        a_locked_line_or_session_costs_no_other_guard_its_life,
        a_line_blocked_by_a_transaction_is_busy_and_delays_no_other,
        a_ticket_row_blocked_by_a_transaction_keeps_no_holder_from_leaving,
        a_line_blocked_by_a_transaction_keeps_no_session_from_closing,
        a_ticket_that_comes_while_the_gate_is_made_is_queued_last,
        new_names_that_a_transaction_has_hold_up_no_other;
}

/// How long the transactions last, in microseconds.
fn sitting() -> i64 {
    let seconds = env::var("LOCKKEEPER_SIT").map(|n| n.parse().expect("a number of seconds"));
    let time = seconds.map_or(3 * TTL, Duration::from_secs);
    i64::try_from(time.as_micros()).expect("not too long")
}

/// Returns after so long a time, as the session's renewals show it: all is well with what is held, other
/// names are free, and a client that contends for the name itself gets an answer.
async fn all_is_well(server: &Running, keeper: &Keeper, held: &[&Guard], name: &str) {
    let mut witness = client(server).await;
    let ends = "SELECT MAX(expires) FROM lk_session";
    let until = number(&mut witness, ends).await + sitting();
    eventually("renewals", async || number(&mut witness, ends).await > until).await;
    assert!(held.iter().all(|guard| guard.is_held()));
    drop(soon("another name", keeper.lock("another").into_future()).await.expect("free"));
    assert!(soon("an answer", keeper.lock(name).try_now()).await.expect("busy").is_none());
}

async fn begin(user: &mut Conn) {
    user.query_drop("BEGIN").await.expect("begun");
}

async fn end(user: &mut Conn) {
    user.query_drop("ROLLBACK").await.expect("ended");
}

async fn a_lock_in_a_long_transaction_costs_no_guard_its_life(server: Running) {
    let (keeper, mut user) = (keeper(&server).await, client(&server).await);
    let held = keeper.lock("held").await.expect("free");
    for name in ["used before", "new"] {
        if name != "new" {
            keeper.lock(name).await.expect("free").release().await.expect("released");
        }
        begin(&mut user).await;
        lock_in(&mut user, name, TTL).await.expect("free");
        let next = waiter(&keeper, name, 0).await;
        all_is_well(&server, &keeper, &[&held], name).await;
        end(&mut user).await;
        drop(soon("its turn", next).await.expect("no panic").expect("granted"));
    }
    keeper.close().await;
}

/// Both forms of a ticket: the first in its line, and one that has waited.
async fn a_checked_fence_in_a_long_transaction_costs_no_guard_its_life(server: Running) {
    let (keeper, mut user) = (keeper(&server).await, client(&server).await);
    let other = keeper.lock("held").await.expect("free");
    let mut held = keeper.lock("a").await.expect("free");
    for _ in 0..2 {
        begin(&mut user).await;
        fence_check(&mut user, &held.sequencer()).await.expect("held");
        let next = waiter(&keeper, "a", 1).await;
        all_is_well(&server, &keeper, &[&held, &other], "a").await;
        end(&mut user).await;
        held.release().await.expect("released");
        held = soon("its turn", next).await.expect("no panic").expect("granted");
    }
    keeper.close().await;
}

async fn locked_rows_cost_no_guard_its_life(server: Running) {
    let (keeper, mut user) = (keeper(&server).await, client(&server).await);
    let (a, b) = (keeper.lock("a").await.expect("free"), keeper.lock("b").await.expect("free"));
    begin(&mut user).await;
    for table in ["lk_gate", "lk_ticket"] {
        let sql = format!("SELECT * FROM {table} WHERE name = 'a' FOR UPDATE");
        user.query_drop(sql).await.expect("locked");
    }
    all_is_well(&server, &keeper, &[&a, &b], "a").await;
    end(&mut user).await;
    a.release().await.expect("released");
    drop(soon("the same name", keeper.lock("a").into_future()).await.expect("free"));
    keeper.close().await;
}

/// The row of a line, which every change of the line needs: who asks for the name is told that others are in
/// the way. The row of a session: its own guards are lost, and no others.
async fn a_locked_line_or_session_costs_no_other_guard_its_life(server: Running) {
    let (one, two) = (keeper(&server).await, keeper(&server).await);
    let (mut user, mut witness) = (client(&server).await, client(&server).await);
    let (a, b) = (one.lock("a").await.expect("free"), two.lock("b").await.expect("free"));
    begin(&mut user).await;
    user.query_drop("SELECT * FROM lk_line WHERE name = 'a' FOR UPDATE").await.expect("locked");
    let ends = "SELECT MIN(expires) FROM lk_session";
    let until = number(&mut witness, ends).await + sitting();
    eventually("renewals of both", async || number(&mut witness, ends).await > until).await;
    assert!(a.is_held() && b.is_held());
    end(&mut user).await;
    begin(&mut user).await;
    let sql = "SELECT * FROM lk_session WHERE id = (SELECT session FROM lk_gate WHERE name = 'a') \
         FOR UPDATE";
    user.query_drop(sql).await.expect("locked");
    soon("the loss of the locked session", a.lost()).await;
    let ends = "SELECT MAX(expires) FROM lk_session";
    let until = number(&mut witness, ends).await + sitting();
    eventually("renewals of the other", async || number(&mut witness, ends).await > until).await;
    assert!(b.is_held());
    drop(soon("another name", two.lock("c").into_future()).await.expect("free"));
    end(&mut user).await;
    drop(soon("the name of the dead", two.lock("a").into_future()).await.expect("free"));
    two.close().await;
}

/// Who tries for a name until told to stop, and never gets it.
fn tries(keeper: &Keeper, name: &'static str, stop: &Arc<AtomicBool>, tasks: &mut JoinSet<()>) {
    let (keeper, stop) = (keeper.clone(), Arc::clone(stop));
    tasks.spawn(async move {
        while !stop.load(Ordering::Relaxed) {
            assert!(keeper.lock(name).try_now().await.expect("an answer").is_none());
        }
    });
}

/// Who tries for such a name is told that it is taken, and who wants to wait waits on; neither takes away the
/// connections that others need.
async fn a_line_blocked_by_a_transaction_is_busy_and_delays_no_other(server: Running) {
    let (one, two, three) = (keeper(&server).await, keeper(&server).await, keeper(&server).await);
    let (mut user, mut witness) = (client(&server).await, client(&server).await);
    let held = one.lock("a").await.expect("free");
    begin(&mut user).await;
    user.query_drop("SELECT * FROM lk_line WHERE name = 'a' FOR UPDATE").await.expect("locked");
    let next = tokio::spawn(two.lock("a").into_future());
    let (stop, mut tasks) = (Arc::new(AtomicBool::new(false)), JoinSet::new());
    for _ in 0..10 {
        tries(&three, "a", &stop, &mut tasks);
    }
    let now = "SELECT TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))";
    let until = number(&mut witness, now).await + sitting();
    let mut pairs = 0;
    while number(&mut witness, now).await < until {
        for keeper in [&two, &three] {
            let free = soon("another name", keeper.lock("c").into_future()).await.expect("free");
            free.release().await.expect("released");
        }
        pairs += 1;
    }
    assert!(pairs > 10, "only {pairs} times");
    assert!(held.is_held() && !next.is_finished());
    stop.store(true, Ordering::Relaxed);
    while let Some(tried) = soon("an answer", tasks.join_next()).await {
        tried.expect("no error was seen");
    }
    end(&mut user).await;
    held.release().await.expect("released");
    drop(soon("its turn", next).await.expect("no panic").expect("granted"));
}

/// The place of one who waits, and the gaps around it: the lock can be given up all the same, and who comes
/// then waits on.
async fn a_ticket_row_blocked_by_a_transaction_keeps_no_holder_from_leaving(server: Running) {
    let (one, two, three) = (keeper(&server).await, keeper(&server).await, keeper(&server).await);
    let mut user = client(&server).await;
    let held = one.lock("a").await.expect("free");
    let next = waiter(&two, "a", 1).await;
    begin(&mut user).await;
    user.query_drop("SELECT * FROM lk_ticket WHERE name = 'a' FOR UPDATE").await.expect("locked");
    soon("the release", held.release()).await.expect("released");
    let third = tokio::spawn(three.lock("a").into_future());
    all_is_well(&server, &one, &[], "a").await;
    assert!(!next.is_finished() && !third.is_finished());
    end(&mut user).await;
    drop(soon("its turn", next).await.expect("no panic").expect("granted"));
    drop(soon("its turn", third).await.expect("no panic").expect("granted"));
}

async fn a_line_blocked_by_a_transaction_keeps_no_session_from_closing(server: Running) {
    let (one, two) = (keeper(&server).await, keeper(&server).await);
    let (mut user, mut witness) = (client(&server).await, client(&server).await);
    let mut held = Vec::new();
    for at in 0..10 {
        held.push(one.lock(format!("{at}")).await.expect("free"));
    }
    begin(&mut user).await;
    user.query_drop("SELECT * FROM lk_line WHERE name = '4' FOR UPDATE").await.expect("locked");
    soon("the end", one.close()).await;
    assert_eq!(standing(&mut witness).await, 1);
    end(&mut user).await;
    drop(soon("the last name", two.lock("4").into_future()).await.expect("free"));
}

/// The gate's number cannot be seen while a transaction makes it, and the clock was set back by an hour.
async fn a_ticket_that_comes_while_the_gate_is_made_is_queued_last(server: Running) {
    let (one, two) = (keeper(&server).await, keeper(&server).await);
    let (mut user, mut witness) = (client(&server).await, client(&server).await);
    begin(&mut user).await;
    lock_in(&mut user, "new", TTL).await.expect("free");
    let first = waiter(&one, "new", 0).await;
    for (table, column) in [("lk_line", "last"), ("lk_ticket", "seq")] {
        let sql = format!("UPDATE {table} SET {column} = {column} + 3600000000");
        witness.query_drop(sql).await.expect("changed");
    }
    let second = waiter(&two, "new", 1).await;
    end(&mut user).await;
    let granted = soon("its turn", first).await.expect("no panic").expect("granted");
    assert!(!second.is_finished());
    granted.release().await.expect("released");
    drop(soon("its turn", second).await.expect("no panic").expect("granted"));
}

/// Who makes a gate cannot be seen by others. They wait in line or are told that it is busy, and take away no
/// connections that others need.
async fn new_names_that_a_transaction_has_hold_up_no_other(server: Running) {
    let keeper = keeper(&server).await;
    let (mut user, mut witness) = (client(&server).await, client(&server).await);
    begin(&mut user).await;
    let (stop, mut tasks) = (Arc::new(AtomicBool::new(false)), JoinSet::new());
    let mut waiters = Vec::new();
    for name in ["0", "1", "2", "3", "4", "5", "6", "7", "8", "9"] {
        lock_in(&mut user, name, TTL).await.expect("free");
        waiters.push(waiter(&keeper, name, 0).await);
    }
    for name in ["tried", "tried too"] {
        lock_in(&mut user, name, TTL).await.expect("free");
        tries(&keeper, name, &stop, &mut tasks);
    }
    let now = "SELECT TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))";
    let until = number(&mut witness, now).await + sitting();
    let mut pairs = 0;
    while number(&mut witness, now).await < until {
        let free = soon("another name", keeper.lock("c").into_future()).await.expect("free");
        soon("the release", free.release()).await.expect("released");
        pairs += 1;
    }
    // One that was held up would take seconds for each.
    assert!(pairs > 10, "only {pairs} times");
    stop.store(true, Ordering::Relaxed);
    while let Some(tried) = soon("an answer", tasks.join_next()).await {
        tried.expect("no error was seen");
    }
    end(&mut user).await;
    for waiter in waiters {
        drop(soon("its turn", waiter).await.expect("no panic").expect("granted"));
    }
    keeper.close().await;
}
