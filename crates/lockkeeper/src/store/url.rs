//! From a URL to a store.

#[cfg(feature = "_network")]
mod authority;

#[cfg(feature = "_network")]
pub(crate) use authority::Authority;

#[cfg(feature = "http")]
use super::http::Http;
use super::{AnyStore, erased::Boxed, memory::Memory};
#[cfg(feature = "redis")]
use super::{redis::Redis, redlock::Redlock};
use crate::error::{Error, Result};
use percent_encoding::percent_decode_str;
use std::{
    fmt,
    path::{Path, PathBuf},
    time::Duration,
};

/// One kind of store: all that the library knows about it before it is connected.
struct Kind {
    /// Its schemes, each with an example of a URL.
    schemes: &'static [(&'static str, &'static str)],
    connect: fn(StoreUrl) -> Boxed<Result<AnyStore>>,
    /// Makes the statements that its database needs, if it is one.
    migration: Option<fn(&mut StoreUrl) -> Result<String>>,
}

macro_rules! optional {
    () => {
        None
    };
    ($value:expr) => {
        Some($value)
    };
}

/// Makes `KINDS`, the stores compiled in, and `MISSING`, the schemes whose cargo feature is off.
macro_rules! stores {
    ($(
        $feature:literal if $on:meta: $($scheme:literal $example:literal)+
        => |$url:ident| $connect:expr $(, migration: $migration:expr)?;
    )*) => {
        const KINDS: &[Kind] = &[$(
            #[cfg($on)]
            Kind {
                schemes: &[$(($scheme, $example)),+],
                connect: |$url| Box::pin(async move { Ok($connect) }),
                migration: optional!($($migration)?),
            },
        )*];

        /// Each with the feature that it needs.
        const MISSING: &[(&str, &str)] = &[$($(
            #[cfg(not($on))]
            ($scheme, $feature),
        )+)*];
    };
}

// A store is registered here: its cargo feature, its schemes, how it connects. Error messages list the schemes in
// this order.
stores! {
    "sqlite" if feature = "sqlite":
        "sqlite" "sqlite:PATH"
        => |url| AnyStore::new(super::sqlite::Sqlite::open(&url.local_path()?)?);
    "" if all():
        "memory" "memory://NAME"
        => |url| AnyStore::shared(Memory::named(&url.name()?));
    "mysql" if feature = "mysql":
        "mysql" "mysql://HOST/DATABASE"
        "mariadb" "mariadb://HOST/DATABASE"
        => |url| AnyStore::new(super::mysql::Mysql::connect(url).await?),
        migration: super::mysql::migration;
    "redis" if feature = "redis":
        "redis" "redis://HOST"
        "rediss" "rediss://HOST"
        => |url| match url.has("compat") {
            true => AnyStore::new(Redlock::connect(super::redlock::config::Config::read(url)?).await?),
            false => AnyStore::new(Redis::connect(super::redis::config::Config::single(url)?).await?),
        };
    "redis" if feature = "redis":
        "redis+sentinel" "redis+sentinel://HOST,HOST/SERVICE"
        => |url| AnyStore::new(Redis::connect(super::redis::config::Config::sentinel(url)?).await?);
    "redis" if feature = "redis":
        "redis+cluster" "redis+cluster://HOST,HOST"
        => |url| AnyStore::new(Redis::connect(super::redis::config::Config::cluster(url)?).await?);
    "redis" if feature = "redis":
        "redlock" "redlock://HOST,HOST,HOST"
        => |url| AnyStore::new(Redlock::connect(super::redlock::config::Config::read(url)?).await?);
    "postgres" if feature = "postgres":
        "postgres" "postgres://USER@HOST/DATABASE"
        "postgresql" "postgresql://USER@HOST/DATABASE"
        => |url| AnyStore::new(super::postgres::Postgres::connect(url).await?),
        migration: super::postgres::migration;
    "etcd" if feature = "etcd":
        "etcd" "etcd://HOST,HOST,HOST"
        => |url| AnyStore::new(super::etcd::Etcd::connect(url).await?);
    "zookeeper" if feature = "zookeeper":
        "zookeeper" "zookeeper://HOST,HOST,HOST"
        => |url| AnyStore::new(super::zookeeper::Zookeeper::connect(url).await?);
    "http" if feature = "http":
        "lockkeeper+http" "lockkeeper+http://HOST,HOST"
        => |url| AnyStore::new(Http::connect(super::http::config::Config::tcp(url, false)?).await?);
    "http" if feature = "http":
        "lockkeeper+https" "lockkeeper+https://HOST,HOST"
        => |url| AnyStore::new(Http::connect(super::http::config::Config::tcp(url, true)?).await?);
    "http" if feature = "http":
        "lockkeeper+unix" "lockkeeper+unix:PATH"
        => |url| AnyStore::new(Http::connect(super::http::config::Config::unix(url)?).await?);
}

