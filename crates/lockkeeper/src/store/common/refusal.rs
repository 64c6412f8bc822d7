//! Refusals that mean the same in every store.

use crate::{
    error::{ErrorKind, StoreError},
    model::line::LINE_MAX,
};

/// An enter came after its ticket was closed.
pub(in crate::store) fn ticket_closed(store: &'static str) -> StoreError {
    let what = "the ticket was closed before this request came";
    StoreError::not_applied(store, ErrorKind::TicketClosed, what)
}

pub(in crate::store) fn line_full(store: &'static str) -> StoreError {
    let what = format!("{LINE_MAX} tickets stand in the line already");
    StoreError::not_applied(store, ErrorKind::Full, what)
}

/// The line is used with another capacity than the enter's.
pub(in crate::store) fn capacity(store: &'static str, of_line: u32) -> StoreError {
    let what = format!("the line has capacity {of_line}");
    StoreError::not_applied(store, ErrorKind::Capacity(of_line), what)
}
