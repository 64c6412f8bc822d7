//! `cargo xtask stores`: servers to try something out with.

use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use servers::{Detached, Recipe};

use crate::workspace;

/// The stores that need no server, with a URL that works as it stands.
const SERVERLESS: [(&str, &str); 2] = [("memory", "memory://demo"), ("sqlite", "sqlite:locks.db")];

pub(crate) fn up(names: &[&str]) -> Result<ExitCode> {
    for recipe in chosen(names)? {
        let url = start(recipe).with_context(|| format!("{} is not up", recipe.name))?;
        show(recipe.name, &url);
    }
    Ok(ExitCode::SUCCESS)
}

pub(crate) fn down() -> Result<ExitCode> {
    for recipe in servers::ALL {
        let Some(state) = Detached::load(&folder(recipe))? else { continue };
        let was_up = state.is_up();
        state.stop(recipe.stop)?;
        fs::remove_dir_all(folder(recipe))?;
        show(recipe.name, if was_up { "stopped" } else { "was down already" });
    }
    Ok(ExitCode::SUCCESS)
}

pub(crate) fn list() -> Result<ExitCode> {
    for recipe in servers::ALL {
        let state = Detached::load(&folder(recipe))?.filter(Detached::is_up);
        show(recipe.name, &state.as_ref().map_or_else(|| "down".to_owned(), describe));
    }
    for (name, url) in SERVERLESS {
        show(name, &format!("{url} (needs no server)"));
    }
    Ok(ExitCode::SUCCESS)
}

fn chosen(names: &[&str]) -> Result<Vec<&'static Recipe>> {
    if names.is_empty() {
        return Ok(servers::ALL.iter().collect());
    }
    names.iter().map(|name| named(name)).collect()
}

fn named(name: &str) -> Result<&'static Recipe> {
    if let Some((_, url)) = SERVERLESS.iter().find(|(serverless, _)| *serverless == name) {
        bail!("{name} needs no server; use it as {url}");
    }
    servers::find(name).with_context(|| {
        let known: Vec<&str> = servers::ALL.iter().map(|recipe| recipe.name).collect();
        format!("no store is called `{name}`; there are: {}", known.join(", "))
    })
}

fn start(recipe: &Recipe) -> Result<String> {
    let folder = folder(recipe);
    if let Some(state) = Detached::load(&folder)?.filter(Detached::is_up) {
        return Ok(state.url);
    }
    if let Some(missing) = servers::install_missing(&[*recipe]).pop() {
        bail!(missing.reason);
    }
    Ok(recipe.start_detached(&folder)?.url)
}

fn describe(state: &Detached) -> String {
    let pids: Vec<String> = state.processes.iter().map(|mark| mark.pid.to_string()).collect();
    format!("{} (pid {})", state.url, pids.join(", "))
}

/// Always the same, wherever cargo builds: `stores down` must find what `stores up` started.
fn folder(recipe: &Recipe) -> PathBuf {
    workspace::root().join("target/stores").join(recipe.name)
}

fn show(name: &str, what: &str) {
    println!("{name:<16} {what}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_name_means_every_store() {
        assert_eq!(chosen(&[]).unwrap().len(), servers::ALL.len());
        assert_eq!(chosen(&["redis"]).unwrap()[0].name, "redis");
    }

    #[test]
    fn a_wrong_name_is_answered_with_the_right_ones() {
        let error = chosen(&["redis", "radish"]).unwrap_err().to_string();
        assert!(error.contains("`radish`") && error.contains("redis"), "{error}");
        let error = chosen(&["sqlite"]).unwrap_err().to_string();
        assert!(error.contains("needs no server"), "{error}");
    }
}
