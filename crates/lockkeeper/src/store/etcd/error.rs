//! What etcd's errors mean for a lock.

use super::KIND;
use crate::error::{Outcome, StoreError, Trouble};
use std::{error::Error as _, time::Duration};
use tonic::{Code, ConnectError, Status};

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
const LEASE_GONE: &str = "etcdserver: requested lease not found";
const LEASE_EXISTS: &str = "etcdserver: lease already exists";

pub(super) fn of(status: Status) -> Failure {
    let text = status.message();
    let token =
        text.contains("invalid auth token") || text.contains("revision of auth store is old");
    let trouble = match status.code() {
        Code::Unavailable | Code::DeadlineExceeded | Code::Cancelled | Code::Aborted => {
            Trouble::Unavailable
        }
        // What the connection below says when it breaks in the middle.
        Code::Unknown | Code::Internal if status.source().is_some() => Trouble::Unavailable,
        Code::ResourceExhausted if text.contains("too many requests") => Trouble::Unavailable,
        Code::ResourceExhausted => Trouble::Full,
        Code::PermissionDenied | Code::Unauthenticated => Trouble::Denied,
        _ if text.contains("authentication failed") || text.contains("user name is empty") => {
            Trouble::Denied
        }
        _ if text.contains("authentication is not enabled") => Trouble::Misconfigured,
        Code::NotFound if text == LEASE_GONE => Trouble::SessionOver,
        Code::Unimplemented => Trouble::Misconfigured,
        _ => Trouble::Other,
    };
    let endpoint = trouble == Trouble::Unavailable;
    let applied = endpoint && !never_sent(&status) && text != NO_LEADER;
    let outcome = if applied { Outcome::Unknown } else { Outcome::NotApplied };
    let what = if text.is_empty() { status.code().to_string() } else { text.to_owned() };
    let error = StoreError { outcome, ..StoreError::not_applied(KIND, trouble, what) };
    Failure { error: error.because(status), endpoint, token }
}

/// There was no connection to send it on.
fn never_sent(status: &Status) -> bool {
    let mut below = status.source();
    while let Some(e) = below {
        if e.is::<ConnectError>() {
            return true;
        }
        below = e.source();
    }
    false
}

/// No answer came.
pub(super) fn silence(after: Duration) -> Failure {
    let what = format!("no answer within {after:.1?}");
    let error = StoreError::unknown(KIND, Trouble::Unavailable, what);
    Failure { error, endpoint: true, token: false }
}

pub(super) fn broken(what: &str) -> Failure {
    let error = StoreError::unknown(KIND, Trouble::Unavailable, what);
    Failure { error, endpoint: true, token: false }
}

/// The lease that the request names is over.
pub(super) fn lease_gone(e: &StoreError) -> bool {
    e.trouble == Trouble::SessionOver
}

pub(super) fn lease_exists(e: &StoreError) -> bool {
    e.what == LEASE_EXISTS
}

/// The server's answer is not what its kind of request is answered with.
pub(super) fn nonsense(what: &str) -> StoreError {
    let what = format!("{what} in the server's answer makes no sense");
    StoreError::unknown(KIND, Trouble::Corrupt, what)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_says_whether_anything_was_written() {
        let cases = [
            (Status::unavailable(NO_LEADER), Trouble::Unavailable, Outcome::NotApplied),
            (
                Status::unavailable("etcdserver: leader changed"),
                Trouble::Unavailable,
                Outcome::Unknown,
            ),
            (Status::not_found(LEASE_GONE), Trouble::SessionOver, Outcome::NotApplied),
            (
                Status::permission_denied("etcdserver: permission denied"),
                Trouble::Denied,
                Outcome::NotApplied,
            ),
            (
                Status::resource_exhausted("etcdserver: mvcc: database space exceeded"),
                Trouble::Full,
                Outcome::NotApplied,
            ),
        ];
        for (status, trouble, outcome) in cases {
            let failure = of(status);
            assert_eq!((failure.error.trouble, failure.error.outcome), (trouble, outcome));
        }
        assert!(of(Status::unauthenticated("etcdserver: invalid auth token")).token);
    }
}
