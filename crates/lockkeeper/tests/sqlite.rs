//! What only the SQLite store promises.
#![cfg(feature = "sqlite")]

use lockkeeper::{
    Error, Guard, Keeper, Loss,
    store::{AnyStore, sqlite::Sqlite},
};
use std::{
    io::{BufRead as _, BufReader},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::Arc,
    time::Duration,
};

const LONG: Duration = Duration::from_secs(30);

struct Folder(tempfile::TempDir);

impl Folder {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn path(&self) -> PathBuf {
        self.0.path().join("locks.db")
    }

    /// The log, or another companion of the file.
    fn beside(&self, suffix: &str) -> PathBuf {
        self.0.path().join(format!("locks.db{suffix}"))
    }

    fn url(&self) -> String {
        format!("sqlite:{}", self.path().display())
    }

    /// A keeper, and its store to look at.
    fn keeper(&self) -> (Arc<Sqlite>, Keeper) {
        let store = Arc::new(Sqlite::open(self.path().to_str().unwrap()).unwrap());
        let any = AnyStore::shared(Arc::clone(&store));
        (store, Keeper::builder().over(any).unwrap())
    }

    fn files(&self) -> Vec<String> {
        let files = std::fs::read_dir(self.0.path()).unwrap();
        files.map(|f| f.unwrap().file_name().into_string().unwrap()).collect()
    }
}

async fn within<T>(work: impl Future<Output = T>) -> T {
    tokio::time::timeout(LONG, work).await.expect("this takes far too long")
}

#[tokio::test]
async fn a_removed_file_loses_the_locks_in_it_within_a_renewal() {
    let folder = Folder::new();
    let keeper =
        Keeper::builder().ttl(Duration::from_secs(2)).connect(&folder.url()).await.unwrap();
    let guard = keeper.lock("a").await.unwrap();
    std::fs::remove_file(folder.path()).unwrap();
    assert_eq!(within(guard.lost()).await, Loss::SessionGone);
    let e = keeper.lock("a").await.unwrap_err();
    assert!(e.to_string().contains("removed or replaced"), "{e}");
}

/// A new process makes a log of its own then, in which the holder's grant is not.
#[tokio::test]
async fn a_removed_log_loses_the_locks_in_it_within_a_renewal() {
    for removed in [&["-wal", "-shm"][..], &["-shm"], &["-wal"]] {
        let folder = Folder::new();
        let keeper =
            Keeper::builder().ttl(Duration::from_secs(2)).connect(&folder.url()).await.unwrap();
        let guard = keeper.lock("a").await.unwrap();
        for suffix in removed {
            std::fs::remove_file(folder.beside(suffix)).unwrap();
        }
        assert_eq!(within(guard.lost()).await, Loss::SessionGone, "{removed:?}");
        let e = keeper.lock("a").await.unwrap_err();
        assert!(e.to_string().contains("removed or replaced"), "{e}");
    }
}

/// A release hands over to its own process directly, and rings the bell of another one, which polls.
#[tokio::test]
async fn a_removed_file_hands_nothing_over() {
    for own in [true, false] {
        let folder = Folder::new();
        let (_store, holder) = folder.keeper();
        let waiting = if own { holder.clone() } else { folder.keeper().1 };
        let guard = holder.lock("a").await.unwrap();
        let waiter = tokio::spawn(async move { waiting.lock("a").await });
        within(async {
            while holder.get("a").await.unwrap().is_none_or(|l| l.waiters().count() == 0) {
                tokio::task::yield_now().await;
            }
        })
        .await;
        std::fs::remove_file(folder.path()).unwrap();
        // For so long a look at the file is good; a renewal is seconds away.
        tokio::time::sleep(Duration::from_millis(3)).await;
        guard.release().await.unwrap();
        let Err(e) = within(waiter).await.unwrap() else { panic!("granted; own waiter: {own}") };
        assert!(e.to_string().contains("removed or replaced"), "{e}");
    }
}

/// SQLite replays whatever log lies beside a file into it.
#[tokio::test]
async fn a_new_file_knows_nothing_of_a_removed_one_whose_log_is_still_there() {
    let folder = Folder::new();
    let before = Keeper::connect(&folder.url()).await.unwrap();
    let guard = before.lock("a").await.unwrap();
    std::fs::remove_file(folder.path()).unwrap();
    let after = Keeper::connect(&folder.url()).await.unwrap();
    assert!(after.list("").await.unwrap().is_empty());
    assert!(after.lock("a").try_now().await.unwrap().is_some());
    assert!(!after.check(&guard.sequencer()).await.unwrap_or(false));
}

/// What the cells of the test below have, and how many of them the other process writes.
const CELLS: usize = 200;
const THEIRS: usize = 20;

