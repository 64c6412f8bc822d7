//! Raw names: what is refused, and what is left behind.

use crate::{TTL, keeper_at, told};
use lockkeeper::{Error, ErrorKind, Owner};
use servers::{Running, ZOOKEEPER, ZOOKEEPER_BRIEF};
use testkit::world::{eventually, soon, until_length};

testkit::tests! {
    [ZOOKEEPER_BRIEF] =>
        the_folders_above_a_raw_lock_go_when_it_is_not_used_any_more;
    [ZOOKEEPER] =>
        raw_names_and_modes_that_cannot_be_are_refused_with_the_rule,
        a_ticket_that_we_must_not_read_is_waited_for;
}

/// They are containers, as the line itself.
async fn the_folders_above_a_raw_lock_go_when_it_is_not_used_any_more(server: Running) {
    let keeper = keeper_at(&format!("{}?raw=true", server.url()), TTL).await;
    let nodes = || told(&server, "mntr", "zk_znode_count\t");
    let before = nodes();
    let guard = keeper.lock("/folder/in a folder/lock").await.expect("free");
    assert_eq!(nodes(), before + 4);
    guard.release().await.expect("released");
    eventually("the folders have gone", async || nodes() == before).await;
    let again = keeper.lock("/folder/in a folder/lock").await.expect("free again");
    again.release().await.expect("released");
}

async fn raw_names_and_modes_that_cannot_be_are_refused_with_the_rule(server: Running) {
    let raw = async |raw: &str| keeper_at(&format!("{}?raw={raw}", server.url()), TTL).await;
    let [plain, rw, kazoo] = [raw("true").await, raw("rw").await, raw("kazoo").await];
    let names = [
        ("a//b", "may be empty"),
        ("//a", "may be empty"),
        ("a/..", "`.` or `..`"),
        ("/zookeeper/quota", "ZooKeeper's own"),
        ("lockkeeper/lines/a", "lockkeeper's own"),
        ("\u{1f512}", "U+FFEF"),
    ];
    for (name, rule) in names {
        let e = plain.lock(name).try_now().await.expect_err("no path");
        let look = plain.get(name).await.expect_err("no path");
        for e in [e, look] {
            let Error::Store(e) = e else { panic!("{e}") };
            assert!(e.kind == ErrorKind::Name && e.to_string().contains(rule), "{e}");
        }
    }
    let refused = |e: Error, remedy: &str| {
        assert!(matches!(e, Error::Unsupported { .. }), "{e:?}");
        assert!(e.to_string().contains(remedy), "{e}");
    };
    for (keeper, remedy) in [(&plain, "use raw=rw"), (&kazoo, "would not see them")] {
        let e = keeper.rwlock("a").read().try_now().await.expect_err("not seen by others");
        refused(e, remedy);
        let writer = keeper.rwlock("a").write().try_now().await.expect("an answer");
        writer.expect("free").release().await.expect("released");
    }
    for keeper in [&plain, &rw, &kazoo] {
        let e = keeper.semaphore("a", 3).acquire(1).try_now().await.expect_err("not seen");
        refused(e, "without raw");
    }
}

/// In raw lines others' nodes may be closed to us. They keep us out all the same, and let us in.
async fn a_ticket_that_we_must_not_read_is_waited_for(server: Running) {
    let address = format!("127.0.0.1:{}", server.ports()[0]);
    let url = |who: &str| format!("zookeeper://{who}{address}?raw=true&prefix=of{}", who.len());
    let ours = keeper_at(&url(""), TTL).await;
    // Every client may use the node of the line.
    ours.lock("a").await.expect("free").release().await.expect("released");
    let theirs = keeper_at(&url("app:secret@"), TTL).await;
    let guard = theirs.lock("a").await.expect("free");
    let waiter = tokio::spawn(ours.lock("a").into_future());
    until_length(ours.store(), "a", 2).await;
    let line = ours.get("a").await.expect("a look").expect("a line");
    let [ticket, _] = &line.tickets[..] else { panic!("two, not {line:?}") };
    assert_eq!(ticket.owner, Some(Owner::default()));
    // From 3.9 on servers do not tell the number of a node that we must not read.
    assert!([0, guard.fence()].contains(&ticket.fence.expect("it is granted")));
    guard.release().await.expect("released");
    let next = soon("our turn", waiter).await.expect("no panic").expect("granted");
    next.release().await.expect("released");
}
