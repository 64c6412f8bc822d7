//! What happens rarely to a Redis server: data that go back in time, replies that are lost, memory that
//! is full, sessions that are not renewed or that several handles act for.

use crate::support::connection;
use lockkeeper::{
    ErrorKind, Keeper, Mode, Name, Store as _, TicketId,
    store::{Entered, Manner, Renewal, TicketStatus},
};
use redis::{FromRedisValue, Value};
use servers::Running;
use std::{
    collections::HashMap,
    time::{Duration, Instant},
};
use testkit::{
    LONG, RawSession,
    world::{eventually, soon},
};

testkit::tests! {
    [servers::REDIS] =>
        a_release_that_the_server_has_forgotten_is_made_again,
        a_renewal_is_one_request_whatever_there_is_to_sweep,
        sessions_that_are_never_renewed_leave_nothing_for_ever,
        names_that_are_free_again_leave_nothing_and_cost_a_look_nothing,
        a_look_through_many_lines_reads_each_of_them_once,
        names_like_our_own_keys_are_names_like_others,
        a_server_that_is_emptied_while_a_client_connects_is_connected_to,
        data_of_another_layout_is_refused,
        a_lock_whose_keys_were_evicted_is_lost,
        a_session_with_many_tickets_is_looked_through_in_pieces,
        a_late_copy_of_an_enter_does_not_undo_a_hold,
        anothers_ticket_id_gives_no_rights,
        a_full_server_keeps_its_locks,
        a_plain_lock_that_is_found_made_lives_as_long_as_a_new_one;
    [servers::REDIS, servers::REDIS_CLUSTER] =>
        every_handle_sees_all_tickets_of_a_session;
    [servers::REDIS_CLUSTER] =>
        a_renewal_reaches_all_that_other_handles_have_taken,
        a_bucket_whose_opening_was_not_answered_is_as_good_as_the_others;
}

async fn keeper(url: &str) -> Keeper {
    Keeper::connect(url).await.expect("the server answers")
}

/// A client beside the library, to see what it did and to meddle.
struct Witness(redis::aio::MultiplexedConnection);

impl Witness {
    async fn of(port: u16) -> Self {
        Self(connection(port).await.expect("the server answers"))
    }

    async fn ask<T: FromRedisValue>(&mut self, words: &[&str]) -> T {
        let mut command = redis::cmd(words[0]);
        command.arg(&words[1..]).query_async(&mut self.0).await.expect("an answer")
    }

    /// How many scripts clients have sent since the last reset.
    async fn scripts(&mut self) -> u64 {
        self.calls("eval").await + self.calls("evalsha").await
    }

    /// How often a command was called since the last reset, by clients and by scripts.
    async fn calls(&mut self, command: &str) -> u64 {
        let text: String = self.ask(&["INFO", "commandstats"]).await;
        let calls = text.lines().find_map(|line| {
            let (found, stats) = line.strip_prefix("cmdstat_")?.split_once(":calls=")?;
            (found == command).then(|| stats.split(',').next()?.parse().ok())?
        });
        calls.unwrap_or(0)
    }

    /// All keys with what they hold.
    async fn dump(&mut self) -> HashMap<String, Vec<u8>> {
        let mut dumped = HashMap::new();
        for key in self.ask::<Vec<String>>(&["KEYS", "*"]).await {
            let bytes = self.ask(&["DUMP", &key]).await;
            dumped.insert(key, bytes);
        }
        dumped
    }

    /// Makes the server's data what they were.
    async fn restore(&mut self, dumped: &HashMap<String, Vec<u8>>) {
        let mut all = redis::pipe();
        all.atomic().cmd("FLUSHALL");
        for (key, bytes) in dumped {
            all.cmd("RESTORE").arg(key).arg(0).arg(bytes);
        }
        let _: Value = all.query_async(&mut self.0).await.expect("an answer");
    }
}

/// After a failover or a restart the server may be back at a moment before a release. The lock must
/// not stay with a live session that has released it.
async fn a_release_that_the_server_has_forgotten_is_made_again(server: Running) {
    let mut witness = Witness::of(server.ports()[0]).await;
    let one = Keeper::builder().ttl(Duration::from_secs(3)).connect(server.url()).await;
    let one = one.expect("the server answers");
    let kept = one.lock("kept").await.expect("free");
    let released = one.lock("released").await.expect("free");
    let before = witness.dump().await;
    released.release().await.expect("released");
    witness.restore(&before).await;
    let two = keeper(server.url()).await;
    let next = soon("the lock", two.lock("released").into_future()).await.expect("granted");
    assert!(kept.is_held());
    drop(next);
}

