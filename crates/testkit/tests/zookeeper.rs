//! What only a real ZooKeeper server can show: how many packets a lock costs, and what becomes of a
//! ticket whose creation was not answered.

use lockkeeper::{Guard, Keeper, Loss, TicketId};
use servers::{Running, Way, ZOOKEEPER};
use std::{
    collections::VecDeque,
    io::{Read as _, Write as _},
    net::{Ipv4Addr, TcpStream},
    path::Path,
    time::Duration,
};
use testkit::{
    live::start,
    taker::{crowd, granted_in},
    world::{eventually, length, soon, tickets, until_length},
};
use tokio::task::JoinHandle;

const TTL: Duration = Duration::from_secs(20);
/// With this one no renewal falls into a test.
const LONG: Duration = Duration::from_secs(600);

async fn keeper_at(url: &str, ttl: Duration) -> Keeper {
    Keeper::builder().ttl(ttl).connect(url).await.expect("the server answers")
}

async fn keeper(server: &Running) -> Keeper {
    keeper_at(server.url(), TTL).await
}

/// What the server says of itself, beside its protocol.
fn says(server: &Running, word: &str) -> String {
    let mut stream =
        TcpStream::connect((Ipv4Addr::LOCALHOST, server.ports()[0])).expect("a connection");
    stream.write_all(word.as_bytes()).expect("sent");
    let mut text = String::new();
    stream.read_to_string(&mut text).expect("an answer");
    text
}

fn told(server: &Running, word: &str, field: &str) -> u64 {
    let text = says(server, word);
    let value = text.lines().find_map(|line| line.strip_prefix(field));
    value.expect("a field").trim().parse().expect("a number")
}

/// Packets that the server has received so far, from all clients.
fn packets(server: &Running) -> u64 {
    told(server, "srvr", "Received: ")
}

/// How many watches there are now.
fn watches(server: &Running) -> u64 {
    told(server, "mntr", "zk_watch_count\t")
}

/// How often somebody was told so far that a node has gone, or that a line has changed.
fn wake_ups(server: &Running) -> u64 {
    let [gone, changed] = ["deleted", "children"]
        .map(|what| told(server, "mntr", &format!("zk_sum_node_{what}_watch_count\t")));
    gone + changed
}

/// What the counting itself costs, at the quietest of several times.
fn overhead(server: &Running) -> u64 {
    let once = |_| {
        let before = packets(server);
        packets(server) - before
    };
    (0..10).map(once).min().expect("several times")
}

/// Packets received while `work` was done. Renewals may fall into it, so the quietest of several times
/// counts.
async fn cost(server: &Running, mut work: impl AsyncFnMut()) -> u64 {
    let (over, mut least) = (overhead(server), u64::MAX);
    for _ in 0..10 {
        let before = packets(server);
        work().await;
        least = least.min(packets(server) - before - over);
    }
    least
}

/// The first time, the creation and the list that follows it are sent together. After that the number
/// in the node's name says that nobody else has come.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_uncontended_lock_is_one_packet_and_its_release_another() {
    let Some(server) = start(ZOOKEEPER) else { return };
    let keeper = keeper(&server).await;
    let pair = async |name: &str| {
        keeper.lock(name).await.expect("free").release().await.expect("released");
    };
    pair("a").await;
    assert_eq!(cost(&server, async || pair("a").await).await, 2);
    keeper.close().await;
}

/// A list in a second round trip would cost more than one that is sent along.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_that_others_use_too_is_two_packets_at_once() {
    let Some(server) = start(ZOOKEEPER) else { return };
    let (one, two) = (keeper(&server).await, keeper(&server).await);
    let both = async || {
        for keeper in [&one, &two] {
            keeper.lock("a").await.expect("free").release().await.expect("released");
        }
    };
    both().await;
    assert_eq!(cost(&server, both).await, 6);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_try_on_a_taken_lock_only_reads() {
    let Some(server) = start(ZOOKEEPER) else { return };
    let (one, two) = (keeper(&server).await, keeper(&server).await);
    let held = one.lock("a").await.expect("free");
    let busy = async || assert!(two.lock("a").try_now().await.expect("an answer").is_none());
    busy().await;
    assert_eq!(cost(&server, busy).await, 2, "sync and list, sent together");
    assert_eq!(length(one.store(), "a").await, 1);
    held.release().await.expect("released");
}

