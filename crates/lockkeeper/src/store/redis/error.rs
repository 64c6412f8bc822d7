//! From errors of the server and of the client to store errors: their kind, outcome and text.

use super::KIND;
use crate::error::{ErrorKind, StoreError};
use redis::RedisError;
use std::{error::Error as StdError, io, sync::Arc};

/// How Redis 8 begins when a script may not run a command.
const ACL_FAILURE: &str = "ACL failure in script: ";
const RIGHTS: &str = "; docs/redis.md lists the rights that locks need";
const REPLICA: &str = "; it is a replica: connect to the primary, or through redis+sentinel://";
const NODE: &str = "; it is a node of a cluster: use redis+cluster://";
const FOREIGN: &str =
    "; a key that locks use holds something else: choose another prefix=, or remove it";

/// The error as the core and people should see it. It has no source, because its text says all that the source
/// would say. It must not repeat what the server repeats of a request that it does not know: perhaps our password.
pub(super) fn error(e: &RedisError) -> StoreError {
    if let Some(what) = tls(e) {
        return StoreError::not_applied(KIND, ErrorKind::Misconfigured, what);
    }
    let (kind, hint) = kind(e);
    let what = format!("{}{hint}", words(e));
    if is_refusal(e, kind) {
        StoreError::not_applied(KIND, kind, what)
    } else {
        StoreError::unknown(KIND, kind, what)
    }
}

/// Why no connection to these servers could be made.
pub(super) fn unconnected(e: &RedisError, to: &str) -> StoreError {
    let error = error(e);
    let what = match error.kind {
        ErrorKind::Unavailable if e.code().is_none() => {
            let why = e.detail().map_or_else(|| e.to_string(), str::to_owned);
            format!("cannot connect to {to}: {why}")
        }
        _ => error.what,
    };
    StoreError::not_applied(KIND, error.kind, what)
}

/// Whether the server has refused the request before doing anything. A script that fails half-way has done its
/// first half.
fn is_refusal(e: &RedisError, kind: ErrorKind) -> bool {
    let by_the_server = e.code().is_some() && kind != ErrorKind::Other && !is_in_script(e);
    by_the_server || e.is_connection_refusal()
}

fn detail(e: &RedisError) -> &str {
    e.detail().unwrap_or_default()
}

fn is_in_script(e: &RedisError) -> bool {
    detail(e).contains("script: ") || detail(e).contains("Error running script")
}

/// What happened, in the server's own words if there are any.
fn words(e: &RedisError) -> String {
    if let Some(what) = credentials(e) {
        return what.to_owned();
    }
    match (e.code(), detail(e)) {
        (None, _) if e.is_io_error() => format!("{}: {e}", e.category()),
        (None, "") | (Some(_), "") => e.category().to_owned(),
        (None, said) => format!("{}: {said}", e.category()),
        // From this mark on it names the script by its hash, or repeats what we have sent.
        (Some(code), said) => {
            let said = said.strip_prefix(ACL_FAILURE).unwrap_or(said);
            let end = [" script: ", ", with args"].iter().filter_map(|mark| said.find(mark)).min();
            format!("the server says {code}: {}", &said[..end.unwrap_or(said.len())])
        }
    }
}

/// What is wrong with the user or its password. A cluster's client hides the server's code in a text of its own.
fn credentials(e: &RedisError) -> Option<&'static str> {
    let says = |code| e.code() == Some(code) || detail(e).contains(&format!("\"{code}\""));
    if says("NOAUTH") {
        return Some(
            "the server asks for a password; write it into the URL, or use password_file=",
        );
    }
    says("WRONGPASS")
        .then_some("the server refuses the user or its password; check both in the URL")
}

