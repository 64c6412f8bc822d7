//! From a URL to a store.

use super::{AnyStore, memory::Memory};
use crate::error::{Error, Result};
use percent_encoding::percent_decode_str;
use std::{fmt, time::Duration};

/// The schemes compiled in, with how a URL of each looks.
const SCHEMES: &[(&str, &str)] = &[
    #[cfg(feature = "sqlite")]
    ("sqlite", "sqlite:PATH"),
    ("memory", "memory://NAME"),
    #[cfg(feature = "mysql")]
    ("mysql", "mysql://HOST/DATABASE"),
    #[cfg(feature = "mysql")]
    ("mariadb", "mariadb://HOST/DATABASE"),
    #[cfg(feature = "redis")]
    ("redis", "redis://HOST"),
    #[cfg(feature = "redis")]
    ("rediss", "rediss://HOST"),
    #[cfg(feature = "redis")]
    ("redis+sentinel", "redis+sentinel://HOST,HOST/SERVICE"),
    #[cfg(feature = "redis")]
    ("redis+cluster", "redis+cluster://HOST,HOST"),
    #[cfg(feature = "redis")]
    ("redlock", "redlock://HOST,HOST,HOST"),
    #[cfg(feature = "postgres")]
    ("postgres", "postgres://USER@HOST/DATABASE"),
    #[cfg(feature = "postgres")]
    ("postgresql", "postgresql://USER@HOST/DATABASE"),
    #[cfg(feature = "etcd")]
    ("etcd", "etcd://HOST,HOST,HOST"),
    #[cfg(feature = "zookeeper")]
    ("zookeeper", "zookeeper://HOST,HOST,HOST"),
];

/// The schemes that exist but need a cargo feature that is off.
const FEATURES: &[&str] = &[
    #[cfg(not(feature = "sqlite"))]
    "sqlite",
    #[cfg(not(feature = "mysql"))]
    "mysql",
    #[cfg(not(feature = "redis"))]
    "redis",
    #[cfg(not(feature = "postgres"))]
    "postgres",
    #[cfg(not(feature = "etcd"))]
    "etcd",
    #[cfg(not(feature = "zookeeper"))]
    "zookeeper",
];

/// The options that every URL understands.
const COMMON: &[&str] = &["ttl", "lock_delay"];

/// A store's URL, taken apart: `scheme:rest?option=value&…`.
#[derive(Clone)]
pub(crate) struct StoreUrl {
    scheme: String,
    rest: String,
    options: Vec<(String, String)>,
}

impl StoreUrl {
    pub(crate) fn parse(url: &str) -> Result<Self> {
        let Some((scheme, rest)) = url.split_once(':') else {
            let what = format!("{url:?} is not a store URL; it looks like {}", examples());
            return Err(Error::Url(what));
        };
        let known = |s: &&str| SCHEMES.iter().any(|(known, _)| known == s);
        let Some(scheme) = Some(scheme).filter(known) else {
            return Err(Error::Url(unknown(scheme)));
        };
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let pairs = query.split('&').filter(|pair| !pair.is_empty());
        let options = pairs.map(option).collect::<Result<_>>()?;
        Ok(Self { scheme: scheme.to_owned(), rest: rest.to_owned(), options })
    }

    /// What follows the scheme, with or without slashes, as the path or name that it is.
    fn path(&self) -> Result<String> {
        decoded(self.rest.strip_prefix("//").unwrap_or(&self.rest))
    }

    pub(crate) fn take(&mut self, option: &str) -> Option<String> {
        let at = self.options.iter().position(|(name, _)| name == option)?;
        Some(self.options.swap_remove(at).1)
    }

    #[cfg(any(feature = "_tls", feature = "mysql"))]
    pub(crate) fn flag(&mut self, option: &str) -> Result<Option<bool>> {
        match self.take(option).as_deref() {
            None => Ok(None),
            Some("true") => Ok(Some(true)),
            Some("false") => Ok(Some(false)),
            Some(other) => {
                Err(Error::Url(format!("option {option}={other} is neither true nor false")))
            }
        }
    }

    pub(crate) fn take_duration(&mut self, option: &str) -> Result<Option<Duration>> {
        let Some(text) = self.take(option) else { return Ok(None) };
        match humantime::parse_duration(&text) {
            Ok(duration) => Ok(Some(duration)),
            Err(_) => Err(Error::Url(format!(
                "option {option}={text} is not a duration; write it as 250ms, 15s or 2m"
            ))),
        }
    }

