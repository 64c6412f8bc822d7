//! What happens rarely to locks on etcd: requests whose answers do not come, sessions that several
//! handles act for, servers that are full or want a new token.

use lockkeeper::{
    ErrorKind, Keeper, Mode, Name, Store as _, TicketId,
    store::{AnyStore, Claim, Edited, Entered, Left, Manner, Renewal, SessionId, TicketStatus},
};
use serde_json::{Value, json};
use servers::{FaultProxy, Running};
use std::{
    io::{Read as _, Write as _},
    net::{Ipv4Addr, TcpStream},
    time::Duration,
};
use testkit::{
    RawSession,
    trials::WithArgs,
    world::{eventually, length, line, soon, until_length},
};
use tokio::task::JoinSet;

testkit::tests! {
    [servers::ETCD] =>
        a_copy_sent_to_a_silent_endpoint_becomes_no_ghost,
        a_repeated_leave_does_not_end_the_next_ticket_in_the_same_slot,
        tickets_that_share_a_slot_stand_side_by_side,
        an_enter_whose_session_is_forgotten_meanwhile_is_answered,
        a_session_that_another_handle_renews_lives,
        the_public_half_of_a_session_is_no_right_to_act_for_it,
        a_record_that_proves_nothing_is_no_right_to_close_a_session,
        closing_a_session_twice_does_nothing_more,
        a_session_in_its_lock_delay_is_over_for_every_handle,
        a_cell_is_written_also_by_a_handle_that_has_not_seen_the_grant,
        a_next_one_that_cannot_be_told_holds_up_no_release,
        many_outlive_their_token_together;
    [SMALL] =>
        what_could_not_be_left_while_the_server_was_full_is_left_later;
}

/// A server that is full soon.
const SMALL: WithArgs = WithArgs(servers::ETCD, &["--quota-backend-bytes=1000000"]);

async fn store(url: &str) -> AnyStore {
    Keeper::connect(url).await.expect("the server answers").store().clone()
}

/// Asks the server something beside the library, by its gateway for JSON.
fn ask(server: &Running, path: &str, body: &Value) -> Value {
    let mut member =
        TcpStream::connect((Ipv4Addr::LOCALHOST, server.ports()[0])).expect("it is up");
    let body = body.to_string();
    let length = body.len();
    let head = format!("POST {path} HTTP/1.0\r\nContent-Length: {length}\r\n\r\n");
    member.write_all((head + &body).as_bytes()).expect("it listens");
    let mut text = String::new();
    member.read_to_string(&mut text).expect("it answers");
    let (_, answer) = text.split_once("\r\n\r\n").expect("an answer");
    serde_json::from_str(answer).expect("JSON")
}

/// How many seconds a lease has left.
fn time_left(server: &Running, lease: i64) -> i64 {
    let answer = ask(server, "/v3/lease/timetolive", &json!({ "ID": lease }));
    answer["TTL"].as_str().expect("a number").parse().expect("a number")
}

/// The id of a session's lease: written down here once more, because others may rely on it.
fn lease(session: SessionId) -> i64 {
    let half: [u8; 8] = session.to_bytes()[..8].try_into().expect("eight bytes");
    i64::try_from(u64::from_be_bytes(half) >> 1).expect("63 bits")
}

/// The first endpoint is silent, so the request goes to the second one, and is answered there. What was
/// sent to the first may be carried out at any later time, and then must have no effect.
async fn a_copy_sent_to_a_silent_endpoint_becomes_no_ghost(server: Running) {
    let proxies = [0, 1].map(|_| FaultProxy::to(server.ports()[0]).expect("a proxy"));
    let [silent, good] = &proxies;
    let url = format!("etcd://127.0.0.1:{},127.0.0.1:{}", silent.port(), good.port());
    let store = store(&url).await;
    let (one, ticket) = (RawSession::open(&store).await, TicketId::random());
    silent.close();
    let enter = async || one.enter("a", ticket, Mode::Exclusive, Manner::Queue).await;
    let granted = soon("an answer", enter()).await.expect("granted at the other one");
    assert!(matches!(granted, Entered::Granted { .. }), "{granted:?}");
    // The caller saw a good answer, so it does not speak of a copy.
    one.leave("a", ticket).await;
    let late = enter().await.expect_err("as if the copy came now");
    assert_eq!(late.kind, ErrorKind::TicketClosed);
    assert_eq!(length(&store, "a").await, 0);
}