fn kind(e: &RedisError) -> (ErrorKind, &'static str) {
    if credentials(e).is_some() {
        return (ErrorKind::Denied, "");
    }
    if e.is_io_error() || e.is_timeout() || e.is_cluster_error() {
        return (ErrorKind::Unavailable, "");
    }
    match e.kind() {
        redis::ErrorKind::AuthenticationFailed => return (ErrorKind::Denied, ""),
        redis::ErrorKind::InvalidClientConfig => return (ErrorKind::Misconfigured, ""),
        redis::ErrorKind::RESP3NotSupported => {
            return (ErrorKind::Misconfigured, "; Redis 6.2 or newer is needed");
        }
        redis::ErrorKind::MasterNameNotFoundBySentinel
        | redis::ErrorKind::ClusterConnectionNotFound => {
            return (ErrorKind::Unavailable, "");
        }
        _ => {}
    }
    match e.code().unwrap_or_default() {
        "NOPERM" => (ErrorKind::Denied, RIGHTS),
        // Inside a script, servers before 7.0 and from 8.0 on say it in other words.
        "ERR"
            if detail(e).contains("The user executing the script can't")
                || detail(e).starts_with(ACL_FAILURE) =>
        {
            (ErrorKind::Denied, RIGHTS)
        }
        "WRONGTYPE" => (ErrorKind::Misconfigured, FOREIGN),
        "ERR" if detail(e).contains("WRONGTYPE") => (ErrorKind::Misconfigured, FOREIGN),
        "READONLY" => (ErrorKind::Unavailable, REPLICA),
        "MOVED" | "CROSSSLOT" => (ErrorKind::Misconfigured, NODE),
        "LOADING" | "MASTERDOWN" | "CLUSTERDOWN" | "TRYAGAIN" | "BUSY" => {
            (ErrorKind::Unavailable, "")
        }
        "OOM" => (ErrorKind::Unavailable, "; the server is out of memory"),
        "MISCONF" => (ErrorKind::Unavailable, "; the server cannot write to its disk"),
        "NOREPLICAS" => (ErrorKind::Unavailable, "; too few replicas"),
        _ => (ErrorKind::Other, ""),
    }
}

/// What is wrong with the server's certificate or ours. To try again would not help.
fn tls(e: &RedisError) -> Option<String> {
    let shared = e.source()?.downcast_ref::<Arc<dyn StdError + Send + Sync>>()?;
    let tls = shared.downcast_ref::<io::Error>()?.get_ref()?.downcast_ref::<rustls::Error>()?;
    Some(match tls {
        rustls::Error::InvalidCertificate(_) => {
            format!("the server's certificate is not trusted ({tls}); check tls_ca=")
        }
        rustls::Error::AlertReceived(_) => format!(
            "the server refuses the TLS connection ({tls}); check tls_cert= and tls_key=, which it \
             may ask for"
        ),
        _ => format!("no TLS connection: {tls}"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Outcome;
    use redis::Value;

    /// The error that comes of a server's answer.
    fn said(answer: &str) -> StoreError {
        let value = redis::parse_redis_value(format!("-{answer}\r\n").as_bytes());
        error(&value.and_then(Value::extract_error).expect_err("an error"))
    }

    #[test]
    fn a_script_that_failed_half_way_may_have_done_something() {
        let e = said("NOPERM this user has no permissions to run the 'info' command");
        assert_eq!((e.kind, e.outcome), (ErrorKind::Denied, Outcome::NotApplied));
        assert!(e.what.contains("'info'") && e.what.contains("docs/redis.md"), "{e}");
        for inside in [
            "NOPERM User u has no permissions to run the 'zadd' command script: 12ab, on @user_script:7.",
            "ERR ACL failure in script: User u has no permissions to run the 'zadd' command script: 12ab, on @user_script:7.",
            "ERR The user executing the script can't run this command or subcommand script: 12ab, on @user_script:7.",
            "ERR Error running script (call to f_12ab): @user_script:7: The user executing the script can't run this command",
        ] {
            let e = said(inside);
            assert_eq!((e.kind, e.outcome), (ErrorKind::Denied, Outcome::Unknown), "{e}");
            assert!(!e.what.contains(" on @user_script"), "{e}");
        }
    }

    #[test]
    fn what_is_wrong_with_the_credentials_is_said_once_in_plain_words() {
        let noauth = "NOAUTH HELLO must be called with the client already authenticated";
        let (kind, desc) = (redis::ErrorKind::Io, "Failed to create initial connections");
        let of_a_cluster = error(&(kind, desc, format!("{:?}: HELLO must be", "NOAUTH")).into());
        for e in [said(noauth), of_a_cluster] {
            assert_eq!(e.kind, ErrorKind::Denied, "{e}");
            assert!(e.what.contains("asks for a password") && !e.what.contains("HELLO"), "{e}");
        }
        let e = said("WRONGPASS invalid username-password pair or user is disabled.");
        assert_eq!(e.kind, ErrorKind::Denied);
        assert!(e.what.contains("refuses the user or its password") && e.source.is_none(), "{e}");
    }

    #[test]
    fn what_the_server_repeats_of_our_request_is_not_passed_on() {
        let e =
            said("ERR unknown command 'HELLO', with args beginning with: '3' 'AUTH' 'me' 'secret'");
        assert!(e.what.contains("unknown command 'HELLO'"), "{e}");
        assert!(!format!("{e} {e:?}").contains("secret"));
    }
}
