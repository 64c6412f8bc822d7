//! What etcd's errors mean: whether the request was carried out, and whether another endpoint may do
//! better.

use super::{KIND, wire::Unsent};
use crate::error::{ErrorKind, Outcome, StoreError};
use std::{error::Error, time::Duration};
use tonic::{Code, Status};

const NO_LEADER: &str = "etcdserver: no leader";
const TOO_MANY: &str = "etcdserver: too many requests";
const LEASE_GONE: &str = "etcdserver: requested lease not found";
const COMPACTED: &str = "etcdserver: mvcc: required revision has been compacted";
const LEASE_EXISTS: &str = "etcdserver: lease already exists";

/// How servers refuse a token.
const TOKEN_REFUSED: [&str; 3] =
    ["invalid auth token", "revision of auth store is old", "user name is empty"];

/// A request that failed, and what can be done about it.
pub(super) struct Failure {
    pub(super) error: StoreError,
    pub(super) try_next_endpoint: bool,
    pub(super) token_refused: bool,
}

impl Failure {
    /// An error that another attempt does not mend.
    pub(super) fn refusal(error: StoreError) -> Self {
        Self { error, try_next_endpoint: false, token_refused: false }
    }

    /// The server's answer broke off.
    pub(super) fn broken(what: impl Into<String>) -> Self {
        let error = StoreError::unknown(KIND, ErrorKind::Unavailable, what.into());
        Self { try_next_endpoint: true, ..Self::refusal(error) }
    }

    /// The server did not answer in time.
    pub(super) fn silence(after: Duration) -> Self {
        Self::broken(format!("no answer within {after:.1?}"))
    }
}

impl From<&Status> for Failure {
    fn from(status: &Status) -> Self {
        let text = status.message();
        let token_refused = TOKEN_REFUSED.iter().any(|words| text.contains(words));
        let unsent = causes(status).any(|e| e.is::<Unsent>());
        let kind = if unsent { ErrorKind::Unavailable } else { kind(status.code(), text) };
        let try_next_endpoint = kind == ErrorKind::Unavailable;
        let refused = unsent || text == NO_LEADER || text == TOO_MANY;
        // A server that gets full may say so of the very write that filled it.
        let unsure = (try_next_endpoint && !refused) || kind == ErrorKind::Full;
        let outcome = if unsure { Outcome::Unknown } else { Outcome::NotApplied };
        let error = StoreError::not_applied(KIND, kind, words(status));
        Self { error: StoreError { outcome, ..error }, try_next_endpoint, token_refused }
    }
}

/// The errors that led to this status.
fn causes(status: &Status) -> impl Iterator<Item = &(dyn Error + 'static)> {
    let mut next = status.source();
    std::iter::from_fn(move || {
        let e = next?;
        next = e.source();
        Some(e)
    })
}

/// The status's message and those of its causes. Its own `Display` has names of types.
fn words(status: &Status) -> String {
    let text = status.message();
    let words = if text.is_empty() { status.code().to_string() } else { text.to_owned() };
    causes(status).map(ToString::to_string).fold(words, |words, more| {
        if more.is_empty() || words.contains(&more) { words } else { format!("{words}: {more}") }
    })
}

/// Only what etcd itself or a proxy before it has surely refused counts as a refusal. Any other error on
/// the way says nothing about whether the request was carried out.
fn kind(code: Code, text: &str) -> ErrorKind {
    let by_etcd = text.starts_with("etcdserver:");
    match code {
        Code::PermissionDenied | Code::Unauthenticated => ErrorKind::Denied,
        Code::Unimplemented => ErrorKind::Misconfigured,
        Code::NotFound if text == LEASE_GONE => ErrorKind::SessionOver,
        Code::ResourceExhausted if by_etcd && text != TOO_MANY => ErrorKind::Full,
        Code::Unavailable | Code::DeadlineExceeded | Code::Cancelled | Code::Aborted => {
            ErrorKind::Unavailable
        }
        _ if text == TOO_MANY || !by_etcd => ErrorKind::Unavailable,
        _ if text.contains("authentication failed") || text.contains("user name is empty") => {
            ErrorKind::Denied
        }
        _ if text.contains("authentication is not enabled") => ErrorKind::Misconfigured,
        _ => ErrorKind::Other,
    }
}

/// The lease that the request names has ended.
pub(crate) fn lease_gone(e: &StoreError) -> bool {
    e.kind == ErrorKind::SessionOver
}

/// The revision that the request names is no longer in the history.
pub(super) fn is_compacted(e: &StoreError) -> bool {
    e.what == COMPACTED
}

pub(super) fn lease_exists(e: &StoreError) -> bool {
    e.what == LEASE_EXISTS
}

/// An answer of the server lacks what its kind of request is answered with, or has something unreadable.
pub(crate) fn malformed(what: &str) -> StoreError {
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
            let failure = Failure::from(&status);
            assert_eq!((failure.error.kind, failure.error.outcome), (kind, outcome));
        }
        assert!(
            Failure::from(&Status::unauthenticated("etcdserver: invalid auth token")).token_refused
        );
        // A host may have such a name.
        let unsent =
            Failure::from(&Status::from_error(Box::new(unsent("etcdserver:2379: refused"))));
        assert_eq!(unsent.error.outcome, Outcome::NotApplied);
        assert!(unsent.try_next_endpoint);
    }
}
