//! What an error of the server or the driver means.

use super::KIND;
use crate::error::{ErrorKind, StoreError};
use tokio_postgres::error::{DbError, Severity, SqlState};

/// What the error of a request means.
pub(super) fn error(e: tokio_postgres::Error) -> StoreError {
    let Some(db) = e.as_db_error() else {
        let what = "the connection broke or cannot be made";
        return StoreError::unknown(KIND, ErrorKind::Unavailable, what).because(e);
    };
    let (kind, hint) = kind(db);
    let what = format!("{}{hint}", db.message());
    // The server rolls back what it refuses. But if it also ends the connection, the message may be about that
    // and not about the request.
    let error = if is_fatal(db) {
        StoreError::unknown(KIND, kind, what)
    } else {
        StoreError::not_applied(KIND, kind, what)
    };
    error.because(e)
}

/// There is no connection, so nothing was sent.
pub(super) fn unreachable(what: String) -> StoreError {
    StoreError::not_applied(KIND, ErrorKind::Unavailable, what)
}

/// The server's code for an error.
pub(super) fn code(e: &StoreError) -> &str {
    let source = e.source.as_ref().and_then(|s| s.downcast_ref::<tokio_postgres::Error>());
    source.and_then(|e| e.code()).map_or("", |code| code.code())
}

/// Did a transaction of others keep a row locked for longer than `lock_timeout`?
pub(super) fn is_blocked(e: &StoreError) -> bool {
    code(e) == "55P03"
}

/// Is a table, a function or the schema missing?
pub(super) fn is_missing(e: &StoreError) -> bool {
    matches!(code(e), "42P01" | "42883" | "3F000")
}

/// The server's clock, if it refused the request because its deadline had passed.
pub(super) fn too_late(e: &StoreError) -> Option<i64> {
    let source = e.source.as_ref()?.downcast_ref::<tokio_postgres::Error>()?.as_db_error()?;
    (source.code().code() == "LK105").then(|| source.detail()?.parse().ok())?
}

/// Must the connection be given up? A server that only reads was made a replica, or was reached by mistake:
/// another may have taken over under the same name, which only a new connection finds.
pub(super) fn ends_connection(e: &tokio_postgres::Error) -> bool {
    e.is_closed()
        || e.as_db_error().is_none_or(is_fatal)
        || e.code() == Some(&SqlState::READ_ONLY_SQL_TRANSACTION)
}

/// Does the server end the connection with this error? The severity's text may be a translation.
fn is_fatal(e: &DbError) -> bool {
    e.parsed_severity().map_or(e.severity() != "ERROR", |severity| severity != Severity::Error)
}

fn kind(e: &DbError) -> (ErrorKind, &'static str) {
    match e.code().code() {
        // Codes of our functions, in lines.sql and sessions.sql.
        "LK101" => (ErrorKind::SessionOver, ""),
        "LK102" => (ErrorKind::TicketClosed, ""),
        "LK103" => {
            let capacity = e.detail().and_then(|d| d.parse().ok()).unwrap_or(0);
            (ErrorKind::Capacity(capacity), "")
        }
        "LK104" => (ErrorKind::Full, ""),
        // Serialization, deadlock and lock_timeout; no memory, too many connections; shutting down,
        // starting, idle for too long; a disk error.
        "40001" | "40P01" | "55P03" | "53200" | "53300" | "57P01" | "57P02" | "57P03" | "57P05"
        | "57014" | "58030" => (ErrorKind::Unavailable, ""),
        "53100" => (ErrorKind::Full, "; the server's disk is full"),
        "25006" => (ErrorKind::Unavailable, "; the server is a replica: connect to the primary"),
        "26000" | "42P05" => {
            (ErrorKind::Misconfigured, "; behind a connection pooler, say pooler=true")
        }
        "42501" => {
            (ErrorKind::Denied, "; `lockkeeper migrate --print` shows which rights are needed")
        }
        code => match &code[..2] {
            "28" => (ErrorKind::Denied, "; check the user and its password"),
            "3D" => (ErrorKind::Misconfigured, ""),
            "08" => (ErrorKind::Unavailable, ""),
            _ => (ErrorKind::Other, ""),
        },
    }
}
