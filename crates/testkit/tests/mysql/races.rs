//! One statement here, a whole procedure there, on the same line at the same time.

use crate::support::{client, deadlocks, keeper, standing};
use lockkeeper::Keeper;
use mysql_async::prelude::Queryable;
use servers::Running;
use std::{
    env,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};
use testkit::world::soon;
use tokio::task::JoinSet;

testkit::tests! {
    crate::SERVERS =>
        a_client_that_comes_while_the_holder_leaves_is_served,
        a_transaction_and_guards_take_turns,
        a_look_at_a_gate_keeps_no_row_locked;
}

/// Two who come and go without a pause meet in every way: one comes while the other takes the free lock,
/// holds it, or leaves by the plain statement. No waiter is forgotten, and no two hold it.
/// `LOCKKEEPER_RACES` says how many rounds each makes.
async fn a_client_that_comes_while_the_holder_leaves_is_served(server: Running) {
    let rounds: usize = env::var("LOCKKEEPER_RACES").map_or(300, |n| n.parse().expect("a number"));
    let mut witness = client(&server).await;
    let (inside, last) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let mut tasks = JoinSet::new();
    for number in 0..2_u64 {
        let keeper = keeper(&server).await;
        let (inside, last) = (Arc::clone(&inside), Arc::clone(&last));
        tasks.spawn(async move {
            for round in 0..rounds {
                let guard =
                    soon("its turn", keeper.lock("a").into_future()).await.expect("granted");
                assert!(!inside.swap(true, Ordering::SeqCst), "two are in");
                assert!(last.swap(guard.fence(), Ordering::SeqCst) < guard.fence());
                inside.store(false, Ordering::SeqCst);
                guard.release().await.expect("released");
                // Out of step, so that the line is now empty and now not.
                for _ in 0..(round as u64 * (number + 3)) % 7 {
                    drop(keeper.lock(format!("own {number}")).await.expect("free"));
                }
            }
            keeper.close().await;
        });
    }
    while let Some(done) = tasks.join_next().await {
        done.expect("no panic");
    }
    assert_eq!(standing(&mut witness).await, 0);
    assert_eq!(deadlocks(&mut witness).await, 0);
}

/// In READ COMMITTED a row that `lk_lock` finds taken is let go, so its holder can leave while the
/// transaction waits for that very lock.
async fn a_transaction_and_guards_take_turns(server: Running) {
    let keeper = keeper(&server).await;
    let (url, inside) = (server.url().to_owned(), Arc::new(AtomicBool::new(false)));
    keeper.lock("a").await.expect("free").release().await.expect("released");
    let (theirs, done) = (Arc::clone(&inside), Arc::new(AtomicBool::new(false)));
    let ended = Arc::clone(&done);
    let user = tokio::spawn(async move {
        let mut user = mysql_async::Conn::from_url(&url).await.expect("connected");
        user.query_drop("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED")
            .await
            .expect("set");
        for _ in 0..50 {
            user.query_drop("BEGIN").await.expect("begun");
            user.query_drop("CALL lk_lock('a', 60000)").await.expect("its turn");
            assert!(!theirs.swap(true, Ordering::SeqCst), "two are in");
            theirs.store(false, Ordering::SeqCst);
            user.query_drop("COMMIT").await.expect("ended");
        }
        ended.store(true, Ordering::SeqCst);
    });
    while !done.load(Ordering::SeqCst) && !user.is_finished() {
        let guard = soon("a turn", keeper.lock("a").into_future()).await.expect("granted");
        assert!(!inside.swap(true, Ordering::SeqCst), "two are in");
        inside.store(false, Ordering::SeqCst);
        soon("the release", guard.release()).await.expect("released");
    }
    soon("the transactions", user).await.expect("no panic");
    keeper.close().await;
}

/// A transaction looks at the gate again and again while its holder comes and goes, and never takes it: nothing may
/// stay locked, in whichever way the two meet, or the holder could not leave before that transaction's end.
async fn a_look_at_a_gate_keeps_no_row_locked(server: Running) {
    let (keeper, mut user) = (keeper(&server).await, client(&server).await);
    keeper.lock("a").await.expect("free").release().await.expect("released");
    let looks = "CREATE PROCEDURE look_often(times INT) BEGIN DECLARE got, last BIGINT; \
         WHILE times > 0 DO CALL lk_try_gate('a', 0, -1, 0, got, last); SET times = times - 1; \
         END WHILE; END";
    user.query_drop(looks).await.expect("made");
    user.query_drop("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED").await.expect("set");
    for _ in 0..5 {
        user.query_drop("BEGIN").await.expect("begun");
        let done = AtomicBool::new(false);
        let looking = async {
            user.query_drop("CALL look_often(10000)").await.expect("looked");
            done.store(true, Ordering::SeqCst);
        };
        let coming_and_going = async {
            while !done.load(Ordering::SeqCst) {
                pair(&keeper).await;
            }
            pair(&keeper).await;
        };
        tokio::join!(looking, coming_and_going);
        user.query_drop("COMMIT").await.expect("ended");
    }
    keeper.close().await;
}

async fn pair(keeper: &Keeper) {
    let guard = soon("a turn", keeper.lock("a").into_future()).await.expect("granted");
    soon("the release", guard.release()).await.expect("released");
}
