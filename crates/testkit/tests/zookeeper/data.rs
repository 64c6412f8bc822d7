//! What becomes of locks when a server comes back with its data, with older data or with none.

use crate::{LONG, TTL, keeper, keeper_at, says};
use lockkeeper::Loss;
use servers::{FaultProxy, Running, ZOOKEEPER};
use std::{
    path::{Path, PathBuf},
    time::Duration,
};
use testkit::world::{eventually, soon};

testkit::tests! {
    [ZOOKEEPER] =>
        a_server_that_has_lost_its_data_is_not_talked_to,
        a_server_that_restarts_keeps_the_locks;
    [(ZOOKEEPER, ZOOKEEPER)] =>
        a_renewal_shows_that_a_restored_server_does_not_have_a_lock;
}

/// Its numbers begin anew, so what it says could be taken for older than it is. A lock is as little to
/// be had there as anything else, until the program is started again.
async fn a_server_that_has_lost_its_data_is_not_talked_to(mut server: Running) {
    let keeper = keeper_at(server.url(), Duration::from_secs(2)).await;
    let held = keeper.lock("a").await.expect("free");
    tokio::task::block_in_place(|| {
        server.kill().expect("killed");
        std::fs::remove_dir_all(server.folder().join("zookeeper/data/version-2")).expect("removed");
        server.restart().expect("restarted");
    });
    soon("the loss", held.lost()).await;
    let behind = |e: lockkeeper::Error| {
        assert!(format!("{e:?}").contains("behind what was seen"), "{e:?}");
    };
    behind(keeper.lock("a").wait(Duration::from_secs(1)).await.expect_err("no lock"));
    behind(keeper.check(&held.sequencer()).await.expect_err("no answer"));
    let again = keeper_at(server.url(), TTL).await;
    again.lock("a").await.expect("free").release().await.expect("released");
}

/// The restored server knows the session, and others have written more to it than the keeper has seen,
/// so it does not turn the keeper away.
///
/// A proxy of TCP has to break the connection in order to lead it elsewhere, so the client does see a
/// connection break, as it often does, and takes up its session again. That the node is not there it learns from
/// the data alone, by the renewal that the test asks for: by itself the keeper renews every 200 s.
async fn a_renewal_shows_that_a_restored_server_does_not_have_a_lock(
    (mut first, mut second): (Running, Running),
) {
    let proxy = FaultProxy::to(first.ports()[0]).expect("a proxy");
    let keeper = keeper_at(&format!("zookeeper://127.0.0.1:{}", proxy.port()), LONG).await;
    let kept = keeper.lock("kept").await.expect("free");
    tokio::task::block_in_place(|| {
        first.kill().expect("killed");
        second.kill().expect("killed");
        copy(&data(&first), &data(&second));
        first.restart().expect("restarted");
        second.restart().expect("restarted");
    });
    let renewed = async || kept.extend(Duration::from_secs(1)).await.is_ok();
    eventually("a renewal", renewed).await;
    let held = keeper.lock("a").await.expect("free");
    let seen = zxid(&first);
    proxy.lead_to(second.ports()[0]);
    proxy.sever();
    let other = keeper_at(second.url(), TTL).await;
    while zxid(&second) <= seen {
        other.lock("b").await.expect("free").release().await.expect("released");
    }
    eventually("a renewal there", renewed).await;
    assert_eq!(soon("the loss", held.lost()).await, Loss::Evicted);
    assert!(kept.is_held() && keeper.check(&kept.sequencer()).await.expect("an answer"));
    let next = other.lock("a").try_now().await.expect("an answer").expect("free");
    assert!(next.fence() > held.fence());
}

fn data(server: &Running) -> PathBuf {
    server.folder().join("zookeeper/data/version-2")
}

fn copy(from: &Path, to: &Path) {
    std::fs::remove_dir_all(to).expect("removed");
    std::fs::create_dir_all(to).expect("made");
    for file in std::fs::read_dir(from).expect("a folder") {
        let file = file.expect("a file").path();
        std::fs::copy(&file, to.join(file.file_name().expect("a name"))).expect("copied");
    }
}

/// The number of the last write.
fn zxid(server: &Running) -> u64 {
    let text = says(server, "srvr");
    let number = text.lines().find_map(|line| line.strip_prefix("Zxid: 0x"));
    u64::from_str_radix(number.expect("a field").trim(), 16).expect("a number")
}

async fn a_server_that_restarts_keeps_the_locks(mut server: Running) {
    let keeper = keeper(&server).await;
    let held = keeper.lock("a").await.expect("free");
    tokio::task::block_in_place(|| {
        server.kill().expect("killed");
        server.restart().expect("restarted");
    });
    eventually("a renewal", async || held.extend(Duration::from_secs(1)).await.is_ok()).await;
    assert!(keeper.check(&held.sequencer()).await.expect("an answer"));
    let fence = held.fence();
    held.release().await.expect("released");
    assert!(keeper.lock("a").await.expect("free").fence() > fence);
}