/// A session can be acted for by any handle that knows it, so all handles see the same tickets.
async fn every_handle_sees_all_tickets_of_a_session(server: Running) {
    let (one, two) = (keeper(server.url()).await, keeper(server.url()).await);
    let here = RawSession::open(one.store()).await;
    let [_, claim, _] = [here.take("a").await, here.take("b").await, here.take("c").await];
    let there = RawSession { store: two.store().clone(), ..here.clone() };
    assert_eq!(there.all().await.len(), 3);
    there.leave("b", claim.ticket).await;
    assert_eq!((here.all().await.len(), there.all().await.len()), (2, 2));
    there.close().await;
    assert!(one.list("").await.expect("a look").is_empty());
}

/// A session that two handles act for is renewed wherever either of them has used it.
async fn a_renewal_reaches_all_that_other_handles_have_taken(server: Running) {
    let (one, two) = (keeper(server.url()).await, keeper(server.url()).await);
    let ttl = Duration::from_secs(3);
    let here = RawSession::open_for(one.store(), ttl, Duration::ZERO).await;
    let there = RawSession { store: two.store().clone(), ..here.clone() };
    here.take("a").await;
    assert!(there.lives().await, "and it knows now where the session is");
    let claims = [here.take("b").await, there.take("c").await];
    let began = Instant::now();
    while began.elapsed() < ttl * 2 {
        assert!(here.lives().await);
        tokio::time::sleep(ttl / 10).await;
        for claim in &claims {
            assert!(here.check(claim).await, "{} is gone", claim.name);
        }
    }
}

/// The request that opened a session in a bucket was carried out and its answer lost. What is entered
/// there later must live as long as the session is believed in.
async fn a_bucket_whose_opening_was_not_answered_is_as_good_as_the_others(server: Running) {
    let (one, two) = (keeper(server.url()).await, keeper(server.url()).await);
    let ttl = Duration::from_secs(4);
    let here = RawSession::open_for(one.store(), ttl, Duration::ZERO).await;
    let there = RawSession { store: two.store().clone(), ..here.clone() };
    // Opens the bucket of this name as a lost request of ours would have.
    let (ticket, _) = there.contend("a").await;
    there.leave("a", ticket).await;
    let began = Instant::now();
    while began.elapsed() < ttl * 3 / 4 {
        assert!(here.lives().await);
        tokio::time::sleep(ttl / 20).await;
    }
    assert!(here.lives().await);
    let renewed = Instant::now();
    let claim = here.take("a").await;
    while renewed.elapsed() < ttl * 3 / 4 {
        assert!(here.check(&claim).await, "gone after {:?}", renewed.elapsed());
        tokio::time::sleep(ttl / 20).await;
    }
}

/// Makes the ends of sessions, and what is noted for later, lie in the past, as if a day had gone by.
async fn age(witness: &mut Witness, keys: &[&str]) {
    let script = "for _, k in ipairs(KEYS) do for _, m in ipairs(redis.call('ZRANGE', k, 0, -1)) do \
                  redis.call('ZADD', k, 1, m) end end";
    let count = keys.len().to_string();
    witness.ask::<Value>(&[&["EVAL", script, &count], keys].concat()).await;
}

/// A renewal is one request, however much there is to sweep: it must not be late because of that. What a
/// dead session has left goes with the renewals of others, also where no client looks at its lines.
async fn a_renewal_is_one_request_whatever_there_is_to_sweep(server: Running) {
    let (keeper, mut witness) = (keeper(server.url()).await, Witness::of(server.ports()[0]).await);
    let dead = RawSession::open(keeper.store()).await;
    for n in 0..200 {
        dead.take(&format!("old {n}")).await;
    }
    let kept = dead.take("kept closed").await;
    dead.leave_as("kept closed", kept.ticket, Some(LONG), false).await;
    age(&mut witness, &["lk:{0}:e", "lk:{0}:x"]).await;
    let raw = RawSession::open(keeper.store()).await;
    let alive = raw.take("alive").await;
    assert!(raw.lives().await, "and the server knows the script");
    witness.ask::<Value>(&["CONFIG", "RESETSTAT"]).await;
    for _ in 0..10 {
        assert!(raw.lives().await);
    }
    assert_eq!(witness.scripts().await, 10);
    eventually("all is swept", async || {
        assert!(raw.lives().await);
        // A list entry for the ticket that lives, one for its line, and one for that which is kept closed.
        witness.ask::<u64>(&["ZCARD", "lk:{0}:o"]).await == 3
            && witness.ask::<u64>(&["ZCARD", "lk:{0}:e"]).await == 1
    })
    .await;
    assert!(raw.check(&alive).await);
    assert_eq!(witness.ask::<u64>(&["HLEN", "lk:{0}:s"]).await, 3, "one session and the clock");
    assert_eq!(keeper.list("").await.expect("a look").len(), 2);
}

