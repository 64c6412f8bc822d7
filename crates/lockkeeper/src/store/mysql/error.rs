//! What an error of the server or the driver means: whether the connection is of any more use, whether the request
//! can be repeated, and whether it may have been carried out.

use super::KIND;
use crate::error::{ErrorKind, Outcome, StoreError};
use mysql_async::{DriverError, Error, IoError, ServerError};

/// The number of the server's error, if it is one.
pub(super) fn code(e: &StoreError) -> Option<u16> {
    let source = e.source.as_ref()?.downcast_ref::<ServerError>()?;
    Some(source.code)
}

/// Is a table or procedure of ours missing?
pub(super) fn is_missing(e: &StoreError) -> bool {
    matches!(code(e), Some(1146 | 1305))
}

/// Has `lk_fence_check` found that the grant is not held any more?
pub(super) fn is_grant_over(e: &StoreError) -> bool {
    let source = e.source.as_ref().and_then(|source| source.downcast_ref::<ServerError>());
    source.is_some_and(|source| source.state == "LK003")
}

/// Does MySQL ask for a right on the whole server, because another user has made the procedures?
pub(super) fn needs_system_right(e: &StoreError) -> bool {
    code(e) == Some(1227)
}

/// Was the transaction rolled back because of another one?
pub(super) fn is_conflict(e: &StoreError) -> bool {
    code(e).is_some_and(is_conflict_code)
}

/// Was it rolled back because another transaction has locked a row that it needs?
pub(super) fn is_blocked(e: &StoreError) -> bool {
    matches!(code(e), Some(1205 | 3572))
}

/// Is the connection of no more use?
pub(super) fn ends_connection(e: &Error) -> bool {
    match e {
        Error::Server(e) => is_farewell(e.code) || is_read_only(e.code),
        _ => true,
    }
}

/// A deadlock, too long a wait for a row, a row or table that has changed meanwhile, a refusal by the cluster: the
/// transaction was rolled back, and the next attempt may succeed.
fn is_conflict_code(code: u16) -> bool {
    matches!(code, 1213 | 1205 | 1206 | 1020 | 1412 | 1637 | 3101 | 3572)
}

/// The server ends the connection, by a shutdown or a KILL; what it did before is unknown.
fn is_farewell(code: u16) -> bool {
    matches!(code, 1053 | 1077 | 1079 | 1152 | 1158..=1161 | 1184 | 1317 | 1927 | 3169 | 4031)
}

/// The server takes no writes: it is a replica, was made one, or has lost its cluster. Another server may have
/// taken over under the same name, which only a new connection finds.
pub(super) fn is_read_only(code: u16) -> bool {
    matches!(code, 1047 | 1290 | 1792 | 1836 | 3032)
}

/// What the error of a request means.
///
/// The procedures roll back what fails in them, but they can fail after their commit, too. So few errors
/// are reported as *not applied*.
pub(super) fn error(e: Error) -> StoreError {
    match e {
        Error::Server(e) if !is_farewell(e.code) => {
            let undone = is_conflict_code(e.code) || is_read_only(e.code);
            let outcome = if undone { Outcome::NotApplied } else { Outcome::Unknown };
            StoreError { outcome, ..refused(e) }
        }
        e => because(StoreError::unknown(KIND, ErrorKind::Unavailable, "the connection broke"), e),
    }
}

/// Adds the error below. The driver wraps an error of the operating system in words that only repeat it.
fn because(e: StoreError, source: Error) -> StoreError {
    match source {
        Error::Io(IoError::Io(source)) => e.because(source),
        source => e.because(source),
    }
}

/// What the error of an attempt to connect means.
pub(super) fn connect_error(e: Error) -> StoreError {
    match e {
        Error::Server(e) if !is_farewell(e.code) => refused(e),
        e => match tls_failure(&e) {
            Some(what) => StoreError::not_applied(KIND, ErrorKind::Misconfigured, what).because(e),
            None => {
                let what = "cannot connect";
                because(StoreError::not_applied(KIND, ErrorKind::Unavailable, what), e)
            }
        },
    }
}

/// Why there is no TLS connection. Trying again would not help.
fn tls_failure(e: &Error) -> Option<String> {
    let tls = match e {
        Error::Driver(DriverError::NoClientSslFlagFromServer) => {
            return Some("the server offers no TLS, and the URL asks for it".into());
        }
        Error::Io(IoError::Tls(e)) => return Some(format!("no TLS connection: {e}")),
        Error::Io(IoError::Io(e)) => e.get_ref()?.downcast_ref::<rustls::Error>()?,
        _ => return None,
    };
    Some(match tls {
        rustls::Error::InvalidCertificate(_) => {
            format!("the server's certificate is not trusted ({tls}); check tls_ca=")
        }
        _ => format!("no TLS connection: {tls}"),
    })
}

