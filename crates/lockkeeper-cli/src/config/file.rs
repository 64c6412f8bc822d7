//! What stands in a file of settings.

use super::wrong;
use crate::{duration, failure::Failure, output::printable, secrets, serve, store};
use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    str::FromStr,
    time::Duration,
};
use toml::{
    Spanned,
    de::{DeTable, DeValue},
};

/// How like a known key another one must be, from 0 to 1, to be taken for a slip.
const LIKENESS_MIN: f64 = 0.7;

/// One file.
#[derive(Debug)]
pub(super) struct Settings {
    pub(super) path: PathBuf,
    /// The URL or the name of the store to use if no store is named.
    store: Option<String>,
    pub(super) quiet: Option<bool>,
    pub(super) ttl: Option<Duration>,
    pub(super) stores: BTreeMap<String, Named>,
    pub(super) serve: Option<serve::Settings>,
}

impl Settings {
    pub(super) fn default_store(&self) -> Option<(&str, &Path)> {
        self.store.as_deref().map(|store| (store, self.path.as_path()))
    }
}

/// `[stores.NAME]`
#[derive(Debug)]
pub(super) struct Named {
    pub(super) url: String,
    pub(super) password_file: Option<String>,
}

pub(super) fn read(path: &Path) -> Result<Settings, Failure> {
    let text = fs::read_to_string(path)
        .map_err(|e| wrong(format!("cannot read {}: {e}", path.display())))?;
    parse(path, &text)
}

fn parse(path: &Path, text: &str) -> Result<Settings, Failure> {
    let reader = Reader { path, text };
    let document = DeTable::parse(text).map_err(|e| {
        let at = e.span().map_or(0, |span| span.start);
        reader.wrong(at, e.message())
    })?;
    let mut table =
        reader.table(document.get_ref(), "", &["store", "quiet", "ttl", "stores", "serve"])?;
    let mut settings = Settings {
        path: path.to_owned(),
        store: reader.text_of(table.remove("store"))?,
        quiet: reader.truth_of(table.remove("quiet"))?,
        ttl: reader.ttl_of(table.remove("ttl"))?,
        stores: BTreeMap::new(),
        serve: table.remove("serve").map(|serve| reader.serve(serve)).transpose()?,
    };
    if let Some(stores) = table.remove("stores") {
        for (name, named) in reader.table_of(stores)? {
            let named = reader.named(name.span().start, name.get_ref(), named)?;
            settings.stores.insert(name.get_ref().to_string(), named);
        }
    }
    Ok(settings)
}

type Value<'a> = &'a Spanned<DeValue<'a>>;

/// Reads values, and tells where a wrong one stands.
struct Reader<'a> {
    path: &'a Path,
    text: &'a str,
}

