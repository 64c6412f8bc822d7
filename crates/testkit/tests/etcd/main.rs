//! What only a real etcd can show: how many requests a lock costs, and how its own clients and ours
//! stand in one line.

mod clients;
mod cost;

use lockkeeper::Keeper;
use servers::Running;
use std::time::Duration;
use testkit::world::eventually;

async fn keeper(server: &Running) -> Keeper {
    Keeper::builder()
        .ttl(Duration::from_secs(30))
        .connect(server.url())
        .await
        .expect("the server answers")
}

async fn until_length(keeper: &Keeper, name: &str, wanted: usize) {
    eventually(&format!("{wanted} stand in the line"), async || {
        let line = keeper.look_at(name).await.expect("a look");
        line.map_or(0, |line| line.tickets.len()) == wanted
    })
    .await;
}
