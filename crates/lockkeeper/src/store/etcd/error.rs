//! The store's own refusals.

use super::KIND;
use crate::error::{ErrorKind, StoreError};

/// Nothing was written, and the caller may try again.
pub(super) fn not_now(what: &str) -> StoreError {
    StoreError::not_applied(KIND, ErrorKind::Unavailable, what)
}

/// The request may have been carried out, or may still be.
pub(super) fn unknown(what: &str) -> StoreError {
    StoreError::unknown(KIND, ErrorKind::Unavailable, what)
}

/// The ticket's key was written again and again between its read and the write that rests on it.
pub(super) fn contended() -> StoreError {
    not_now("the ticket is written by others again and again")
}
