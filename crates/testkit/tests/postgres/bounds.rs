//! What a request takes from the server is bounded, whatever others have left behind.

use crate::support::{HASTY, User, keeper};
use servers::{POSTGRES, Running};
use std::time::{Duration, Instant};
use testkit::{trials::WithArgs, world::eventually};

testkit::tests! {
    [SMALL] =>
        a_sweep_of_many_dead_fits_into_a_small_servers_lock_table,
        a_line_of_many_dead_fits_there_too;
    [HASTY] =>
        a_long_snapshot_makes_no_hand_over_walk_over_earlier_tickets,
        looking_at_all_lines_costs_each_of_them_once;
}

/// A server with room for few locks: 10 for each of 20 connections.
const SMALL: WithArgs = WithArgs(
    POSTGRES,
    &[
        "-c",
        "synchronous_commit=off",
        "-c",
        "max_connections=20",
        "-c",
        "max_locks_per_transaction=10",
    ],
);

/// How many advisory locks this transaction has.
const KEYS: &str =
    "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()";

/// Sessions that died long ago, each with the first ticket in a line of its own.
const DEAD: &str = "
    INSERT INTO lockkeeper.lk_session
    SELECT decode(lpad(to_hex(n), 32, '0'), 'hex'), '1 min', '0', now() - interval '1 hour',
           now() - interval '1 hour', 'c', 'h', 1, 'p' FROM generate_series(1, 2000) n;
    INSERT INTO lockkeeper.lk_line (name, last, capacity, id, session, weight, fence, entered, note)
    SELECT 'n' || n, 1, 1, decode(lpad(to_hex(n), 32, '0'), 'hex'),
           decode(lpad(to_hex(n), 32, '0'), 'hex'), 1, 1, now(), '' FROM generate_series(1, 2000) n";

/// A line that so many readers of dead sessions hold.
const READERS: &str = "
    INSERT INTO lockkeeper.lk_line (name, last, others, capacity, weight, note)
    VALUES ('readers', 3000, 1000, 1000000, 1, '');
    INSERT INTO lockkeeper.lk_ticket
      (name, seq, id, session, weight, capacity, fence, entered, granted, note)
    SELECT 'readers', n, decode(lpad(to_hex(n), 32, '0'), 'hex'),
           decode(lpad(to_hex(n), 32, '0'), 'hex'), 1, 1000000, n, now(), now(), ''
      FROM generate_series(1, 1000) n";

async fn keys_of(user: &User, sql: &str) -> i64 {
    user.run(&format!("BEGIN; {sql}")).await;
    let keys = user.number(KEYS).await;
    user.run("ROLLBACK").await;
    keys
}

async fn a_sweep_of_many_dead_fits_into_a_small_servers_lock_table(server: Running) {
    keeper(&server).await.close().await;
    let user = User::of(&server).await;
    user.run(DEAD).await;
    user.run("UPDATE lockkeeper.lk_meta SET swept = '-infinity'").await;
    let keys = keys_of(&user, "SELECT o_news FROM lockkeeper.lk_sweep(1000000, 2000)").await;
    assert!((1..=64).contains(&keys), "{keys} advisory locks");
    let dead = "SELECT count(*) FROM lockkeeper.lk_line WHERE id IS NOT NULL";
    eventually("programs that come and go have swept all", async || {
        user.run("UPDATE lockkeeper.lk_meta SET swept = '-infinity'").await;
        let keeper = keeper(&server).await;
        keeper.lock("a").await.expect("free").release().await.expect("released");
        keeper.close().await;
        user.number(dead).await == 0
    })
    .await;
}