/// A ticket whose id ends so, and which therefore has the same slot as all others that do.
fn in_one_slot() -> TicketId {
    let mut bytes = TicketId::random().to_bytes();
    bytes[15] = 5;
    TicketId::from_bytes(bytes)
}

/// A session uses its keys again, so what comes late must not meet the next one there.
async fn a_repeated_leave_does_not_end_the_next_ticket_in_the_same_slot(server: Running) {
    let (here, there) = (store(server.url()).await, store(server.url()).await);
    let raw = RawSession::open(&here).await;
    // This one does not hear of what the other does.
    let other = RawSession { store: there, ..raw.clone() };
    let [first, second] = [(); 2].map(|()| in_one_slot());
    let enter = async |raw: &RawSession, ticket| {
        raw.enter("a", ticket, Mode::Exclusive, Manner::Contend).await
    };
    let Ok(Entered::Granted { fence }) = enter(&raw, first).await else { panic!("free") };
    assert_eq!(enter(&other, first).await.expect("the same"), Entered::Granted { fence });
    assert_eq!(raw.leave("a", first).await, Left::Released);
    let Ok(Entered::Granted { fence: next }) = enter(&raw, second).await else { panic!("free") };
    assert!(next > fence);
    let name = Name::new("a").expect("a good name");
    let claim = |ticket, fence| Claim { name: name.clone(), ticket, mode: Mode::Exclusive, fence };
    assert!(raw.check(&claim(second, next)).await);
    assert!(!raw.check(&claim(first, fence)).await);
    assert_eq!(other.write(&claim(first, fence), 1, b"late").await, Edited::NotHeld);
    assert_eq!(raw.write(&claim(second, next), 1, b"in time").await, Edited::Done);
    for raw in [&other, &raw] {
        assert_eq!(raw.leave("a", first).await, Left::Gone);
    }
    assert!(raw.check(&claim(second, next)).await);
}

/// Two tickets of one session in one line, for which the same key is meant.
async fn tickets_that_share_a_slot_stand_side_by_side(server: Running) {
    let (here, there) = (store(server.url()).await, store(server.url()).await);
    let one = RawSession::open(&here).await;
    let two = RawSession { store: there, ..one.clone() };
    for mode in [Mode::Exclusive, Mode::Shared, Mode::Permits { weight: 2, of: 4 }] {
        let tickets = [(); 3].map(|()| in_one_slot());
        let mut granted = 0;
        for (ahead, ticket) in tickets.into_iter().enumerate() {
            // The answer is the same when it is asked for again, also by another handle.
            for raw in [&one, &one, &two] {
                match raw.enter("a", ticket, mode, Manner::Queue).await.expect("an answer") {
                    Entered::Granted { .. } => granted += 1,
                    Entered::Queued(wait) => assert_eq!(wait.ahead, ahead),
                    Entered::Busy(_) => panic!("it stands in line"),
                }
            }
            assert_eq!(length(&here, "a").await, ahead + 1);
        }
        let fit = if mode == Mode::Shared { 3 } else { mode.capacity() / mode.weight() };
        assert_eq!(granted, 3 * fit, "{mode}");
        for raw in [&one, &two] {
            let mut all: Vec<TicketId> = raw.all().await.iter().map(|(_, t, _)| *t).collect();
            let mut wanted = tickets.to_vec();
            all.sort();
            wanted.sort();
            assert_eq!(all, wanted);
        }
        for ticket in tickets {
            assert!(matches!(one.stand("a", ticket).await, TicketStatus::Granted { .. }), "{mode}");
            assert_eq!(one.leave("a", ticket).await, Left::Released);
        }
        assert_eq!(length(&here, "a").await, 0);
    }
}

/// A session can end beside an enter that is under way; the enter's answer comes all the same.
async fn an_enter_whose_session_is_forgotten_meanwhile_is_answered(server: Running) {
    let here = store(server.url()).await;
    RawSession::open(&here).await.take("a").await;
    for mode in [Mode::Exclusive, Mode::Shared] {
        let late = RawSession::open(&here).await;
        let enter = late.enter("a", TicketId::random(), mode, Manner::Queue);
        // The request is sent before the session is forgotten, and answered after that.
        let (entered, ()) = tokio::join!(enter, async { here.forget(late.session) });
        let entered = entered.expect("an answer");
        assert!(matches!(entered, Entered::Queued(_)), "{entered:?}");
    }
}

