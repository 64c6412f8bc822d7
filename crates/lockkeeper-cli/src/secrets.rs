//! Passwords of URLs, which are never repeated.
//!
//! A URL can stand in the wrong place: as a lock's name, behind another flag, where a verb belongs.
//! The message about that would repeat it. So every word of the command line is looked at first, and
//! [`hide`] replaces the URLs with a password among them in all that the command says.

use crate::store::without_secrets;
use std::{env, sync::OnceLock};

/// URLs with a password, as they were given but without their scheme, and what is said instead.
static SECRETS: OnceLock<Vec<(String, String)>> = OnceLock::new();

/// Looks at the command line and at the variable that names the store.
pub(crate) fn learn() {
    let words = env::args_os().skip(1).chain(env::var_os("LOCKKEEPER_STORE"));
    let words = words.map(|word| word.to_string_lossy().into_owned());
    SECRETS.get_or_init(|| words.flat_map(|word| secrets(&word)).collect());
}

/// The text without the passwords of URLs that were given.
pub(crate) fn hide(text: Vec<u8>) -> Vec<u8> {
    let Some(secrets) = SECRETS.get().filter(|secrets| !secrets.is_empty()) else { return text };
    let text = String::from_utf8_lossy(&text).into_owned();
    secrets.iter().fold(text, |text, (secret, open)| text.replace(secret, open)).into_bytes()
}

/// Is this the URL of something with a password in it?
pub(crate) fn is_secret(word: &str) -> bool {
    !secrets(word).is_empty()
}

/// The URLs with a password in a word of the command line, such as `--store=URL`.
fn secrets(word: &str) -> Vec<(String, String)> {
    let ends_of_schemes = word.match_indices("://").map(|(at, _)| at);
    let urls = ends_of_schemes.map(|end| {
        let is_scheme = |c: &char| c.is_ascii_alphanumeric() || "+-.".contains(*c);
        let scheme = word[..end].chars().rev().take_while(is_scheme).count();
        let open = without_secrets(&word[end - scheme..]);
        // Without the scheme: the letter of a flag may stick to it, as in `-wredis://…`.
        (word[end..].to_owned(), open[scheme..].to_owned())
    });
    urls.filter(|(secret, open)| secret != open).collect()
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
        for word in ["https://host/a", "redis://me@host", "a:b@c", "://", "ü://"] {
            assert!(!is_secret(word), "{word}");
        }
    }
}
