//! What the errors of the server and of the client mean to us.

use super::KIND;
use crate::error::{StoreError, Trouble};
use redis::{ErrorKind, RedisError};
use std::{error::Error as StdError, io, sync::Arc};

const RIGHTS: &str = "; docs/redis.md lists the rights that locks need";
const FOREIGN: &str =
    "; a key that locks use holds something else: choose another prefix=, or remove it";

/// The error as the core and people should see it.
pub(super) fn error(e: RedisError) -> StoreError {
    if let Some(what) = tls(&e) {
        return StoreError::not_applied(KIND, Trouble::Misconfigured, what).because(e);
    }
    let (trouble, hint) = kind(&e);
    let what = format!("{}{hint}", words(&e));
    let error = if is_refusal(&e, trouble) {
        StoreError::not_applied(KIND, trouble, what)
    } else {
        StoreError::unknown(KIND, trouble, what)
    };
    // What the server repeats of a request it does not know may be our password.
    if repeats_us(&e) { error } else { error.because(e) }
}

/// Has the server refused the request before doing anything? A script that fails half-way has done the
/// first half.
fn is_refusal(e: &RedisError, trouble: Trouble) -> bool {
    let by_the_server = e.code().is_some() && trouble != Trouble::Other && !is_in_script(e);
    by_the_server || e.is_connection_refusal()
}

fn detail(e: &RedisError) -> &str {
    e.detail().unwrap_or_default()
}

fn is_in_script(e: &RedisError) -> bool {
    detail(e).contains("script: ") || detail(e).contains("Error running script")
}

fn repeats_us(e: &RedisError) -> bool {
    detail(e).contains("with args beginning with")
}

/// What happened, in the server's own words if it has said some.
fn words(e: &RedisError) -> String {
    match (e.code(), detail(e)) {
        (None, _) if e.is_io_error() => format!("{}: {e}", e.category()),
        (None, _) | (_, "") => e.category().to_owned(),
        // From here on it names the script by its hash, or repeats what we have sent.
        (Some(code), said) => {
            let end = [" script: ", ", with args"].iter().filter_map(|mark| said.find(mark)).min();
            format!("the server says {code}: {}", &said[..end.unwrap_or(said.len())])
        }
    }
}

fn kind(e: &RedisError) -> (Trouble, &'static str) {
    if e.is_io_error() || e.is_timeout() || e.is_cluster_error() {
        return (Trouble::Unavailable, "");
    }
    match e.kind() {
        ErrorKind::AuthenticationFailed => return (Trouble::Denied, ""),
        ErrorKind::InvalidClientConfig => return (Trouble::Misconfigured, ""),
        ErrorKind::RESP3NotSupported => {
            return (Trouble::Misconfigured, "; Redis 6.2 or newer is needed");
        }
        ErrorKind::MasterNameNotFoundBySentinel | ErrorKind::ClusterConnectionNotFound => {
            return (Trouble::Unavailable, "");
        }
        _ => {}
    }
    match e.code().unwrap_or_default() {
        "NOAUTH" | "WRONGPASS" => (Trouble::Denied, "; check the user and its password"),
        "NOPERM" => (Trouble::Denied, RIGHTS),
        // Inside a script older servers say it in other words.
        "ERR" if detail(e).contains("The user executing the script can't") => {
            (Trouble::Denied, RIGHTS)
        }
        "WRONGTYPE" => (Trouble::Misconfigured, FOREIGN),
        "ERR" if detail(e).contains("WRONGTYPE") => (Trouble::Misconfigured, FOREIGN),
        "READONLY" | "LOADING" | "MASTERDOWN" | "CLUSTERDOWN" | "TRYAGAIN" | "BUSY" => {
            (Trouble::Unavailable, "")
        }
        "OOM" => (Trouble::Unavailable, "; the server is out of memory"),
        "MISCONF" => (Trouble::Unavailable, "; the server cannot write to its disk"),
        "NOREPLICAS" => (Trouble::Unavailable, "; too few replicas"),
        _ => (Trouble::Other, ""),
    }
}

/// What is wrong with somebody's certificate. To try again would not help.
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
        error(value.and_then(Value::extract_error).expect_err("an error"))
    }

    #[test]
    fn a_script_that_failed_half_way_may_have_done_something() {
        let e = said("NOPERM this user has no permissions to run the 'info' command");
        assert_eq!((e.trouble, e.outcome), (Trouble::Denied, Outcome::NotApplied));
        assert!(e.what.contains("'info'") && e.what.contains("docs/redis.md"), "{e}");
        for inside in [
            "NOPERM User u has no permissions to run the 'zadd' command script: 12ab, on @user_script:7.",
            "ERR The user executing the script can't run this command or subcommand script: 12ab, on @user_script:7.",
            "ERR Error running script (call to f_12ab): @user_script:7: The user executing the script can't run this command",
        ] {
            let e = said(inside);
            assert_eq!((e.trouble, e.outcome), (Trouble::Denied, Outcome::Unknown), "{e}");
            assert!(!e.what.contains(" on @user_script"), "{e}");
        }
    }

    #[test]
    fn what_the_server_repeats_of_our_request_is_not_passed_on() {
        let e =
            said("ERR unknown command 'HELLO', with args beginning with: '3' 'AUTH' 'me' 'secret'");
        assert!(e.what.contains("unknown command 'HELLO'"), "{e}");
        assert!(!format!("{e} {e:?}").contains("secret"));
    }
}
