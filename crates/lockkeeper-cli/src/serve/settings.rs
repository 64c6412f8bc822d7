//! What may stand in `[serve]` of a file of settings.

use super::security::SecurityArgs;
use lockkeeper_server::Address;

/// The keys, for messages about others.
pub(crate) const KEYS: &[&str] = &[
    "listen",
    "socket_mode",
    "tokens",
    "tls_cert",
    "tls_key",
    "client_ca",
    "host",
    "signing_keys",
    "accept_plain_sequencers",
    "audit_log",
    "max_requests",
    "max_sessions",
    "max_waiters",
    "max_streams",
    "insecure",
];

/// `[serve]`
#[derive(Clone, Debug, Default)]
pub(crate) struct Settings {
    pub(crate) listen: Vec<Address>,
    pub(crate) socket_mode: Option<u32>,
    pub(crate) security: SecurityArgs,
}

/// Reads a limit.
pub(crate) fn number(text: &str) -> Result<u32, String> {
    text.parse()
        .map_err(|_| "write a whole number in quotes, as in \"100\"; \"0\" is no limit".to_owned())
}

/// Reads access rights in octal.
pub(crate) fn mode(text: &str) -> Result<u32, String> {
    let mode = u32::from_str_radix(text, 8).ok().filter(|mode| *mode <= 0o777);
    mode.ok_or_else(|| "write access rights in octal, as in 600 or 660".to_owned())
}
