//! Redlock, when nodes come back without their memory while their neighbours go on.

use crate::support::{Witness, start};
use lockkeeper::{Guard, Keeper};
use servers::Running;
use std::time::{Duration, Instant};
use testkit::{
    register::Register,
    world::{eventually, soon},
};

const TTL: Duration = Duration::from_secs(4);
/// For how long a node that has started empty has no vote.
const QUARANTINE: &str = "6s";

/// Five nodes that are known to have forgotten nothing.
async fn five() -> Option<Running> {
    let server = start(servers::REDLOCK)?;
    for port in server.ports() {
        Witness::at(*port).await.command(&["SET", "lockkeeper:redlock:boot", "0"]).await;
    }
    Some(server)
}

async fn keeper(server: &Running) -> Keeper {
    let url = format!("{}?max_ttl={QUARANTINE}", server.url());
    Keeper::builder().ttl(TTL).connect(&url).await.expect("the servers answer")
}

/// Nodes die and come back with nothing.
fn forget(server: &mut Running, nodes: &[usize]) {
    for node in nodes {
        server.nodes()[*node].kill().expect("killed");
        server.nodes()[*node].restart().expect("restarted");
    }
}

/// Tries to get the lock that another one has; it must not be had while that one believes in it.
async fn try_beside(holder: &Guard, keeper: &Keeper) -> Option<Guard> {
    // While too many nodes have no vote there is an error instead.
    let tried = keeper.lock("a").try_now().await.ok().flatten();
    assert!(tried.is_none() || !holder.is_held(), "two have it");
    tried
}

/// It is renewed until long after it would have ended without, while another one tries to get it.
async fn is_kept(holder: &Guard, other: &Keeper) {
    let began = Instant::now();
    eventually("more than a TTL has passed", async || {
        assert!(try_beside(holder, other).await.is_none());
        assert!(holder.is_held(), "{:?}", holder.health());
        began.elapsed() > TTL * 5 / 4
    })
    .await;
}

/// The holder has the nodes A, B and C, and C goes as well. Then C, D and E come back empty: three nodes
/// that know nothing of the lock would be a majority for another one, had they a vote.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_that_have_forgotten_a_holder_do_not_give_its_lock_to_another() {
    let Some(mut server) = five().await else { return };
    let (one, two, register) = (keeper(&server).await, keeper(&server).await, Register::default());
    for node in [3, 4] {
        server.nodes()[node].kill().expect("killed");
    }
    let held = one.lock("a").try_now().await.expect("three of five").expect("free");
    assert!(register.write(held.fence(), 1));
    is_kept(&held, &two).await;

    server.nodes()[2].kill().expect("killed");
    for node in [2, 3, 4] {
        server.nodes()[node].restart().expect("restarted");
    }
    let mut next = None;
    eventually("the other one's turn", async || {
        next = try_beside(&held, &two).await;
        next.is_some()
    })
    .await;
    let next = next.expect("granted");
    soon("the loss", held.lost()).await;
    assert!(next.is_held() && next.fence() > held.fence());
    assert!(two.check(&next.sequencer()).await.expect("an answer"));
    assert!(!two.check(&held.sequencer()).await.expect("an answer"));
    assert!(register.write(next.fence(), 2));
    assert!(!register.write(held.fence(), 3), "the older one comes too late");
}

/// Two of five forget, one after the other; the other three are enough to keep the lock, to release
/// it, and to give it to the next.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_holder_keeps_its_lock_as_long_as_a_majority_remembers_it() {
    let Some(mut server) = five().await else { return };
    let (one, two) = (keeper(&server).await, keeper(&server).await);
    let held = one.lock("a").try_now().await.expect("five of five").expect("free");
    for node in [0, 1] {
        forget(&mut server, &[node]);
        is_kept(&held, &two).await;
    }
    let fence = held.fence();
    held.release().await.expect("released");
    let next = two.lock("a").try_now().await.expect("three of five").expect("free");
    assert!(next.fence() > fence);
}

/// Three nodes of five have kept a copy of their data from before the lock, and come back with it. That is
/// worse than nothing: they believe that they have forgotten nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_that_come_back_with_old_data_do_not_give_a_lock_to_another() {
    let Some(mut server) = five().await else { return };
    let (one, two) = (keeper(&server).await, keeper(&server).await);
    one.lock("a")
        .try_now()
        .await
        .expect("five of five")
        .expect("free")
        .release()
        .await
        .expect("ok");
    for node in [0, 1, 2] {
        Witness::at(server.ports()[node]).await.command(&["SAVE"]).await;
    }
    let held = one.lock("a").try_now().await.expect("five of five").expect("free");
    forget(&mut server, &[0, 1, 2]);
    let mut next = None;
    eventually("the other one's turn", async || {
        next = try_beside(&held, &two).await;
        next.is_some()
    })
    .await;
    assert!(next.expect("granted").fence() > held.fence());
    soon("the loss", held.lost()).await;
}
