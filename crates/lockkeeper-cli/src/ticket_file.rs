//! Ticket files: where a lock is kept between `acquire`, `renew` and `release`.
//!
//! The first line is a JSON object with what a script may want to read, and the secret with which the lock can
//! be renewed and released. A release that was begun leaves a second line, so that one which is repeated
//! after an unknown outcome is not told that the lock was lost.
//!
//! A file appears at its path complete and at once, and never in place of another one that still holds. What
//! takes a file away does so under the file's `flock`, and only if the path still leads to that very file.

use crate::{exit_code, failure::Failure, output, store, ticket::PAUSE};
use anyhow::{Context as _, anyhow};
use lockkeeper::Detached;
use nix::unistd::{Uid, geteuid};
use rustix::fs::{CWD, RenameFlags, renameat_with};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use std::{
    fs::{self, File, OpenOptions, TryLockError},
    io::{self, Read as _, Write as _},
    os::unix::fs::{MetadataExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
    time::{Duration, Instant},
};
use tokio::time::sleep;

/// The version of the format.
const VERSION: u32 = 1;
/// The second line of a file whose lock is being released.
const RELEASING: &str = "releasing\n";
/// No ticket file is longer; a path that leads elsewhere is not read to its end.
const BYTES_MAX: u64 = 64 << 10;

/// What a ticket file says.
#[derive(Serialize, Deserialize)]
pub(crate) struct Contents {
    version: u32,
    pub(crate) name: String,
    /// None where the store has none.
    pub(crate) fence: Option<u64>,
    pub(crate) sequencer: String,
    /// Without its password.
    pub(crate) store_url: String,
    acquired_at: String,
    /// All that is needed to renew and release the lock.
    secret: String,
}

impl Contents {
    pub(crate) fn new(detached: &Detached, url: &str) -> Self {
        Self {
            version: VERSION,
            name: detached.name().to_string(),
            fence: Some(detached.fence()).filter(|fence| *fence != 0),
            sequencer: detached.sequencer().to_string(),
            store_url: store::without_secrets(url),
            acquired_at: output::ago(Duration::ZERO),
            secret: detached.secret_text(),
        }
    }

    /// The lock, for [`Keeper::attach`](lockkeeper::Keeper::attach).
    pub(crate) fn detached(&self) -> Result<Detached, lockkeeper::Error> {
        self.secret.parse()
    }
}

/// A ticket file that is about to appear.
pub(crate) struct Draft {
    path: PathBuf,
    /// The same, without its name yet.
    hidden: PathBuf,
    file: File,
}

impl Draft {
    /// Prepares a file beside the path, so that a folder that cannot be written to is found before the lock is
    /// taken.
    pub(crate) fn beside(path: &Path) -> Result<Self, Failure> {
        let refused = |e: io::Error| cannot_create(path, anyhow!(e));
        let name = path.file_name().ok_or_else(|| refused(io::ErrorKind::IsADirectory.into()))?;
        for number in 0_u32.. {
            let mut hidden = std::ffi::OsString::from(".");
            hidden.push(name);
            hidden.push(format!(".{}-{number}", std::process::id()));
            let hidden = path.with_file_name(hidden);
            match OpenOptions::new().write(true).create_new(true).mode(0o600).open(&hidden) {
                Ok(file) => return Ok(Self { path: path.to_owned(), hidden, file }),
                // A process of this number was killed here once.
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists && number < 100 => {}
                Err(e) => return Err(refused(e)),
            }
        }
        Err(refused(io::ErrorKind::AlreadyExists.into()))
    }

    /// Lets the file appear, in place of the stale one or of none.
    pub(crate) fn publish(
        mut self,
        contents: &Contents,
        stale: Option<&TicketFile>,
    ) -> Result<(), Failure> {
        let refused = |e: io::Error| cannot_create(&self.path, anyhow!(e));
        let line = serde_json::to_string(contents).map_err(Failure::bug)? + "\n";
        self.file
            .write_all(line.as_bytes())
            .and_then(|()| self.file.sync_all())
            .map_err(refused)?;
        match stale.filter(|stale| stale.try_lock()) {
            Some(_) => fs::rename(&self.hidden, &self.path),
            None => appear(&self.hidden, &self.path),
        }
        .map_err(refused)
    }
}

/// Nothing is left but the file itself, if it has appeared.
impl Drop for Draft {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.hidden);
    }
}

/// Gives a file its name, unless that is taken.
fn appear(hidden: &Path, path: &Path) -> io::Result<()> {
    match renameat_with(CWD, hidden, CWD, path, RenameFlags::NOREPLACE) {
        // NFS and others cannot do it so.
        Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => fs::hard_link(hidden, path),
        renamed => Ok(renamed?),
    }
}

