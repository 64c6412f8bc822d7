//! Connections that are killed, servers that die and stand still.

use crate::support::{CODED, HASTY, TTL, User, held_and_awaited, keeper, refusals};
use lockkeeper::{Error, ErrorKind, Keeper, Loss, Outcome, Store as _};
use servers::{POSTGRES, Running};
use std::{
    collections::HashMap,
    process::Command,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};
use testkit::{
    live::{crashes_and_remembers, stands_still},
    taker::Taker,
    world::{eventually, soon},
};
use tokio::task::JoinHandle;

testkit::tests! {
    [HASTY] =>
        connections_that_are_killed_under_load_are_made_again,
        a_locked_table_of_lines_costs_no_session_its_life,
        a_renewal_leaves_out_what_is_locked_and_costs_one_transaction,
        a_session_is_renewed_although_the_server_does_not_tell_its_history;
    [POSTGRES] =>
        a_server_that_restarts_under_load_loses_no_order,
        a_server_that_restarts_keeps_the_locks,
        a_server_that_stands_still_loses_its_holders_and_keeps_its_waiters,
        a_waiter_whose_connections_are_cut_gets_its_turn,
        a_full_disk_is_said_at_once,
        a_recovery_from_a_crashed_process_is_another_history;
    [CODED] =>
        twelve_processes_on_eight_names_meet_no_error;
}

/// Ends every connection of every keeper, as a DBA or a failing network would.
const CUT: &str = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity \
                   WHERE application_name = 'lockkeeper'";

/// Workers that lock and release, and check what they are given.
#[derive(Default)]
struct Load {
    over: AtomicBool,
    pairs: AtomicUsize,
    last: Mutex<HashMap<String, u64>>,
}

