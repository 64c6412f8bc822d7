//! A file of locks for one benchmark.

use anyhow::{Context, Result};
use lockkeeper::{Builder, Keeper, store::sqlite::Sqlite};
use std::{
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
    time::Duration,
};
use tempfile::TempDir;

/// How often the size of the log is read.
const WATCH_EVERY: Duration = Duration::from_millis(5);

/// A file in a folder of its own, gone when dropped.
pub(crate) struct LockFile {
    _folder: TempDir,
    path: PathBuf,
}

impl LockFile {
    /// The path of a file that does not exist yet.
    pub(crate) fn within(folder: &Path) -> Result<Self> {
        let folder = tempfile::Builder::new().prefix("lockkeeper-bench-").tempdir_in(folder);
        let folder = folder.context("cannot make a folder for the file of locks")?;
        Ok(Self { path: folder.path().join("locks.db"), _folder: folder })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Watches the log from now on.
    pub(crate) fn watch_log(&self) -> LogWatch {
        let log = self.path.with_file_name("locks.db-wal");
        let done = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&done);
        let thread = std::thread::spawn(move || {
            let mut most = 0;
            while !told.load(Ordering::Relaxed) {
                most = most.max(std::fs::metadata(&log).map_or(0, |log| log.len()));
                std::thread::sleep(WATCH_EVERY);
            }
            most
        });
        LogWatch { done, thread }
    }
}

/// A thread that reads the size of a log again and again.
pub(crate) struct LogWatch {
    done: Arc<AtomicBool>,
    thread: JoinHandle<u64>,
}

impl LogWatch {
    /// The largest size that was seen, in bytes.
    pub(crate) fn most(self) -> u64 {
        self.done.store(true, Ordering::Relaxed);
        self.thread.join().unwrap_or(0)
    }
}

/// The store in this file.
pub(crate) fn store(path: &Path) -> Result<Sqlite> {
    Ok(Sqlite::open(path.to_str().context("the path is no text")?)?)
}

/// A keeper with default options over this file, its session open.
pub(crate) async fn keeper(path: &Path) -> Result<Keeper> {
    keeper_over(Keeper::builder(), store(path)?).await
}

/// A keeper over this store, its session open, so that the opening is not measured.
pub(crate) async fn keeper_over(builder: Builder, store: impl lockkeeper::Store) -> Result<Keeper> {
    let keeper = builder.over(store)?;
    keeper.lock(format!("warm-up/{}", std::process::id())).await?.release().await?;
    Ok(keeper)
}
