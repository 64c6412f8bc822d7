//! What the client's errors mean for the core.

use super::{
    KIND,
    client::{Code, Error},
};
use crate::error::{ErrorKind, StoreError};

impl From<Error> for StoreError {
    fn from(e: Error) -> Self {
        match e {
            Error::Expired | Error::Refused(Code::SESSION_EXPIRED) => Self::session_over(KIND),
            Error::Unreachable(what) => unavailable(what),
            Error::Denied => {
                let what = "the server does not accept the user and its password";
                Self::not_applied(KIND, ErrorKind::Denied, what)
            }
            Error::Broken => {
                let what = "the connection broke before the answer came";
                Self::unknown(KIND, ErrorKind::Unavailable, what)
            }
            Error::Refused(code) => refused(code),
        }
    }
}

fn refused(code: Code) -> StoreError {
    let (kind, what) = match code {
        Code::SESSION_MOVED | Code::THROTTLED | Code::NOT_READ_ONLY => {
            (ErrorKind::Unavailable, "the server cannot serve this now")
        }
        Code::NO_AUTH | Code::AUTH_FAILED | Code::SASL_REQUIRED | Code::INVALID_ACL => (
            ErrorKind::Denied,
            "the server refuses; check the user, its password and the nodes' ACL",
        ),
        Code::QUOTA => (ErrorKind::Full, "the quota of the server is used up"),
        Code::UNIMPLEMENTED => {
            (ErrorKind::Misconfigured, "the server is too old; ZooKeeper 3.6 or newer is needed")
        }
        _ => (ErrorKind::Other, "the server refuses"),
    };
    StoreError::not_applied(KIND, kind, format!("{what} (code {})", code.0))
}

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