/// One handle renews a session, and another one acts for it now and then.
async fn a_session_that_another_handle_renews_lives(server: Running) {
    let (here, there) = (store(server.url()).await, store(server.url()).await);
    let one = RawSession::open_for(&here, Duration::from_secs(2), Duration::ZERO).await;
    let two = RawSession { store: there, ..one.clone() };
    two.take("a").await;
    // Longer than a TTL in which the second handle hears nothing.
    for _ in 0..5 {
        tokio::time::sleep(Duration::from_millis(600)).await;
        assert!(one.lives().await);
    }
    two.take("b").await;
    assert!(two.lives().await);
    one.close().await;
    assert!(!two.lives().await);
}

/// The public half of a session's id is in every key of its tickets; who knows it alone can do nothing.
async fn the_public_half_of_a_session_is_no_right_to_act_for_it(server: Running) {
    let (here, there) = (store(server.url()).await, store(server.url()).await);
    let owner = RawSession::open(&here).await;
    let held = owner.take("a").await;
    let mut bytes = owner.session.to_bytes();
    bytes[15] ^= 1;
    let session = SessionId::from_bytes(bytes);
    for store in [&here, &there] {
        let thief = RawSession { store: store.clone(), session, ..owner.clone() };
        let entered = thief.enter("b", TicketId::random(), Mode::Exclusive, Manner::Queue).await;
        assert_eq!(entered.expect_err("no right").kind, ErrorKind::SessionOver);
        assert_eq!(thief.leave("a", held.ticket).await, Left::Gone);
        assert_eq!(thief.renew().await, Renewal::Lost);
        assert_eq!(thief.annotate(&held, 1, b"mine").await, Edited::NotHeld);
        assert_eq!(thief.write(&held, 1, b"mine").await, Edited::NotHeld);
        assert_eq!(thief.stand("a", held.ticket).await, TicketStatus::Gone);
        assert_eq!(thief.all().await, []);
        let again =
            store.open(RawSession::ask(session, Duration::from_secs(60), Duration::ZERO)).await;
        again.expect_err("the id is taken");
        assert_eq!(thief.leave("a", held.ticket).await, Left::Gone);
        thief.close().await;
        assert!(owner.lives().await && owner.check(&held).await);
    }
    let all = ask(&server, "/v3/kv/range", &json!({ "key": "AA==", "range_end": "AA==" }));
    let shown = format!("{all}{:?}", line(&here, "a").await);
    let secret = &owner.session.to_bytes()[8..];
    let hex: String = secret.iter().map(|byte| format!("{byte:02x}")).collect();
    for kv in all["kvs"].as_array().expect("keys") {
        for part in ["key", "value"] {
            let bytes = decoded(kv[part].as_str().unwrap_or_default());
            assert!(!bytes.windows(8).any(|window| window == secret), "{kv}");
            assert!(!String::from_utf8_lossy(&bytes).contains(&hex), "{kv}");
        }
    }
    assert!(!shown.contains(&hex));
    // Who has all of it can act through any handle.
    let other = RawSession { store: there, ..owner.clone() };
    assert_eq!(other.annotate(&held, 1, b"ours").await, Edited::Done);
    assert_eq!(other.leave("a", held.ticket).await, Left::Released);
}

/// A record as an earlier version wrote it, and one that no version can read: neither says who has the
/// other half of the session's id.
async fn a_record_that_proves_nothing_is_no_right_to_close_a_session(server: Running) {
    let (here, there) = (store(server.url()).await, store(server.url()).await);
    for value in ["bGsxIDEyMDAwMCAwIDcgaGVyZSBoYW5kCg==", "anVuaw=="] {
        let owner = RawSession::open(&here).await;
        let held = owner.take("a").await;
        let record = format!("lockkeeper/s/{:016x}/0", lease(owner.session));
        let all = ask(&server, "/v3/kv/range", &json!({ "key": "AA==", "range_end": "AA==" }));
        let mut keys = all["kvs"].as_array().expect("keys").iter().map(|kv| &kv["key"]);
        let key = keys.find(|key| decoded(key.as_str().expect("text")) == record.as_bytes());
        let put = json!({ "key": key.expect("a record"), "value": value, "ignore_lease": true });
        ask(&server, "/v3/kv/put", &put);
        let mut bytes = owner.session.to_bytes();
        bytes[15] ^= 1;
        for store in [&here, &there] {
            let session = SessionId::from_bytes(bytes);
            RawSession { store: store.clone(), session, ..owner.clone() }.close().await;
            assert!(owner.check(&held).await, "closed with the public half alone");
        }
        owner.leave("a", held.ticket).await;
    }
}

