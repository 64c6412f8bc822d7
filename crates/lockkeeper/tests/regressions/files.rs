//! What holds for locks in a file.

use crate::{
    meddled::Meddled,
    support::{HOUR, MINUTE, in_background, keeper, limited, run, until, waiters, without_pause},
};
use lockkeeper::{
    Keeper,
    store::{AnyStore, LIST_MAX, clock::Clock, sqlite::Sqlite},
};
use rustix::fs::FlockOperation;
use std::{
    fs::File,
    path::{Path, PathBuf},
    process::Command,
};

/// A folder with a file of locks in it.
pub(crate) struct Folder(tempfile::TempDir);

impl Folder {
    pub(crate) fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    pub(crate) fn open(&self) -> AnyStore {
        self.open_with(&Clock::system())
    }

    pub(crate) fn open_with(&self, clock: &Clock) -> AnyStore {
        open(&self.path(), clock)
    }

    /// A keeper with a connection of its own, as another process has it.
    fn keeper(&self) -> Keeper {
        keeper(&self.open(), &Clock::system(), HOUR)
    }

    fn path(&self) -> PathBuf {
        self.0.path().join("locks.db")
    }

    /// The log, or another companion of the file.
    fn beside(&self, suffix: &str) -> PathBuf {
        self.0.path().join(format!("locks.db{suffix}"))
    }
}

fn open(path: &Path, clock: &Clock) -> AnyStore {
    AnyStore::new(Sqlite::with_clock(path.to_str().unwrap(), clock.clone()).unwrap())
}

fn rows(path: &Path) -> i64 {
    let file = rusqlite::Connection::open(path).unwrap();
    file.query_row("SELECT count(*) FROM ticket", [], |row| row.get(0)).unwrap()
}

/// A page of a listing that had dead lines in it looked like the last one.
#[test]
fn a_listing_is_not_cut_short_by_dead_lines() {
    run(async || {
        let (folder, clock) = (Folder::new(), Clock::movable());
        let lives = keeper(&folder.open_with(&clock), &clock, HOUR);
        let dies = keeper(&folder.open_with(&clock), &clock, MINUTE);
        let dead = dies.lock("0000").await.unwrap();
        let mut guards = Vec::new();
        for i in 1..=LIST_MAX + 10 {
            guards.push(lives.lock(format!("{i:04}")).await.unwrap());
        }
        clock.advance(2 * MINUTE);
        assert!(!dead.is_held());
        let there = usize::try_from(rows(&folder.path())).unwrap();
        assert_eq!(there, guards.len() + 1, "the dead line is still in the file");
        assert_eq!(lives.list("").await.unwrap().len(), guards.len());
    });
}

/// When many locks came free at once, the rings that no longer fitted into the socket were lost, and
/// those waiters slept until their next regular look.
#[test]
fn a_burst_of_rings_wakes_every_waiter() {
    run(async || {
        const MANY: usize = 64;
        let folder = Folder::new();
        let first = folder.keeper();
        let (store, with) = Meddled::over(folder.open());
        let second = keeper(&store, &Clock::system(), HOUR);
        let mut held = Vec::new();
        for i in 0..MANY {
            held.push(first.lock(format!("{i}")).await.unwrap());
        }
        let waiting: Vec<_> =
            (0..MANY).map(|i| in_background(second.lock(format!("{i}")))).collect();
        let all_wait = async || {
            let lines = first.list("").await.unwrap();
            lines.iter().map(|line| line.waiters().count()).sum::<usize>() == MANY
        };
        until("all wait", all_wait).await;
        with.sink().await;
        first.close().await;
        let awake = || waiting.iter().all(|waiter| waiter.is_finished());
        without_pause("all are awake", awake).await;
        for waiter in waiting {
            assert!(waiter.await.unwrap().unwrap().is_held());
        }
    });
}

/// Through a symbolic link a process hung its bell beside the link, where no other process rang it.
#[test]
fn a_symbolic_link_leads_to_the_same_bells() {
    run(async || {
        let (folder, elsewhere) = (Folder::new(), Folder::new());
        std::os::unix::fs::symlink(folder.path(), elsewhere.path()).unwrap();
        let first = folder.keeper();
        let (store, with) = Meddled::over(elsewhere.open());
        let second = keeper(&store, &Clock::system(), HOUR);
        for _ in 0..3 {
            let held = first.lock("x").await.unwrap();
            let waiter = in_background(second.lock("x"));
            until("the second waits", async || waiters(&first, "x").await == 1).await;
            with.sink().await;
            held.release().await.unwrap();
            without_pause("the second is awake", || waiter.is_finished()).await;
            waiter.await.unwrap().unwrap().release().await.unwrap();
        }
    });
}