async fn write_cell(keeper: &Keeper, i: usize, value: u8) -> Guard {
    let guard = keeper.lock(format!("name {i}")).await.unwrap();
    guard.write(vec![value; 500]).await.unwrap();
    guard
}

async fn write_all_cells(keeper: &Keeper, value: u8) {
    for i in 0..CELLS {
        write_cell(keeper, i, value).await.release().await.unwrap();
    }
}

/// Drops a keeper with its store, once its tasks have ended.
async fn drop_all(store: Arc<Sqlite>, keeper: Keeper) {
    keeper.close().await;
    drop(keeper);
    within(async {
        while Arc::strong_count(&store) > 1 {
            tokio::task::yield_now().await;
        }
    })
    .await;
}

const OTHER: &str = "LOCKKEEPER_SQLITE_OTHER";

/// The other process of the test below, which runs this very program with a store in its environment. On
/// its own it has nothing to do. (Within one process SQLite shares the log's index.)
#[tokio::test]
async fn another_process_writes_cells_and_keeps_their_locks() {
    let Ok(url) = std::env::var(OTHER) else { return };
    let keeper = Keeper::connect(&url).await.unwrap();
    let mut guards = Vec::new();
    for i in 0..THEIRS {
        guards.push(write_cell(&keeper, i, 3).await);
    }
    println!("\nwritten");
    let end = tokio::task::spawn_blocking(|| std::io::stdin().lines().count());
    end.await.unwrap();
}

/// Other processes have a new log then, and no lock of theirs keeps the pages of the removed one out of the
/// database.
#[tokio::test]
async fn a_removed_log_is_never_carried_over_into_the_database() {
    let folder = Folder::new();
    let (store, keeper) = folder.keeper();
    write_all_cells(&keeper, 1).await;
    drop_all(store, keeper).await;

    let (cut_off, keeper) = folder.keeper();
    write_all_cells(&keeper, 2).await;
    for suffix in ["-wal", "-shm"] {
        std::fs::remove_file(folder.beside(suffix)).unwrap();
    }
    let mut other = Command::new(std::env::current_exe().unwrap())
        .args(["--nocapture", "--exact", "another_process_writes_cells_and_keeps_their_locks"])
        .env(OTHER, folder.url())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let said = BufReader::new(other.stdout.take().unwrap()).lines();
    let mut said = said.map_while(Result::ok);
    assert!(said.any(|line| line == "written"));
    drop_all(cut_off, keeper).await;

    let reader = Keeper::connect(&folder.url()).await.unwrap();
    assert_eq!(reader.list("").await.unwrap().len(), THEIRS, "their locks");
    for i in 0..CELLS {
        let cell = reader.read(format!("name {i}")).await.unwrap().expect("the cell is there");
        let expected = if i < THEIRS { 3 } else { 1 };
        assert!(cell.bytes == [expected; 500], "cell {i} has {}", cell.bytes[0]);
    }
    let c = rusqlite::Connection::open(folder.path()).unwrap();
    let integrity: String = c.query_row("PRAGMA integrity_check", [], |r| r.get(0)).unwrap();
    assert_eq!(integrity, "ok");
    drop(other.stdin.take());
    said.for_each(drop);
    assert!(other.wait().unwrap().success());
}

/// Within one process SQLite would give the new keeper the index of the removed log.
#[tokio::test]
async fn a_process_connects_anew_only_when_nothing_uses_the_removed_log() {
    for removed in [&["-wal", "-shm"][..], &["-shm"], &["-wal"]] {
        let folder = Folder::new();
        let (store, keeper) = folder.keeper();
        let guard = keeper.lock("a").await.unwrap();
        let beside = Keeper::connect(&folder.url()).await.unwrap();
        assert!(beside.lock("a").try_now().await.unwrap().is_none());
        drop(beside);
        for suffix in removed {
            std::fs::remove_file(folder.beside(suffix)).unwrap();
        }
        let Err(e) = Keeper::connect(&folder.url()).await else { panic!("connected: {removed:?}") };
        assert!(e.to_string().contains("drop that keeper"), "{e}");
        drop(guard);
        drop_all(store, keeper).await;
        let keeper = Keeper::connect(&folder.url()).await.unwrap();
        keeper.lock("a").wait(LONG).await.unwrap().release().await.unwrap();
    }
}