/// However many wait, one of them is woken and reads the line once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hand_over_wakes_one_waiter_which_reads_once() {
    let Some(server) = start(ZOOKEEPER) else { return };
    for waiters in [8, 80] {
        let holder = keeper(&server).await;
        let name = format!("with {waiters}");
        let mut held = holder.lock(&name).await.expect("free");
        let mut line = Vec::new();
        for at in 0..waiters {
            let waiter = keeper_at(server.url(), LONG).await;
            line.push((tokio::spawn(waiter.lock(&name).into_future()), waiter));
            until_length(holder.store(), &name, at + 2).await;
        }
        // Until hints are in place the core polls; then only the safety polls of once a second are
        // left, and between two of them there is room for a hand-over.
        let (over, mut least) = (overhead(&server), u64::MAX);
        for (next, _keeper) in line.iter_mut().take(8) {
            let before = packets(&server);
            held.release().await.expect("released");
            held = soon("the grant", next).await.expect("no panic").expect("granted");
            least = least.min(packets(&server) - before - over);
        }
        assert_eq!(least, 2, "the deletion and one read, with {waiters} waiters");
        drop(line);
        holder.close().await;
    }
}

/// A number that people can make greater than a run of all tests allows.
fn number(variable: &str, usual: usize) -> usize {
    std::env::var(variable).map_or(usual, |n| n.parse().expect("a number"))
}

/// In how many processes a crowd waits.
const PROCESSES: usize = 8;

/// Polls cannot be told from what a wake-up causes, but the server counts whom it tells.
/// `LOCKKEEPER_WAITERS=800` makes the crowd as great as one likes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_wakes_one_of_all_who_wait_in_many_processes() {
    let Some(server) = start(ZOOKEEPER) else { return };
    let (each, holder) = (number("LOCKKEEPER_WAITERS", 64) / PROCESSES, keeper(&server).await);
    let mut held = Some(holder.lock("a").await.expect("free"));
    let program = Path::new(env!("CARGO_BIN_EXE_taker"));
    let mut crowd = crowd(program, server.url(), "a", PROCESSES, each).await;
    let waiters = PROCESSES * each;
    for some in 1..=10 {
        let many = waiters * some / 10;
        let stand = async || length(holder.store(), "a").await > many;
        eventually("they stand in line", stand).await;
    }
    // Each of them watches the one before it, and itself.
    let all = 2 * u64::try_from(waiters).expect("not so many");
    eventually("they watch", async || watches(&server) == all).await;
    let (mut before, mut at) = (wake_ups(&server), 0);
    for turn in 0..5 {
        match held.take() {
            Some(guard) => guard.release().await.expect("released"),
            None => crowd[at].tell("release").await,
        }
        at = soon("the next grant", granted_in(&mut crowd)).await;
        // Whoever had to wait for the lock has watched its own node, too.
        let own = u64::from(turn > 0);
        assert_eq!(wake_ups(&server) - before, 1 + own, "turn {turn}, {waiters} waiters");
        before = wake_ups(&server);
    }
}

/// However many wait; and whoever comes wakes nobody.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_released_permit_wakes_no_more_than_there_are_permits() {
    const PERMITS: u32 = 2;
    const WAITERS: usize = 12;
    let Some(server) = start(ZOOKEEPER) else { return };
    let holder = keeper(&server).await;
    let take =
        async |keeper: &Keeper| keeper.semaphore("a", PERMITS).acquire(1).await.expect("granted");
    let mut held = VecDeque::from([take(&holder).await, take(&holder).await]);
    let (mut line, before) = (Vec::new(), wake_ups(&server));
    for at in 0..WAITERS {
        let waiter = keeper_at(server.url(), LONG).await;
        line.push(tokio::spawn(async move { (take(&waiter).await, waiter) }));
        until_length(holder.store(), "a", 2 + at + 1).await;
    }
    // Each of them watches two before it, and itself.
    eventually("they watch", async || watches(&server) == 3 * WAITERS as u64).await;
    assert_eq!(wake_ups(&server), before);
    let mut keepers = Vec::new();
    for (turn, next) in line.into_iter().enumerate() {
        let before = wake_ups(&server);
        held.pop_front().expect("two hold").release().await.expect("released");
        let (guard, keeper) = soon("its turn", next).await.expect("no panic");
        held.push_back(guard);
        keepers.push(keeper);
        let woken = wake_ups(&server) - before;
        // Whoever had to wait has watched its own node, too.
        assert!(woken <= u64::from(PERMITS) + 1, "{woken} in turn {turn}");
    }
}

