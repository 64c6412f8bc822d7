//! The store's own refusals.

use super::KIND;
use crate::error::{ErrorKind, StoreError};

pub(super) fn unavailable(what: impl Into<String>) -> StoreError {
    StoreError::not_applied(KIND, ErrorKind::Unavailable, what)
}

pub(super) fn misconfigured(what: impl Into<String>) -> StoreError {
    StoreError::not_applied(KIND, ErrorKind::Misconfigured, what)
}

/// The failure of a request that was sent outside the caller's session: the caller's session goes on,
/// whatever became of the other one.
pub(super) fn outside_session(e: impl Into<StoreError>) -> StoreError {
    let e = e.into();
    match e.kind {
        ErrorKind::SessionOver => StoreError { kind: ErrorKind::Unavailable, ..e },
        _ => e,
    }
}
