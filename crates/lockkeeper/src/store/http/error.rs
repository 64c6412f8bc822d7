//! What the service's refusals mean, and whether the request may have been carried out.

use super::{KIND, client::Reply, wire, words};
use crate::error::{ErrorKind, Outcome, StoreError};

/// An answer that says *not now*: another instance, or a later attempt, may do better.
pub(super) fn not_now(reply: &Reply) -> Option<StoreError> {
    matches!(reply.status.as_u16(), 408 | 421 | 425 | 429 | 502..=504).then(|| refusal(reply))
}

/// The error behind an answer that is not the one which was hoped for.
pub(super) fn refusal(reply: &Reply) -> StoreError {
    let problem = serde_json::from_slice::<wire::Problem>(&reply.body).ok();
    let problem = problem.filter(|problem| !problem.kind.is_empty());
    let error = match problem {
        Some(problem) => of_problem(&problem),
        None => of_status(reply.status.as_u16()),
    };
    StoreError { outcome: reply.outcome(error.outcome), ..error }
}

/// The kind of problem that an answer names, if it is the service's.
pub(super) fn kind_of(reply: &Reply) -> Option<String> {
    serde_json::from_slice::<wire::Problem>(&reply.body).ok().map(|problem| problem.kind)
}

fn of_problem(problem: &wire::Problem) -> StoreError {
    let kind = match problem.kind.as_str() {
        "unavailable" | "limit" | "stopping" | "too_late" => ErrorKind::Unavailable,
        "session_over" => ErrorKind::SessionOver,
        "ticket_closed" => ErrorKind::TicketClosed,
        "capacity" => ErrorKind::Capacity(problem.capacity.unwrap_or_default()),
        "name" => ErrorKind::Name,
        "full" => ErrorKind::Full,
        "store_misconfigured" => ErrorKind::Misconfigured,
        "store_corrupt" => ErrorKind::Corrupt,
        "unsupported" => ErrorKind::Unsupported(words::keep(unsupported(&problem.detail))),
        "store_denied" => ErrorKind::Denied,
        _ => of_status(problem.status).kind,
    };
    let outcome = match problem.outcome.as_deref() {
        Some("unknown") => Outcome::Unknown,
        Some("not_applied") => Outcome::NotApplied,
        _ => of_status(problem.status).outcome,
    };
    let what = match problem.detail.is_empty() {
        true => problem.title.clone(),
        false => problem.detail.clone(),
    };
    StoreError { outcome, ..StoreError::unknown(KIND, kind, what) }
}

/// What the store behind the service cannot do.
fn unsupported(detail: &str) -> &str {
    detail.split_once(" does not support ").map_or(detail, |(_, what)| what)
}

/// What a status says by itself: that of a proxy, or of a service that does not say more.
fn of_status(status: u16) -> StoreError {
    let (kind, outcome, what) = match status {
        401 => (
            ErrorKind::Denied,
            Outcome::NotApplied,
            "the service wants a token, or another one: write it into the file of token_file=, or \
             into LOCKKEEPER_TOKEN",
        ),
        403 => (
            ErrorKind::Denied,
            Outcome::NotApplied,
            "the token does not allow this; the service's administrator can",
        ),
        408 | 425 | 429 => {
            (ErrorKind::Unavailable, Outcome::NotApplied, "the service takes no more requests now")
        }
        300..=499 => (
            ErrorKind::Misconfigured,
            Outcome::NotApplied,
            "what answers does not know this request: is it lockkeeper serve, and of this version?",
        ),
        502..=504 => (ErrorKind::Unavailable, Outcome::Unknown, "the service does not answer"),
        _ => (ErrorKind::Other, Outcome::Unknown, "the service failed"),
    };
    StoreError { outcome, ..StoreError::unknown(KIND, kind, format!("{what} (HTTP {status})")) }
}