/// Programs that are done before their first renewal clear away what others like them have left.
async fn sessions_that_are_never_renewed_leave_nothing_for_ever(server: Running) {
    let (keeper, mut witness) = (keeper(server.url()).await, Witness::of(server.ports()[0]).await);
    for n in 0..200 {
        let raw = RawSession::open(keeper.store()).await;
        let name = format!("once {n}");
        let ticket = raw.take(&name).await.ticket;
        raw.leave(&name, ticket).await;
        raw.close().await;
        age(&mut witness, &["lk:{0}:e"]).await;
    }
    let sessions: u64 = witness.ask(&["ZCARD", "lk:{0}:e"]).await;
    let names: u64 = witness.ask(&["ZCARD", "lk:{0}:o"]).await;
    assert!(sessions < 20 && names < 20, "{sessions} sessions and {names} names are left");
}

/// A name that was used and is free costs the server nothing, and a look nothing either.
async fn names_that_are_free_again_leave_nothing_and_cost_a_look_nothing(server: Running) {
    let (keeper, mut witness) = (keeper(server.url()).await, Witness::of(server.ports()[0]).await);
    let raw = RawSession::open(keeper.store()).await;
    let mut size = async |n| {
        let ticket = raw.take(&format!("once {n}")).await.ticket;
        raw.leave(&format!("once {n}"), ticket).await;
        let keys = witness.ask::<Vec<String>>(&["KEYS", "*"]).await;
        let mut members = 0;
        for key in keys.iter().filter(|key| !key.ends_with("meta")) {
            let zset = witness.ask::<String>(&["TYPE", key]).await == "zset";
            members += witness.ask::<u64>(&[if zset { "ZCARD" } else { "HLEN" }, key]).await;
        }
        (keys.len(), members)
    };
    let first = size(0).await;
    for n in 1..500 {
        assert_eq!(size(n).await, first, "keys and their members after {n} names");
    }
    raw.take("held").await;
    assert!(keeper.get("held").await.expect("a look").is_some(), "and the script is known");
    witness.ask::<Value>(&["CONFIG", "RESETSTAT"]).await;
    assert_eq!(keeper.list("").await.expect("a look").len(), 1);
    assert_eq!(witness.scripts().await, 1);
}

/// Pages are read from where the last one ended, by few scripts for many lines.
async fn a_look_through_many_lines_reads_each_of_them_once(server: Running) {
    const LINES: usize = 2_500;
    let (keeper, mut witness) = (keeper(server.url()).await, Witness::of(server.ports()[0]).await);
    let raw = RawSession::open(keeper.store()).await;
    for n in 0..LINES {
        raw.take(&format!("name {n}")).await;
    }
    assert!(keeper.get("name 7").await.expect("a look").is_some(), "and the script is known");
    witness.ask::<Value>(&["CONFIG", "RESETSTAT"]).await;
    let lines = keeper.list("").await.expect("a look");
    assert!(lines.is_sorted_by(|a, b| a.name < b.name));
    assert_eq!(lines.len(), LINES);
    let scripts = witness.scripts().await;
    assert!(scripts <= 45, "{scripts} scripts for {LINES} lines");
    // Each line's tickets are one list, and there are three pages of names.
    let lists = witness.calls("zrange").await;
    assert!(lists <= LINES as u64 + 5, "{lists} lists were read for {LINES} lines");
}

