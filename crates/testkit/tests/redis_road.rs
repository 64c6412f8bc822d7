//! What becomes of locks when the way to a Redis server is bad: connections that hang, servers that
//! cannot be reached, addresses behind which nobody speaks.

use lockkeeper::{Error, Health, Keeper, Trouble};
use std::{
    net::TcpListener,
    time::{Duration, Instant},
};
use testkit::{
    live::start,
    world::{eventually, soon},
};
use tokio::{net::TcpStream, sync::watch};

/// How the way to a server is.
#[derive(Clone, Copy, Default)]
struct Weather {
    /// Connections of an earlier era are good for nothing any more.
    era: u64,
    /// They are cut; otherwise they hang.
    cut: bool,
    /// New connections hang from the beginning.
    hang: bool,
}

/// A way to a server that can be made bad.
struct Road {
    port: u16,
    weather: watch::Sender<Weather>,
}

impl Road {
    async fn to(server: u16) -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let weather = watch::Sender::new(Weather::default());
        let seen = weather.subscribe();
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                tokio::spawn(carry(client, server, seen.clone()));
            }
        });
        Self { port, weather }
    }

    fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// All present connections go dead without a word; new ones are good.
    fn stall(&self) {
        self.weather.send_modify(|w| *w = Weather { era: w.era + 1, cut: false, hang: false });
    }

    /// All present connections are cut; new ones are accepted, and nothing comes of it.
    fn block(&self) {
        self.weather.send_modify(|w| *w = Weather { era: w.era + 1, cut: true, hang: true });
    }
}

async fn carry(mut client: TcpStream, server: u16, mut weather: watch::Receiver<Weather>) {
    let born = *weather.borrow_and_update();
    if born.hang {
        return std::future::pending().await;
    }
    let Ok(mut server) = TcpStream::connect(("127.0.0.1", server)).await else { return };
    tokio::select! {
        _ = tokio::io::copy_bidirectional(&mut client, &mut server) => {}
        cut = ended(&mut weather, born.era) => {
            if !cut {
                std::future::pending().await
            }
        }
    }
}

/// Waits until the era is another; says whether its connections are cut.
async fn ended(weather: &mut watch::Receiver<Weather>, era: u64) -> bool {
    weather.wait_for(|now| now.era != era).await.is_ok_and(|now| now.cut)
}

/// A machine that went away without a word, a firewall that forgot: the connection looks alive and
/// nothing comes back. Another one is made in time for the lock.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_that_hangs_is_replaced_before_its_locks_are_lost() {
    let Some(server) = start(servers::REDIS) else { return };
    let road = Road::to(server.ports()[0]).await;
    let keeper = Keeper::builder().ttl(Duration::from_secs(15)).connect(&road.url()).await;
    let keeper = keeper.expect("the server answers");
    let held = keeper.lock("a").await.expect("free");
    road.stall();
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
    let road = Road::to(server.ports()[0]).await;
    let keeper = Keeper::connect(&road.url()).await.expect("the server answers");
    road.block();
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
