//! What SQLite's errors mean for the core.

use super::KIND;
use crate::error::{ErrorKind, StoreError};
use rusqlite::ErrorCode;

/// A transaction that fails is rolled back, so nothing was written; except that a failing disk leaves it
/// open.
pub(super) fn failure(e: rusqlite::Error, what: &str) -> StoreError {
    let (kind, hint) = match e.sqlite_error_code() {
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => {
            (ErrorKind::Unavailable, "; another process holds the file for too long")
        }
        // Not transient: waiting makes no room.
        Some(ErrorCode::DiskFull) => (ErrorKind::Full, "; the disk is full"),
        Some(ErrorCode::SystemIoFailure) => (ErrorKind::Unavailable, "; the disk fails"),
        Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => {
            (ErrorKind::Corrupt, "; the file is corrupt: move it away, a new one will be made")
        }
        Some(ErrorCode::ReadOnly | ErrorCode::PermissionDenied | ErrorCode::CannotOpen) => {
            (ErrorKind::Denied, "; the file and its folder must be writable")
        }
        _ => (ErrorKind::Other, ""),
    };
    let what = format!("{what}{hint}");
    let error = match e.sqlite_error_code() {
        Some(ErrorCode::SystemIoFailure) => StoreError::unknown(KIND, kind, what),
        _ => StoreError::not_applied(KIND, kind, what),
    };
    error.because(e)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Outcome;

    #[test]
    fn a_full_disk_is_not_waited_for() {
        let full = rusqlite::ffi::Error::new(rusqlite::ffi::SQLITE_FULL);
        let e = failure(rusqlite::Error::SqliteFailure(full, None), "a transaction failed");
        assert!(!e.is_transient(), "a waiter would wait for room");
        assert_eq!((e.kind, e.outcome), (ErrorKind::Full, Outcome::NotApplied));
        assert!(e.to_string().contains("the disk is full"), "{e}");
    }
}