    /// Every option must have been understood by now.
    pub(crate) fn finish(&self, known: &[&str]) -> Result<()> {
        let Some((option, _)) = self.options.first() else { return Ok(()) };
        let known = [COMMON, known].concat().join(", ");
        let scheme = &self.scheme;
        Err(Error::Url(format!(
            "unknown or repeated option {option:?} for {scheme}; known options: {known}"
        )))
    }

    #[cfg_attr(
        not(feature = "_network"),
        expect(clippy::unused_async, reason = "stores on a network await here")
    )]
    pub(crate) async fn connect(self) -> Result<AnyStore> {
        match self.scheme.as_str() {
            "memory" => {
                self.finish(&[])?;
                Ok(AnyStore::shared(Memory::named(&self.path()?)))
            }
            #[cfg(feature = "sqlite")]
            "sqlite" => {
                self.finish(&[])?;
                let path = self.path()?;
                if path.is_empty() {
                    return Err(Error::Url("sqlite: needs a path, as in sqlite:locks.db".into()));
                }
                Ok(AnyStore::new(super::sqlite::Sqlite::open(&path)?))
            }
            #[cfg(feature = "mysql")]
            "mysql" | "mariadb" => Ok(AnyStore::new(super::mysql::connect::connect(self).await?)),
            #[cfg(feature = "redis")]
            "redis" | "rediss" if self.has("compat") => {
                Ok(AnyStore::new(super::redlock::Redlock::connect(self).await?))
            }
            #[cfg(feature = "redis")]
            "redis" | "rediss" => Ok(AnyStore::new(super::redis::connect::single(self).await?)),
            #[cfg(feature = "redis")]
            "redis+sentinel" => Ok(AnyStore::new(super::redis::connect::sentinel(self).await?)),
            #[cfg(feature = "redis")]
            "redis+cluster" => Ok(AnyStore::new(super::redis::connect::cluster(self).await?)),
            #[cfg(feature = "redis")]
            "redlock" => Ok(AnyStore::new(super::redlock::Redlock::connect(self).await?)),
            #[cfg(feature = "postgres")]
            "postgres" | "postgresql" => {
                Ok(AnyStore::new(super::postgres::Postgres::connect(self).await?))
            }
            #[cfg(feature = "etcd")]
            "etcd" => Ok(AnyStore::new(super::etcd::connect::connect(self).await?)),
            #[cfg(feature = "zookeeper")]
            "zookeeper" => Ok(AnyStore::new(super::zookeeper::Zookeeper::connect(self).await?)),
            scheme => Err(Error::Url(unknown(scheme))),
        }
    }
}

/// The statements that make, or bring up to date, what the store of this URL needs in its database.
/// Connects to nothing.
///
/// # Errors
/// [`Error::Url`] if the URL is not understood, or leads to a store that needs no such thing.
pub fn migration(url: &str) -> Result<String> {
    let mut url = StoreUrl::parse(url)?;
    for common in COMMON {
        url.take(common);
    }
    match url.scheme.as_str() {
        #[cfg(feature = "mysql")]
        "mysql" | "mariadb" => super::mysql::migration(&mut url),
        #[cfg(feature = "postgres")]
        "postgres" | "postgresql" => super::postgres::migration(&mut url),
        scheme => Err(Error::Url(format!("a {scheme} store needs nothing to be made for it"))),
    }
}

/// Options and parts that only stores on a network have.
#[cfg(feature = "_network")]
impl StoreUrl {
    #[cfg(feature = "redis")]
    fn has(&self, option: &str) -> bool {
        self.options.iter().any(|(name, _)| name == option)
    }

    #[cfg(feature = "redis")]
    pub(crate) fn scheme(&self) -> &str {
        &self.scheme
    }

    /// The bytes of the file that an option names.
    pub(crate) fn take_file_bytes(&mut self, option: &str) -> Result<Option<Vec<u8>>> {
        let Some(path) = self.take(option) else { return Ok(None) };
        match std::fs::read(&path) {
            Ok(bytes) => Ok(Some(bytes)),
            Err(e) => Err(Error::Url(format!("cannot read the file of {option}={path}: {e}"))),
        }
    }

    /// The text of the file that an option names, without the line's end.
    pub(crate) fn take_file(&mut self, option: &str) -> Result<Option<String>> {
        let Some(bytes) = self.take_file_bytes(option)? else { return Ok(None) };
        match String::from_utf8(bytes) {
            Ok(text) => Ok(Some(text.trim_end_matches(['\r', '\n']).to_owned())),
            Err(_) => Err(Error::Url(format!("the file of {option}= is not UTF-8"))),
        }
    }

