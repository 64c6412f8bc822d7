//! Who may come in.

use crate::{TTL, keeper, keeper_at};
use lockkeeper::Keeper;
use servers::{Running, ZOOKEEPER};

testkit::tests! {
    [ZOOKEEPER] =>
        others_without_the_password_get_nothing;
    [servers::ZOOKEEPER_TLS] =>
        with_tls_both_sides_must_be_known;
}

/// What is made with credentials is for clients that have them.
async fn others_without_the_password_get_nothing(server: Running) {
    let address = format!("127.0.0.1:{}", server.ports()[0]);
    let url = |who: &str| format!("zookeeper://{who}{address}/chroot/deep?prefix=p");
    let (one, two) =
        (keeper_at(&url("app:secret@"), TTL).await, keeper_at(&url("app:secret@"), TTL).await);
    let guard = one.lock("a").await.expect("free");
    assert!(two.lock("a").try_now().await.expect("an answer").is_none());
    assert_eq!(two.get("a").await.expect("a look").expect("a line").tickets.len(), 1);
    guard.write(b"value".to_vec()).await.expect("written");
    for stranger in ["", "app:wrong@"] {
        let e = Keeper::connect(&url(stranger)).await.expect_err("not theirs");
        let lockkeeper::Error::Store(e) = e else { panic!("{e}") };
        assert_eq!(e.kind, lockkeeper::ErrorKind::Denied, "{e}");
        assert!(!format!("{e:?}").contains("wrong"), "the password is shown");
    }
    guard.release().await.expect("released");
    assert!(two.lock("a").try_now().await.expect("an answer").is_some());
}

async fn with_tls_both_sides_must_be_known(server: Running) {
    let keeper = keeper(&server).await;
    keeper.lock("a").await.expect("free").release().await.expect("released");
    let file = |name: &str| format!("{}/{name}", server.folder().display());
    let own = format!("tls_cert={}&tls_key={}", file("client.pem"), file("client.key"));
    let address = format!("zookeeper://127.0.0.1:{}", server.ports()[1]);
    for stranger in [
        format!("{address}?tls_ca={}", file("ca.pem")),
        format!("{address}?tls_ca={}&{own}", file("stranger.pem")),
        // The machine's own authorities have not signed the server's.
        format!("{address}?tls=true&{own}"),
        address.clone(),
    ] {
        assert!(Keeper::connect(&stranger).await.is_err(), "{stranger}");
    }
}
