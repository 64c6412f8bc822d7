//! How long sessions live, and what becomes of a ticket whose creation was not answered.

use crate::{LONG, begun, keeper, keeper_at, says, through_a_proxy};
use lockkeeper::{Keeper, Loss, TicketId};
use servers::{FaultProxy, Running, ZOOKEEPER, ZOOKEEPER_BRIEF};
use std::{
    io::{Read as _, Write as _},
    net::{Ipv4Addr, TcpStream},
    time::{Duration, Instant},
};
use testkit::world::{eventually, soon, tickets, until_length};

testkit::tests! {
    [ZOOKEEPER_BRIEF] =>
        a_guard_tells_the_times_that_a_server_of_short_sessions_grants;
    [ZOOKEEPER] =>
        a_creation_whose_answer_is_lost_is_found_again,
        a_cancelled_creation_leaves_no_orphan,
        a_waiter_whose_session_died_enters_again_at_once,
        a_holder_that_is_cut_off_gives_up_before_the_next_grant;
}

/// TTL and lock-delay both give way, and together they are what the server keeps the session for.
async fn a_guard_tells_the_times_that_a_server_of_short_sessions_grants(server: Running) {
    let proxy = FaultProxy::to(server.ports()[0]).expect("a proxy");
    let url = format!("zookeeper://127.0.0.1:{}", proxy.port());
    let (there, other) = (Keeper::connect(&url).await.expect("an answer"), keeper(&server).await);
    let guard = there.lock("a").lock_delay(Duration::from_secs(30)).await.expect("free");
    let terms = guard.terms();
    assert_eq!((terms.ttl, terms.lock_delay), (Duration::from_secs(3), Duration::from_secs(3)));
    proxy.close();
    assert_eq!(soon("the loss", guard.lost()).await, Loss::Expired);
    let lost = Instant::now();
    let next = soon("the next one's turn", other.lock("a").into_future()).await.expect("granted");
    assert!(lost.elapsed() > Duration::from_secs(2), "the lock-delay was {:?}", lost.elapsed());
    next.release().await.expect("released");
    let fitting = other.lock("b").ttl(Duration::from_secs(4)).await.expect("free").terms();
    assert_eq!((fitting.ttl, fitting.lock_delay), (Duration::from_secs(4), Duration::ZERO));
}

async fn a_creation_whose_answer_is_lost_is_found_again(server: Running) {
    let (proxy, keeper, witness) = through_a_proxy(&server).await;
    proxy.hold_answers();
    let lock = begun(&keeper, &witness).await;
    proxy.sever();
    proxy.open();
    let guard = soon("the grant", lock).await.expect("no panic").expect("granted");
    let line = witness.get("a").await.expect("a look").expect("a line");
    let [ticket] = &line.tickets[..] else { panic!("one ticket, not {line:?}") };
    assert_eq!((ticket.id, ticket.fence), (guard.ticket(), Some(guard.fence())));
    guard.release().await.expect("released");
    assert_eq!(tickets(witness.store()).await, 0);
}

async fn a_cancelled_creation_leaves_no_orphan(server: Running) {
    let (proxy, keeper, witness) = through_a_proxy(&server).await;
    for severed in [false, true] {
        proxy.hold_answers();
        begun(&keeper, &witness).await.abort();
        if severed {
            proxy.sever();
        }
        proxy.open();
        eventually("no ticket is left", async || tickets(witness.store()).await == 0).await;
    }
    let _again = soon("the next lock", keeper.lock("a").into_future()).await.expect("free");
}

/// The ZooKeeper session to which a ticket's node belongs.
fn session_of(server: &Running, ticket: TicketId) -> i64 {
    let (text, mut session) = (says(server, "dump"), 0);
    for line in text.lines() {
        if let Some(number) = line.strip_prefix("0x").and_then(|line| line.strip_suffix(':')) {
            session = i64::from_str_radix(number, 16).expect("a number");
        } else if line.replace('-', "").contains(&ticket.to_string()) {
            return session;
        }
    }
    panic!("no session has {ticket}: {text}")
}

