//! What is shown of lines in which other clients stand too, and which names there are in raw mode.

use crate::{
    ask,
    clients::{Etcdctl, raw},
    cost::counted,
    until_length,
};
use lockkeeper::{Error, ErrorKind, Keeper, Store as _, Ticket, TicketId, store::ListScope};
use serde_json::{Value, json};
use servers::Running;
use testkit::{trials::WithArgs, world::soon};

testkit::tests! {
    [servers::ETCD] =>
        a_name_that_covers_our_own_keys_is_refused,
        a_listing_says_which_locks_of_other_clients_it_does_not_show,
        a_listing_shows_the_fence_that_the_holder_has;
    [ROOMY] =>
        a_listing_reads_no_more_of_a_cluster_than_it_says;
}

/// A server that takes great transactions, to be filled quickly.
const ROOMY: WithArgs = WithArgs(servers::ETCD, &["--max-txn-ops=10000"]);

/// Our own keys begin with the prefix and a slash; a line that would hold them is never free.
async fn a_name_that_covers_our_own_keys_is_refused(server: Running) {
    for (options, refused, allowed) in [
        ("raw=true", ["lockkeeper", "lockkeeper/s", "lockkeeper/l/a"], ["lockkeepers", "a/b"]),
        ("raw=true&prefix=a/b", ["a", "a/b", "a/b/c"], ["ab", "a/bc"]),
    ] {
        let url = format!("{}?{options}", server.url());
        let keeper = Keeper::connect(&url).await.expect("it answers");
        for name in refused {
            let e = soon("an answer", keeper.lock(name).try_now()).await;
            let Err(Error::Store(e)) = e else { panic!("{name} of {options}: {e:?}") };
            assert_eq!(e.kind, ErrorKind::Name, "{e}");
            assert!(e.what.contains("raw=true") && e.what.contains("prefix="), "{e}");
            // Nor can our own keys be evicted by such a name.
            assert!(keeper.evict(name, TicketId::random()).await.is_err());
            assert!(keeper.get(name).await.is_err());
        }
        for name in allowed {
            let guard = keeper.lock(name).try_now().await.expect("an answer").expect("free");
            guard.release().await.expect("released");
        }
        keeper.close().await;
    }
    let keeper = crate::keeper(&server).await;
    let held = keeper.lock("lockkeeper").try_now().await.expect("an answer");
    assert!(held.is_some());
    keeper.close().await;
}

/// Only a key that ends with the id of its lease is known for a lock among all keys of a cluster.
async fn a_listing_says_which_locks_of_other_clients_it_does_not_show(server: Running) {
    let keeper = raw(&server).await;
    let put = json!({ "key": "b2RkL21pbmU=", "value": "eHh4" });
    ask(&server, "/v3/kv/put", &put);
    assert!(keeper.lock("odd").try_now().await.expect("an answer").is_none(), "it excludes us");
    let line = keeper.get("odd").await.expect("a look").expect("a line");
    assert_eq!(line.holders().count(), 1, "shown by its name");
    assert_eq!(keeper.list("").await.expect("a look"), []);
    let hidden = keeper.store().blind_spots().expect("something is not shown");
    assert!(hidden.contains("other clients") && hidden.contains("lease's id"), "{hidden}");
    let fair = crate::keeper(&server).await;
    assert_eq!(fair.store().blind_spots(), None, "all keys there are ours");
    for keeper in [keeper, fair] {
        keeper.close().await;
    }
}

async fn holder(observer: &Keeper, name: &str) -> Ticket {
    let line = observer.get(name).await.expect("a look").expect("a line");
    line.holders().next().expect("a holder").clone()
}

