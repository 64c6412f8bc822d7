//! From a URL to a store.

use super::{AnyStore, memory::Memory};
use crate::error::{Error, Result};
use percent_encoding::percent_decode_str;
use std::{fmt, path::Path, time::Duration};

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

/// The options whose values are paths of local files.
const FILES: &[&str] = &["password_file", "tls_ca", "tls_cert", "tls_key"];

/// A store's URL, taken apart: `scheme:rest?option=value&…`.
#[derive(Clone)]
pub(crate) struct StoreUrl {
    scheme: String,
    rest: String,
    options: Vec<(String, String)>,
    /// Every option that the store has asked for, for the message about one that it does not know.
    asked: Vec<String>,
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
        // This one is looked at before there is a store that could ask for it.
        let compat = matches!(scheme, "redis" | "rediss").then(|| "compat".to_owned());
        let asked = compat.into_iter().collect();
        Ok(Self { scheme: scheme.to_owned(), rest: rest.to_owned(), options, asked })
    }

    /// What follows the scheme, with or without slashes, as the path or name that it is.
    fn path(&self) -> Result<String> {
        decoded(self.rest.strip_prefix("//").unwrap_or(&self.rest))
    }

    pub(crate) fn take(&mut self, option: &str) -> Option<String> {
        if !self.asked.iter().any(|asked| asked == option) {
            self.asked.push(option.to_owned());
        }
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
        let mut list = [COMMON, known].concat();
        for asked in &self.asked {
            if !list.contains(&asked.as_str()) {
                list.push(asked);
            }
        }
        let (known, scheme) = (list.join(", "), &self.scheme);
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
                check_path("sqlite:", &path)?;
                Ok(AnyStore::new(super::sqlite::Sqlite::open(&path)?))
            }
            #[cfg(feature = "mysql")]
            "mysql" | "mariadb" => Ok(AnyStore::new(super::mysql::Mysql::connect(self).await?)),
            #[cfg(feature = "redis")]
            "redis" | "rediss" if self.has("compat") => Ok(AnyStore::new(
                super::redlock::Redlock::connect(super::redlock::config::Config::read(self)?).await,
            )),
            #[cfg(feature = "redis")]
            "redis" | "rediss" => Ok(AnyStore::new(
                super::redis::Redis::connect(super::redis::config::Config::single(self)?).await?,
            )),
            #[cfg(feature = "redis")]
            "redis+sentinel" => Ok(AnyStore::new(
                super::redis::Redis::connect(super::redis::config::Config::sentinel(self)?).await?,
            )),
            #[cfg(feature = "redis")]
            "redis+cluster" => Ok(AnyStore::new(
                super::redis::Redis::connect(super::redis::config::Config::cluster(self)?).await?,
            )),
            #[cfg(feature = "redis")]
            "redlock" => Ok(AnyStore::new(
                super::redlock::Redlock::connect(super::redlock::config::Config::read(self)?).await,
            )),
            #[cfg(feature = "postgres")]
            "postgres" | "postgresql" => {
                Ok(AnyStore::new(super::postgres::Postgres::connect(self).await?))
            }
            #[cfg(feature = "etcd")]
            "etcd" => Ok(AnyStore::new(super::etcd::Etcd::connect(self).await?)),
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
        scheme => Err(Error::Url(format!("{scheme}: has no tables or functions to make"))),
    }
}

/// The same URL with absolute paths of local files, for a process whose current folder is another
/// one. Connects to nothing.
///
/// ```
/// let url = lockkeeper::store::absolute("sqlite:/var/lib/locks.db?ttl=5s")?;
/// assert_eq!(url, "sqlite:/var/lib/locks.db?ttl=5s");
/// # Ok::<(), lockkeeper::Error>(())
/// ```
///
/// # Errors
/// [`Error::Url`] if the URL is not understood, or if there is no current folder to begin from.
pub fn absolute(url: &str) -> Result<String> {
    StoreUrl::parse(url)?;
    let (address, query) = url.split_once('?').unwrap_or((url, ""));
    let address = match address.strip_prefix("sqlite:") {
        Some(path) => {
            let path = path.strip_prefix("//").unwrap_or(path);
            check_path("sqlite:", &decoded(path)?)?;
            beneath_here(path)?.map(|path| format!("sqlite:{path}"))
        }
        None => None,
    }
    .unwrap_or_else(|| address.to_owned());
    let pairs = query.split('&').filter(|pair| !pair.is_empty()).map(absolute_option);
    let query = pairs.collect::<Result<Vec<_>>>()?.join("&");
    Ok(if query.is_empty() { address } else { format!("{address}?{query}") })
}

