//! Takes locks in a process of its own, in the store that a URL names: see [`lockkeeper_testkit::taker::serve`].

use lockkeeper::Keeper;

#[tokio::main(flavor = "current_thread")]
async fn main() -> anyhow::Result<()> {
    testkit::taker::serve(async |url| Ok(Keeper::connect(url).await?.store().clone())).await
}