impl Load {
    /// `names` names, taken by turns.
    async fn work(self: Arc<Self>, keeper: Keeper, names: usize, seed: usize) {
        let mut at = seed;
        while !self.over.load(Ordering::Relaxed) {
            at += 1;
            let name = format!("name {}", at % names);
            let lock = keeper.lock(&name).wait(Duration::from_secs(60));
            let guard = lock.await.expect("no trouble reaches the caller");
            self.check(&name, guard.fence(), guard.is_held());
            // Lost meanwhile, it is freed by its expiry.
            let _ = guard.release().await;
            self.pairs.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn check(&self, name: &str, fence: u64, held: bool) {
        let mut last = self.last.lock().expect("not poisoned");
        let last = last.entry(name.to_owned()).or_insert(0);
        // Only who still holds it must come behind all others.
        assert!(fence > *last || !held, "fence {fence} of {name:?} after {last}");
        *last = fence.max(*last);
    }

    fn start(self: &Arc<Self>, keeper: &Keeper, names: usize, seed: usize) -> JoinHandle<()> {
        tokio::spawn(Arc::clone(self).work(keeper.clone(), names, seed))
    }

    async fn some_more(&self) {
        let now = self.pairs.load(Ordering::Relaxed);
        eventually("some more pairs", async || self.pairs.load(Ordering::Relaxed) > now + 50).await;
    }
}

async fn load(server: &Running, keepers: usize, names: usize) -> (Arc<Load>, Vec<JoinHandle<()>>) {
    let load = Arc::<Load>::default();
    let mut tasks = Vec::new();
    for at in 0..keepers {
        let keeper = keeper(server).await;
        tasks.extend((0..2).map(|task| load.start(&keeper, names, at * 2 + task)));
    }
    (load, tasks)
}

async fn finish(load: &Load, tasks: Vec<JoinHandle<()>>, user: &User) {
    load.over.store(true, Ordering::Relaxed);
    for task in tasks {
        soon("the worker's end", task).await.expect("no panic");
    }
    let left = "SELECT count(*) FROM lockkeeper.lk_standing WHERE dead_at > clock_timestamp()";
    eventually("no ticket is left", async || user.number(left).await == 0).await;
}

async fn connections_that_are_killed_under_load_are_made_again(server: Running) {
    let user = User::of(&server).await;
    let keeper = keeper(&server).await;
    let held = keeper.lock("held").await.expect("free");
    let (load, tasks) = load(&server, 4, 3).await;
    for _ in 0..10 {
        load.some_more().await;
        assert!(user.number(CUT).await >= 4);
    }
    load.some_more().await;
    assert!(held.is_held(), "a lost connection is no lost session: {:?}", held.health());
    held.release().await.expect("released");
    finish(&load, tasks, &user).await;
    keeper.close().await;
}

async fn a_server_that_restarts_under_load_loses_no_order(mut server: Running) {
    // The keeper's connection for the schema comes first.
    drop(keeper(&server).await);
    let (load, tasks) = load(&server, 3, 2).await;
    for crash in [true, false] {
        load.some_more().await;
        if crash {
            server.kill().expect("killed");
        } else {
            server.stop().expect("stopped");
        }
        server.restart().expect("restarted");
        load.some_more().await;
    }
    finish(&load, tasks, &User::of(&server).await).await;
}

async fn a_server_that_restarts_keeps_the_locks(server: Running) {
    crashes_and_remembers(server).await;
}

/// Unknown is not lost, until the deadline; waiters are served when the server goes on.
async fn a_server_that_stands_still_loses_its_holders_and_keeps_its_waiters(server: Running) {
    stands_still(server, TTL).await;
}

/// The waiter's process has lost the connection by which it listens, and hears of its turn all the same.
async fn a_waiter_whose_connections_are_cut_gets_its_turn(server: Running) {
    let user = User::of(&server).await;
    let (held, waiter) = held_and_awaited(&server).await;
    user.number(CUT).await;
    held.release().await.expect("released");
    let next = soon("the waiter's turn", waiter).await.expect("no panic").expect("granted");
    next.release().await.expect("released");
}

/// Twelve processes on eight names: no deadlock and no serialization error, not even one that is
/// repeated in silence, and no waiter is left behind. `LOCKKEEPER_PAIRS=5000` makes it as long as one likes.
async fn twelve_processes_on_eight_names_meet_no_error(server: Running) {
    let user = User::of(&server).await;
    let pairs: usize =
        std::env::var("LOCKKEEPER_PAIRS").map_or(96, |n| n.parse().expect("a number"));
    let folder = tempfile::tempdir().expect("a folder");
    let path = |name: usize| folder.path().join(name.to_string());
    (0..8).for_each(|name| std::fs::write(path(name), "0").expect("a file"));
    let mut takers = Vec::new();
    for process in 0..12 {
        let program = std::path::Path::new(env!("CARGO_BIN_EXE_taker"));
        let long = Duration::from_secs(10);
        let mut taker = Taker::at(program, server.url(), long, Duration::ZERO).await;
        for turn in 0..8 {
            let name = (process + turn) % 8;
            taker.tell(&format!("count {name} {} {}", path(name).display(), pairs / 8)).await;
        }
        takers.push(taker);
    }
    for mut taker in takers {
        for _ in 0..8 {
            assert_eq!(taker.line().await, "counted");
        }
        assert!(taker.end().await.success());
    }
    for name in 0..8 {
        let counted = std::fs::read_to_string(path(name)).expect("a number");
        assert_eq!(counted, (12 * (pairs / 8)).to_string(), "of {name}");
    }
    let left = "SELECT count(*) FROM lockkeeper.lk_standing WHERE dead_at > clock_timestamp()";
    eventually("no ticket is left", async || user.number(left).await == 0).await;
    assert_eq!(refusals(&server, &["40P01", "40001"]), 0);
}

/// A full disk is said at once: nothing that the caller repeats makes room.
async fn a_full_disk_is_said_at_once(server: Running) {
    let (keeper, user) = (keeper(&server).await, User::of(&server).await);
    user.run(
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN \
           RAISE EXCEPTION 'could not extend file: No space left on device' USING ERRCODE = '53100'; \
         END $$; \
         CREATE TRIGGER refuse BEFORE INSERT OR UPDATE ON lockkeeper.lk_line \
           EXECUTE FUNCTION refuse()",
    )
    .await;
    let lock = keeper.lock("a").wait(Duration::from_secs(600)).into_future();
    match soon("an error", lock).await {
        Err(Error::Store(e)) => {
            assert_eq!((&e.kind, e.outcome), (&ErrorKind::Full, Outcome::NotApplied), "{e}");
            assert!(e.to_string().contains("disk is full"), "{e}");
        }
        other => panic!("{other:?}"),
    }
    user.run("DROP TRIGGER refuse ON lockkeeper.lk_line").await;
    keeper.lock("a").await.expect("free").release().await.expect("released");
    keeper.close().await;
}

/// As `ALTER TABLE` and `VACUUM FULL` do. A renewal needs the session's row and nothing else.
async fn a_locked_table_of_lines_costs_no_session_its_life(server: Running) {
    let (keeper, user) = (keeper(&server).await, User::of(&server).await);
    let held = keeper.lock("a").await.expect("free");
    for table in ["lk_line", "lk_ticket", "lk_meta"] {
        user.run(&format!("BEGIN; LOCK TABLE lockkeeper.{table} IN ACCESS EXCLUSIVE MODE")).await;
        let end = Instant::now() + TTL * 5 / 4;
        eventually("longer than it lives unrenewed", async || {
            assert!(held.is_held(), "{table}: {:?}", held.health());
            Instant::now() > end
        })
        .await;
        user.run("ROLLBACK").await;
    }
    held.release().await.expect("released");
    keeper.close().await;
}

/// A process of the server crashes, so the server starts its memory anew and loses what was not yet on disk. Its
/// start and its timeline stay, and behind a pooler no connection breaks.
async fn a_recovery_from_a_crashed_process_is_another_history(server: Running) {
    keeper(&server).await.close().await;
    let (history, started) = (
        "SELECT coalesce(lockkeeper.lk_history(), 0)",
        "SELECT extract(epoch FROM pg_postmaster_start_time())::bigint",
    );
    let user = User::of(&server).await;
    let before = (user.number(history).await, user.number(started).await);
    assert_ne!(before.0, 0);
    assert_eq!(User::of(&server).await.number(history).await, before.0);
    user.run("SET TimeZone = 'Asia/Tokyo'; SET DateStyle = 'SQL'").await;
    assert_eq!(user.number(history).await, before.0, "whatever a connection has set");
    let pid = user.number("SELECT pg_backend_pid()::bigint").await.to_string();
    let killed = Command::new("kill").args(["-KILL", &pid]).status();
    assert!(killed.expect("a program that every system has").success());
    // The first process of the server may learn of it late, and takes connections until then.
    eventually("another history", async || {
        asked(server.url(), history).await.is_some_and(|history| history != before.0)
    })
    .await;
    eventually("the server was not restarted", async || {
        asked(server.url(), started).await == Some(before.1)
    })
    .await;
}

/// The one number that a statement answers with on a new connection; `None` while the server takes none, or ends it.
async fn asked(url: &str, sql: &str) -> Option<i64> {
    let (client, connection) = tokio_postgres::connect(url, tokio_postgres::NoTls).await.ok()?;
    tokio::spawn(connection);
    client.query_one(sql, &[]).await.ok()?.try_get(0).ok()
}

/// The store renews a session whose user may not ask for the server's timeline, and `advice` says what that costs.
async fn a_session_is_renewed_although_the_server_does_not_tell_its_history(server: Running) {
    let owner = User::of(&server).await;
    keeper(&server).await.close().await;
    owner.run("CREATE ROLE app LOGIN; GRANT ALL ON SCHEMA lockkeeper TO app").await;
    owner.run("GRANT ALL ON ALL TABLES IN SCHEMA lockkeeper TO app").await;
    owner.run("REVOKE EXECUTE ON FUNCTION pg_walfile_name(pg_lsn) FROM PUBLIC").await;
    let url = server.url().replace("postgres@", "app@");
    let keeper = Keeper::builder().ttl(TTL).connect(&url).await.expect("connected");
    let held = keeper.lock("a").await.expect("free");
    held.extend(Duration::from_secs(1)).await.expect("renewed");
    assert!(keeper.check(&held.sequencer()).await.expect("an answer"));
    let advice = keeper.store().advice().await.expect("an answer");
    assert!(advice.iter().any(|advice| advice.what.contains("timeline")), "{advice:?}");
    owner.run("DELETE FROM lockkeeper.lk_line").await;
    assert_eq!(soon("the loss", held.lost()).await, Loss::Evicted);
    keeper.close().await;
}

/// Also where nothing bounds the wait for a lock, as behind a pooler.
async fn a_renewal_leaves_out_what_is_locked_and_costs_one_transaction(server: Running) {
    keeper(&server).await.close().await;
    let (user, other) = (User::of(&server).await, User::of(&server).await);
    user.run("SELECT lockkeeper.lk_open('\\x01', 600000000, 0, 'c', 'h', 1, 'p')").await;
    let shown = "SELECT (o_version IS NOT NULL)::int + 2 * (o_layout IS NOT NULL)::int \
                        + 4 * (o_count IS NOT NULL)::int::bigint \
                 FROM lockkeeper.lk_renew('\\x01', '{a}')";
    for (table, left) in [("lk_line", 3), ("lk_meta", 1)] {
        other.run(&format!("BEGIN; LOCK TABLE lockkeeper.{table} IN ACCESS EXCLUSIVE MODE")).await;
        assert_eq!(soon("the renewal", user.number(shown)).await, left, "{table}");
        other.run("ROLLBACK").await;
    }
    let next = "SELECT txid_current()";
    let before = user.number(next).await;
    for _ in 0..10 {
        assert_eq!(user.number(shown).await, 7);
    }
    assert_eq!(user.number(next).await, before + 11);
}
