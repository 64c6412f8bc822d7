//! Which store is meant, and what of its URL others may see.

use crate::{config, duration, exit_code, failure::Failure};
use anyhow::Context as _;
use percent_encoding::percent_decode_str;
use std::{
    env, fs,
    os::unix::fs::DirBuilderExt as _,
    path::{Path, PathBuf},
    time::Duration,
};

/// The variable that names the store.
pub(crate) const VARIABLE: &str = "LOCKKEEPER_STORE";

/// The URL of the store to use: the one that was said, or a file in the user's state folder. Paths
/// in it are absolute, because the command may go to another folder and run lockkeeper there.
pub(crate) fn url(said: Option<&str>) -> Result<String, Failure> {
    match said.filter(|url| !url.is_empty()) {
        Some(url) if url.starts_with("memory:") => Err(in_memory()),
        Some(url) => Ok(lockkeeper::store::absolute(url)?),
        None => {
            let folder = own_folder()?;
            let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(&folder);
            made.with_context(|| format!("cannot create the folder {}", folder.display()))
                .map_err(unusable)?;
            embedded()
        }
    }
}

/// The URL of the store that is used if none is named. Its folder need not be there.
pub(crate) fn embedded() -> Result<String, Failure> {
    file_url(&own_folder()?.join("locks.db"))
}

pub(crate) fn own_folder() -> Result<PathBuf, Failure> {
    state_folder(|name| env::var_os(name).map(PathBuf::from))
}

/// The path of the file in which the store keeps its locks, if it is a store in a file.
pub(crate) fn file(url: &str) -> Option<PathBuf> {
    let path = url.split('?').next()?.strip_prefix("sqlite:")?;
    let path = path.strip_prefix("//").unwrap_or(path);
    let path = percent_decode_str(path).decode_utf8().ok()?;
    (!path.is_empty()).then(|| PathBuf::from(path.into_owned()))
}

fn in_memory() -> Failure {
    let what =
        "locks of memory:// are seen by one process alone: two runs would hold the same lock";
    Failure::new(exit_code::CONFIGURATION, anyhow::Error::msg(what))
        .hint("to share locks on this machine name a file, as in sqlite:locks.db, or no store")
}

/// What the command finds about the store. A lockkeeper that it runs is to use the same store, so
/// the variable that was inherited stays, with its password, and so does the file with the URL. A password
/// from the command line is not passed on: without it a server refuses, while without a URL a nested
/// lockkeeper would quietly lock something else.
pub(crate) fn for_the_command(
    url: &str,
    said: Option<&str>,
) -> [(&'static str, Option<String>); 3] {
    let open = without_secrets(url);
    let inherited = said.is_some() && env::var(VARIABLE).ok().as_deref() == said;
    let file = config::inherited_file(said).filter(|_| open != url);
    let nested = if inherited { url.to_owned() } else { open.clone() };
    [
        (VARIABLE, file.is_none().then_some(nested)),
        (config::STORE_FILE, file),
        ("LOCKKEEPER_STORE_URL", Some(open)),
    ]
}

/// Where the embedded store lives when nobody says otherwise.
fn state_folder(variable: impl Fn(&str) -> Option<PathBuf>) -> Result<PathBuf, Failure> {
    // The XDG specification has relative paths ignored.
    let absolute = |name: &str| variable(name).filter(|path| path.is_absolute());
    let state = absolute("XDG_STATE_HOME")
        .or_else(|| absolute("HOME").map(|home| home.join(".local").join("state")));
    let why = match (state, variable("HOME")) {
        (Some(state), _) => return Ok(state.join("lockkeeper")),
        (None, Some(home)) => format!("HOME is not an absolute path ({})", home.display()),
        (None, None) => "neither XDG_STATE_HOME nor HOME is set".to_owned(),
    };
    Err(unusable(anyhow::anyhow!("no place for the embedded store: {why}")))
}

fn unusable(error: anyhow::Error) -> Failure {
    Failure::new(exit_code::CONFIGURATION, error)
        .hint("name a store with --store URL or LOCKKEEPER_STORE, for example sqlite:locks.db")
}

/// The URL of a store in this file. What means something in a URL is written so that it does not.
fn file_url(path: &Path) -> Result<String, Failure> {
    let Some(path) = path.to_str() else {
        let path = path.display();
        return Err(unusable(anyhow::anyhow!("the path {path} is not UTF-8")));
    };
    Ok(format!("sqlite:{}", path.replace('%', "%25").replace('?', "%3F")))
}

/// The lock-delay that the URL asks for, if it does. What is wrong with it, the library will say.
pub(crate) fn lock_delay(url: &str) -> Option<Duration> {
    duration::parse(option(url, "lock_delay")?).ok()
}

/// The TTL that the URL asks for, if it does.
pub(crate) fn ttl(url: &str) -> Option<Duration> {
    duration::ttl(option(url, "ttl")?).ok()
}

/// The value of an option in the URL, as it stands there.
pub(crate) fn option<'a>(url: &'a str, name: &str) -> Option<&'a str> {
    let (_, query) = url.split_once('?')?;
    query.split('&').find_map(|pair| pair.strip_prefix(name)?.strip_prefix('='))
}

