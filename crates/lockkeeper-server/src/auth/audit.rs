//! The audit log: evictions, refused requests and reloads, as events of `tracing` (target `audit`) and as lines of
//! JSON in a file.

use crate::connection::Peer;
use serde::Serialize;
use std::{
    fs::{File, OpenOptions},
    io::{self, Write as _},
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
    time::{Instant, SystemTime},
};

/// So many refused requests are noted per second; the others are counted in the next line.
const REFUSED_PER_SECOND: u32 = 20;

/// Where it is written.
#[derive(Debug, Default)]
pub(crate) struct Audit {
    file: Option<(PathBuf, Mutex<File>)>,
    refused: Mutex<Refused>,
}

#[derive(Debug, Default)]
struct Refused {
    second: Option<Instant>,
    noted: u32,
    left_out: u64,
}

/// One line. What is missing is left out.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Entry {
    at: String,
    /// `evicted`, `evict_failed`, `refused`, `reloaded`, `reload_failed`.
    event: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) principal: Option<String>,
    /// Where the request came from.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) peer: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) method: Option<String>,
    /// The route as the table has it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) route: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) status: Option<u16>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) lock: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) ticket: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) fence: Option<u64>,
    /// The files that were read again, the reason of a refusal or of a failure.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) detail: Option<String>,
    /// How many refused requests before this one were not noted, because there were too many.
    #[serde(skip_serializing_if = "Option::is_none")]
    left_out: Option<u64>,
}

impl Entry {
    pub(crate) fn new(event: &'static str) -> Self {
        let at = humantime::format_rfc3339_millis(SystemTime::now()).to_string();
        Self { at, event, ..Self::default() }
    }

    /// Where a request came from.
    pub(crate) fn from(mut self, peer: Option<&Peer>) -> Self {
        self.peer = peer.map(|peer| match peer {
            Peer::Tcp(address) => address.ip().to_string(),
            Peer::Unix => "unix".to_owned(),
        });
        self
    }

    pub(crate) fn detail(mut self, detail: impl Into<String>) -> Self {
        self.detail = Some(detail.into());
        self
    }
}

impl Audit {
    /// Appends to this file, which is made for this user alone if it is not there.
    pub(crate) fn open(path: Option<&Path>) -> io::Result<Self> {
        let file = match path {
            Some(path) => Some((path.to_owned(), Mutex::new(append(path)?))),
            None => None,
        };
        Ok(Self { file, refused: Mutex::default() })
    }

    /// Opens the file again: it may have been moved away.
    pub(crate) fn reopen(&self) -> io::Result<()> {
        if let Some((path, file)) = &self.file {
            *file.lock().unwrap_or_else(PoisonError::into_inner) = append(path)?;
        }
        Ok(())
    }

    /// Notes a refused request, if there were not too many within this second.
    pub(crate) fn refused(&self, mut entry: Entry, now: Instant) {
        {
            let mut refused = self.refused.lock().unwrap_or_else(PoisonError::into_inner);
            if refused.second.is_none_or(|second| now.duration_since(second).as_secs() > 0) {
                (refused.second, refused.noted) = (Some(now), 0);
            }
            refused.noted += 1;
            if refused.noted > REFUSED_PER_SECOND {
                refused.left_out += 1;
                return;
            }
            entry.left_out = Some(std::mem::take(&mut refused.left_out)).filter(|count| *count > 0);
        }
        self.note(&entry);
    }

    /// Notes what has happened.
    pub(crate) fn note(&self, entry: &Entry) {
        // Texts and numbers always become JSON, which has no control characters of its own.
        let mut line = serde_json::to_string(entry).unwrap_or_default();
        tracing::info!(target: "audit", entry = line, "{}", entry.event);
        line.push('\n');
        if let Some((path, file)) = &self.file {
            let mut file = file.lock().unwrap_or_else(PoisonError::into_inner);
            if let Err(e) = file.write_all(line.as_bytes()) {
                tracing::error!(error = %e, path = %path.display(), "the audit log cannot be written");
            }
        }
    }
}

fn append(path: &Path) -> io::Result<File> {
    OpenOptions::new().append(true).create(true).mode(0o600).open(path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn a_flood_of_refused_requests_is_counted_and_not_written() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("audit");
        let audit = Audit::open(Some(&path)).unwrap();
        let start = Instant::now();
        for _ in 0..100 {
            audit.refused(Entry::new("refused"), start);
        }
        audit.refused(Entry::new("refused"), start + Duration::from_secs(1));
        let text = std::fs::read_to_string(&path).unwrap();
        assert_eq!(text.lines().count(), 21);
        assert!(text.lines().last().unwrap().contains("\"left_out\":80"), "{text}");
    }

    #[test]
    fn a_file_that_was_moved_away_is_made_again() {
        let folder = tempfile::tempdir().unwrap();
        let (path, old) = (folder.path().join("audit"), folder.path().join("audit.1"));
        let audit = Audit::open(Some(&path)).unwrap();
        audit.note(&Entry::new("reloaded"));
        std::fs::rename(&path, &old).unwrap();
        audit.reopen().unwrap();
        audit.note(&Entry::new("reloaded").detail("a\nb"));
        for path in [path, old] {
            assert_eq!(std::fs::read_to_string(path).unwrap().lines().count(), 1);
        }
    }
}
