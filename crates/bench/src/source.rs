//! Where a benchmark's locks are: in files, or on a server of its own.

use crate::{
    args::{Pin, Plan},
    machine,
};
use anyhow::{Context as _, Result};
use lockkeeper::{Builder, Keeper};
use servers::{Recipe, Running};
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

/// Files that are made when they are asked for, or a server that ends with this.
pub(crate) enum Source {
    Files(PathBuf),
    Server(Box<Running>, u32),
}

impl Source {
    /// Starts the server, if there is a recipe. The inner error says why it cannot be had here.
    pub(crate) fn open(recipe: Option<&Recipe>, plan: &Plan) -> Result<Result<Self, String>> {
        let Some(recipe) = recipe else { return Ok(Ok(Self::Files(plan.folder.clone()))) };
        if let Some(missing) = servers::install_missing(&[*recipe]).pop() {
            return Ok(Err(missing.to_string()));
        }
        let mut running = recipe.start()?;
        let pid = *running.pids().first().context("the server has ended")?;
        if plan.pin == Some(Pin::Apart) {
            machine::pin_process(pid, machine::SERVER_CORE)?;
        }
        Ok(Ok(Self::Server(Box::new(running), pid)))
    }

    /// The server's first process.
    pub(crate) fn server(&self) -> Option<u32> {
        match self {
            Self::Files(_) => None,
            Self::Server(_, pid) => Some(*pid),
        }
    }

    /// The server, or a new file.
    pub(crate) fn site(&self) -> Result<Site> {
        match self {
            Self::Files(folder) => LockFile::within(folder).map(Site::File),
            Self::Server(running, _) => Ok(Site::Server(running.url().to_owned())),
        }
    }
}

/// One place of locks. A file goes with this.
pub(crate) enum Site {
    File(LockFile),
    Server(String),
}

impl Site {
    pub(crate) fn url(&self) -> String {
        match self {
            Self::File(file) => file.url(),
            Self::Server(url) => url.clone(),
        }
    }
}

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

    pub(crate) fn url(&self) -> String {
        format!("sqlite:{}", self.path.display())
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

/// The file that a URL of [`LockFile`] leads to.
pub(crate) fn path_of(url: &str) -> Result<&Path> {
    url.strip_prefix("sqlite:").map(Path::new).context("a URL of a file")
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

/// A keeper with default options and a connection of its own, its session open.
pub(crate) async fn keeper(url: &str) -> Result<Keeper> {
    warm(Keeper::connect(url).await?).await
}

/// A keeper over this store, its session open, so that the opening is not measured.
pub(crate) async fn keeper_over(builder: Builder, store: impl lockkeeper::Store) -> Result<Keeper> {
    warm(builder.over(store)?).await
}

async fn warm(keeper: Keeper) -> Result<Keeper> {
    keeper.lock(format!("warm-up/{}", std::process::id())).await?.release().await?;
    Ok(keeper)
}
