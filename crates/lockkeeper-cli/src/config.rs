//! What is said once, in files and in the environment, and holds for every call.
//!
//! A flag is stronger than the environment, the environment than the project's file, and that than the
//! user's. [`apply`] writes the outcome into the flags, so a verb reads its flags and nothing else.
//! [`find`] says which files are read, [`file`] what may stand in them.

mod file;
mod find;

use crate::{
    arguments,
    cli::{Cli, Verb},
    duration,
    event::Voice,
    exit_code,
    failure::Failure,
    output::printable,
    secrets, store,
};
use anyhow::anyhow;
use file::Settings;
use std::{
    env,
    ffi::OsStr,
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

/// The variable that names a file with the store's URL, or its name, in it.
pub(crate) const STORE_FILE: &str = "LOCKKEEPER_STORE_FILE";
/// The variable that names a file with the store's password in it.
const PASSWORD_FILE: &str = "LOCKKEEPER_PASSWORD_FILE";
const QUIET: &str = "LOCKKEEPER_QUIET";
const TTL: &str = "LOCKKEEPER_TTL";

/// Fills in what the flags leave open.
pub(crate) fn apply(cli: &mut Cli) -> Result<(), Failure> {
    if !cli.verb.has_a_store() {
        return Ok(());
    }
    let files = Files::read(cli.common.config.as_deref())?;
    if let Some(store) = cli.verb.take_store() {
        cli.common.store = Some(store);
    }
    let is_named = is_store_named(cli.common.store.as_deref());
    let common = &mut cli.common;
    // Who asks for more words than usual has not asked for silence.
    common.quiet |= common.verbose == 0 && files.quiet()?;
    let voice = Voice { json: common.json, quiet: common.quiet };
    let store = files.store(common.store.as_deref())?;
    if let Some(store) = &store {
        secrets::learn_url(&store.url);
        store.tell(voice, common.verbose);
    }
    let url = store.map(|store| store.url);
    match cli.verb.knows_its_store() && !is_named {
        true => common.settings_store = url,
        false => common.store = url,
    }
    if let Verb::Serve(serve) = &mut cli.verb {
        files.0.iter().filter_map(|file| file.serve.as_ref()).for_each(|file| serve.fill(file));
    }
    if let Some(ttl) = cli.verb.ttl()
        && ttl.is_none()
    {
        *ttl = files.ttl(cli.common.store.as_deref())?;
    }
    Ok(())
}

/// Does a flag or the environment name a store?
fn is_store_named(said: Option<&str>) -> bool {
    said.is_some_and(|said| !said.is_empty()) || variable(STORE_FILE).is_some()
}

/// Where a store's URL stood.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Flag,
    Environment,
    File,
}

/// The store that is meant.
#[derive(Debug)]
struct Chosen {
    url: String,
    place: Place,
    /// Says where the URL was found, if it was not given as it is.
    found: Option<String>,
}

impl Chosen {
    fn tell(&self, voice: Voice, verbose: u8) {
        if self.place == Place::Flag && self.found.is_none() && secrets::is_secret(&self.url) {
            let seen = if arguments::are_hidden() { "" } else { " in the list of processes and" };
            voice.note(&format!(
                "the password in --store can be read{seen} in the shell's history; write it into a \
                 file and name that: password_file= in the URL, or {PASSWORD_FILE}"
            ));
        }
        if let Some(found) = self.found.as_ref().filter(|_| verbose > 0) {
            voice
                .note(&format!("the store is {}, from {found}", store::without_secrets(&self.url)));
        }
    }
}

/// The files that were found, the strongest first.
#[derive(Debug)]
pub(crate) struct Files(Vec<Settings>);

impl Files {
    /// Reads them; if one is named, that one alone.
    pub(crate) fn read(named: Option<&OsStr>) -> Result<Self, Failure> {
        let files = find::files(named)?;
        let settings = files.iter().map(|path| file::read(path));
        Ok(Self(settings.collect::<Result<_, _>>()?))
    }

    /// The names of all stores, for messages and completions.
    pub(crate) fn names(&self) -> Vec<&str> {
        let mut names: Vec<&str> =
            self.0.iter().flat_map(|file| file.stores.keys()).map(String::as_str).collect();
        names.sort_unstable();
        names.dedup();
        names
    }

    /// The URL of the store that is meant, for completions.
    pub(crate) fn url(&self, said: Option<&str>) -> Result<Option<String>, Failure> {
        Ok(self.store(said)?.map(|store| store.url))
    }

    fn quiet(&self) -> Result<bool, Failure> {
        let said = match variable(QUIET).as_deref() {
            None => None,
            Some("1" | "true" | "yes" | "on") => Some(true),
            Some("0" | "false" | "no" | "off") => Some(false),
            Some(other) => {
                return Err(wrong(format!("{QUIET}={} is neither 1 nor 0", printable(other))));
            }
        };
        Ok(said.or_else(|| self.0.iter().find_map(|file| file.quiet)).unwrap_or(false))
    }

    /// The TTL, if the environment sets it, or a file and the store's URL does not.
    fn ttl(&self, url: Option<&str>) -> Result<Option<Duration>, Failure> {
        if let Some(text) = variable(TTL) {
            let ttl = duration::ttl(&text);
            return ttl.map(Some).map_err(|e| wrong(format!("{TTL}={}: {e}", printable(&text))));
        }
        let in_url = url.is_some_and(|url| store::option(url, "ttl").is_some());
        Ok(self.0.iter().find_map(|file| file.ttl).filter(|_| !in_url))
    }