/// Watches on all of them would be more than the line is worth.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_is_kept_out_by_very_many_watches_the_line() {
    let Some(server) = start(ZOOKEEPER) else { return };
    let (holder, waiter) = (keeper(&server).await, keeper_at(server.url(), LONG).await);
    let mut held = Vec::new();
    for _ in 0..40 {
        held.push(holder.semaphore("a", 40).acquire(1).await.expect("free"));
    }
    let next = tokio::spawn(waiter.semaphore("a", 40).acquire(1).into_future());
    eventually("the line and itself are watched", async || watches(&server) == 2).await;
    held.swap_remove(20).release().await.expect("released");
    drop(soon("its turn", next).await.expect("no panic").expect("granted"));
}

/// `LOCKKEEPER_LOCKS=10000` makes it as many as one likes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn thousands_of_locks_are_a_renewal_of_two_packets_for_a_few_sessions() {
    let Some(server) = start(ZOOKEEPER) else { return };
    let (keeper, locks) = (keeper(&server).await, number("LOCKKEEPER_LOCKS", 1_000));
    let mut guards = Vec::new();
    for i in 0..locks {
        guards.push(keeper.lock(format!("name {i}")).await.expect("free"));
    }
    let renew = async || {
        guards[0].extend(Duration::from_secs(1)).await.expect("renewed");
    };
    renew().await;
    let cost = cost(&server, renew).await;
    let most = 2 * locks.div_ceil(1_000);
    assert!(cost <= u64::try_from(most).expect("few"), "{cost} packets for {locks} locks");
    assert!(guards.iter().all(Guard::is_held));
    keeper.close().await;
}

/// What ends with a ZooKeeper session is one write, and what is longer than a megabyte no server can
/// read back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn long_names_are_spread_over_several_sessions() {
    let Some(server) = start(ZOOKEEPER) else { return };
    let (keeper, witness) = (keeper(&server).await, keeper_at(server.url(), TTL).await);
    let sessions = || told(&server, "mntr", "zk_num_alive_connections\t");
    keeper.lock("first").await.expect("free").release().await.expect("released");
    let before = sessions();
    let name = |i: usize| format!("{i:03}{}", "/".repeat(509));
    let mut guards = Vec::new();
    for i in 0..500 {
        guards.push(keeper.lock(name(i)).await.expect("free"));
    }
    assert_eq!(sessions() - before, 2, "of 238 such names each");
    let renew = async || {
        guards[0].extend(Duration::from_secs(1)).await.expect("renewed");
    };
    renew().await;
    assert_eq!(cost(&server, renew).await, 6);
    // Somebody waits in each of them, and is woken.
    for at in [499, 250, 0] {
        let next = tokio::spawn(witness.lock(name(at)).into_future());
        until_length(witness.store(), &name(at), 2).await;
        guards.remove(at).release().await.expect("released");
        let next = soon("its turn", next).await.expect("no panic").expect("granted");
        let again = tokio::spawn(keeper.lock(name(at)).into_future());
        until_length(witness.store(), &name(at), 2).await;
        next.release().await.expect("released");
        guards.push(soon("the last turn", again).await.expect("no panic").expect("granted"));
    }
    assert!(guards.iter().all(Guard::is_held));
    keeper.close().await;
    assert_eq!(tickets(witness.store()).await, 0);
}

