//! Keys that another program has written.

use crate::support::{Witness, keeper};
use lockkeeper::{Error, ErrorKind, Keeper};
use servers::Running;
use testkit::world::eventually;

testkit::tests! {
    [servers::REDIS] =>
        a_key_that_holds_something_else_is_named_and_left_alone;
}

/// Another program uses our prefix for something else: said, with the key, and left as it is.
async fn a_key_that_holds_something_else_is_named_and_left_alone(server: Running) {
    let mut witness = Witness::of(&server).await;
    let about = |e: Error| match e {
        Error::Store(e) if e.kind == ErrorKind::Misconfigured => e.what,
        other => panic!("{other:?}"),
    };
    witness.command(&["RPUSH", "lk:{0}:meta", "x"]).await;
    let refused = Keeper::connect(server.url()).await.expect_err("no such store");
    let what = about(refused);
    assert!(what.contains("lk:{0}:meta") && what.contains("a list"), "{what}");
    witness.command(&["DEL", "lk:{0}:meta"]).await;

    let keeper = keeper(&server).await;
    for key in ["lk:{0}:z:a", "lk:{0}:t:a", "lk:{0}:n", "lk:{0}:c:a"] {
        witness.command(&["SET", key, "theirs"]).await;
        let refused = match keeper.lock("a").try_now().await {
            Ok(guard) if key.contains(":c:") => {
                guard.expect("free").write(b"a cell".to_vec()).await.expect_err("it is no cell")
            }
            other => other.expect_err(key),
        };
        let what = about(refused);
        assert!(what.contains(key) && what.contains("a string"), "{what}");
        assert!(what.contains("prefix="), "{what}");
        witness.command(&["RENAME", key, "kept"]).await;
        eventually("all is well again", async || match keeper.lock("a").try_now().await {
            Ok(Some(guard)) => guard.release().await.is_ok(),
            _ => false,
        })
        .await;
    }
    keeper.close().await;
}
