//! The part of a URL that names servers.

use super::decoded;
use crate::error::{Error, Result};

/// `[USER[:PASSWORD]@]HOST[:PORT],…[/PATH]`. It has no `Debug`: it may hold a password.
pub(crate) struct Authority {
    pub(crate) user: Option<String>,
    pub(crate) password: Option<String>,
    pub(crate) hosts: Vec<(String, Option<u16>)>,
    pub(crate) path: String,
}

impl Authority {
    pub(super) fn parse(rest: &str) -> Result<Self> {
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        if path.contains('@') {
            return Err(Error::url(format!("an @ follows the path; {ENCODE}")));
        }
        let (user_info, hosts) = match authority.rsplit_once('@') {
            Some((user_info, hosts)) => (Some(user_info), hosts),
            None => (None, authority),
        };
        let (user, password) = match user_info.map(|u| u.split_once(':').unwrap_or((u, ""))) {
            Some((user, password)) => (decoded(user)?, decoded(password)?),
            None => (String::new(), String::new()),
        };
        let some = |text: String| (!text.is_empty()).then_some(text);
        Ok(Self {
            user: some(user),
            password: some(password),
            hosts: hosts.split(',').map(host).collect::<Result<_>>()?,
            path: decoded(path)?,
        })
    }
}

const ENCODE: &str =
    "in a user's name or a password write / as %2F, ? as %3F, # as %23 and @ as %40";

/// A host and its port; an IPv6 address stands in brackets. Errors do not repeat the text: it may be half of a
/// password, with a character in it that ends the user's part too early.
fn host(text: &str) -> Result<(String, Option<u16>)> {
    let bad = |what: &str| Error::url(format!("{what}; {ENCODE}"));
    let (host, port) = match text.strip_prefix('[') {
        Some(v6) => {
            let (host, rest) = v6.split_once(']').ok_or_else(|| bad("a host has a [ and no ]"))?;
            (host, rest.strip_prefix(':'))
        }
        None => match text.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (text, None),
        },
    };
    if host.is_empty() {
        return Err(bad("the URL lacks a host"));
    }
    let is_no_port = |_| bad(&format!("the port of host {host:?} is not a number"));
    let port = port.map(|p| p.parse().map_err(is_no_port)).transpose()?;
    Ok((host.to_owned(), port))
}