/// The kind of store with this scheme.
fn kind(scheme: &str) -> Result<&'static Kind> {
    let has = |kind: &&Kind| kind.schemes.iter().any(|(known, _)| *known == scheme);
    KINDS.iter().find(has).ok_or_else(|| Error::url(unknown(scheme)))
}

/// The options that every URL understands.
const COMMON: &[&str] = &["ttl", "lock_delay"];

/// The options whose values are paths of local files.
const FILES: &[&str] = &["password_file", "tls_ca", "tls_cert", "tls_key", "token_file"];

/// The schemes whose URLs are the path of a local file.
const LOCAL: &[&str] = &["sqlite:", "lockkeeper+unix:"];

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
            let examples: Vec<&str> = examples().map(|(_, example)| example).collect();
            let what =
                format!("{url:?} is not a store URL; it looks like {}", examples.join(" or "));
            return Err(Error::url(what));
        };
        kind(scheme)?;
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let pairs = query.split('&').filter(|pair| !pair.is_empty());
        let options = pairs.map(option).collect::<Result<_>>()?;
        Ok(Self { scheme: scheme.to_owned(), rest: rest.to_owned(), options, asked: Vec::new() })
    }

    /// What follows the scheme, with or without slashes, of a store that has no options.
    fn name(&self) -> Result<String> {
        self.finish(&[])?;
        decoded(self.rest.strip_prefix("//").unwrap_or(&self.rest))
    }

    /// The same as the path of a file.
    #[cfg(feature = "sqlite")]
    fn local_path(&self) -> Result<String> {
        let path = self.name()?;
        check_path("sqlite:", &path)?;
        Ok(path)
    }

    pub(crate) fn take(&mut self, option: &str) -> Option<String> {
        if !self.asked.iter().any(|asked| asked == option) {
            self.asked.push(option.to_owned());
        }
        let at = self.options.iter().position(|(name, _)| name == option)?;
        Some(self.options.swap_remove(at).1)
    }

    #[cfg(feature = "_network")]
    pub(crate) fn flag(&mut self, option: &str) -> Result<Option<bool>> {
        match self.take(option).as_deref() {
            None => Ok(None),
            Some("true") => Ok(Some(true)),
            Some("false") => Ok(Some(false)),
            Some(other) => Err(Error::url_option(
                option,
                format!("option {option}={other} is neither true nor false"),
            )),
        }
    }

    pub(crate) fn take_duration(&mut self, option: &str) -> Result<Option<Duration>> {
        let Some(text) = self.take(option) else { return Ok(None) };
        match humantime::parse_duration(&text) {
            Ok(duration) => Ok(Some(duration)),
            Err(_) => Err(Error::url_option(
                option,
                format!("option {option}={text} is not a duration; write it as 250ms, 15s or 2m"),
            )),
        }
    }

    /// Every option must have been understood by now. The error about another one lists those that were asked
    /// for, and `known`, which need not have been.
    pub(crate) fn finish(&self, known: &[&str]) -> Result<()> {
        let Some((option, _)) = self.options.first() else { return Ok(()) };
        let mut list = [COMMON, known].concat();
        for asked in &self.asked {
            if !list.contains(&asked.as_str()) {
                list.push(asked);
            }
        }
        let (known, scheme) = (list.join(", "), &self.scheme);
        Err(Error::url_option(
            option,
            format!("unknown or repeated option {option:?} for {scheme}; known options: {known}"),
        ))
    }

    pub(crate) async fn connect(self) -> Result<AnyStore> {
        (kind(&self.scheme)?.connect)(self).await
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
    match kind(&url.scheme)?.migration {
        Some(migration) => migration(&mut url),
        None => Err(Error::url(format!("{}: has no tables or functions to make", url.scheme))),
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
    rooted(url, &|| {
        std::env::current_dir().map_err(|e| Error::url(format!("no current folder: {e}")))
    })
}

/// The same URL with absolute paths of local files, for a URL that was read from a file in `folder`:
/// its relative paths begin there. Connects to nothing.
///
/// ```
/// let url = lockkeeper::store::absolute_in("/etc/jobs".as_ref(), "sqlite:locks.db")?;
/// assert_eq!(url, "sqlite:/etc/jobs/locks.db");
/// # Ok::<(), lockkeeper::Error>(())
/// ```
///
/// # Errors
/// [`Error::Url`] if the URL is not understood.
pub fn absolute_in(folder: &Path, url: &str) -> Result<String> {
    rooted(url, &|| Ok(folder.to_owned()))
}

/// Tells the folder in which relative paths begin.
type Root<'a> = &'a dyn Fn() -> Result<PathBuf>;

fn rooted(url: &str, root: Root<'_>) -> Result<String> {
    StoreUrl::parse(url)?;
    let (address, query) = url.split_once('?').unwrap_or((url, ""));
    let local = LOCAL.iter().find_map(|scheme| Some((scheme, address.strip_prefix(scheme)?)));
    let address = match local {
        Some((scheme, path)) => {
            let path = path.strip_prefix("//").unwrap_or(path);
            check_path(scheme, &decoded(path)?)?;
            beneath(root, path)?.map(|path| format!("{scheme}{path}"))
        }
        None => None,
    }
    .unwrap_or_else(|| address.to_owned());
    let pairs = query.split('&').filter(|pair| !pair.is_empty());
    let pairs = pairs.map(|pair| rooted_option(pair, root));
    let query = pairs.collect::<Result<Vec<_>>>()?.join("&");
    Ok(if query.is_empty() { address } else { format!("{address}?{query}") })
}

fn rooted_option(pair: &str, root: Root<'_>) -> Result<String> {
    let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
    let file = FILES.contains(&decoded(name)?.as_str());
    if file {
        check_path(&format!("{name}="), &decoded(value)?)?;
    }
    let absolute = if file { beneath(root, value)? } else { None };
    Ok(absolute.map_or_else(|| pair.to_owned(), |value| format!("{name}={value}")))
}

/// An encoded path with the root before it; `None` if it is absolute.
fn beneath(root: Root<'_>, path: &str) -> Result<Option<String>> {
    if Path::new(&decoded(path)?).is_absolute() {
        return Ok(None);
    }
    let root = root()?;
    let Some(root) = root.to_str() else {
        return Err(Error::url(format!("{path} is relative to a folder whose path is not UTF-8")));
    };
    let root = root.replace('%', "%25").replace('?', "%3F").replace('&', "%26");
    Ok(Some(format!("{}/{path}", root.trim_end_matches('/'))))
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
    Err(Error::url(wrong))
}

/// Options and parts that only stores on a network have.
#[cfg(feature = "_network")]
impl StoreUrl {
    #[cfg(feature = "redis")]
    fn has(&self, option: &str) -> bool {
        self.options.iter().any(|(name, _)| name == option)
    }

    #[cfg(any(feature = "redis", feature = "http"))]
    pub(crate) fn scheme(&self) -> &str {
        &self.scheme
    }

    /// What follows the scheme as the path of a socket.
    #[cfg(feature = "http")]
    pub(crate) fn socket_path(&self) -> Result<PathBuf> {
        let path = decoded(self.rest.strip_prefix("//").unwrap_or(&self.rest))?;
        check_path(&format!("{}:", self.scheme), &path)?;
        Ok(path.into())
    }

    /// The path of the file that an option names.
    #[cfg(feature = "http")]
    pub(crate) fn take_path(&mut self, option: &str) -> Result<Option<PathBuf>> {
        debug_assert!(FILES.contains(&option), "a relative path in {option}= would travel");
        let Some(path) = self.take(option) else { return Ok(None) };
        check_path(&format!("{option}="), &path)?;
        Ok(Some(path.into()))
    }

    /// The bytes of the file that an option names.
    pub(crate) fn take_file_bytes(&mut self, option: &str) -> Result<Option<Vec<u8>>> {
        debug_assert!(FILES.contains(&option), "a relative path in {option}= would travel");
        let Some(path) = self.take(option) else { return Ok(None) };
        check_path(&format!("{option}="), &path)?;
        match std::fs::read(&path) {
            Ok(bytes) => Ok(Some(bytes)),
            Err(e) => Err(Error::url_option(
                option,
                format!("cannot read the file of {option}={path}: {e}"),
            )),
        }
    }

    /// The text of the file that an option names, without the line's end.
    #[cfg(any(
        feature = "etcd",
        feature = "mysql",
        feature = "postgres",
        feature = "redis",
        feature = "zookeeper"
    ))]
    pub(crate) fn take_file(&mut self, option: &str) -> Result<Option<String>> {
        let Some(bytes) = self.take_file_bytes(option)? else { return Ok(None) };
        match String::from_utf8(bytes) {
            Ok(text) => Ok(Some(text.trim_end_matches(['\r', '\n']).to_owned())),
            Err(_) => Err(Error::url_option(option, format!("the file of {option}= is not UTF-8"))),
        }
    }

    /// The user of an authority, and the password, which may also be in the file of `password_file=`.
    #[cfg(any(feature = "etcd", feature = "zookeeper"))]
    pub(crate) fn credentials(
        &mut self,
        authority: &mut Authority,
    ) -> Result<Option<(String, String)>> {
        let password = self.take_file("password_file")?.or(authority.password.take());
        match (authority.user.take(), password) {
            (Some(user), Some(password)) => Ok(Some((user, password))),
            (None, None) => Ok(None),
            _ => Err(Error::url("a user and a password belong together")),
        }
    }

    pub(crate) fn authority(&self) -> Result<Authority> {
        Authority::parse(self.rest.strip_prefix("//").unwrap_or(&self.rest))
    }
}

