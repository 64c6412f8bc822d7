//! What becomes of locks when the network to a Redis server is bad: connections that hang, servers that
//! cannot be reached, addresses behind which no server answers.

use lockkeeper::{Error, ErrorKind, Health, Keeper};
use servers::{FaultProxy, Running};
use std::{
    net::TcpListener,
    time::{Duration, Instant},
};
use testkit::world::{eventually, soon};

testkit::tests! {
    [servers::REDIS] =>
        a_connection_that_hangs_is_replaced_before_its_locks_are_lost,
        requests_to_an_unreachable_server_fail_together_not_one_after_the_other,
        what_keeps_a_client_out_is_said_once_with_the_address_or_the_remedy,
        a_store_without_a_majority_of_its_servers_is_not_connected_to,
        a_plain_string_store_that_starts_late_is_connected_to;
    [servers::REDLOCK] =>
        a_majority_that_starts_late_is_connected_to;
    [servers::REDIS_SENTINEL, servers::REDIS_CLUSTER] =>
        a_silent_address_in_the_url_keeps_no_client_out;
}

fn url(proxy: &FaultProxy) -> String {
    format!("redis://127.0.0.1:{}", proxy.port())
}

/// A machine that went away without a word, a firewall that forgot: the connection looks alive and
/// nothing comes back. Another one is made in time for the lock.
async fn a_connection_that_hangs_is_replaced_before_its_locks_are_lost(server: Running) {
    let proxy = FaultProxy::to(server.ports()[0]).expect("a proxy");
    let keeper = Keeper::builder().ttl(Duration::from_secs(15)).connect(&url(&proxy)).await;
    let keeper = keeper.expect("the server answers");
    let held = keeper.lock("a").await.expect("free");
    proxy.silence();
    eventually("a renewal", async || held.extend(Duration::from_secs(12)).await.is_ok()).await;
    assert_eq!(held.health(), Health::Held);
    held.release().await.expect("released");
    keeper.close().await;
}

/// However many ask while the server cannot be reached, each is told so soon: they do not queue for
/// an attempt of their own.
async fn requests_to_an_unreachable_server_fail_together_not_one_after_the_other(server: Running) {
    let proxy = FaultProxy::to(server.ports()[0]).expect("a proxy");
    let keeper = Keeper::connect(&url(&proxy)).await.expect("the server answers");
    // What there is breaks; new connections are accepted, and nothing comes of them.
    proxy.close();
    proxy.sever();
    let began = Instant::now();
    let asks: Vec<_> = (0..20)
        .map(|_| {
            let keeper = keeper.clone();
            tokio::spawn(async move { keeper.get("a").await })
        })
        .collect();
    for ask in asks {
        let e = ask.await.expect("no panic").expect_err("no server is there");
        assert!(matches!(&e, Error::Store(e) if e.kind == ErrorKind::Unavailable));
    }
    let took = began.elapsed();
    assert!(took < Duration::from_secs(25), "the last was told after {took:?}");
}

/// One of the addresses in the URL accepts connections and never says a word.
async fn a_silent_address_in_the_url_keeps_no_client_out(server: Running) {
    let silent = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = silent.local_addr().expect("an address").port();
    let url = server.url().replacen("://", &format!("://127.0.0.1:{port},"), 1);
    let keeper = soon("a keeper", Keeper::connect(&url)).await.expect("the others answer");
    keeper.lock("a").await.expect("free").release().await.expect("released");
    keeper.close().await;
}

/// Stores of `compat=string` and of Redlock, with no server, or too few of them, behind the URL.
async fn a_store_without_a_majority_of_its_servers_is_not_connected_to(server: Running) {
    let silent: Vec<_> =
        (0..3).map(|_| TcpListener::bind("127.0.0.1:0").expect("a port")).collect();
    let ports: Vec<_> = silent.iter().map(|s| s.local_addr().expect("an address").port()).collect();
    let refusing = TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("one");
    let mut urls = vec![
        format!("redis://{refusing}?compat=string"),
        format!("redis://127.0.0.1:{}?compat=string", ports[0]),
        format!("redlock://127.0.0.1:{},127.0.0.1:{},127.0.0.1:{}", ports[0], ports[1], ports[2]),
    ];
    let there = server.ports()[0];
    urls.push(format!("redlock://127.0.0.1:{there},{refusing},127.0.0.1:{}", ports[0]));
    for url in &urls {
        let began = Instant::now();
        let e = Keeper::connect(url).await.expect_err("too few answer");
        assert!(matches!(&e, Error::Store(e) if e.kind == ErrorKind::Unavailable), "{url}: {e:?}");
        assert!(began.elapsed() < Duration::from_secs(20), "{url}: {:?}", began.elapsed());
    }
}

/// The client connects once its servers are there.
async fn a_plain_string_store_that_starts_late_is_connected_to(server: Running) {
    is_connected_to_late(server, "?compat=string").await;
}

/// The client connects once its servers are there.
async fn a_majority_that_starts_late_is_connected_to(server: Running) {
    is_connected_to_late(server, "").await;
}

async fn is_connected_to_late(mut server: Running, option: &str) {
    let url = format!("{}{option}", server.url());
    server.kill().expect("killed");
    let builder = Keeper::builder().connect_wait(Duration::from_secs(60));
    let connecting = tokio::spawn(async move { builder.connect(&url).await });
    // Long enough to be refused more than once.
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert!(!connecting.is_finished(), "no server is there");
    server.restart().expect("restarted");
    let keeper = soon("a keeper", connecting).await.expect("no panic");
    keeper.expect("connected").close().await;
}

/// All that an error says: its own words and those of its sources.
fn all_words(e: &Error) -> String {
    let mut words = e.to_string();
    let mut source = std::error::Error::source(e);
    while let Some(e) = source {
        words = format!("{words}: {e}");
        source = e.source();
    }
    words
}

async fn what_keeps_a_client_out_is_said_once_with_the_address_or_the_remedy(server: Running) {
    let port = TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("one").port();
    for url in [
        "redis://127.0.0.1:PORT",
        "redis+cluster://127.0.0.1:PORT",
        "redis+sentinel://127.0.0.1:PORT/m",
    ] {
        let e = Keeper::connect(&url.replace("PORT", &port.to_string())).await;
        let words = all_words(&e.expect_err("no server is there"));
        assert_eq!(words.matches("refused").count(), 1, "{words}");
        assert!(words.contains(&format!("cannot connect to 127.0.0.1:{port}")), "{words}");
        assert!(!words.contains("redlock"), "{words}");
    }
    let client = redis::Client::open(("127.0.0.1", server.ports()[0])).expect("an address");
    let mut wire = client.get_multiplexed_async_connection().await.expect("the server answers");
    let mut set = redis::cmd("CONFIG");
    set.arg("SET").arg("requirepass").arg("sesame");
    let () = set.query_async(&mut wire).await.expect("an answer");
    for (user, once) in
        [("", "asks for a password"), (":wrong@", "refuses the user or its password")]
    {
        let e = Keeper::connect(&server.url().replacen("://", &format!("://{user}"), 1)).await;
        let e = e.expect_err("the password is missing or wrong");
        assert!(matches!(&e, Error::Store(e) if e.kind == ErrorKind::Denied), "{e:?}");
        let words = all_words(&e);
        assert!(words.matches("password").count() <= 2 && words.contains(once), "{words}");
        assert!(!words.contains("NOAUTH") && !words.contains("WRONGPASS"), "{words}");
    }
}
