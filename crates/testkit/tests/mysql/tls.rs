//! TLS: who the server is, who we are, and that nothing goes over a plain line unasked.

use lockkeeper::{Error, ErrorKind, Keeper, StoreError};
use servers::{MARIADB, MYSQL, Running};
use std::{net::Ipv4Addr, process::Stdio};
use testkit::{trials::WithArgs, world::soon};
use tokio::{
    net::{TcpListener, TcpStream},
    process::Command,
};

testkit::tests! {
    crate::SERVERS_TLS =>
        with_tls_both_sides_must_be_known,
        without_tls_ca_the_authorities_of_the_machine_are_trusted,
        with_tls_the_address_must_be_that_of_the_certificate,
        a_client_that_must_use_tls_is_told_how;
    BARE =>
        a_server_that_offers_no_tls_is_not_talked_to_without;
}

/// What the store says to a client that comes with this URL. It never shows the password.
async fn refusal(url: &str) -> StoreError {
    match soon("an answer", Keeper::connect(url)).await {
        Err(Error::Store(e)) => {
            let said = format!("{e} {e:?}");
            assert!(!said.contains("open sesame") && !said.contains("open%20"), "{said}");
            e
        }
        other => panic!("not refused by the store: {other:?}"),
    }
}

async fn with_tls_both_sides_must_be_known(server: Running) {
    let (good, bare) = (server.url(), server.url().split_once('?').expect("options").0);
    let keeper = Keeper::connect(good).await.expect("connected");
    keeper.lock("a").await.expect("free").release().await.expect("released");
    keeper.close().await;

    let e = refusal(&good.replace("ca%2Epem", "stranger%2Epem")).await;
    assert!(e.kind == ErrorKind::Misconfigured && !e.is_transient(), "{e:?}");
    assert!(e.what.contains("not trusted") && e.what.contains("tls_ca="), "{e}");
    let (nameless, _) = good.split_once("&tls_cert=").expect("a certificate of our own");
    for url in [nameless, bare] {
        let e = refusal(url).await;
        assert!(e.kind == ErrorKind::Denied && e.what.contains("tls_cert="), "{e:?}");
    }
}

/// Without `tls_ca=` the client trusts the authorities that the machine trusts, and no others.
async fn without_tls_ca_the_authorities_of_the_machine_are_trusted(server: Running) {
    let url = server.url().split_once("&tls_cert=").expect("a certificate of our own");
    let (bare, _) = url.0.split_once('?').expect("options");
    let url = format!("{bare}?tls=true&tls_cert={}", url.1);
    for (authority, good) in [("ca.pem", true), ("stranger.pem", false)] {
        let taker = Command::new(env!("CARGO_BIN_EXE_taker"))
            .args([&url, "10000", "0"])
            .env("SSL_CERT_FILE", server.folder().join(authority))
            .env_remove("SSL_CERT_DIR")
            .stdin(Stdio::null())
            .output()
            .await
            .expect("the taker ends");
        let said = String::from_utf8_lossy(&taker.stderr);
        assert_eq!(taker.status.success(), good, "{said}");
        assert!(good || said.contains("not trusted"), "{said}");
    }
}

/// A certificate of the right authority for another address does not do.
async fn with_tls_the_address_must_be_that_of_the_certificate(server: Running) {
    let port = server.ports()[0];
    let other = TcpListener::bind((Ipv4Addr::new(127, 0, 0, 2), 0)).await.expect("a port");
    let address = other.local_addr().expect("an address");
    let proxy = tokio::spawn(async move {
        while let Ok((mut client, _)) = other.accept().await {
            let mut server = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await.expect("there");
            tokio::spawn(async move {
                let _ = tokio::io::copy_bidirectional(&mut client, &mut server).await;
            });
        }
    });
    let url = server.url().replace(&format!("127.0.0.1:{port}"), &address.to_string());
    let e = refusal(&url).await;
    assert!(e.kind == ErrorKind::Misconfigured && e.what.contains("not trusted"), "{e:?}");
    proxy.abort();
}

/// Servers without TLS. MySQL, and MariaDB since 11.4, make certificates of their own otherwise. Each of these
/// options is for one kind of server, and the other kind passes over it.
const BARE: [WithArgs; 2] = [
    WithArgs(MYSQL, &["--loose-skip-ssl", "--loose-tls-version="]),
    WithArgs(MARIADB, &["--loose-skip-ssl", "--loose-tls-version="]),
];

async fn a_server_that_offers_no_tls_is_not_talked_to_without(server: Running) {
    let e = refusal(&format!("{}?tls=true", server.url())).await;
    assert!(e.kind == ErrorKind::Misconfigured && e.what.contains("offers no TLS"), "{e:?}");
}

/// A server that takes no plain connection says so to every client.
async fn a_client_that_must_use_tls_is_told_how(server: Running) {
    use mysql_async::prelude::Queryable;
    let root = format!("mysql://root@127.0.0.1:{}/lockkeeper", server.ports()[0]);
    let mut admin = mysql_async::Conn::from_url(&root).await.expect("connected");
    admin.query_drop("SET GLOBAL require_secure_transport = ON").await.expect("set");
    let e = refusal(&root).await;
    assert!(!e.is_transient() && e.what.contains("tls_ca="), "{e:?}");
    let keeper = Keeper::connect(server.url()).await.expect("connected");
    keeper.lock("a").await.expect("free").release().await.expect("released");
    keeper.close().await;
}
