//! Completions: scripts for shells, and the words that the scripts ask for.
//!
//! A script runs lockkeeper with [`ASKED`] in its environment for every press of the key. The answer may not
//! take long, may not change anything, and an error is no answer. A lock's name comes from another user and
//! becomes part of a command line: one that a shell would read as more than a word is not offered.

use crate::{arguments, cli::Cli, config::Files, exit_code, failure::Failure, secrets, store};
use clap::CommandFactory as _;
use clap_complete::{
    Shell,
    engine::CompletionCandidate,
    env::{EnvCompleter, Shells},
};
use lockkeeper::{Keeper, Line};
use std::{
    env,
    ffi::{OsStr, OsString},
    io::Write as _,
    process::ExitCode,
    sync::mpsc,
    thread,
    time::Duration,
};
use tokio::runtime;

/// How long a store may take to say what locks there are.
const ANSWER_MAX: Duration = Duration::from_millis(300);
/// The variable that names the shell that asks.
const ASKED: &str = "LOCKKEEPER_COMPLETE";
const NAMES_MAX: usize = 500;
/// Bash takes these for the end of a word, and would put the whole name behind it.
const BASH_BREAKS: &str = ":=@";

pub(crate) const HELP: &str = "\
Examples:
  source <(lockkeeper completions bash)           in ~/.bashrc
  source <(lockkeeper completions zsh)            in ~/.zshrc, after compinit
  lockkeeper completions fish | source            in ~/.config/fish/config.fish";

/// The script for a shell.
pub(crate) fn script(shell: Shell) -> Result<String, Failure> {
    let mut script = Vec::new();
    let completer = completer(&shell.to_string());
    let completer =
        completer.ok_or_else(|| Failure::bug(anyhow::anyhow!("no script for {shell}")))?;
    let name = "lockkeeper";
    completer.write_registration(ASKED, name, name, name, &mut script).map_err(Failure::bug)?;
    Ok(String::from_utf8_lossy(&script).into_owned())
}

fn completer(shell: &str) -> Option<&'static dyn EnvCompleter> {
    const SHELLS: Shells<'static> = Shells::builtins();
    SHELLS.0.iter().copied().find(|completer| completer.is(shell))
}

/// Answers, if a script asks.
pub(crate) fn work() -> Option<ExitCode> {
    let completer = completer(env::var(ASKED).ok()?.as_str())?;
    if asked().is_empty() {
        return None;
    }
    let mut answer = Vec::new();
    let (mut command, here) = (Cli::command(), env::current_dir().ok());
    let answered = completer.write_complete(&mut command, asked(), here.as_deref(), &mut answer);
    let written = answered.and_then(|()| std::io::stdout().write_all(&answer));
    Some(ExitCode::from(if written.is_ok() { 0 } else { exit_code::BUG }))
}

/// The command line that is being written. A script gives it behind a first `--`, which no other call has.
fn asked() -> Vec<OsString> {
    let mut words = arguments::words().iter().skip(1);
    match words.next() {
        Some(first) if first == "--" => words.cloned().collect(),
        _ => Vec::new(),
    }
}

/// The names of stores that files define.
pub(crate) fn stores() -> Vec<CompletionCandidate> {
    let files = files();
    let names = files.iter().flat_map(Files::names);
    names.map(CompletionCandidate::new).collect()
}

/// The names of locks in the store that the command line means.
pub(crate) fn locks() -> Vec<CompletionCandidate> {
    let lines = quickly().unwrap_or_default();
    let breaks = if env::var(ASKED).is_ok_and(|shell| shell == "bash") { BASH_BREAKS } else { "" };
    let names = lines.iter().map(|line| line.name.as_str());
    let names = names.filter(|name| is_one_word(name) && !name.contains(|c| breaks.contains(c)));
    names.take(NAMES_MAX).map(CompletionCandidate::new).collect()
}

/// On a thread of its own, because to open a file can block.
fn quickly() -> Option<Vec<Line>> {
    let store = said("--store", store::VARIABLE);
    let url = files()?.url(store.as_deref().and_then(OsStr::to_str)).ok()?;
    let url = harmless(url.as_deref())?;
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || sender.send(list(&url)));
    receiver.recv_timeout(ANSWER_MAX).ok()?
}

fn list(url: &str) -> Option<Vec<Line>> {
    let runtime = runtime::Builder::new_current_thread().enable_all().build().ok()?;
    runtime.block_on(async { Keeper::connect(url).await.ok()?.list("").await.ok() })
}

/// The store's URL, so that to connect makes nothing: neither files nor tables.
fn harmless(said: Option<&str>) -> Option<String> {
    let url = match said {
        Some(url) => lockkeeper::store::absolute(url).ok()?,
        None => store::embedded().ok()?,
    };
    if let Some(file) = store::file(&url) {
        return file.is_file().then_some(url);
    }
    let scheme = url.split(':').next()?;
    let is_database = ["postgres", "postgresql", "mysql", "mariadb"].contains(&scheme);
    if !is_database || store::option(&url, "create").is_some() {
        return Some(url).filter(|url| secrets::may_have_a_password(url));
    }
    let joint = if url.contains('?') { '&' } else { '?' };
    Some(format!("{url}{joint}create=false"))
}

/// The value that a flag or else a variable has. The rest of the unfinished command line need make no sense.
fn said(flag: &str, variable: &str) -> Option<OsString> {
    let words = asked();
    // What follows `--` belongs to a command.
    let ours = || words.iter().take_while(|word| *word != "--");
    let joint = ours().filter_map(|word| word.to_str()?.strip_prefix(flag)?.strip_prefix('='));
    let apart = ours().zip(ours().skip(1)).filter(|(word, _)| *word == flag);
    let value = apart.map(|(_, value)| value.clone()).chain(joint.map(OsString::from)).last();
    value.or_else(|| env::var_os(variable))
}

fn files() -> Option<Files> {
    Files::read(said("--config", "LOCKKEEPER_CONFIG").as_deref()).ok()
}

/// Is this a word that a shell takes as it is?
fn is_one_word(name: &str) -> bool {
    let plain = |c: char| c.is_alphanumeric() || "-_./:@%+=,".contains(c);
    !name.starts_with('-') && name.chars().all(plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_a_shell_would_read_as_more_than_a_word_is_not_offered() {
        for name in ["deploy", "orders/2026-11", "a:b", "锁"] {
            assert!(is_one_word(name), "{name}");
        }
        for name in ["$(rm -rf ~)", "a b", "-n", "a;b", "`a`", "~", "a'b", "*", "a\u{202e}b"] {
            assert!(!is_one_word(name), "{name}");
        }
    }

    #[test]
    fn every_shell_has_a_script() {
        for shell in <Shell as clap::ValueEnum>::value_variants() {
            assert!(script(*shell).unwrap().contains(ASKED), "{shell}");
        }
    }
}
