//! Takes locks in a process of its own, in the store that a URL names: see [`lockkeeper_testkit::taker::serve`]. As
//! `taker serve STORE ADDRESS…` it is the service in front of this store.

use lockkeeper::Keeper;
use std::env;

#[tokio::main(flavor = "current_thread")]
async fn main() -> anyhow::Result<()> {
    let words: Vec<String> = env::args().skip(1).collect();
    if let [verb, store, addresses @ ..] = words.as_slice()
        && verb == "serve"
    {
        return testkit::service::serve(store, addresses).await;
    }
    testkit::taker::serve(async |url| Ok(Keeper::connect(url).await?.store().clone())).await
}