    fn store(&self, said: Option<&str>) -> Result<Option<Chosen>, Failure> {
        let chosen = match said.filter(|store| !store.is_empty()) {
            Some(said) if variable(store::VARIABLE).as_deref() == Some(said) => {
                self.resolve(said, Place::Environment, None)?
            }
            Some(said) => self.resolve(said, Place::Flag, None)?,
            None => match (store_file()?, self.0.iter().find_map(Settings::default_store)) {
                (Some((said, path)), _) => self.resolve(&said, Place::Environment, Some(&path))?,
                (None, Some((said, path))) => self.resolve(said, Place::File, Some(path))?,
                (None, None) => return Ok(None),
            },
        };
        with_password_file(chosen).map(Some)
    }

    /// The store of this name or URL. A name has no colon, and every URL has one. Paths in a URL begin in
    /// the folder of the file that it was read from, if it was.
    fn resolve(&self, said: &str, place: Place, from: Option<&Path>) -> Result<Chosen, Failure> {
        if said.contains(':') {
            secrets::learn_url(said);
            let url = match from {
                Some(file) => rooted(file, said)?,
                None => said.to_owned(),
            };
            return Ok(Chosen { url, place, found: from.map(|file| file.display().to_string()) });
        }
        let named = self.0.iter().find_map(|file| file.stores.get(said).map(|named| (file, named)));
        let Some((file, named)) = named else {
            return Err(match (place, from) {
                // It may be the file of a password.
                (Place::Environment, Some(file)) => wrong(format!(
                    "the file of {STORE_FILE}={} has neither a URL in it nor the name of a store",
                    file.display()
                )),
                _ => self.unknown(said, from),
            });
        };
        let url = match &named.password_file {
            Some(path) => with_option(&named.url, "password_file", path),
            None => named.url.clone(),
        };
        let found = Some(format!("[stores.{said}] of {}", file.path.display()));
        Ok(Chosen { url: rooted(&file.path, &url)?, place: Place::File, found })
    }

    fn unknown(&self, said: &str, from: Option<&Path>) -> Failure {
        let (said, names) = (printable(said), self.names());
        let from = from.map(|file| format!("{}: ", file.display())).unwrap_or_default();
        let known = match names.as_slice() {
            [] => "no file defines a store".to_owned(),
            names => format!("known stores: {}", names.join(", ")),
        };
        let meant = file::nearest(&said, names.iter().copied());
        let meant = meant.map(|name| format!(" (did you mean `{name}`?)")).unwrap_or_default();
        wrong(format!("{from}no store is called `{said}`{meant}; {known}"))
            .hint("a URL looks like sqlite:PATH or postgres://USER@HOST/DATABASE")
    }
}

fn wrong(what: String) -> Failure {
    Failure::new(exit_code::CONFIGURATION, anyhow!(what))
}

/// A variable of the environment, if it has a value.
fn variable(name: &str) -> Option<String> {
    env::var(name).ok().filter(|value| !value.is_empty())
}

/// What the file of [`STORE_FILE`] says, and its absolute path.
fn store_file() -> Result<Option<(String, PathBuf)>, Failure> {
    let Some(path) = env::var_os(STORE_FILE).filter(|path| !path.is_empty()) else {
        return Ok(None);
    };
    let path = std::path::absolute(&path).unwrap_or(path.into());
    let shown = path.display();
    let text = fs::read_to_string(&path)
        .map_err(|e| wrong(format!("cannot read the file of {STORE_FILE}={shown}: {e}")))?;
    match text.trim() {
        "" => Err(wrong(format!("the file of {STORE_FILE}={shown} is empty"))),
        text => Ok(Some((text.to_owned(), path))),
    }
}

/// What a nested lockkeeper needs to find the store that the environment's file names, with its password:
/// the file's path, if it was that file.
pub(crate) fn inherited_file(said: Option<&str>) -> Option<String> {
    if variable(store::VARIABLE).is_some() {
        return None;
    }
    let (text, path) = store_file().ok()??;
    let url = rooted(&path, &text).ok()?;
    path.into_os_string().into_string().ok().filter(|_| said == Some(url.as_str()))
}

fn rooted(file: &Path, url: &str) -> Result<String, Failure> {
    let folder = file.parent().unwrap_or(Path::new("/"));
    lockkeeper::store::absolute_in(folder, url)
        .map_err(|e| wrong(format!("{}: {e}", file.display())))
}

/// Adds the environment's password file. It replaces one from a file, and no password that stands in the
/// environment or on the command line.
fn with_password_file(chosen: Chosen) -> Result<Chosen, Failure> {
    let Some(path) = variable(PASSWORD_FILE) else { return Ok(chosen) };
    let has_its_own =
        secrets::is_secret(&chosen.url) || store::option(&chosen.url, "password_file").is_some();
    if !secrets::may_have_a_password(&chosen.url) || has_its_own && chosen.place != Place::File {
        return Ok(chosen);
    }
    let path = std::path::absolute(&path).unwrap_or(path.into());
    let Some(path) = path.to_str() else {
        return Err(wrong(format!("{PASSWORD_FILE}: the path {} is not UTF-8", path.display())));
    };
    let url =
        with_option(&store::without_option(&chosen.url, "password_file"), "password_file", path);
    Ok(Chosen { url, ..chosen })
}

/// The URL with one more option, which names a file.
fn with_option(url: &str, option: &str, path: &str) -> String {
    let path = path.replace('%', "%25").replace('&', "%26").replace('?', "%3F");
    let joint = if url.contains('?') { '&' } else { '?' };
    format!("{url}{joint}{option}={path}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_becomes_an_option_that_reads_as_the_same_path() {
        assert_eq!(
            with_option("redis://h", "password_file", "/a&b%?"),
            "redis://h?password_file=/a%26b%25%3F"
        );
        assert_eq!(with_option("redis://h?ttl=1s", "a", "/b"), "redis://h?ttl=1s&a=/b");
    }
}