/// A ticket file that is there.
pub(crate) struct TicketFile {
    path: PathBuf,
    file: File,
    pub(crate) contents: Contents,
    /// A release was begun before.
    pub(crate) is_releasing: bool,
    /// The length of the file if none is begun.
    bytes: u64,
}

impl TicketFile {
    /// Reads a ticket file; `None` if there is none.
    pub(crate) fn open(path: &Path) -> Result<Option<Self>, Failure> {
        let unusable = |e: anyhow::Error| Failure::new(exit_code::NO_TICKET, e);
        let shown = output::printable(&path.display().to_string());
        // Without blocking: the path may lead to a pipe.
        let mut open = OpenOptions::new();
        open.read(true).append(true).custom_flags(nix::libc::O_NONBLOCK);
        let file = match open.open(path) {
            Ok(file) => file,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(e) => return Err(unusable(anyhow!(e).context(format!("cannot read {shown}")))),
        };
        let about = file.metadata().map_err(Failure::bug)?;
        if !about.is_file() {
            return Err(unusable(anyhow!("{shown} is no file")));
        }
        if ![about.uid(), 0].contains(&geteuid().as_raw()) {
            let owner = Uid::from_raw(about.uid());
            let what = format!("{shown} belongs to another user ({owner}): it is not used");
            return Err(Failure::new(exit_code::DENIED, anyhow!(what)));
        }
        if about.mode() & 0o077 != 0 {
            let mode = about.mode() & 0o777;
            output::warning(&format!(
                "others may read {shown} (mode {mode:03o}): with the secret in it they can release \
                 the lock; chmod 600 it"
            ));
        }
        let mut text = String::new();
        (&file).take(BYTES_MAX).read_to_string(&mut text).unwrap_or_default();
        let (first, rest) = text.split_once('\n').unwrap_or((&text, ""));
        let contents: Option<Contents> = serde_json::from_str(first).ok();
        let known = contents.filter(|it| it.version == VERSION && it.detached().is_ok());
        // What the file has is not repeated: it may be another secret.
        let contents =
            known.with_context(|| format!("{shown} is no ticket file")).map_err(unusable)?;
        let is_releasing = rest.starts_with(RELEASING.trim_end());
        let bytes = (text.len() - rest.len()) as u64;
        Ok(Some(Self { path: path.to_owned(), file, contents, is_releasing, bytes }))
    }

    /// Waits, at most so long, until no other process takes the file away or replaces it. Says whether it is still there.
    pub(crate) async fn lock(&self, wait: Duration) -> Result<bool, Failure> {
        let began = Instant::now();
        loop {
            match self.file.try_lock() {
                Ok(()) => return Ok(self.is_at_its_path()),
                Err(TryLockError::WouldBlock) if began.elapsed() < wait => sleep(PAUSE).await,
                Err(TryLockError::WouldBlock) => {
                    let what = "another process has begun to release it and has not ended";
                    return Err(Failure::new(exit_code::UNAVAILABLE, anyhow!(what)));
                }
                Err(TryLockError::Error(e)) => return Err(Failure::bug(e)),
            }
        }
    }

    /// The same without waiting. Says no, too, if another process has it.
    fn try_lock(&self) -> bool {
        self.file.try_lock().is_ok() && self.is_at_its_path()
    }

    /// Does the path still lead to this file, and has no release of it been begun?
    pub(crate) fn is_in_use(&self) -> bool {
        self.is_at_its_path() && self.file.metadata().is_ok_and(|about| about.len() <= self.bytes)
    }

    fn is_at_its_path(&self) -> bool {
        let id = |about: fs::Metadata| (about.dev(), about.ino());
        let (here, there) = (self.file.metadata().map(id), fs::metadata(&self.path).map(id));
        here.ok().zip(there.ok()).is_some_and(|(here, there)| here == there)
    }

    /// Notes that a release begins. If that cannot be written, the release is worth more than the note.
    pub(crate) fn set_releasing(&mut self) {
        if !self.is_releasing {
            let _ = self.file.write_all(RELEASING.as_bytes()).and_then(|()| self.file.sync_all());
        }
    }

    /// Takes the file away. Its lock is held no more.
    pub(crate) fn remove(&self) {
        if let Err(e) = fs::remove_file(&self.path) {
            let shown = output::printable(&self.path.display().to_string());
            output::warning(&format!("cannot remove {shown}, which is worth nothing now: {e}"));
        }
    }
}

fn cannot_create(path: &Path, error: anyhow::Error) -> Failure {
    let shown = output::printable(&path.display().to_string());
    Failure::new(exit_code::CANNOT_CREATE, error.context(format!("cannot write {shown}")))
}