/// A restart of the log waited for the reader with the writers' lock in its hand, again and again, so
/// that nothing was renewed any more.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_long_read_of_the_file_costs_no_lock() {
    const KEEPERS: usize = 4;
    const PAIRS: usize = 3_000;
    let folder = Folder::new();
    let connect = || async {
        let ttl = Duration::from_secs(3);
        Keeper::builder().ttl(ttl).connect(&folder.url()).await.unwrap()
    };
    let holder = connect().await;
    let held = holder.lock("held all the time").await.unwrap();
    let reader = rusqlite::Connection::open(folder.path()).unwrap();
    reader.execute_batch("BEGIN; SELECT count(*) FROM ticket;").unwrap();
    let mut work = tokio::task::JoinSet::new();
    for i in 0..KEEPERS {
        let keeper = connect().await;
        work.spawn(async move {
            for _ in 0..PAIRS {
                keeper.lock(format!("name {i}")).await.unwrap().release().await.unwrap();
            }
        });
    }
    // A pair takes less than a millisecond, and took a tenth of a second.
    tokio::time::timeout(4 * LONG, work.join_all()).await.expect("the locks stand still");
    assert!(held.is_held());
    drop(reader);
}

#[tokio::test]
async fn a_file_that_is_not_ours_is_refused_by_connect() {
    let folder = Folder::new();
    std::fs::write(folder.path(), "something else").unwrap();
    let Err(Error::Store(e)) = Keeper::connect(&folder.url()).await else { panic!("it connects") };
    assert!(e.to_string().contains("left untouched"), "{e}");
    assert_eq!(std::fs::read(folder.path()).unwrap(), b"something else");
}

#[tokio::test]
async fn a_closed_keeper_leaves_nothing_but_the_file_and_its_log() {
    let folder = Folder::new();
    let (one, two) = (
        Keeper::connect(&folder.url()).await.unwrap(),
        Keeper::connect(&folder.url()).await.unwrap(),
    );
    let guard = one.lock("a").await.unwrap();
    let waiter = two.clone();
    let waiter = tokio::spawn(async move { waiter.lock("a").await });
    within(async {
        while one.get("a").await.unwrap().is_none_or(|line| line.waiters().count() == 0) {
            tokio::task::yield_now().await;
        }
    })
    .await;
    guard.release().await.unwrap();
    drop(within(waiter).await.unwrap().unwrap());
    one.close().await;
    two.close().await;
    drop((one, two));
    within(async {
        while folder.files().iter().any(|f| f.contains("bell")) {
            tokio::task::yield_now().await;
        }
    })
    .await;
    let unexpected =
        |f: &String| !["locks.db", "locks.db-wal", "locks.db-shm"].contains(&f.as_str());
    assert!(!folder.files().iter().any(unexpected), "{:?}", folder.files());
}

/// A dropped guard releases even when the runtime ends right after the drop.
#[test]
fn a_guard_dropped_at_the_end_of_the_runtime_leaves_no_ticket() {
    let folder = Folder::new();
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime().block_on(async {
        let keeper = Keeper::connect(&folder.url()).await.unwrap();
        drop(keeper.lock("a").await.unwrap());
    });
    runtime().block_on(async {
        let keeper = Keeper::connect(&folder.url()).await.unwrap();
        assert!(keeper.list("").await.unwrap().is_empty());
        keeper.lock("a").wait(LONG).await.unwrap().release().await.unwrap();
    });
}

fn log_size(file: &Path) -> u64 {
    std::fs::metadata(format!("{}-wal", file.display())).map_or(0, |m| m.len())
}

#[tokio::test]
async fn the_log_stays_bounded_however_much_is_locked() {
    let folder = Folder::new();
    let keeper = Keeper::connect(&folder.url()).await.unwrap();
    let mut longest = 0;
    for i in 0..40_000 {
        keeper.lock(format!("name {}", i % 50)).await.unwrap().release().await.unwrap();
        if i % 100 == 0 {
            longest = longest.max(log_size(&folder.path()));
        }
    }
    // 40,000 pairs write some 300 MB of log without a checkpoint.
    assert!(longest < 150 << 20, "the log grew to {longest} bytes");
    keeper.close().await;
}

#[tokio::test]
async fn one_renewal_serves_any_number_of_locks() {
    let folder = Folder::new();
    let store = std::sync::Arc::new(Sqlite::open(folder.path().to_str().unwrap()).unwrap());
    let any = lockkeeper::store::AnyStore::shared(std::sync::Arc::clone(&store));
    let keeper = Keeper::builder().ttl(Duration::from_secs(3)).over(any).unwrap();
    let mut guards = Vec::new();
    for i in 0..1_000 {
        guards.push(keeper.lock(format!("name {i}")).await.unwrap());
    }
    let (began, before) = (std::time::Instant::now(), store.renewals());
    within(async {
        while store.renewals() < before + 3 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
    // Every second one: between the first and the third of them lie two seconds.
    let elapsed = began.elapsed();
    assert!(elapsed > Duration::from_millis(1_900), "3 renewals within {elapsed:?}");
    assert!(guards.iter().all(lockkeeper::Guard::is_held));
    keeper.close().await;
}
