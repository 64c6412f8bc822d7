//! How many commands and connections a lock costs.

use crate::support::{Witness, keeper, keeper_for};
use lockkeeper::Guard;
use servers::Running;
use std::{
    path::Path,
    time::{Duration, Instant},
};
use testkit::{
    taker::{crowd, granted_in},
    world::{eventually, soon},
};

testkit::tests! {
    [servers::REDIS] =>
        an_uncontended_lock_and_its_release_are_two_commands,
        a_hand_over_is_one_script_and_one_message,
        ten_thousand_locks_are_one_renewal,
        a_keeper_that_is_gone_has_no_connection;
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

async fn an_uncontended_lock_and_its_release_are_two_commands(server: Running) {
    let (keeper, mut witness) = (keeper(&server).await, Witness::of(&server).await);
    let pair = async || {
        keeper.lock("a").await.expect("free").release().await.expect("released");
    };
    pair().await;
    assert_eq!(cost(&mut witness, pair).await, (2, 0));
    keeper.close().await;
}

/// In how many processes a crowd waits.
const PROCESSES: usize = 8;

/// However many wait, the one that is granted the lock learns of it by one message, and no other stirs.
async fn a_hand_over_is_one_script_and_one_message(server: Running) {
    let (holder, mut witness) = (keeper(&server).await, Witness::of(&server).await);
    for waiters in [8, 80, 800] {
        let name = format!("with-{waiters}");
        let mut held = Some(holder.lock(&name).await.expect("free"));
        let program = Path::new(env!("CARGO_BIN_EXE_taker"));
        let mut crowd = crowd(program, server.url(), &name, PROCESSES, waiters / PROCESSES).await;
        let ahead = async || holder.get(&name).await.ok().flatten().map(|l| l.tickets.len());
        for some in 1..=waiters.min(40) {
            let many = waiters * some / waiters.min(40);
            eventually("they stand in line", async || ahead().await > Some(many)).await;
        }
        let (mut at, mut least) = (0, (u64::MAX, u64::MAX));
        for _ in 0..8 {
            witness.command(&["CONFIG", "RESETSTAT"]).await;
            match held.take() {
                Some(guard) => guard.release().await.expect("released"),
                None => crowd[at].tell("release").await,
            }
            at = soon("the next grant", granted_in(&mut crowd)).await;
            least = least.min(witness.scripts_and_messages().await);
        }
        assert_eq!(least, (1, 1), "scripts and messages with {waiters} waiters");
    }
    holder.close().await;
}

async fn ten_thousand_locks_are_one_renewal(server: Running) {
    const PERIOD: Duration = Duration::from_secs(3);
    let (keeper, mut witness) = (keeper_for(&server, PERIOD * 3).await, Witness::of(&server).await);
    let mut guards = Vec::new();
    for i in 0..10_000 {
        guards.push(keeper.lock(format!("name {i}")).await.expect("free"));
    }
    // The first renewal is followed by a comparison of all tickets, which takes many scripts. Once none has come for
    // half a period only renewals are left. From the first of ten to the last, nine periods pass.
    witness.command(&["CONFIG", "RESETSTAT"]).await;
    let (mut seen, mut since) = (0, Instant::now());
    eventually("the comparison is over", async || {
        let count = witness.count("evalsha").await;
        if count != seen {
            (seen, since) = (count, Instant::now());
        }
        seen >= 2 && since.elapsed() > PERIOD / 2
    })
    .await;
    witness.command(&["CONFIG", "RESETSTAT"]).await;
    let began = Instant::now();
    for n in 1..=10 {
        eventually("a renewal", async || witness.count("evalsha").await >= n).await;
    }
    let took = began.elapsed();
    assert!(took > PERIOD * 9 - PERIOD / 3, "ten renewals within {took:?}");
    assert!(guards.iter().all(Guard::is_held));
    keeper.close().await;
}

async fn a_keeper_that_is_gone_has_no_connection(server: Running) {
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
