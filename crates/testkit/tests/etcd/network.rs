//! Connections that are slow to come about, or do not come about at all.

use crate::clients::refusal;
use lockkeeper::{Error, ErrorKind, Keeper};
use servers::{FaultProxy, Running};
use std::{net::TcpListener, time::Duration};
use testkit::world::soon;

testkit::tests! {
    [servers::ETCD_TLS] =>
        a_far_server_is_connected_to_with_tls;
    [()] =>
        a_refused_connection_is_told_once;
}

/// The handshake of TLS alone takes longer than a second.
async fn a_far_server_is_connected_to_with_tls(server: Running) {
    let proxy = FaultProxy::to(server.ports()[0]).expect("a proxy");
    proxy.delay(Duration::from_millis(700));
    let far = format!("127.0.0.1:{}", proxy.port());
    let url = server.url().replace(&format!("127.0.0.1:{}", server.ports()[0]), &far);
    let keeper = Keeper::builder().ttl(Duration::from_secs(60));
    let keeper = soon("a connection", keeper.connect(&url)).await.expect("it connects");
    let guard = soon("the lock", keeper.lock("a").into_future()).await.expect("free");
    guard.release().await.expect("released");
    keeper.close().await;
}

/// Said once, in plain words; and as a trouble that may pass.
async fn a_refused_connection_is_told_once(_: ()) {
    let free = TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("etcd://{}", free.local_addr().expect("bound"));
    drop(free);
    let Err(Error::Store(e)) = Keeper::connect(&url).await else { panic!("{url} connects") };
    assert_eq!(e.kind, ErrorKind::Unavailable);
    let chain = std::iter::successors(Some(&e as &dyn std::error::Error), |e| e.source());
    let words: Vec<String> = chain.map(ToString::to_string).collect();
    let words = words.join(": ");
    assert_eq!(words.matches("onnection refused").count(), 1, "{words}");
    for debug in ["{", "Some(", "Unsent", "message"] {
        assert!(!words.contains(debug), "{words}");
    }
    assert!(refusal(&url).await.contains("127.0.0.1"));
}
