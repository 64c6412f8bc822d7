//! Every exit code of the command, and what stands behind it.
//!
//! Beside these, `run` ends with the code of the command it ran, with 128+n when that command was
//! killed by signal n, and with 126 or 127 when it could not be started. The codes are a promise to
//! scripts: they are documented in `docs/cli.md` and do not change. Those from 64 on are the
//! numbers of `sysexits.h`; 79 and 80 are the first behind them.

use lockkeeper::{Error, ErrorKind, StoreError};

/// The answer to a question is no: the lock is free, the grant is not held, there is nothing to evict, no value,
/// no leader.
pub(crate) const NO: u8 = 1;
/// `doctor`: a promise is weaker than it could be, locks are slow, or may soon be refused.
pub(crate) const WARNINGS: u8 = 1;
/// `doctor`: two can hold one lock.
pub(crate) const UNSAFE: u8 = 2;
/// `doctor`: the store cannot be reached or used.
pub(crate) const UNCHECKED: u8 = 3;
/// The flags, the name or their combination make no sense, or a nested run would wait for itself; nothing
/// was done.
pub(crate) const USAGE: u8 = 64;
/// The ticket file is not there, cannot be read, or makes no sense.
pub(crate) const NO_TICKET: u8 = 66;
/// The store could not be reached, or has no room.
pub(crate) const UNAVAILABLE: u8 = 69;
/// A fault of lockkeeper itself, or an answer that cannot be written to stdout.
pub(crate) const BUG: u8 = 70;
/// The ticket file cannot be written, or is there and its lock is still held.
pub(crate) const CANNOT_CREATE: u8 = 73;
/// The lock was not acquired: it is held (`-n`) or was not granted in time (`-w`). `-E` sets
/// another code.
pub(crate) const NOT_ACQUIRED: u8 = 75;
/// The store refused: credentials or rights do not suffice.
pub(crate) const DENIED: u8 = 77;
/// The store's URL, the store itself, a file of settings or the environment is not set up properly.
pub(crate) const CONFIGURATION: u8 = 78;
/// The lock was lost while the command ran, or `--max-hold` was over; unless told otherwise, the
/// command was ended.
pub(crate) const LOCK_LOST: u8 = 79;
/// The store cannot do what was asked: it has no cells, no shared locks.
pub(crate) const UNSUPPORTED: u8 = 80;
/// The command was found but could not be executed.
pub(crate) const CANNOT_EXECUTE: u8 = 126;
/// The command was not found.
pub(crate) const NOT_FOUND: u8 = 127;
/// What a signal's number is added to.
pub(crate) const SIGNAL_BASE: u8 = 128;

/// The code for a signal that ended the command, or the wait for the lock.
pub(crate) fn of_signal(signal: i32) -> u8 {
    u8::try_from(signal).map_or(u8::MAX, |n| SIGNAL_BASE.saturating_add(n))
}

/// The code for an error of the library.
pub(crate) fn of(error: &Error) -> u8 {
    match error {
        Error::NotAcquired { .. } => NOT_ACQUIRED,
        // Nothing ran: what is lost later is told by `run` itself.
        Error::Lost { .. } => UNAVAILABLE,
        Error::Name(_)
        | Error::Option(_)
        | Error::Capacity { .. }
        | Error::Sequencer(_)
        | Error::TicketId(_) => USAGE,
        Error::Detached(_) => NO_TICKET,
        Error::Url(_) | Error::OtherStore { .. } => CONFIGURATION,
        Error::Unsupported { .. } => UNSUPPORTED,
        Error::Unavailable { .. } => UNAVAILABLE,
        Error::Store(e) => of_store(e),
        _ => BUG,
    }
}

fn of_store(error: &StoreError) -> u8 {
    match error.kind {
        ErrorKind::Unavailable | ErrorKind::Full | ErrorKind::SessionOver => UNAVAILABLE,
        ErrorKind::Denied => DENIED,
        ErrorKind::Name => USAGE,
        ErrorKind::Misconfigured | ErrorKind::Corrupt => CONFIGURATION,
        ErrorKind::Unsupported(_) => UNSUPPORTED,
        _ => BUG,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lockkeeper::{OptionError, UrlError};

    fn store(kind: ErrorKind) -> Error {
        Error::Store(StoreError::not_applied("sqlite", kind, "no"))
    }

    #[test]
    fn every_kind_of_store_error_has_its_code() {
        let codes = [
            (ErrorKind::Unavailable, 69),
            (ErrorKind::Full, 69),
            (ErrorKind::SessionOver, 69),
            (ErrorKind::Denied, 77),
            (ErrorKind::Name, 64),
            (ErrorKind::Misconfigured, 78),
            (ErrorKind::Corrupt, 78),
            (ErrorKind::Other, 70),
        ];
        for (kind, code) in codes {
            assert_eq!(of(&store(kind)), code, "{kind:?}");
        }
    }

    #[test]
    fn what_the_user_got_wrong_is_usage_and_what_is_set_up_wrong_is_configuration() {
        assert_eq!(of(&OptionError::new("wait", "no").into()), USAGE);
        assert_eq!(of(&UrlError::new("no").into()), CONFIGURATION);
        assert_eq!(of(&Error::Unsupported { store: "x", what: "y" }), UNSUPPORTED);
        assert_eq!(of(&Error::Closed), BUG);
    }

    #[test]
    fn a_signal_counts_from_128() {
        assert_eq!(of_signal(15), 143);
        assert_eq!(of_signal(64), 192);
        assert_eq!(of_signal(1000), 255);
    }
}