/// The answer to the first close may be lost.
async fn closing_a_session_twice_does_nothing_more(server: Running) {
    let (here, there) = (store(server.url()).await, store(server.url()).await);
    let owner = RawSession::open(&here).await;
    owner.take("a").await;
    for store in [&here, &here, &there] {
        RawSession { store: store.clone(), ..owner.clone() }.close().await;
        assert_eq!(length(&here, "a").await, 0);
    }
}

fn decoded(base64: &str) -> Vec<u8> {
    const DIGITS: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let (mut bytes, mut bits, mut have) = (Vec::new(), 0_u32, 0);
    for digit in base64.bytes().filter(|digit| *digit != b'=') {
        let at = DIGITS.iter().position(|other| *other == digit).expect("base64");
        (bits, have) = (bits << 6 | at as u32, have + 6);
        if have >= 8 {
            have -= 8;
            bytes.push((bits >> have) as u8);
        }
    }
    bytes
}

/// Past its TTL a session lives only by its lock-delay: no handle brings it back.
async fn a_session_in_its_lock_delay_is_over_for_every_handle(server: Running) {
    let (here, there) = (store(server.url()).await, store(server.url()).await);
    let (ttl, delay) = (Duration::from_secs(2), Duration::from_secs(60));
    let one = RawSession::open_for(&here, ttl, delay).await;
    one.take("a").await;
    eventually("its TTL passes", async || {
        time_left(&server, lease(one.session)) < i64::try_from(delay.as_secs()).expect("small")
    })
    .await;
    let two = RawSession { store: there, ..one.clone() };
    assert!(!two.lives().await);
    let refused = two.enter("b", TicketId::random(), Mode::Exclusive, Manner::Queue).await;
    assert_eq!(refused.expect_err("over").kind, ErrorKind::SessionOver);
    assert_eq!(length(&here, "a").await, 1, "kept for the lock-delay");
}

/// In raw mode the number of a grant is the revision at which it was seen. A handle that has not seen it
/// asks before it writes.
async fn a_cell_is_written_also_by_a_handle_that_has_not_seen_the_grant(server: Running) {
    let url = format!("{}?raw=true", server.url());
    let (here, there) = (store(&url).await, store(&url).await);
    let (first, second, third) = (
        RawSession::open(&here).await,
        RawSession::open(&here).await,
        RawSession::open(&here).await,
    );
    let held = first.take("a").await;
    let (before, _) = second.queue("a").await;
    let (own, _) = third.queue("a").await;
    first.leave("a", held.ticket).await;
    let claim = |ticket, fence| Claim { ticket, fence, ..held.clone() };
    let TicketStatus::Granted { fence } = second.stand("a", before).await else {
        panic!("its turn")
    };
    assert_eq!(second.write(&claim(before, fence), 1, b"before").await, Edited::Done);
    second.leave("a", before).await;
    let elsewhere = RawSession { store: there, ..third.clone() };
    assert_eq!(elsewhere.write(&claim(own, 0), 1, b"after").await, Edited::Done);
    let cell = here.read(held.name.clone()).await.expect("an answer").expect("a cell");
    assert_eq!(String::from_utf8_lossy(&cell.bytes), "after");
}

/// A server that is full takes no mark of a closed ticket. When there is room again the ticket goes.
async fn what_could_not_be_left_while_the_server_was_full_is_left_later(server: Running) {
    // No renewal, which would find the ticket too, comes in the meantime.
    let keeper = Keeper::builder().ttl(Duration::from_secs(600)).connect(server.url()).await;
    let keeper = keeper.expect("it answers");
    // A hold that ends by itself is left with a mark: its owner may be at work on it.
    let guard = keeper.lock("a").max_hold(Duration::from_secs(3)).await.expect("free");
    let put = json!({ "key": "eA==", "value": "eHh4".repeat(25_000) });
    eventually("it is full", async || {
        let answer = ask(&server, "/v3/kv/put", &put);
        answer.to_string().contains("space exceeded")
    })
    .await;
    soon("the end of the hold", guard.lost()).await;
    let refused = keeper.lock("b").try_now().await.expect_err("it is full").to_string();
    assert!(refused.contains("space exceeded"), "{refused}");
    let revision = ask(&server, "/v3/kv/range", &json!({ "key": "eA==" }));
    let revision = revision["header"]["revision"].clone();
    ask(&server, "/v3/kv/compaction", &json!({ "revision": revision, "physical": true }));
    ask(&server, "/v3/maintenance/defragment", &json!({}));
    let alarms = ask(&server, "/v3/maintenance/alarm", &json!({ "action": "GET" }));
    let member = &alarms["alarms"][0]["memberID"];
    let disarm = json!({ "action": "DEACTIVATE", "alarm": "NOSPACE", "memberID": member });
    ask(&server, "/v3/maintenance/alarm", &disarm);
    let store = keeper.store();
    eventually("the ticket goes", async || line(store, "a").await.is_none()).await;
    keeper.close().await;
}

