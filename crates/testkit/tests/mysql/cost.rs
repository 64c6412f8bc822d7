//! Round trips, connections, deadlocks.

use crate::support::{client, deadlocks, keeper, number, processes, standing, status};
use lockkeeper::{Guard, Keeper};
use mysql_async::{Conn, prelude::Queryable};
use servers::Running;
use std::{
    env,
    fs::{self, File},
    io::Write as _,
    path::PathBuf,
    process::{Child, Command},
};
use testkit::world::{eventually, soon};
use tokio::{sync::mpsc, task::JoinSet};

testkit::tests! {
    crate::SERVERS =>
        an_uncontended_lock_and_its_release_are_two_plain_statements,
        a_long_snapshot_makes_locks_no_dearer,
        a_thousand_locks_and_a_thousand_waiters_are_four_connections,
        twelve_processes_meet_no_deadlock;
}

async fn an_uncontended_lock_and_its_release_are_two_plain_statements(server: Running) {
    let (keeper, mut witness) = (keeper(&server).await, client(&server).await);
    let (mut least, mut calls) = (u64::MAX, u64::MAX);
    // A renewal may fall into it, so the quietest of several times counts.
    for _ in 0..10 {
        let before = (
            status(&mut witness, "Com_stmt_execute").await,
            status(&mut witness, "Com_call_procedure").await,
        );
        keeper.lock("a").await.expect("free").release().await.expect("released");
        least = least.min(status(&mut witness, "Com_stmt_execute").await - before.0);
        calls = calls.min(status(&mut witness, "Com_call_procedure").await - before.1);
    }
    assert_eq!((least, calls), (2, 0));
    keeper.close().await;
}

/// A backup reads for hours, so nothing that was deleted goes from the indexes. What a lock costs is
/// counted in pages that the server looks at: walking over the remains of all locks before it would show.
async fn a_long_snapshot_makes_locks_no_dearer(server: Running) {
    let (keeper, mut witness) = (keeper(&server).await, client(&server).await);
    let mut reader = client(&server).await;
    hand_offs(&keeper, 5).await;
    reader.query_drop("START TRANSACTION WITH CONSISTENT SNAPSHOT").await.expect("begun");
    reader.query_drop("SELECT COUNT(*) FROM lk_ticket").await.expect("read");
    let early = pages(&keeper, &mut witness).await;
    for i in 0..2_000 {
        let name = if i % 2 == 0 { "a" } else { "b" };
        keeper.lock(name).await.expect("free").release().await.expect("released");
    }
    hand_offs(&keeper, 300).await;
    // Who looks for grants looks at those of the last seconds, however many; not at all before.
    let settled = "SELECT MAX(last) < TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) \
         - 6000000 FROM lk_gate";
    eventually("the last grant is old", async || number(&mut witness, settled).await == 1).await;
    // On a busy machine the waiters poll more often meanwhile, and that counts too.
    eventually("a lock costs what it cost before", async || {
        pages(&keeper, &mut witness).await < 2 * early
    })
    .await;
    keeper.close().await;
}

/// Locks that are handed to one who waits, which leaves rows of tickets behind.
async fn hand_offs(keeper: &Keeper, rounds: usize) {
    for _ in 0..rounds {
        let held = keeper.lock("a").await.expect("free");
        // The waiter itself tells that it stands in line: a look at the tables would be counted too.
        let (tell, mut told) = mpsc::unbounded_channel();
        let lock = keeper.lock("a").on_wait(move |_| {
            let _ = tell.send(());
        });
        let next = tokio::spawn(lock.into_future());
        soon("it waits", told.recv()).await.expect("it is not granted before");
        held.release().await.expect("released");
        let next = soon("its turn", next).await.expect("no panic").expect("granted");
        next.release().await.expect("released");
    }
}

/// The pages that the server looks at for a few hand-offs and as many free locks, the fewest of
/// several times.
async fn pages(keeper: &Keeper, witness: &mut Conn) -> u64 {
    let mut least = u64::MAX;
    for _ in 0..5 {
        let before = status(witness, "Innodb_buffer_pool_read_requests").await;
        hand_offs(keeper, 5).await;
        for _ in 0..5 {
            keeper.lock("b").await.expect("free").release().await.expect("released");
        }
        least = least.min(status(witness, "Innodb_buffer_pool_read_requests").await - before);
    }
    least
}

async fn a_thousand_locks_and_a_thousand_waiters_are_four_connections(server: Running) {
    let (keeper, mut witness) = (keeper(&server).await, client(&server).await);
    let (mut held, mut waiting) = (Vec::new(), JoinSet::new());
    for i in 0..1_000 {
        held.push(keeper.lock(format!("name {i}")).await.expect("free"));
        waiting.spawn(keeper.lock(format!("name {i}")).into_future());
    }
    eventually("all wait", async || {
        number(&mut witness, "SELECT COUNT(*) FROM lk_ticket WHERE fence = 0").await == 1_000
    })
    .await;
    // Through two renewals at least: they move the end of the session.
    for _ in 0..3 {
        let ends = "SELECT MAX(expires) FROM lk_session";
        let before = number(&mut witness, ends).await;
        eventually("a renewal", async || number(&mut witness, ends).await > before).await;
        let connections = processes(&mut witness).await.len();
        assert!(connections <= 4, "{connections} connections");
    }
    assert!(held.iter().all(Guard::is_held));
    drop(held);
    while let Some(granted) = soon("a turn", waiting.join_next()).await {
        drop(granted.expect("no panic").expect("granted"));
    }
    keeper.close().await;
    eventually("no ticket is left", async || standing(&mut witness).await == 0).await;
}

/// Twelve processes on eight names. `LOCKKEEPER_LOAD` says how many rounds each makes.
async fn twelve_processes_meet_no_deadlock(server: Running) {
    let rounds: usize = env::var("LOCKKEEPER_LOAD").map_or(100, |n| n.parse().expect("a number"));
    let folder = tempfile::tempdir().expect("a folder");
    let mut processes = Vec::new();
    for process in 0..12 {
        let path = folder.path().join(process.to_string());
        let mut script = File::create(&path).expect("a file");
        for round in 0..rounds {
            let name = (round * 5 + process * 3) % 8;
            writeln!(script, "take name-{name}\nrelease").expect("written");
        }
        let taker = Command::new(env!("CARGO_BIN_EXE_taker"))
            .args([server.url(), "10000", "0"])
            .stdin(File::open(&path).expect("a file"))
            // Not a pipe, which would be full before it is read and hold up the process.
            .stdout(File::create(path.with_extension("out")).expect("a file"))
            .spawn()
            .expect("the taker starts");
        processes.push((taker, path.with_extension("out")));
    }
    let ended = tokio::task::spawn_blocking(move || {
        let wait = |(mut process, out): (Child, PathBuf)| {
            let status = process.wait().expect("it ends");
            (status, fs::read_to_string(out).expect("text"))
        };
        processes.into_iter().map(wait).collect::<Vec<_>>()
    });
    for (status, said) in ended.await.expect("no panic") {
        assert!(status.success(), "{status}");
        let lost: Vec<&str> = said.lines().filter(|line| line.starts_with("lost")).collect();
        assert_eq!(lost, [""; 0]);
        assert_eq!(said.lines().filter(|line| *line == "released").count(), rounds);
    }
    let mut witness = client(&server).await;
    assert_eq!(deadlocks(&mut witness).await, 0);
    assert_eq!(standing(&mut witness).await, 0);
}
