//! What only the SQLite store promises.
#![cfg(feature = "sqlite")]

use lockkeeper::{Error, Keeper, Loss, store::sqlite::Sqlite};
use std::{
    path::{Path, PathBuf},
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
