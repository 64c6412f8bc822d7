//! A server whose wall clock is set, while locks are held and waited for.

use crate::{
    crowd::Crowd,
    support::{Witness, keeper_for, waiter},
};
use lockkeeper::{Health, Loss};
use servers::Running;
use std::time::Duration;
use testkit::{trials::WithClocks, world::soon};

testkit::tests! {
    [WithClocks(servers::REDIS)] =>
        fences_never_go_back_however_the_servers_clock_jumps,
        a_jump_forward_ends_all_sessions_and_serves_the_next,
        a_jump_back_takes_no_lock_away,
        a_jump_back_keeps_a_dead_holder_for_one_more_ttl_and_no_longer,
        a_keeper_knows_the_servers_time_again_with_its_next_renewal;
}

/// Much longer than a session lives, and than a request may be under way.
const JUMP_S: i64 = 120;
const TTL: Duration = Duration::from_secs(6);

fn set_clock(server: &mut Running, seconds: i64) {
    server.nodes()[0].set_clock(seconds).expect("its clock can be moved");
}

async fn crowd(server: &Running) -> Crowd {
    let mut keepers = Vec::new();
    for _ in 0..4 {
        keepers.push(keeper_for(server, TTL).await);
    }
    Crowd::of(keepers)
}

/// There and back again: all are served on, and no fence goes back with the clock.
async fn fences_never_go_back_however_the_servers_clock_jumps(mut server: Running) {
    let crowd = crowd(&server).await;
    crowd.all_served("at first").await;
    for seconds in [JUMP_S, 0, -JUMP_S, 0, -JUMP_S, JUMP_S] {
        set_clock(&mut server, seconds);
        crowd.all_served(&format!("with the clock at {seconds} s")).await;
    }
    crowd.go_home().await;
}

/// Every session is over for the server at once; who holds a lock learns it with the next renewal,
/// and who waits is served.
async fn a_jump_forward_ends_all_sessions_and_serves_the_next(mut server: Running) {
    let (one, two) = (keeper_for(&server, TTL).await, keeper_for(&server, TTL).await);
    let held = one.lock("a").await.expect("free");
    let waiter = waiter(&two, "a", 1).await;
    set_clock(&mut server, JUMP_S);
    assert_eq!(soon("the loss", held.lost()).await, Loss::SessionGone);
    let next = soon("the waiter's turn", waiter).await.expect("no panic").expect("granted");
    assert!(next.fence() > held.fence());
    assert!(!two.check(&held.sequencer()).await.expect("an answer"));
    next.release().await.expect("released");
}

/// What lives is renewed on the new time.
async fn a_jump_back_takes_no_lock_away(mut server: Running) {
    let (one, two) = (keeper_for(&server, TTL).await, keeper_for(&server, TTL).await);
    let held = one.lock("a").await.expect("free");
    set_clock(&mut server, -JUMP_S);
    held.extend(Duration::ZERO).await.expect("renewed");
    assert_eq!(held.health(), Health::Held);
    assert!(two.check(&held.sequencer()).await.expect("an answer"));
    let line = two.get("a").await.expect("an answer").expect("a line");
    assert_eq!(line.tickets[0].granted_ago, Some(Duration::ZERO), "granted in the future");
    assert!(line.tickets[0].ends_in <= TTL, "it ends in {:?}", line.tickets[0].ends_in);
    assert!(two.lock("a").try_now().await.expect("an answer").is_none());
    let fence = held.fence();
    held.release().await.expect("released");
    assert!(two.lock("a").try_now().await.expect("an answer").expect("free").fence() > fence);
}

/// Its session would end after the jump and its TTL if the server did not see that the time is
/// another one.
async fn a_jump_back_keeps_a_dead_holder_for_one_more_ttl_and_no_longer(mut server: Running) {
    let (one, two) = (keeper_for(&server, TTL).await, keeper_for(&server, TTL).await);
    // A lease is not renewed, and a guard that has lost it sends nothing: as if it had died.
    let dead = one.lock("a").lease(TTL).await.expect("free");
    let waiter = tokio::spawn(two.lock("a").into_future());
    set_clock(&mut server, -JUMP_S);
    let next = soon("the waiter's turn", waiter).await.expect("no panic").expect("granted");
    assert!(!dead.is_held());
    assert!(next.fence() > dead.fence());
}

/// A request says until when it may take effect, on the server's clock as the client knows it. What
/// the client knows must not be of yesterday, or a request that was under way for long would pass.
async fn a_keeper_knows_the_servers_time_again_with_its_next_renewal(mut server: Running) {
    let (keeper, mut witness) = (keeper_for(&server, TTL).await, Witness::of(&server).await);
    let held = keeper.lock("a").await.expect("free");
    witness.command(&["CONFIG", "SET", "slowlog-log-slower-than", "0"]).await;
    set_clock(&mut server, -JUMP_S);
    held.extend(Duration::ZERO).await.expect("renewed");
    keeper.lock("b").await.expect("free").release().await.expect("released");
    let patience = witness.patience_of_an_enter().await;
    assert!((40..=60).contains(&patience), "{patience} s from now");
}
