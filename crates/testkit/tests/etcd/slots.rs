//! More tickets of one session in one line than it has slots.

use crate::{cost::counted, keeper};
use lockkeeper::Guard;
use servers::Running;
use std::time::Duration;
use tokio::time::timeout;

testkit::tests! {
    [servers::ETCD] =>
        a_hundred_readers_of_one_process_are_let_in_by_a_try;
}

/// A session has 64 slots in a line; the tickets after them share the slots of others.
async fn a_hundred_readers_of_one_process_are_let_in_by_a_try(server: Running) {
    let keeper = keeper(&server).await;
    let mut readers: Vec<Guard> = Vec::new();
    for at in 1..=100 {
        let before = counted(&server)["Txn"];
        let reader = keeper.rwlock("a").read().try_now().await.expect("an answer");
        readers.push(reader.unwrap_or_else(|| panic!("reader {at} is refused")));
        assert!(counted(&server)["Txn"] <= before + 2, "reader {at}");
    }
    // A writer that waits behind them keeps the next reader out.
    let writer = tokio::spawn(keeper.rwlock("a").write().into_future());
    crate::until_length(&keeper, "a", 101).await;
    assert!(keeper.rwlock("a").read().try_now().await.expect("an answer").is_none());
    writer.abort();
    for reader in readers {
        reader.release().await.expect("released");
    }
    timeout(Duration::from_secs(60), keeper.close()).await.expect("closed");
}