/// Is the server's disk full? Some errors about a file say so only by the operating system's text.
fn is_full(e: &ServerError) -> bool {
    let by_number = matches!(e.code, 3 | 1026 | 1030) && e.message.contains("No space left");
    matches!(e.code, 1021 | 1114) || by_number
}

fn refused(e: ServerError) -> StoreError {
    let (kind, hint) = match e.code {
        code if is_conflict_code(code) => (ErrorKind::Unavailable, "; others are in the way"),
        // Too many connections; or procedures that another process is just making anew.
        1040 | 1203 | 1226 | 1129 | 1180 | 1305 | 1615 => (ErrorKind::Unavailable, ""),
        code if is_read_only(code) => {
            (ErrorKind::Unavailable, "; the server takes no writes: is it a replica?")
        }
        1041 => (ErrorKind::Unavailable, "; the server has no memory left"),
        _ if is_full(&e) => (ErrorKind::Full, "; the server's disk is full"),
        1044 | 1045 | 1142 | 1143 | 1227 | 1370 | 1698 => (
            ErrorKind::Denied,
            "; its user needs a password that fits, TLS (tls_ca=) and a certificate (tls_cert=) \
                 where the server asks for them, and SELECT, INSERT, UPDATE, DELETE and EXECUTE on \
                 the database",
        ),
        1049 => (ErrorKind::Misconfigured, "; create the database first"),
        1146 => (ErrorKind::Misconfigured, "; its tables are gone"),
        1318 => (ErrorKind::Misconfigured, "; its procedures are those of another lockkeeper"),
        3159 => (ErrorKind::Misconfigured, "; say tls=true or tls_ca= in the URL"),
        1665 => (ErrorKind::Misconfigured, "; set binlog_format to ROW or MIXED"),
        _ => (ErrorKind::Other, ""),
    };
    let what = format!("the server refuses: {}{hint}", e.message);
    StoreError::not_applied(KIND, kind, what).because(e)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server(code: u16) -> Error {
        Error::Server(ServerError { code, message: "no".into(), state: "HY000".into() })
    }

    #[test]
    fn not_applied_is_reported_only_where_the_server_has_rolled_back() {
        for sure in [1213, 1205, 3572, 1290, 1047] {
            assert_eq!(error(server(sure)).outcome, Outcome::NotApplied, "{sure}");
        }
        for doubtful in [1305, 1615, 1180, 1436, 1114, 1142, 1053] {
            assert_eq!(error(server(doubtful)).outcome, Outcome::Unknown, "{doubtful}");
        }
    }

    #[test]
    fn a_full_disk_is_not_a_transient_error() {
        for full in [1021, 1114] {
            assert_eq!(error(server(full)).kind, ErrorKind::Full, "{full}");
        }
        let message = "Got error 28 \"No space left on device\" from storage engine InnoDB";
        let e = ServerError { code: 1030, message: message.into(), state: "HY000".into() };
        assert_eq!(error(Error::Server(e)).kind, ErrorKind::Full);
        assert!(!error(server(1114)).is_transient());
    }

    #[test]
    fn the_reason_of_a_refused_connection_is_told_once() {
        use std::{error::Error as _, io};
        for mean in [connect_error, error] {
            let e = mean(io::Error::from_raw_os_error(111).into());
            let source = e.source().expect("a reason");
            assert!(source.to_string().contains("refused") && source.source().is_none());
            assert!(e.is_transient() && !e.to_string().contains("refused"));
        }
    }

    /// Too many connections, a host that was blocked, a replica that does not take writes yet.
    #[test]
    fn a_first_connection_that_is_refused_for_the_moment_can_be_tried_again() {
        for soon in [1040, 1203, 1226, 1129, 1290, 1792, 1836] {
            let e = connect_error(server(soon));
            assert!(e.is_transient() && e.outcome == Outcome::NotApplied, "{soon}");
        }
    }

    #[test]
    fn a_shutdown_is_a_transient_error() {
        for farewell in [1053, 1077, 1079, 1152, 1927] {
            let e = connect_error(server(farewell));
            assert!(e.is_transient() && e.outcome == Outcome::NotApplied, "{farewell}");
        }
        assert!(!connect_error(server(1045)).is_transient());
    }
}