/// The URL without an option.
pub(crate) fn without_option(url: &str, name: &str) -> String {
    let Some((address, query)) = url.split_once('?') else { return url.to_owned() };
    let others = query.split('&').filter(|pair| pair.split('=').next() != Some(name));
    let query = others.collect::<Vec<_>>().join("&");
    if query.is_empty() { address.to_owned() } else { format!("{address}?{query}") }
}

/// The URL without its secrets, for a child's environment.
pub(crate) fn without_secrets(url: &str) -> String {
    let (address, query) = url.split_once('?').unwrap_or((url, ""));
    let open = query.split('&').filter(|pair| !pair.is_empty() && !is_secret(pair));
    let query: Vec<&str> = open.collect();
    let address = without_password(address);
    if query.is_empty() { address } else { format!("{address}?{}", query.join("&")) }
}

/// An option that names a file with a secret in it is no secret itself.
fn is_secret(pair: &str) -> bool {
    let name = pair.split('=').next().unwrap_or(pair).to_ascii_lowercase();
    let secret = ["password", "passwd", "secret", "token"].iter().any(|word| name.contains(word));
    secret && !name.ends_with("_file")
}

/// `scheme://user:password@host` without the password. A password may contain nearly anything, also
/// an `@` that should have been escaped: all up to the last one belongs to it.
fn without_password(address: &str) -> String {
    let Some((scheme, rest)) = address.split_once(':') else { return address.to_owned() };
    let (slashes, rest) = rest.strip_prefix("//").map_or(("", rest), |rest| ("//", rest));
    // These name files and maps, which have no passwords but may well have an `@`.
    if matches!(scheme, "sqlite" | "memory") {
        return address.to_owned();
    }
    match rest.rsplit_once('@').map(|(login, host)| (login.split_once(':'), host)) {
        Some((Some(("", _)), host)) => format!("{scheme}:{slashes}{host}"),
        Some((Some((user, _)), host)) => format!("{scheme}:{slashes}{user}@{host}"),
        _ => address.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder(variables: &[(&str, &str)]) -> Option<PathBuf> {
        let value = |name: &str| variables.iter().find(|(n, _)| *n == name).map(|(_, v)| v.into());
        state_folder(value).ok()
    }

    #[test]
    fn the_state_folder_follows_the_xdg_rules() {
        let home = ("HOME", "/home/a");
        assert_eq!(folder(&[home]), Some("/home/a/.local/state/lockkeeper".into()));
        assert_eq!(folder(&[home, ("XDG_STATE_HOME", "/s")]), Some("/s/lockkeeper".into()));
        assert_eq!(folder(&[("XDG_STATE_HOME", "relative")]), None);
        assert_eq!(folder(&[]), None);
    }

    #[test]
    fn a_path_is_taken_as_it_is() {
        assert_eq!(file_url(Path::new("/a%20b?c")).ok(), Some("sqlite:/a%2520b%3Fc".into()));
    }

    #[test]
    fn passwords_never_reach_the_child() {
        let same = ["sqlite:locks.db", "sqlite:///home/a:b@c/locks.db", "redis://host:6379/0"];
        for url in same {
            assert_eq!(without_secrets(url), url);
        }
        let cases = [
            ("redis://:pw@host:6379/0", "redis://host:6379/0"),
            ("postgres://me:pw@host/db?ttl=3s", "postgres://me@host/db?ttl=3s"),
            ("postgres://me@host/db", "postgres://me@host/db"),
            ("redis://me:p@s/s:w@host", "redis://me@host"),
            ("redis:me:pw@host", "redis:me@host"),
            ("etcd://a,b?password=x&ttl=3s", "etcd://a,b?ttl=3s"),
            ("etcd://a?Token=x", "etcd://a"),
            ("etcd://a?password_file=/run/pw", "etcd://a?password_file=/run/pw"),
        ];
        for (url, open) in cases {
            assert_eq!(without_secrets(url), open);
        }
    }

    #[test]
    fn an_option_is_read_and_taken_away() {
        let url = "redis://h?ttl=3s&password_file=/a";
        assert_eq!((option(url, "ttl"), option(url, "tt")), (Some("3s"), None));
        assert_eq!(without_option(url, "password_file"), "redis://h?ttl=3s");
        assert_eq!(without_option("redis://h?a=1", "a"), "redis://h");
        assert_eq!(without_option("redis://h", "a"), "redis://h");
    }

    #[test]
    fn the_lock_delay_of_a_url_is_seen() {
        assert_eq!(lock_delay("sqlite:a?ttl=3s&lock_delay=2s"), Some(Duration::from_secs(2)));
        assert_eq!(lock_delay("sqlite:a?ttl=3s"), None);
        assert_eq!(lock_delay("sqlite:a"), None);
    }
}