/// Some containers are told a boot of their own. To them the sessions of all others looked like
/// those of before a reboot, and were ended while their holders lived.
#[test]
fn another_boot_id_does_not_end_living_sessions() {
    run(async || {
        let folder = Folder::new();
        let first = folder.keeper();
        let guard = first.lock("x").await.unwrap();
        let foreign = rusqlite::Connection::open(folder.path()).unwrap();
        foreign.execute("UPDATE meta SET boot = ''", []).unwrap();
        let second = folder.keeper();
        assert!(second.lock("x").try_now().await.unwrap().is_none(), "two hold it");
        assert!(guard.is_held());
        assert!(second.check(&guard.sequencer()).await.unwrap());
    });
}

/// Between two renewals a session still got locks in a file that had been replaced, where no
/// other process could see them.
#[test]
fn nothing_is_granted_in_a_file_that_was_replaced() {
    run(async || {
        let folder = Folder::new();
        let first = folder.keeper();
        first.lock("warm").await.unwrap().release().await.unwrap();
        for suffix in ["", "-wal", "-shm"] {
            std::fs::remove_file(folder.beside(suffix)).unwrap();
        }
        let second = folder.keeper();
        let guard = second.lock("x").await.unwrap();
        let got = first.lock("x").try_now().await;
        assert!(!matches!(got, Ok(Some(_))), "two believe in it: {got:?} and {guard:?}");
    });
}

/// Only renewals swept, so the holds of processes that end before their first renewal piled up.
#[test]
fn short_lived_processes_sweep_too() {
    run(async || {
        let (folder, clock) = (Folder::new(), Clock::movable());
        for i in 0..50 {
            let keeper = keeper(&folder.open_with(&clock), &clock, MINUTE);
            let job = keeper.lock(format!("job {i}")).at_least(MINUTE).await.unwrap();
            job.release().await.unwrap();
            keeper.close().await;
            clock.advance(HOUR);
        }
        let rows = rows(&folder.path());
        assert!(rows < 10, "{rows} dead rows of 50");
    });
}

const FILE: &str = "LOCKKEEPER_REGRESSIONS_FILE";
const LOCKED: &str = "LOCKKEEPER_REGRESSIONS_LOCKED";

/// The other process of the test below, which runs this very program with a file in its environment.
/// On its own it has none to look at.
#[test]
fn another_process_finds_a_file_locked_or_not() {
    let (Ok(file), Ok(locked)) = (std::env::var(FILE), std::env::var(LOCKED)) else { return };
    limited(move || {
        let file = File::options().write(true).open(file).unwrap();
        let alone = rustix::fs::fcntl_lock(&file, FlockOperation::NonBlockingLockExclusive);
        assert_eq!(alone.is_err().to_string(), locked, "{alone:?}");
    });
}

fn another_process_finds(file: &Path, locked: bool) {
    let mut other = Command::new(std::env::current_exe().unwrap());
    other.args(["--exact", "files::another_process_finds_a_file_locked_or_not"]);
    let other = other.env(FILE, file).env(LOCKED, locked.to_string()).output().unwrap();
    let said = String::from_utf8_lossy(&other.stdout);
    assert!(other.status.success() && said.contains("1 passed"), "{said}");
}

/// Opening a file a second time closed a descriptor of it, and with that dropped all locks which the
/// process had on it. The next one to look into the file could then take away the log, which the
/// first went on writing to.
#[test]
fn opening_a_file_twice_keeps_the_process_s_locks_on_it() {
    run(async || {
        let (folder, untouched) = (Folder::new(), Folder::new());
        std::fs::write(untouched.path(), "").unwrap();
        another_process_finds(&untouched.path(), false);
        let first = folder.keeper();
        let _x = first.lock("x").await.unwrap();
        another_process_finds(&folder.path(), true);
        let second = folder.keeper();
        another_process_finds(&folder.path(), true);
        let _y = second.lock("y").await.unwrap();
        another_process_finds(&folder.path(), true);
        drop(folder.open());
        another_process_finds(&folder.path(), true);
    });
}