/// A release also tells the next one. Here the store refuses that, because the lease is gone to which
/// the next one's keys belonged: the lock is released all the same.
async fn a_next_one_that_cannot_be_told_holds_up_no_release(server: Running) {
    let mut keepers = Vec::new();
    for _ in 0..3 {
        keepers.push(Keeper::connect(server.url()).await.expect("it answers"));
    }
    let first = keepers[0].lock("a").await.expect("free");
    let store = keepers[0].store();
    let second = tokio::spawn(keepers[1].lock("a").into_future());
    until_length(store, "a", 2).await;
    let third = tokio::spawn(keepers[2].lock("a").into_future());
    until_length(store, "a", 3).await;
    first.release().await.expect("released");
    let second = soon("the grant", second).await.expect("no panic").expect("granted");
    let newest_first =
        json!({ "key": "AA==", "range_end": "AA==", "sort_order": 2, "sort_target": 2 });
    let all = ask(&server, "/v3/kv/range", &newest_first);
    let all = all["kvs"].as_array().expect("keys");
    let lease = &all[0]["lease"];
    for kv in all.iter().filter(|kv| kv["lease"] == *lease) {
        ask(&server, "/v3/kv/put", &json!({ "key": kv["key"], "ignore_value": true }));
    }
    ask(&server, "/v3/lease/revoke", &json!({ "ID": lease }));
    until_length(store, "a", 2).await;
    second.release().await.expect("released");
    until_length(store, "a", 1).await;
    third.abort();
}

/// A restart makes the server forget all tokens. A request that comes then gets a new one, or waits until
/// another request has got it.
async fn many_outlive_their_token_together(mut server: Running) {
    const TASKS: usize = 32;
    for (path, body) in [
        ("user/add", json!({ "name": "root", "password": "top" })),
        ("role/add", json!({ "name": "root" })),
        ("user/grant", json!({ "user": "root", "role": "root" })),
        ("enable", json!({})),
    ] {
        ask(&server, &format!("/v3/auth/{path}"), &body);
    }
    let url = server.url().replace("//", "//root:top@");
    let keeper = Keeper::builder().ttl(Duration::from_secs(30)).connect(&url).await;
    let keeper = keeper.expect("it answers");
    let waiter = Keeper::connect(&url).await.expect("it answers");
    let held = keeper.lock("held").await.expect("free");
    let next = tokio::spawn(waiter.lock("held").into_future());
    until_length(keeper.store(), "held", 2).await;
    server.kill().expect("killed");
    server.restart().expect("restarted");
    let mut tasks = JoinSet::new();
    for task in 0..TASKS {
        let keeper = keeper.clone();
        tasks.spawn(async move { keeper.lock(format!("name {task}")).await?.release().await });
    }
    for done in soon("all of them", tasks.join_all()).await {
        done.expect("none is refused");
    }
    let count = logins(&server);
    assert!(count <= 6, "{TASKS} tasks have logged in {count} times");
    held.release().await.expect("released");
    drop(soon("the waiter's turn", next).await.expect("no panic").expect("granted"));
}

fn logins(server: &Running) -> u64 {
    let mut member =
        TcpStream::connect((Ipv4Addr::LOCALHOST, server.ports()[0])).expect("it is up");
    member.write_all(b"GET /metrics HTTP/1.0\r\n\r\n").expect("it listens");
    let mut text = String::new();
    member.read_to_string(&mut text).expect("it answers");
    let wanted = |line: &&str| {
        line.starts_with("grpc_server_started_total{") && line.contains("\"Authenticate\"")
    };
    let line = text.lines().find(wanted).expect("it counts");
    line.rsplit(' ').next().expect("a number").parse().expect("a number")
}