impl Reader<'_> {
    fn wrong(&self, at: usize, what: &str) -> Failure {
        let before = self.text.as_bytes().iter().take(at);
        let line = before.filter(|byte| **byte == b'\n').count() + 1;
        wrong(format!("{}:{line}: {what}", self.path.display()))
    }

    /// The values by their keys, all of which must be known. `within` is the table's name, with a dot.
    fn table<'v>(
        &self,
        table: &'v DeTable<'v>,
        within: &str,
        known: &[&'static str],
    ) -> Result<BTreeMap<&'static str, Value<'v>>, Failure> {
        let mut values = BTreeMap::new();
        for (key, value) in table {
            let Some(key) = known.iter().find(|known| **known == key.get_ref().as_ref()) else {
                return Err(self.unknown(key.span().start, key.get_ref(), within, known));
            };
            values.insert(*key, value);
        }
        Ok(values)
    }

    fn unknown(&self, at: usize, key: &str, within: &str, known: &[&'static str]) -> Failure {
        let key = printable(key);
        let meant = match nearest(&key, known.iter().copied()) {
            Some(meant) => format!("did you mean `{within}{meant}`?"),
            None => format!("known keys: {}", known.join(", ")),
        };
        self.wrong(at, &format!("unknown key `{within}{key}`; {meant}"))
    }

    fn named(&self, at: usize, name: &str, value: Value<'_>) -> Result<Named, Failure> {
        let shown = printable(name);
        let plain = |c: char| c.is_alphanumeric() || "-_.".contains(c);
        if name.is_empty() || !name.chars().all(plain) {
            let what = format!("`{shown}` names no store: use letters, digits, `-`, `_` and `.`");
            return Err(self.wrong(at, &what));
        }
        let within = format!("stores.{shown}.");
        let table = self.table_of(value)?;
        let mut table = self.table(table, &within, &["url", "password_file"])?;
        let url = self.text_of(table.remove("url"))?;
        let password_file = self.text_of(table.remove("password_file"))?;
        let Some(url) = url.filter(|url| url.contains(':')) else {
            let what = format!("[stores.{shown}] needs a url, as in url = \"sqlite:locks.db\"");
            return Err(self.wrong(at, &what));
        };
        let twice = secrets::is_secret(&url) || store::option(&url, "password_file").is_some();
        if twice && password_file.is_some() {
            let what = format!("[stores.{shown}] has a password in its url and a password_file");
            return Err(self.wrong(at, &what).hint("keep the password_file"));
        }
        secrets::learn_url(&url);
        Ok(Named { url, password_file })
    }

    /// `[serve]`
    fn serve(&self, value: Value<'_>) -> Result<serve::Settings, Failure> {
        let mut table = self.table(self.table_of(value)?, "serve.", serve::KEYS)?;
        Ok(serve::Settings {
            listen: self.texts_of(table.remove("listen"))?,
            socket_mode: self.parsed_of(table.remove("socket_mode"), serve::mode)?,
            security: self.security(&mut table)?,
        })
    }

    /// The part of `[serve]` that says who may come in.
    fn security(
        &self,
        table: &mut BTreeMap<&str, Value<'_>>,
    ) -> Result<serve::SecurityArgs, Failure> {
        let path = |text: &str| Ok(PathBuf::from(text));
        let mut file = |key: &str| self.parsed_of(table.remove(key), path);
        let (tokens, tls_cert, tls_key) = (file("tokens")?, file("tls_cert")?, file("tls_key")?);
        let (client_ca, signing_keys) = (file("client_ca")?, file("signing_keys")?);
        let audit_log = file("audit_log")?;
        let mut limit = |key: &str| self.parsed_of(table.remove(key), serve::number);
        let (max_requests, max_sessions) = (limit("max_requests")?, limit("max_sessions")?);
        let (max_waiters, max_streams) = (limit("max_waiters")?, limit("max_streams")?);
        let mut is_true =
            |key: &str| self.truth_of(table.remove(key)).map(Option::unwrap_or_default);
        let accept_plain_sequencers = is_true("accept_plain_sequencers")?;
        let insecure = is_true("insecure")?;
        let host = self.texts_of(table.remove("host"))?;
        Ok(serve::SecurityArgs {
            tokens,
            tls_cert,
            tls_key,
            client_ca,
            host,
            signing_keys,
            accept_plain_sequencers,
            audit_log,
            max_requests,
            max_sessions,
            max_waiters,
            max_streams,
            insecure,
        })
    }

    /// A text or a list of texts, each of which means something.
    fn texts_of<T: FromStr<Err: ToString>>(
        &self,
        value: Option<Value<'_>>,
    ) -> Result<Vec<T>, Failure> {
        let Some(value) = value else { return Ok(Vec::new()) };
        let parse = |text: &str| text.parse().map_err(|e: T::Err| e.to_string());
        let items = match value.get_ref().as_array() {
            Some(items) => items.iter().collect(),
            None => vec![value],
        };
        let parsed = items.into_iter().map(|item| self.parsed_of(Some(item), parse));
        Ok(parsed.collect::<Result<Vec<_>, _>>()?.into_iter().flatten().collect())
    }

    /// A text that means something.
    fn parsed_of<T>(
        &self,
        value: Option<Value<'_>>,
        parse: impl Fn(&str) -> Result<T, String>,
    ) -> Result<Option<T>, Failure> {
        let Some(text) = self.text_of(value)? else { return Ok(None) };
        let at = value.map_or(0, |value| value.span().start);
        parse(&text).map(Some).map_err(|e| self.wrong(at, &e))
    }

    fn table_of<'v>(&self, value: Value<'v>) -> Result<&'v DeTable<'v>, Failure> {
        let table = value.get_ref().as_table();
        table.ok_or_else(|| {
            self.wrong(value.span().start, "this must be a table, as in [stores.prod]")
        })
    }

    fn text_of(&self, value: Option<Value<'_>>) -> Result<Option<String>, Failure> {
        let Some(value) = value else { return Ok(None) };
        let text = value.get_ref().as_str().filter(|text| !text.is_empty());
        let text = text.ok_or_else(|| self.wrong(value.span().start, "this must be a text"))?;
        Ok(Some(text.to_owned()))
    }

    fn truth_of(&self, value: Option<Value<'_>>) -> Result<Option<bool>, Failure> {
        let Some(value) = value else { return Ok(None) };
        let truth = value.get_ref().as_bool();
        truth.map(Some).ok_or_else(|| self.wrong(value.span().start, "this must be true or false"))
    }

    fn ttl_of(&self, value: Option<Value<'_>>) -> Result<Option<Duration>, Failure> {
        let Some(value) = value else { return Ok(None) };
        let ttl = value.get_ref().as_str().ok_or("write a text, as in \"15s\"".to_owned());
        let ttl = ttl.and_then(duration::ttl);
        ttl.map(Some).map_err(|e| self.wrong(value.span().start, &e))
    }
}