/// Every name is as good as any other, also one that looks like a key of ours.
async fn names_like_our_own_keys_are_names_like_others(server: Running) {
    const NAMES: [&str; 14] = [
        "e",
        "s",
        "n",
        "o",
        "x",
        "meta",
        "z:a",
        "t:a",
        "a",
        "lk:{0}:s",
        "lk:{0}:t:a",
        "@a",
        "@",
        " é ",
    ];
    let (keeper, mut witness) = (keeper(server.url()).await, Witness::of(server.ports()[0]).await);
    let (one, two) =
        (RawSession::open(keeper.store()).await, RawSession::open(keeper.store()).await);
    let before = witness.ask::<Vec<String>>(&["KEYS", "*"]).await.len();
    let mut claims = Vec::new();
    for name in NAMES {
        claims.push(one.take(name).await);
        assert!(
            matches!(two.contend(name).await, (_, Entered::Busy(_))),
            "{name:?} is taken twice"
        );
    }
    // The list of the session, the last number, and two keys for each line.
    assert_eq!(
        witness.ask::<Vec<String>>(&["KEYS", "*"]).await.len(),
        before + 2 + 2 * NAMES.len()
    );
    assert_eq!(keeper.list("").await.expect("a look").len(), NAMES.len());
    assert_eq!(keeper.list("@").await.expect("a look").len(), 2);
    for claim in &claims {
        assert!(one.check(claim).await, "{:?} is held", claim.name);
        one.leave(claim.name.as_str(), claim.ticket).await;
    }
    assert!(keeper.list("").await.expect("a look").is_empty());
}

/// A server that is emptied while a client connects must not be left with half of what the client has written.
async fn a_server_that_is_emptied_while_a_client_connects_is_connected_to(server: Running) {
    let mut witness = Witness::of(server.ports()[0]).await;
    let emptied = tokio::spawn(async move {
        loop {
            witness.ask::<Value>(&["FLUSHALL"]).await;
        }
    });
    for _ in 0..100 {
        keeper(server.url()).await;
    }
    emptied.abort();
}

/// Data that an earlier version has written is not misread.
async fn data_of_another_layout_is_refused(server: Running) {
    let mut witness = Witness::of(server.ports()[0]).await;
    witness.ask::<Value>(&["HSET", "lk:{0}:meta", "id", "0123456789abcdef", "buckets", "1"]).await;
    let refused = Keeper::connect(server.url()).await.expect_err("another layout");
    let text = refused.to_string();
    assert!(text.contains("layout 1") && text.contains("prefix="), "{text}");
    keeper(&format!("{}?prefix=other", server.url())).await;
}

/// Keys that the server evicts when memory is short take tickets away that the lists still name.
async fn a_lock_whose_keys_were_evicted_is_lost(server: Running) {
    let mut witness = Witness::of(server.ports()[0]).await;
    let keeper = Keeper::builder().ttl(Duration::from_secs(6)).connect(server.url()).await;
    let keeper = keeper.expect("the server answers");
    let (kept, lost) =
        (keeper.lock("kept").await.expect("free"), keeper.lock("a").await.expect("free"));
    kept.extend(Duration::ZERO).await.expect("renewed");
    // An eviction that takes a key of another program, by the rules; that of ours is made by hand.
    let filler = "x".repeat(4 << 20);
    witness.ask::<Value>(&["SET", "filler", &filler, "EX", "1000"]).await;
    witness.ask::<Value>(&["CONFIG", "SET", "maxmemory-policy", "volatile-ttl"]).await;
    let used = witness.ask::<String>(&["INFO", "memory"]).await;
    let used = used.lines().find_map(|line| line.strip_prefix("used_memory:")).expect("a number");
    let less = used.trim().parse::<u64>().expect("a number") - (2 << 20);
    witness.ask::<Value>(&["CONFIG", "SET", "maxmemory", &less.to_string()]).await;
    eventually("the filler is evicted", async || {
        witness.ask::<u64>(&["EXISTS", "filler"]).await == 0
    })
    .await;
    witness.ask::<Value>(&["DEL", "lk:{0}:z:a", "lk:{0}:t:a"]).await;
    soon("the loss", lost.lost()).await;
    assert!(kept.is_held());
}

