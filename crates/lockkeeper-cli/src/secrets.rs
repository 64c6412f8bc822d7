//! Passwords of URLs, which are never repeated.
//!
//! A URL can stand in the wrong place: as a lock's name, behind another flag, where a verb belongs.
//! The message about that would repeat it. So every word of the command line is looked at first, and
//! [`hide`] replaces the URLs with a password among them in all that the command says.

use crate::{arguments, store::without_secrets};
use std::{
    env,
    sync::{PoisonError, RwLock},
};

/// URLs with a password, as they were given but without their scheme, and what is said instead.
static SECRETS: RwLock<Vec<(String, String)>> = RwLock::new(Vec::new());

/// The schemes of stores with passwords. Their URLs need no `//`.
const SCHEMES: &[&str] = &[
    "redis",
    "rediss",
    "redis+sentinel",
    "redis+cluster",
    "redlock",
    "postgres",
    "postgresql",
    "mysql",
    "mariadb",
    "etcd",
    "zookeeper",
    "lockkeeper+http",
    "lockkeeper+https",
];

/// Looks at the command line and at the variable that names the store.
pub(crate) fn learn() {
    let words = arguments::words().iter().skip(1).cloned();
    for word in words.chain(env::var_os("LOCKKEEPER_STORE")) {
        learn_url(&word.to_string_lossy());
    }
}

/// Looks at a URL that was read from a file.
pub(crate) fn learn_url(word: &str) {
    let found = secrets(word);
    if !found.is_empty() {
        SECRETS.write().unwrap_or_else(PoisonError::into_inner).extend(found);
    }
}

/// The text without the passwords of URLs that were given.
pub(crate) fn hide(text: Vec<u8>) -> Vec<u8> {
    let secrets = SECRETS.read().unwrap_or_else(PoisonError::into_inner);
    if secrets.is_empty() {
        return text;
    }
    let text = String::from_utf8_lossy(&text).into_owned();
    secrets.iter().fold(text, |text, (secret, open)| text.replace(secret, open)).into_bytes()
}

/// Can a URL of this scheme have a password?
pub(crate) fn may_have_a_password(url: &str) -> bool {
    url.split_once(':').is_some_and(|(scheme, _)| SCHEMES.contains(&scheme))
}

/// Is this the URL of something with a password in it?
pub(crate) fn is_secret(word: &str) -> bool {
    !secrets(word).is_empty()
}

/// The URLs with a password in a word of the command line, such as `--store=URL`.
fn secrets(word: &str) -> Vec<(String, String)> {
    let colons = word.match_indices(':').map(|(at, _)| at);
    let ends_of_schemes =
        colons.filter(|at| word[*at..].starts_with("://") || ends_with_a_scheme(&word[..*at]));
    let urls = ends_of_schemes.map(|end| {
        let is_scheme = |c: &char| c.is_ascii_alphanumeric() || "+-.".contains(*c);
        let scheme = word[..end].chars().rev().take_while(is_scheme).count();
        let open = without_secrets(&word[end - scheme..]);
        // Without the scheme: the letter of a flag may stick to it, as in `-wredis://…`.
        (word[end..].to_owned(), open[scheme..].to_owned())
    });
    let urls = urls.filter(|(secret, open)| secret != open);
    urls.flat_map(|url| [as_in_json(&url), Some(url)]).flatten().collect()
}

/// The same as they stand in a line of JSON, if that writes them in another way.
fn as_in_json((secret, open): &(String, String)) -> Option<(String, String)> {
    let inner = |text: &str| {
        let quoted = serde_json::to_string(text).ok()?;
        Some(quoted.strip_prefix('"')?.strip_suffix('"')?.to_owned())
    };
    Some((inner(secret)?, inner(open)?)).filter(|(escaped, _)| escaped != secret)
}

/// Does the text end with a store's scheme, at its beginning or where a flag's value begins?
fn ends_with_a_scheme(text: &str) -> bool {
    let before = SCHEMES.iter().filter_map(|scheme| text.strip_suffix(scheme));
    before.into_iter().any(|b| b.is_empty() || b.ends_with('=') || b.starts_with('-'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_with_a_password_is_found_wherever_it_stands() {
        let url = "redis://me:pw@host/0";
        for word in [url, "--store=redis://me:pw@host/0", "-wredis://me:pw@host/0"] {
            let found = secrets(word);
            assert!(found.iter().any(|(_, open)| !open.contains("pw")), "{word}: {found:?}");
        }
        for word in ["redis:me:pw@host", "--store=redis:me:pw@host", "-wredis:redis:pw@host"] {
            let found = secrets(word);
            assert_eq!(found.len(), 1, "{word}: {found:?}");
            assert!(!found[0].1.contains("pw") && found[0].1.ends_with("@host"), "{found:?}");
        }
        for word in ["https://host/a", "redis://me@host", "a:b@c", "://", "ü://"] {
            assert!(!is_secret(word), "{word}");
        }
        for word in ["redis:me@host", "prod-redis:eu:7@host", "sqlite:a:b@c", "redis:", "redis:a:b"]
        {
            assert!(!is_secret(word), "{word}");
        }
    }

    #[test]
    fn a_password_is_also_found_in_json() {
        let found = secrets("redis://me:p\"w@host");
        let [json, plain] = found.as_slice() else { panic!("{found:?}") };
        assert_eq!(plain.0, "://me:p\"w@host");
        assert_eq!((json.0.as_str(), json.1.as_str()), ("://me:p\\\"w@host", "://me@host"));
    }

    #[test]
    fn every_scheme_with_passwords_is_known() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let e = runtime.block_on(lockkeeper::Keeper::connect("nothing")).unwrap_err().to_string();
        let (_, examples) = e.split_once("looks like ").expect("a list of schemes");
        let schemes = examples.split(" or ").filter_map(|url| url.split(':').next());
        let without = ["sqlite", "memory", "lockkeeper+unix"];
        let mut with_passwords = schemes.filter(|scheme| !without.contains(scheme));
        assert!(with_passwords.all(|scheme| SCHEMES.contains(&scheme)), "{e}");
    }
}