async fn a_line_of_many_dead_fits_there_too(server: Running) {
    keeper(&server).await.close().await;
    let user = User::of(&server).await;
    user.run(DEAD).await;
    user.run(READERS).await;
    let settle = "SELECT lockkeeper.lk_settle('readers', clock_timestamp(), 0)";
    let clear =
        "SELECT lockkeeper.lk_clear(decode(lpad('1', 32, '0'), 'hex'), '{readers,n1,n2,n3}', 20)";
    for (sql, most) in [(settle, 250), (clear, 64)] {
        let keys = keys_of(&user, sql).await;
        assert!((1..=most).contains(&keys), "{keys} advisory locks: {sql}");
    }
    let left = "SELECT count(*) FROM lockkeeper.lk_ticket WHERE name = 'readers'";
    eventually("all have fallen out", async || {
        user.run(settle).await;
        user.number(left).await == 0
    })
    .await;
}

/// Others' snapshot keeps every ticket of the last hour in the index. Who comes next walks over none of them.
async fn a_long_snapshot_makes_no_hand_over_walk_over_earlier_tickets(server: Running) {
    keeper(&server).await.close().await;
    let (user, dump) = (User::of(&server).await, User::of(&server).await);
    user.run("SELECT lockkeeper.lk_open('\\x01', 600000000, 0, 'c', 'h', 1, 'p')").await;
    let enter = |n: u32| {
        format!("SELECT lockkeeper.lk_enter('a', '\\x{n:08x}', '\\x01', 1, 1, true, '', NULL, 100)")
    };
    let leave = |n: u32| format!("SELECT lockkeeper.lk_leave('a', '\\x{n:08x}', '\\x01', 0, 0)");
    user.run(&enter(0)).await;
    user.run(&enter(1)).await;
    user.run(&leave(0)).await;
    dump.run("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT * FROM lockkeeper.lk_ticket").await;
    for n in 1..500 {
        user.run(&enter(n + 1)).await;
        user.run(&leave(n)).await;
    }
    let walked = "SELECT sum(pg_stat_get_xact_tuples_returned(indexrelid))::bigint FROM pg_index \
                  WHERE indrelid = 'lockkeeper.lk_ticket'::regclass";
    let poll = "SELECT lockkeeper.lk_poll('\\x01', '{a}', ARRAY['\\x000001f5'::bytea])";
    let stand = "SELECT lockkeeper.lk_stand('a', '\\x000001f5', '\\x01')";
    let bare = "BEGIN; SET LOCAL enable_seqscan = off; SET LOCAL enable_bitmapscan = off";
    for sql in [&enter(501), &leave(500), poll, stand] {
        user.run(bare).await;
        let before = user.number(walked).await;
        user.run(sql).await;
        let entries = user.number(walked).await - before;
        assert!((1..50).contains(&entries), "{entries} entries of the index: {sql}");
        user.run("COMMIT").await;
    }
    dump.run("COMMIT").await;
}

/// Eight times as many locks may take eight times as long, and not sixty-four times.
async fn looking_at_all_lines_costs_each_of_them_once(server: Running) {
    keeper(&server).await.close().await;
    let user = User::of(&server).await;
    user.run("SET enable_seqscan = off; SET jit = off").await;
    user.run("SELECT lockkeeper.lk_open('\\x01', 600000000, 0, 'c', 'h', 1, 'p')").await;
    let look = "SELECT count(*) FROM lockkeeper.lk_look('', 'z', '', 100000)";
    let mut best = [Duration::MAX; 2];
    for (best, lines) in best.iter_mut().zip([1_000, 8_000]) {
        user.run(&format!(
            "INSERT INTO lockkeeper.lk_line (name, last, capacity, id, session, weight, fence, entered, note) \
             SELECT 'n' || n, 1, 1, decode(lpad(to_hex(n), 32, '0'), 'hex'), '\\x01', 1, 1, now(), '' \
               FROM generate_series(1, {lines}) n ON CONFLICT DO NOTHING; ANALYZE"
        ))
        .await;
        for _ in 0..3 {
            let began = Instant::now();
            assert_eq!(user.number(look).await, lines);
            *best = began.elapsed().min(*best);
        }
    }
    assert!(best[1] < best[0] * 24, "1,000 and 8,000 lines: {best:?}");
}
