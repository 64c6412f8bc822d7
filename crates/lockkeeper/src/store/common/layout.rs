//! The guard over the tables and procedures that a store has made in a database.
//!
//! They carry the number of their layout and a digest of the statements that made them.

use crate::error::{ErrorKind, StoreError};

/// 64-bit FNV-1a: tells whether a script is the same text, and is no protection against forgery.
pub(in crate::store) fn digest(script: impl IntoIterator<Item = u8>) -> u64 {
    script.into_iter().fold(0xcbf2_9ce4_8422_2325, |digest, byte| {
        (digest ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

/// Refuses a layout that is newer than the one that this program knows. `what` begins the message ("the schema was
/// made by a newer version"), `other` names what else the URL could say.
pub(in crate::store) fn refuse_newer(
    kind: &'static str,
    what: &str,
    found: impl std::fmt::Display,
    known: impl std::fmt::Display,
    other: &str,
) -> StoreError {
    let what = format!(
        "{what} (layout {found}, and this one knows {known}); update this program, or use another {other}"
    );
    StoreError::not_applied(kind, ErrorKind::Misconfigured, what)
}

/// Refuses `what` that is missing or outdated while the URL forbids to make it.
pub(in crate::store) fn refuse_missing(kind: &'static str, what: &str) -> StoreError {
    let what = format!(
        "{what} not there or too old, and the URL says create=false; `lockkeeper migrate --print` shows \
         the statements that make it"
    );
    StoreError::not_applied(kind, ErrorKind::Misconfigured, what)
}