/// No other client is served while a script runs, so none goes through thousands of lines. And a client that asks
/// again and again for what is taken leaves no trace of it.
async fn a_session_with_many_tickets_is_looked_through_in_pieces(server: Running) {
    let (keeper, mut witness) = (keeper(server.url()).await, Witness::of(server.ports()[0]).await);
    let (raw, other) =
        (RawSession::open(keeper.store()).await, RawSession::open(keeper.store()).await);
    let taken = other.take("taken").await;
    for _ in 0..2_000 {
        assert!(matches!(raw.contend("taken").await, (_, Entered::Busy(_))));
    }
    witness.ask::<Value>(&["CONFIG", "RESETSTAT"]).await;
    assert!(raw.all().await.is_empty());
    assert!(witness.scripts().await <= 1, "nothing is asked for what was refused");
    assert!(other.check(&taken).await);
    for n in 0..3_000 {
        raw.take(&format!("name {n}")).await;
    }
    witness.ask::<Value>(&["CONFIG", "RESETSTAT"]).await;
    assert_eq!(raw.all().await.len(), 3_000);
    let scripts = witness.scripts().await;
    assert!((10..100).contains(&scripts), "{scripts} scripts for 3000 lines");
    raw.close().await;
    assert_eq!(keeper.list("name").await.expect("a look").len(), 0);
}

/// A lock that is kept closed after its release is not opened by a late copy of its enter.
async fn a_late_copy_of_an_enter_does_not_undo_a_hold(server: Running) {
    let keeper = keeper(server.url()).await;
    let raw = RawSession::open(keeper.store()).await;
    let claim = raw.take("a").await;
    raw.leave_as("a", claim.ticket, Some(LONG), true).await;
    let late = raw.enter("a", claim.ticket, Mode::Exclusive, Manner::Queue).await;
    assert_eq!(late.expect_err("it was left").kind, ErrorKind::TicketClosed);
    assert_eq!(raw.stand("a", claim.ticket).await, TicketStatus::Gone);
    let line = keeper.get("a").await.expect("a look").expect("it is kept closed");
    assert!(line.tickets.len() == 1 && line.tickets[0].owner.is_none());
}

/// Ticket ids are public, so knowing one gives no rights.
async fn anothers_ticket_id_gives_no_rights(server: Running) {
    let keeper = keeper(server.url()).await;
    let (owner, other) =
        (RawSession::open(keeper.store()).await, RawSession::open(keeper.store()).await);
    let claim = owner.take("a").await;
    for manner in [Manner::Queue, Manner::Contend] {
        let entered = other.enter("a", claim.ticket, Mode::Exclusive, manner).await;
        assert!(!matches!(entered, Ok(Entered::Granted { .. })), "{entered:?}");
    }
    other.leave_as("a", claim.ticket, None, true).await;
    assert!(owner.check(&claim).await);
    assert_eq!(keeper.get("a").await.expect("a look").expect("held").tickets.len(), 1);
}

/// A server that is full of other things refuses new locks and keeps the old ones.
async fn a_full_server_keeps_its_locks(server: Running) {
    let (keeper, mut witness) = (keeper(server.url()).await, Witness::of(server.ports()[0]).await);
    let raw = RawSession::open(keeper.store()).await;
    let claim = raw.take("a").await;
    witness.ask::<Value>(&["CONFIG", "SET", "maxmemory", "1"]).await;
    let refused = raw.enter("b", TicketId::random(), Mode::Exclusive, Manner::Queue).await;
    assert_eq!(refused.expect_err("the server is full").kind, ErrorKind::Unavailable);
    assert!(matches!(raw.store.renew(raw.session).await, Ok(Renewal::Renewed { .. })));
    assert!(raw.check(&claim).await);
    raw.leave("a", claim.ticket).await;
    assert!(!raw.check(&claim).await);
}

/// A plain string that an unanswered request of ours has made has less of its time left than the
/// session is believed in.
async fn a_plain_lock_that_is_found_made_lives_as_long_as_a_new_one(server: Running) {
    let mut witness = Witness::of(server.ports()[0]).await;
    let keeper = keeper(&format!("{}?compat=string", server.url())).await;
    let (raw, ticket) = (RawSession::open(keeper.store()).await, TicketId::random());
    let session = u128::from_be_bytes(raw.session.to_bytes());
    witness.ask::<Value>(&["SET", "a", &format!("{ticket}.{session:032x}"), "PX", "1000"]).await;
    let entered = raw.enter("a", ticket, Mode::Exclusive, Manner::Contend).await;
    assert!(matches!(entered, Ok(Entered::Granted { .. })), "{entered:?}");
    let left: u64 = witness.ask(&["PTTL", "a"]).await;
    assert!(left > 60_000, "the lock is believed in for {LONG:?} and has {left} ms");
    assert!(raw.all().await.iter().any(|(name, ..)| *name == Name::new("a").expect("a name")));
}