    pub(crate) fn authority(&self) -> Result<Authority> {
        Authority::parse(self.rest.strip_prefix("//").unwrap_or(&self.rest))
    }
}

/// `[USER[:PASSWORD]@]HOST[:PORT],…[/PATH]`. It has no `Debug`: it may hold a password.
#[cfg(feature = "_network")]
pub(crate) struct Authority {
    pub(crate) user: Option<String>,
    pub(crate) password: Option<String>,
    pub(crate) hosts: Vec<(String, Option<u16>)>,
    pub(crate) path: String,
}

#[cfg(feature = "_network")]
impl Authority {
    fn parse(rest: &str) -> Result<Self> {
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        if path.contains('@') {
            return Err(Error::Url(format!("an @ follows the path; {ENCODE}")));
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

#[cfg(feature = "_network")]
const ENCODE: &str =
    "in a user's name or a password write / as %2F, ? as %3F, # as %23 and @ as %40";

/// A host and its port; an IPv6 address stands in brackets. Errors do not repeat what may be half of a
/// password, with a character in it that ends it too early.
#[cfg(feature = "_network")]
fn host(text: &str) -> Result<(String, Option<u16>)> {
    let bad = |what: &str| Error::Url(format!("{what}; {ENCODE}"));
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

impl fmt::Debug for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "StoreUrl({}:…)", self.scheme)
    }
}

fn unknown(scheme: &str) -> String {
    if FEATURES.contains(&scheme) {
        return format!("this program was built without the cargo feature {scheme:?}");
    }
    let known: Vec<&str> = SCHEMES.iter().map(|(scheme, _)| *scheme).collect();
    format!("unknown store {scheme:?}; stores compiled in: {}", known.join(", "))
}

fn examples() -> String {
    let examples: Vec<&str> = SCHEMES.iter().map(|(_, example)| *example).collect();
    examples.join(" or ")
}

fn option(pair: &str) -> Result<(String, String)> {
    match pair.split_once('=') {
        Some((name, value)) => Ok((decoded(name)?, decoded(value)?)),
        // It may be the end of a password that has a question mark in it.
        None if pair.contains('@') => {
            Err(Error::Url("an option in the store URL has no value".into()))
        }
        None => Err(Error::Url(format!("option {pair:?} in the store URL has no value"))),
    }
}

fn decoded(text: &str) -> Result<String> {
    match percent_decode_str(text).decode_utf8() {
        Ok(text) => Ok(text.into_owned()),
        Err(_) => Err(Error::Url("the store URL is not UTF-8 when decoded".into())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn error(url: &str) -> String {
        match crate::Keeper::connect(url).await {
            Ok(_) => panic!("{url} connects"),
            Err(e) => e.to_string(),
        }
    }

    #[tokio::test]
    async fn an_unknown_scheme_is_told_the_schemes_compiled_in() {
        let e = error("mongo://x").await;
        assert!(e.contains("unknown store \"mongo\"") && e.contains("memory"), "{e}");
        assert!(error("locks.db").await.contains("memory://NAME"));
    }

    #[tokio::test]
    async fn an_unknown_option_is_told_the_known_ones() {
        let e = error("memory://x?tll=3s").await;
        assert!(e.contains("\"tll\"") && e.contains("ttl, lock_delay"), "{e}");
        assert!(error("memory://x?ttl=soon").await.contains("250ms"));
        assert!(error("memory://x?ttl=1s&ttl=2s").await.contains("repeated"));
        assert!(error("memory://x?ttl").await.contains("no value"));
    }

    #[cfg(feature = "redis")]
    #[tokio::test]
    async fn a_password_that_is_not_encoded_is_not_repeated() {
        for url in [
            "redis://:sec/ret@host",
            "redis://me:sec/ret@host/0",
            "redis://:sec?ret@host",
            "redis://me:sec?ret@host:1",
            "redis://me:sec#ret/@host",
            "redis://[sec/ret@host",
        ] {
            let e = error(url).await;
            assert!(!e.contains("sec") && !e.contains("ret"), "{url}: {e}");
        }
        assert!(error("redis://host:port").await.contains("the port of host \"host\""));
    }

    #[tokio::test]
    async fn options_in_the_url_hold_for_every_lock() {
        let keeper = crate::Keeper::connect("memory://x?ttl=2s&lock_delay=500ms").await.unwrap();
        let times = keeper.times();
        assert_eq!(times.ttl, Duration::from_secs(2));
        assert_eq!(times.lock_delay, Duration::from_millis(500));
        assert!(error("memory://x?ttl=1ms").await.contains("at least 100ms"));
    }
}