/// Its numbers begin anew, so what it says could be taken for older than it is. A lock is as little to
/// be had there as anything else, until the program is started again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_has_lost_its_data_is_not_talked_to() {
    let Some(mut server) = start(ZOOKEEPER) else { return };
    let keeper = keeper_at(server.url(), Duration::from_secs(2)).await;
    let held = keeper.lock("a").await.expect("free");
    tokio::task::block_in_place(|| {
        server.kill().expect("killed");
        std::fs::remove_dir_all(server.folder().join("zookeeper/data/version-2")).expect("removed");
        server.restart().expect("restarted");
    });
    soon("the loss", held.lost()).await;
    let behind = |e: lockkeeper::Error| {
        assert!(format!("{e:?}").contains("behind what was seen"), "{e:?}");
    };
    behind(keeper.lock("a").wait(Duration::from_secs(1)).await.expect_err("no lock"));
    behind(keeper.check(&held.sequencer()).await.expect_err("no answer"));
    let again = keeper_at(server.url(), TTL).await;
    again.lock("a").await.expect("free").release().await.expect("released");
}

/// What is made with credentials is for those who have them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn others_without_the_password_get_nothing() {
    let Some(server) = start(ZOOKEEPER) else { return };
    let address = format!("127.0.0.1:{}", server.ports()[0]);
    let url = |who: &str| format!("zookeeper://{who}{address}/chroot/deep?prefix=p");
    let (one, two) =
        (keeper_at(&url("app:secret@"), TTL).await, keeper_at(&url("app:secret@"), TTL).await);
    let guard = one.lock("a").await.expect("free");
    assert!(two.lock("a").try_now().await.expect("an answer").is_none());
    assert_eq!(two.look_at("a").await.expect("a look").expect("a line").tickets.len(), 1);
    guard.write(b"value".to_vec()).await.expect("written");
    for stranger in ["", "app:wrong@"] {
        let e = Keeper::connect(&url(stranger)).await.expect_err("not theirs");
        let lockkeeper::Error::Store(e) = e else { panic!("{e}") };
        assert_eq!(e.trouble, lockkeeper::Trouble::Denied, "{e}");
        assert!(!format!("{e:?}").contains("wrong"), "the password is shown");
    }
    guard.release().await.expect("released");
    assert!(two.lock("a").try_now().await.expect("an answer").is_some());
}

