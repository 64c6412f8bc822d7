//! The store's own refusals.

use super::KIND;
use crate::error::{ErrorKind, StoreError};

/// Nothing was written, and the caller may try again.
pub(super) fn not_now(what: &str) -> StoreError {
    StoreError::not_applied(KIND, ErrorKind::Unavailable, what)
}

/// An enter came after its ticket was closed.
pub(super) fn closed() -> StoreError {
    let what = "the ticket was closed before this request came";
    StoreError::not_applied(KIND, ErrorKind::TicketClosed, what)
}

/// The line is used with another capacity.
pub(super) fn capacity(capacity: u32) -> StoreError {
    let what = format!("the line has capacity {capacity}");
    StoreError::not_applied(KIND, ErrorKind::Capacity(capacity), what)
}

/// The request may have been carried out, or may still be.
pub(super) fn unknown(what: &str) -> StoreError {
    StoreError::unknown(KIND, ErrorKind::Unavailable, what)
}

/// The ticket's key was written again and again between its read and the write that rests on it.
pub(super) fn contended() -> StoreError {
    not_now("the ticket is written by others again and again")
}
