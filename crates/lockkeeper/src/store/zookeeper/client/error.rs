//! What the servers' refusals and the connections' failures mean, and whether the request may have been
//! carried out.

use super::Code;
use crate::{
    error::{ErrorKind, StoreError},
    store::zookeeper::KIND,
};

/// Why a request has no good answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Error {
    /// The server refused the request, so it changed nothing.
    Refused(Code),
    /// The connection broke before the answer came, or the answer makes no sense. The request may have
    /// been carried out.
    Broken,
    /// No server could be reached. Nothing was sent.
    Unreachable(String),
    /// The session has ended. Nothing was sent.
    Expired,
    /// The servers do not accept the credentials. Nothing was sent.
    Denied,
}

impl From<Error> for StoreError {
    fn from(e: Error) -> Self {
        match e {
            Error::Expired | Error::Refused(Code::SESSION_EXPIRED) => Self::session_over(KIND),
            Error::Unreachable(what) => Self::not_applied(KIND, ErrorKind::Unavailable, what),
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