fn absolute_option(pair: &str) -> Result<String> {
    let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
    let file = FILES.contains(&decoded(name)?.as_str());
    if file {
        check_path(&format!("{name}="), &decoded(value)?)?;
    }
    let absolute = if file { beneath_here(value)? } else { None };
    Ok(absolute.map_or_else(|| pair.to_owned(), |value| format!("{name}={value}")))
}

/// An encoded path with the current folder before it; `None` if it is absolute.
fn beneath_here(path: &str) -> Result<Option<String>> {
    if Path::new(&decoded(path)?).is_absolute() {
        return Ok(None);
    }
    let here = std::env::current_dir();
    let here = here.map_err(|e| Error::Url(format!("no current folder for {path}: {e}")))?;
    let Some(here) = here.to_str() else {
        return Err(Error::Url(format!("{path} is relative to a folder whose path is not UTF-8")));
    };
    let here = here.replace('%', "%25").replace('?', "%3F").replace('&', "%26");
    Ok(Some(format!("{}/{path}", here.trim_end_matches('/'))))
}

/// Refuses what looks like a path and is none: SQLite would take it for something else, or the user
/// expects what only a shell does.
fn check_path(before: &str, path: &str) -> Result<()> {
    let wrong = match path {
        "" => format!("{before} needs a path, as in {before}NAME"),
        ":memory:" => {
            "sqlite::memory: would be another store for every keeper; use memory://NAME".into()
        }
        _ if path.starts_with("file:") => {
            format!("{before}{path}: write the path itself, without file:")
        }
        _ if path == "~" || path.starts_with("~/") => format!(
            "{before}{path}: only a shell knows ~ as your home folder, and not there; write the \
             whole path (a folder that is really called ~ is {before}./~)"
        ),
        _ => return Ok(()),
    };
    Err(Error::Url(wrong))
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
        debug_assert!(FILES.contains(&option), "a relative path in {option}= would travel");
        let Some(path) = self.take(option) else { return Ok(None) };
        check_path(&format!("{option}="), &path)?;
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
    async fn the_known_options_of_redis_include_compat() {
        let e = error("redis://host?foo=1").await;
        assert!(
            e.contains("known options: ttl, lock_delay, prefix") && e.contains("compat"),
            "{e}"
        );
    }

    #[test]
    fn relative_paths_become_absolute_and_nothing_else_changes() {
        let here = std::env::current_dir().unwrap();
        let here = here.to_str().unwrap();
        for (url, absolute) in [
            ("sqlite:a%20b.db?ttl=3s", format!("sqlite:{here}/a%20b.db?ttl=3s")),
            ("sqlite://a.db", format!("sqlite:{here}/a.db")),
            ("sqlite:/a.db", "sqlite:/a.db".into()),
            ("sqlite:///a?ttl=3s", "sqlite:///a?ttl=3s".into()),
            ("sqlite:%2Fa.db", "sqlite:%2Fa.db".into()),
            ("memory://a/b", "memory://a/b".into()),
        ] {
            assert_eq!(super::absolute(url).unwrap(), absolute);
        }
        assert!(super::absolute("locks.db").is_err());
    }

    #[cfg(feature = "redis")]
    #[test]
    fn paths_in_options_become_absolute_too() {
        let here = std::env::current_dir().unwrap();
        let url = "rediss://u:p%40w@h:1/0?tls_ca=ca.pem&prefix=a&password_file=/run/pw";
        let here = here.to_str().unwrap();
        let want =
            format!("rediss://u:p%40w@h:1/0?tls_ca={here}/ca.pem&prefix=a&password_file=/run/pw");
        assert_eq!(super::absolute(url).unwrap(), want);
    }

    #[cfg(feature = "sqlite")]
    #[tokio::test]
    async fn what_only_looks_like_a_path_is_refused() {
        for url in ["sqlite:", "sqlite::memory:", "sqlite:~/a.db", "sqlite:file:a.db"] {
            let e = error(url).await;
            assert!(matches!(super::absolute(url), Err(Error::Url(_))), "{url}");
            assert!(e.contains("path") || e.contains("memory://NAME"), "{url}: {e}");
        }
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
