//! What etcd's errors mean for a lock.

use super::{KIND, wire::Unsent};
use crate::error::{ErrorKind, Outcome, StoreError};
use std::{error::Error as _, time::Duration};
use tonic::{Code, Status};

/// A request that failed, and what can be done about it.
pub(super) struct Failure {
    pub(super) error: StoreError,
    /// Another endpoint may do better.
    pub(super) endpoint: bool,
    /// The token was not accepted.
    pub(super) token: bool,
}

impl Failure {
    /// Nothing can be done.
    pub(super) fn final_(error: StoreError) -> Self {
        Self { error, endpoint: false, token: false }
    }
}

const NO_LEADER: &str = "etcdserver: no leader";
const TOO_MANY: &str = "etcdserver: too many requests";
const LEASE_GONE: &str = "etcdserver: requested lease not found";
const COMPACTED: &str = "etcdserver: mvcc: required revision has been compacted";
const LEASE_EXISTS: &str = "etcdserver: lease already exists";

pub(super) fn of(status: &Status) -> Failure {
    let text = status.message();
    let token = ["invalid auth token", "revision of auth store is old", "user name is empty"]
        .iter()
        .any(|words| text.contains(words));
    let unsent = never_sent(status);
    let kind = if unsent { ErrorKind::Unavailable } else { kind(status.code(), text) };
    let endpoint = kind == ErrorKind::Unavailable;
    let refused = unsent || text == NO_LEADER || text == TOO_MANY;
    // A server that gets full says so also of the write that made it so.
    let unsure = (endpoint && !refused) || kind == ErrorKind::Full;
    let outcome = if unsure { Outcome::Unknown } else { Outcome::NotApplied };
    let what = words(status);
    let error = StoreError { outcome, ..StoreError::not_applied(KIND, kind, what) };
    Failure { error, endpoint, token }
}

/// What a status says, and what the errors below it say more. Its own `Display` has names of types.
fn words(status: &Status) -> String {
    let text = status.message();
    let mut words = if text.is_empty() { status.code().to_string() } else { text.to_owned() };
    let mut below = status.source();
    while let Some(e) = below {
        let more = e.to_string();
        if !more.is_empty() && !words.contains(&more) {
            words = format!("{words}: {more}");
        }
        below = e.source();
    }
    words
}

/// Only what etcd itself, or a door before it, has surely refused is a refusal. Whatever else goes wrong
/// on the way says nothing about whether the request was carried out.
fn kind(code: Code, text: &str) -> ErrorKind {
    let theirs = text.starts_with("etcdserver:");
    match code {
        Code::PermissionDenied | Code::Unauthenticated => ErrorKind::Denied,
        Code::Unimplemented => ErrorKind::Misconfigured,
        Code::NotFound if text == LEASE_GONE => ErrorKind::SessionOver,
        Code::ResourceExhausted if theirs && text != TOO_MANY => ErrorKind::Full,
        Code::Unavailable | Code::DeadlineExceeded | Code::Cancelled | Code::Aborted => {
            ErrorKind::Unavailable
        }
        _ if text == TOO_MANY || !theirs => ErrorKind::Unavailable,
        _ if text.contains("authentication failed") || text.contains("user name is empty") => {
            ErrorKind::Denied
        }
        _ if text.contains("authentication is not enabled") => ErrorKind::Misconfigured,
        _ => ErrorKind::Other,
    }
}

/// There was no connection to send it on.
fn never_sent(status: &Status) -> bool {
    let mut below = status.source();
    while let Some(e) = below {
        if e.is::<Unsent>() {
            return true;
        }
        below = e.source();
    }
    false
}

/// No answer came.
pub(super) fn silence(after: Duration) -> Failure {
    let what = format!("no answer within {after:.1?}");
    let error = StoreError::unknown(KIND, ErrorKind::Unavailable, what);
    Failure { error, endpoint: true, token: false }
}

pub(super) fn broken(what: &str) -> Failure {
    let error = StoreError::unknown(KIND, ErrorKind::Unavailable, what);
    Failure { error, endpoint: true, token: false }
}

/// The lease that the request names is over.
pub(super) fn lease_gone(e: &StoreError) -> bool {
    e.kind == ErrorKind::SessionOver
}

/// The revision that the request names is forgotten.
pub(super) fn is_compacted(e: &StoreError) -> bool {
    e.what == COMPACTED
}

pub(super) fn lease_exists(e: &StoreError) -> bool {
    e.what == LEASE_EXISTS
}

/// The server's answer is not what its kind of request is answered with.
pub(super) fn nonsense(what: &str) -> StoreError {
    let what = format!("{what} in the server's answer makes no sense");
    StoreError::unknown(KIND, ErrorKind::Corrupt, what)
}

#[cfg(test)]
mod tests {
    use super::{super::wire::unsent, *};

    #[test]
    fn an_error_says_whether_anything_was_written() {
        let cases = [
            (Status::unavailable(NO_LEADER), ErrorKind::Unavailable, Outcome::NotApplied),
            (
                Status::unavailable("etcdserver: leader changed"),
                ErrorKind::Unavailable,
                Outcome::Unknown,
            ),
            (Status::not_found(LEASE_GONE), ErrorKind::SessionOver, Outcome::NotApplied),
            (
                Status::permission_denied("etcdserver: permission denied"),
                ErrorKind::Denied,
                Outcome::NotApplied,
            ),
            (
                Status::resource_exhausted("etcdserver: mvcc: database space exceeded"),
                ErrorKind::Full,
                Outcome::Unknown,
            ),
            (Status::resource_exhausted(TOO_MANY), ErrorKind::Unavailable, Outcome::NotApplied),
            (Status::unknown("no trailers came"), ErrorKind::Unavailable, Outcome::Unknown),
            (
                Status::internal("Missing response message."),
                ErrorKind::Unavailable,
                Outcome::Unknown,
            ),
            (Status::out_of_range("too long an answer"), ErrorKind::Unavailable, Outcome::Unknown),
        ];
        for (status, kind, outcome) in cases {
            let failure = of(&status);
            assert_eq!((failure.error.kind, failure.error.outcome), (kind, outcome));
        }
        assert!(of(&Status::unauthenticated("etcdserver: invalid auth token")).token);
        // A host may be called so.
        let unsent = of(&Status::from_error(Box::new(unsent("etcdserver:2379: refused"))));
        assert_eq!(unsent.error.outcome, Outcome::NotApplied);
        assert!(unsent.endpoint);
    }
}