/// In raw lines others' nodes may be closed to us. They keep us out all the same, and let us in.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_ticket_that_we_must_not_read_is_waited_for() {
    let Some(server) = start(ZOOKEEPER) else { return };
    let address = format!("127.0.0.1:{}", server.ports()[0]);
    let url = |who: &str| format!("zookeeper://{who}{address}?raw=true&prefix=of{}", who.len());
    let ours = keeper_at(&url(""), TTL).await;
    // The node of the line is everybody's.
    ours.lock("a").await.expect("free").release().await.expect("released");
    let theirs = keeper_at(&url("app:secret@"), TTL).await;
    let guard = theirs.lock("a").await.expect("free");
    let waiter = tokio::spawn(ours.lock("a").into_future());
    until_length(ours.store(), "a", 2).await;
    let line = ours.look_at("a").await.expect("a look").expect("a line");
    assert_eq!((line.tickets[0].fence, &line.tickets[0].owner), (Some(guard.fence()), &None));
    guard.release().await.expect("released");
    let next = soon("our turn", waiter).await.expect("no panic").expect("granted");
    next.release().await.expect("released");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_tls_both_sides_must_be_known() {
    let Some(server) = start(servers::ZOOKEEPER_TLS) else { return };
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

/// A keeper that reaches the server by a way of its own, and one that sees all.
async fn by_a_way(server: &Running) -> (Way, Keeper, Keeper) {
    let way = Way::to(server.ports()[0]).expect("a way");
    let url = format!("zookeeper://127.0.0.1:{}", way.port());
    let (there, witness) = (keeper_at(&url, LONG).await, keeper(server).await);
    // The session is open, and the node of the line is made.
    there.lock("a").await.expect("free").release().await.expect("released");
    (way, there, witness)
}

async fn begun(keeper: &Keeper, witness: &Keeper) -> JoinHandle<lockkeeper::Result<Guard>> {
    let lock = tokio::spawn(keeper.lock("a").into_future());
    until_length(witness.store(), "a", 1).await;
    lock
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_creation_whose_answer_is_lost_is_found_again() {
    let Some(server) = start(ZOOKEEPER) else { return };
    let (way, keeper, witness) = by_a_way(&server).await;
    way.hold_answers();
    let lock = begun(&keeper, &witness).await;
    way.sever();
    way.open();
    let guard = soon("the grant", lock).await.expect("no panic").expect("granted");
    let line = witness.look_at("a").await.expect("a look").expect("a line");
    let [ticket] = &line.tickets[..] else { panic!("one ticket, not {line:?}") };
    assert_eq!((ticket.id, ticket.fence), (guard.ticket(), Some(guard.fence())));
    guard.release().await.expect("released");
    assert_eq!(tickets(witness.store()).await, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_creation_that_nobody_wants_any_more_leaves_no_orphan() {
    let Some(server) = start(ZOOKEEPER) else { return };
    let (way, keeper, witness) = by_a_way(&server).await;
    for severed in [false, true] {
        way.hold_answers();
        begun(&keeper, &witness).await.abort();
        if severed {
            way.sever();
        }
        way.open();
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
    panic!("nobody has {ticket}: {text}")
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
    let mut exchange = |parts: &[&[u8]]| {
        let body = parts.concat();
        let length = u32::try_from(body.len()).expect("short").to_be_bytes();
        stream.write_all(&[&length, &body[..]].concat()).expect("sent");
        let mut length = [0; 4];
        stream.read_exact(&mut length).expect("an answer");
        let mut answer = vec![0; u32::from_be_bytes(length) as usize];
        stream.read_exact(&mut answer).expect("an answer");
        answer
    };
    // Version, what was seen last, the wanted time, the session and its password.
    let (seen, time) = (0_i64.to_be_bytes(), 60_000_i32.to_be_bytes());
    let (number, size) = (session.to_be_bytes(), 16_i32.to_be_bytes());
    let welcome = exchange(&[&[0; 4], &seen, &time, &number, &size, &password(session)]);
    assert_eq!(welcome[8..16], number, "the password is not taken");
    exchange(&[&1_i32.to_be_bytes(), &(-11_i32).to_be_bytes()]);
}

/// Long before the next renewal could tell it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_whose_session_died_enters_again_at_once() {
    let Some(server) = start(ZOOKEEPER) else { return };
    let (holder, waiter) = (keeper(&server).await, keeper_at(server.url(), LONG).await);
    let mine = waiter.lock("mine").await.expect("free");
    let held = holder.lock("a").await.expect("free");
    let waiting = tokio::spawn(waiter.lock("a").into_future());
    until_length(holder.store(), "a", 2).await;
    let ticket = async || {
        let line = holder.look_at("a").await.expect("a look").expect("a line");
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
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_is_cut_off_gives_up_before_the_next_one_is_served() {
    let Some(server) = start(ZOOKEEPER) else { return };
    let way = Way::to(server.ports()[0]).expect("a way");
    let url = format!("zookeeper://127.0.0.1:{}", way.port());
    let there = keeper_at(&url, Duration::from_secs(2)).await;
    let held = there.lock("a").await.expect("free");
    let other = keeper(&server).await;
    let waiter = tokio::spawn(other.lock("a").into_future());
    until_length(other.store(), "a", 2).await;
    way.close();
    assert_eq!(soon("the loss", held.lost()).await, Loss::Expired);
    assert!(!waiter.is_finished(), "two believe at the same time");
    let next = soon("the next one's turn", waiter).await.expect("no panic").expect("granted");
    assert!(next.fence() > held.fence());
    way.open();
    drop(held);
    let behind = tokio::spawn(there.lock("a").into_future());
    until_length(other.store(), "a", 2).await;
    next.release().await.expect("released");
    let again = soon("it goes on with a new session", behind).await.expect("no panic");
    again.expect("granted").release().await.expect("released");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_restarts_keeps_the_locks() {
    let Some(mut server) = start(ZOOKEEPER) else { return };
    let keeper = keeper(&server).await;
    let held = keeper.lock("a").await.expect("free");
    tokio::task::block_in_place(|| {
        server.kill().expect("killed");
        server.restart().expect("restarted");
    });
    eventually("a renewal", async || held.extend(Duration::from_secs(1)).await.is_ok()).await;
    assert!(keeper.check(&held.sequencer()).await.expect("an answer"));
    let fence = held.fence();
    held.release().await.expect("released");
    assert!(keeper.lock("a").await.expect("free").fence() > fence);
}
