//! What becomes of locks when the way to a Redis server is bad: connections that hang, servers that
//! cannot be reached, addresses behind which nobody speaks.

use lockkeeper::{Error, Health, Keeper, Trouble};
use servers::Way;
use std::{
    net::TcpListener,
    time::{Duration, Instant},
};
use testkit::{
    live::start,
    world::{eventually, soon},
};

fn url(way: &Way) -> String {
    format!("redis://127.0.0.1:{}", way.port())
}

/// A machine that went away without a word, a firewall that forgot: the connection looks alive and
/// nothing comes back. Another one is made in time for the lock.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_that_hangs_is_replaced_before_its_locks_are_lost() {
    let Some(server) = start(servers::REDIS) else { return };
    let way = Way::to(server.ports()[0]).expect("a way");
    let keeper = Keeper::builder().ttl(Duration::from_secs(15)).connect(&url(&way)).await;
    let keeper = keeper.expect("the server answers");
    let held = keeper.lock("a").await.expect("free");
    way.silence();
    eventually("a renewal", async || held.extend(Duration::from_secs(12)).await.is_ok()).await;
    assert_eq!(held.health(), Health::Held);
    held.release().await.expect("released");
    keeper.close().await;
}

/// However many ask while the server cannot be reached, each is told so soon: they do not queue for
/// an attempt of their own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_who_ask_an_unreachable_server_wait_together_not_one_after_the_other() {
    let Some(server) = start(servers::REDIS) else { return };
    let way = Way::to(server.ports()[0]).expect("a way");
    let keeper = Keeper::connect(&url(&way)).await.expect("the server answers");
    // What there is breaks; new connections are accepted, and nothing comes of them.
    way.close();
    way.sever();
    let began = Instant::now();
    let asks: Vec<_> = (0..20)
        .map(|_| {
            let keeper = keeper.clone();
            tokio::spawn(async move { keeper.look_at("a").await })
        })
        .collect();
    for ask in asks {
        let e = ask.await.expect("no panic").expect_err("nobody is there");
        assert!(matches!(&e, Error::Store(e) if e.trouble == Trouble::Unavailable));
    }
    let took = began.elapsed();
    assert!(took < Duration::from_secs(25), "the last was told after {took:?}");
}

/// One of the addresses in the URL accepts connections and never says a word.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_silent_address_in_the_url_does_not_keep_anybody_out() {
    let silent = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = silent.local_addr().expect("an address").port();
    for recipe in [servers::REDIS_SENTINEL, servers::REDIS_CLUSTER] {
        let Some(server) = start(recipe) else { return };
        let url = server.url().replacen("://", &format!("://127.0.0.1:{port},"), 1);
        let keeper = soon("a keeper", Keeper::connect(&url)).await.expect("the others answer");
        keeper.lock("a").await.expect("free").release().await.expect("released");
        keeper.close().await;
    }
}
