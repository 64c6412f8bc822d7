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
];

/// The schemes that exist but need a cargo feature that is off.
const FEATURES: &[&str] = &[
    #[cfg(not(feature = "sqlite"))]
    "sqlite",
];

/// The options that every URL understands.
const COMMON: &[&str] = &["ttl", "lock_delay"];

/// A store's URL, taken apart: `scheme:rest?option=value&…`.
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
        Ok(Self { scheme: scheme.to_owned(), rest: decoded(rest)?, options })
    }

    fn take(&mut self, option: &str) -> Option<String> {
        let at = self.options.iter().position(|(name, _)| name == option)?;
        Some(self.options.swap_remove(at).1)
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
    fn finish(&self, known: &[&str]) -> Result<()> {
        let Some((option, _)) = self.options.first() else { return Ok(()) };
        let known = [COMMON, known].concat().join(", ");
        let scheme = &self.scheme;
        Err(Error::Url(format!(
            "unknown or repeated option {option:?} for {scheme}; known options: {known}"
        )))
    }

    #[expect(clippy::unused_async, reason = "stores that are reached over a network await here")]
    pub(crate) async fn connect(self) -> Result<AnyStore> {
        match self.scheme.as_str() {
            "memory" => {
                self.finish(&[])?;
                let name = self.rest.strip_prefix("//").unwrap_or(&self.rest);
                Ok(AnyStore::shared(Memory::named(name)))
            }
            #[cfg(feature = "sqlite")]
            "sqlite" => {
                self.finish(&[])?;
                let path = self.rest.strip_prefix("//").unwrap_or(&self.rest);
                if path.is_empty() {
                    return Err(Error::Url("sqlite: needs a path, as in sqlite:locks.db".into()));
                }
                Ok(AnyStore::new(super::sqlite::Sqlite::open(path)?))
            }
            scheme => Err(Error::Url(unknown(scheme))),
        }
    }
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

    #[tokio::test]
    async fn options_in_the_url_hold_for_every_lock() {
        let keeper = crate::Keeper::connect("memory://x?ttl=2s&lock_delay=500ms").await.unwrap();
        let times = keeper.times();
        assert_eq!(times.ttl, Duration::from_secs(2));
        assert_eq!(times.lock_delay, Duration::from_millis(500));
        assert!(error("memory://x?ttl=1ms").await.contains("at least 100ms"));
    }
}