/// The password of a session follows from its number, by Java's generator of random numbers.
fn password(session: i64) -> Vec<u8> {
    let (factor, most) = (0x5_DEEC_E66D_u64, (1 << 48) - 1);
    let mut seed = (session.cast_unsigned() ^ 0xB341_5C00 ^ factor) & most;
    let word = |_| {
        seed = (seed.wrapping_mul(factor) + 0xB) & most;
        ((seed >> 16) as u32).to_le_bytes()
    };
    (0..4).flat_map(word).collect()
}

/// Ends a session behind its owner's back, as a server does that has not heard of it for too long.
fn end_session(server: &Running, session: i64) {
    let mut stream =
        TcpStream::connect((Ipv4Addr::LOCALHOST, server.ports()[0])).expect("a connection");
    let request = |parts: &[&[u8]]| {
        let body = parts.concat();
        let length = u32::try_from(body.len()).expect("short").to_be_bytes();
        [&length, &body[..]].concat()
    };
    // Version, what was seen last, the wanted time, the session and its password.
    let (seen, time) = (0_i64.to_be_bytes(), 60_000_i32.to_be_bytes());
    let (number, size) = (session.to_be_bytes(), 16_i32.to_be_bytes());
    let hello = request(&[&[0; 4], &seen, &time, &number, &size, &password(session)]);
    stream.write_all(&hello).expect("sent");
    let mut length = [0; 4];
    stream.read_exact(&mut length).expect("an answer");
    let mut welcome = vec![0; u32::from_be_bytes(length) as usize];
    stream.read_exact(&mut welcome).expect("an answer");
    assert_eq!(welcome[8..16], number, "the password is not taken");
    stream.write_all(&request(&[&1_i32.to_be_bytes(), &(-11_i32).to_be_bytes()])).expect("sent");
    // The server closes the connection when the session is over, sometimes before its answer has left.
    let _ = stream.read_to_end(&mut Vec::new());
}

/// Long before the next renewal could tell it.
async fn a_waiter_whose_session_died_enters_again_at_once(server: Running) {
    let (holder, waiter) = (keeper(&server).await, keeper_at(server.url(), LONG).await);
    let mine = waiter.lock("mine").await.expect("free");
    let held = holder.lock("a").await.expect("free");
    let waiting = tokio::spawn(waiter.lock("a").into_future());
    until_length(holder.store(), "a", 2).await;
    let ticket = async || {
        let line = holder.get("a").await.expect("a look").expect("a line");
        line.waiters().next().map(|ticket| ticket.id)
    };
    let before = ticket().await.expect("it waits");
    end_session(&server, session_of(&server, before));
    assert_eq!(soon("the loss", mine.lost()).await, Loss::SessionGone);
    eventually("it waits again", async || ticket().await.is_some_and(|now| now != before)).await;
    assert!(!waiting.is_finished());
    held.release().await.expect("released");
    let next = soon("its turn", waiting).await.expect("no panic").expect("granted");
    assert!(holder.check(&next.sequencer()).await.expect("an answer"));
}

/// The server lets a session live for longer than its owner believes in it.
async fn a_holder_that_is_cut_off_gives_up_before_the_next_grant(server: Running) {
    let proxy = FaultProxy::to(server.ports()[0]).expect("a proxy");
    let url = format!("zookeeper://127.0.0.1:{}", proxy.port());
    let there = keeper_at(&url, Duration::from_secs(2)).await;
    let held = there.lock("a").await.expect("free");
    let other = keeper(&server).await;
    let waiter = tokio::spawn(other.lock("a").into_future());
    until_length(other.store(), "a", 2).await;
    proxy.close();
    assert_eq!(soon("the loss", held.lost()).await, Loss::Expired);
    assert!(!waiter.is_finished(), "two believe at the same time");
    let next = soon("the next one's turn", waiter).await.expect("no panic").expect("granted");
    assert!(next.fence() > held.fence());
    proxy.open();
    drop(held);
    let behind = tokio::spawn(there.lock("a").into_future());
    until_length(other.store(), "a", 2).await;
    next.release().await.expect("released");
    let again = soon("it goes on with a new session", behind).await.expect("no panic");
    again.expect("granted").release().await.expect("released");
}
