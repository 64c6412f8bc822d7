//! From a URL to a typed configuration. Nothing is connected here.

use super::flavour::Flavour;
use crate::{
    error::{Error, Result},
    store::{redis::config::independent, url::StoreUrl},
};
use redis::Client;
use std::time::Duration;

/// The longest TTL with its lock-delay, unless the URL says otherwise.
const MAX_TTL: Duration = Duration::from_secs(60);

pub(in crate::store) struct Config {
    /// The kind of store, as errors name it.
    pub(super) kind: &'static str,
    pub(super) clients: Vec<Client>,
    pub(super) prefix: String,
    pub(super) flavour: Flavour,
    pub(super) max_ttl: Duration,
}

impl Config {
    /// `redlock://[USER[:PASSWORD]@]HOST[:PORT],HOST,HOST…`, an odd number of servers; or one server of
    /// `redis://…?compat=string`.
    pub(in crate::store) fn read(mut url: StoreUrl) -> Result<Self> {
        let max_ttl = url.take_duration("max_ttl")?.unwrap_or(MAX_TTL);
        let flavour = match url.take("compat").as_deref() {
            None => Flavour::Fenced,
            Some("string") => Flavour::Plain,
            Some(other) => {
                return Err(Error::url_option(
                    "compat",
                    format!("unknown compat={other}; known: string"),
                ));
            }
        };
        let is_redlock = url.scheme() == "redlock";
        let (clients, prefix) = independent(&mut url)?;
        let what = match clients.len() {
            servers if !is_redlock && servers > 1 => "redis:// takes one server",
            servers if is_redlock && (servers < 3 || servers % 2 == 0) => {
                "redlock:// needs an odd number of servers, at least 3"
            }
            _ => {
                let kind = if is_redlock { "redlock" } else { "redis" };
                return Ok(Self { kind, clients, prefix, flavour, max_ttl });
            }
        };
        Err(Error::url(what))
    }
}