impl fmt::Debug for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "StoreUrl({}:…)", self.scheme)
    }
}

fn unknown(scheme: &str) -> String {
    if let Some((_, feature)) = MISSING.iter().find(|(missing, _)| *missing == scheme) {
        return format!("this program was built without the cargo feature {feature:?}");
    }
    let known: Vec<&str> = examples().map(|(scheme, _)| scheme).collect();
    format!("unknown store {scheme:?}; stores compiled in: {}", known.join(", "))
}

/// The schemes compiled in, each with an example.
fn examples() -> impl Iterator<Item = (&'static str, &'static str)> {
    KINDS.iter().flat_map(|kind| kind.schemes).copied()
}

fn option(pair: &str) -> Result<(String, String)> {
    match pair.split_once('=') {
        Some((name, value)) => Ok((decoded(name)?, decoded(value)?)),
        // It may be the end of a password that has a question mark in it.
        None if pair.contains('@') => Err(Error::url("an option in the store URL has no value")),
        None => Err(Error::url(format!("option {pair:?} in the store URL has no value"))),
    }
}

fn decoded(text: &str) -> Result<String> {
    match percent_decode_str(text).decode_utf8() {
        Ok(text) => Ok(text.into_owned()),
        Err(_) => Err(Error::url("the store URL is not UTF-8 when decoded")),
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

    #[cfg(not(feature = "redis"))]
    #[tokio::test]
    async fn a_scheme_that_is_not_compiled_in_is_told_its_feature() {
        for url in ["redis://a", "rediss://a", "redis+cluster://a", "redlock://a,b,c"] {
            let e = error(url).await;
            assert!(e.contains("without the cargo feature \"redis\""), "{url}: {e}");
        }
    }

    #[test]
    fn every_scheme_has_one_store_and_an_example_of_its_own() {
        let mut seen = std::collections::HashSet::new();
        for (scheme, example) in examples() {
            assert!(seen.insert(scheme), "{scheme} is registered twice");
            assert_eq!(StoreUrl::parse(example).expect(example).scheme, scheme);
        }
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

    #[cfg(feature = "sqlite")]
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

    #[cfg(feature = "sqlite")]
    #[test]
    fn relative_paths_of_a_url_in_a_file_begin_in_the_folder_of_that_file() {
        let folder = Path::new("/a?b");
        let rooted = super::absolute_in(folder, "sqlite:c.db?ttl=3s").unwrap();
        assert_eq!(rooted, "sqlite:/a%3Fb/c.db?ttl=3s");
        assert_eq!(super::absolute_in(folder, "sqlite:/c.db").unwrap(), "sqlite:/c.db");
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