/// Whether a lock was free or passed on, a listing shows the number that its holder has. The number of
/// another client's grant is written nowhere.
async fn a_listing_shows_the_fence_that_the_holder_has(server: Running) {
    let (one, two, observer) = (raw(&server).await, raw(&server).await, raw(&server).await);
    let first = one.lock("jobs/a").await.expect("free");
    assert_eq!(holder(&observer, "jobs/a").await.fence, Some(first.fence()));
    let second = tokio::spawn(two.lock("jobs/a").into_future());
    until_length(&observer, "jobs/a", 2).await;
    let mut theirs = Etcdctl::lock(&server, "jobs/a");
    until_length(&observer, "jobs/a", 3).await;
    first.release().await.expect("released");
    let second = soon("our turn", second).await.expect("no panic").expect("granted");
    assert_eq!(holder(&observer, "jobs/a").await.fence, Some(second.fence()));
    assert!(observer.check(&second.sequencer()).await.expect("an answer"));
    let fence = second.fence();
    second.release().await.expect("released");
    assert!(theirs.granted().await > fence);
    let foreign = holder(&observer, "jobs/a").await;
    assert!(foreign.owner.as_ref().is_some_and(|owner| owner.is_unknown()));
    assert_eq!((foreign.fence, foreign.granted_ago), (Some(0), None));
    theirs.release().await;
    let left = ask(&server, "/v3/kv/range", &everything());
    let keys = left["kvs"].as_array().expect("keys").iter();
    let keys: Vec<String> = keys.map(|kv| text(&kv["key"])).collect();
    let of_the_lock: Vec<&String> = keys.iter().filter(|key| key.contains("jobs")).collect();
    assert!(of_the_lock.is_empty(), "left behind: {of_the_lock:?}");
    for keeper in [one, two, observer] {
        keeper.close().await;
    }
}

fn everything() -> Value {
    json!({ "key": "AA==", "range_end": "AA==" })
}

/// What stands in base64, as far as it is text.
fn text(value: &Value) -> String {
    const DIGITS: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let (mut bytes, mut bits, mut have) = (Vec::new(), 0_u32, 0);
    for digit in value.as_str().expect("text").bytes().filter(|digit| *digit != b'=') {
        let at = DIGITS.iter().position(|other| *other == digit).expect("base64");
        (bits, have) = (bits << 6 | at as u32, have + 6);
        if have >= 8 {
            have -= 8;
            bytes.push((bits >> have) as u8);
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Twenty-four bits in base64, all of them digits and letters, so that keys differ and stay in order.
fn key(number: usize) -> String {
    const DIGITS: &[u8] = b"abcdefghijklmnopqrstuvwxyz";
    let mut number = number;
    let mut digits = [b'a'; 8];
    for digit in digits.iter_mut().skip(1).rev() {
        *digit = DIGITS[number % DIGITS.len()];
        number /= DIGITS.len();
    }
    String::from_utf8(digits.to_vec()).expect("letters")
}

fn put(server: &Running, keys: std::ops::Range<usize>) {
    for at in keys.clone().step_by(5_000) {
        let puts: Vec<Value> = (at..keys.end.min(at + 5_000))
            .map(|at| json!({ "request_put": { "key": key(at), "value": "eHh4" } }))
            .collect();
        let answer = ask(server, "/v3/kv/txn", &json!({ "success": puts }));
        assert_eq!(answer["succeeded"], true, "{answer}");
    }
}

/// A cluster may hold a great many keys that have nothing to do with locks.
async fn a_listing_reads_no_more_of_a_cluster_than_it_says(server: Running) {
    let keeper = raw(&server).await;
    let _held = keeper.lock("zz/held").await.expect("free");
    let everything = || ListScope::Prefix { prefix: String::new(), after: None };
    put(&server, 0..20_000);
    let before = counted(&server)["Range"];
    let lines = keeper.store().list(everything()).await.expect("a listing");
    assert_eq!(lines.iter().map(|line| line.name.as_str()).collect::<Vec<_>>(), ["zz/held"]);
    let ranges = counted(&server)["Range"] - before;
    assert!(ranges <= 8, "{ranges} ranges for 20,000 keys");
    put(&server, 20_000..110_000);
    let before = counted(&server)["Range"];
    let e = keeper.store().list(everything()).await.expect_err("too many keys");
    assert!(e.what.contains("longer prefix"), "{e}");
    let ranges = counted(&server)["Range"] - before;
    assert!(ranges <= 30, "{ranges} ranges for 110,000 keys");
    // With a prefix of its own the lock is found.
    let lines = Keeper::list(&keeper, "zz").await.expect("a listing");
    assert_eq!(lines.len(), 1);
}
