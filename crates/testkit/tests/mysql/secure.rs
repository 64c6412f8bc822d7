//! TLS: who the server is, who we are, and that nothing goes over a plain line unasked.

use crate::{SERVER, SERVER_TLS, support::start_as};
use lockkeeper::{Error, ErrorKind, Keeper, StoreError};
use servers::Recipe;
use std::{
    net::Ipv4Addr,
    process::{Command, Stdio},
};
use testkit::world::soon;
use tokio::net::{TcpListener, TcpStream};

/// What the store says to whoever comes with this URL. It never shows the password.
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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_tls_both_sides_must_be_known() {
    let Some(server) = start_as(SERVER_TLS) else { return };
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

/// Without `tls_ca=` those are trusted whom the machine trusts, and nobody else.
#[test]
fn with_tls_alone_the_machine_says_who_is_trusted() {
    let Some(server) = start_as(SERVER_TLS) else { return };
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
            .expect("the taker ends");
        let said = String::from_utf8_lossy(&taker.stderr);
        assert_eq!(taker.status.success(), good, "{said}");
        assert!(good || said.contains("not trusted"), "{said}");
    }
}

/// A certificate of the right authority for another address does not do.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_tls_the_address_must_be_that_of_the_certificate() {
    let Some(server) = start_as(SERVER_TLS) else { return };
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

/// A server without TLS. MySQL, and MariaDB since 11.4, make certificates of their own otherwise.
const BARE: Recipe = Recipe {
    processes: |sandbox| {
        let mut processes = (SERVER.processes)(sandbox)?;
        for process in &mut processes {
            // One of them for each kind of server; the other kind passes over it.
            process.args.extend(["--loose-skip-ssl".into(), "--loose-tls-version=".into()]);
        }
        Ok(processes)
    },
    ..SERVER
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_offers_no_tls_is_not_talked_to_without() {
    let Some(server) = start_as(BARE) else { return };
    let e = refusal(&format!("{}?tls=true", server.url())).await;
    assert!(e.kind == ErrorKind::Misconfigured && e.what.contains("offers no TLS"), "{e:?}");
}

/// A server that takes no plain connection says so to everybody.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_must_use_tls_is_told_how() {
    use mysql_async::prelude::Queryable;
    let Some(server) = start_as(SERVER_TLS) else { return };
    let root = format!("mysql://root@127.0.0.1:{}/lockkeeper", server.ports()[0]);
    let mut admin = mysql_async::Conn::from_url(&root).await.expect("connected");
    admin.query_drop("SET GLOBAL require_secure_transport = ON").await.expect("set");
    let e = refusal(&root).await;
    assert!(!e.is_transient() && e.what.contains("tls_ca="), "{e:?}");
    let keeper = Keeper::connect(server.url()).await.expect("connected");
    keeper.lock("a").await.expect("free").release().await.expect("released");
    keeper.close().await;
}