/// The one among these words that may be meant by another one.
pub(super) fn nearest<'a>(word: &str, among: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let likeness = |known: &&str| strsim::jaro_winkler(word, known);
    let likely = among.filter(|known| likeness(known) >= LIKENESS_MIN);
    likely.max_by(|a, b| likeness(a).total_cmp(&likeness(b)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Settings, String> {
        parse(Path::new("/etc/x.toml"), text).map_err(|failure| failure.line())
    }

    #[test]
    fn every_setting_is_read() {
        let text = "store = \"prod\"\nquiet = true\nttl = \"20s\"\n[stores.prod]\nurl = \
                    \"redis://h\"\npassword_file = \"pw\"\n[stores.\"eu.1\"]\nurl = \"redis:h\"";
        let settings = read(text).unwrap();
        assert_eq!((settings.store.as_deref(), settings.quiet), (Some("prod"), Some(true)));
        assert_eq!(settings.ttl, Some(Duration::from_secs(20)));
        assert_eq!(settings.stores["prod"].password_file.as_deref(), Some("pw"));
        assert_eq!(settings.stores["eu.1"].url, "redis:h");
        assert!(read("").unwrap().stores.is_empty());
    }

    #[test]
    fn the_example_of_the_documentation_has_no_mistake() {
        let text = include_str!("../../../../docs/cli.md");
        let example = text.split("```toml\n").nth(1).and_then(|rest| rest.split("```").next());
        let settings = read(example.unwrap()).unwrap();
        assert_eq!(settings.stores.keys().collect::<Vec<_>>(), ["dev", "prod"]);
    }

    #[test]
    fn a_mistake_is_told_with_file_line_and_the_nearest_key() {
        for (text, says) in [
            ("\nstor = \"a:b\"", "/etc/x.toml:2: unknown key `stor`; did you mean `store`?"),
            (
                "xyz = 1",
                "/etc/x.toml:1: unknown key `xyz`; known keys: store, quiet, ttl, stores, serve",
            ),
            (
                "[stores.a]\nurl = \"a:b\"\npasword_file = \"c\"",
                "/etc/x.toml:3: unknown key `stores.a.pasword_file`; did you mean \
                 `stores.a.password_file`?",
            ),
            ("[stores.a]", "/etc/x.toml:1: [stores.a] needs a url"),
            ("quiet = 1", "/etc/x.toml:1: this must be true or false"),
            ("ttl = 3", "/etc/x.toml:1: write a text"),
            ("ttl = \"1ms\"", "/etc/x.toml:1: at least 100ms"),
            ("store = \"\"", "/etc/x.toml:1: this must be a text"),
            ("stores = 3", "/etc/x.toml:1: this must be a table"),
            ("[stores.\"a b\"]\nurl = \"a:b\"", "/etc/x.toml:1: `a b` names no store"),
            ("[serve]\nlisten = 1", "/etc/x.toml:2: this must be a text"),
            ("[serve]\nlisten = [\n\"x\"]", "/etc/x.toml:3: write an IP address with a port"),
            (
                "[serve]\nsocket_mod = 1",
                "/etc/x.toml:2: unknown key `serve.socket_mod`; did you mean",
            ),
            ("[serve]\nsocket_mode = \"999\"", "/etc/x.toml:2: write access rights in octal"),
            ("quiet = true\nquiet = true", "/etc/x.toml:2: "),
            ("quiet", "/etc/x.toml:1: "),
        ] {
            let said = read(text).unwrap_err();
            assert!(said.starts_with(says), "{text:?} says: {said}");
        }
    }

    #[test]
    fn a_password_stands_in_one_place_and_is_not_repeated() {
        let said = read("[stores.a]\nurl = \"redis://:hunter2@h\"\npassword_file = \"pw\"");
        let said = said.unwrap_err();
        assert!(said.contains("and a password_file") && !said.contains("hunter2"), "{said}");
    }
}
