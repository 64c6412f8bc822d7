//! `cargo xtask test`: every test, against real servers.

use std::env;
use std::process::{Command, ExitCode};

use anyhow::{Result, ensure};
use servers::{Recipe, Require, Unavailable};

use crate::{programs, workspace};

pub(crate) fn run(args: &[&str]) -> Result<ExitCode> {
    let require = Require::from_env();
    announce(&require);
    report(&require, &servers::install_missing(servers::ALL))?;
    report(&require, &servers::install_peers(servers::PEERS))?;
    report(&require, &servers::install_java_peers(servers::JAVA_PEERS))?;
    report(&require, &servers::install_built_peers(servers::BUILT_PEERS))?;
    if !args.is_empty() {
        return workspace::cargo(&with_args(args));
    }
    let passed = match programs::build()? {
        Some(programs) => {
            programs::run(programs, programs::at_once()?, &workspace::target().join("test-logs"))?
        }
        None => false,
    };
    Ok(if passed { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The same in a process whose environment asks for the newest servers.
pub(crate) fn run_newest(args: &[&str]) -> Result<ExitCode> {
    let mut again = Command::new(env::current_exe()?);
    again.arg("test").args(args).env(Recipe::VERSIONS, "newest");
    workspace::run(&mut again)
}

/// The call of cargo that hands arguments to the test programs, one after the other. A failure stops nothing: one
/// run tells all of them.
fn with_args<'a>(args: &[&'a str]) -> Vec<&'a str> {
    [&["test", "--workspace", "--all-features", "--no-fail-fast", "--"], args].concat()
}

fn announce(require: &Require) {
    for recipe in servers::ALL {
        eprintln!("xtask: {} {}", recipe.name, intent(recipe, require));
    }
    let python = servers::PEERS.iter().map(|peer| (peer.name, peer.python().is_some()));
    let java = servers::JAVA_PEERS.iter().map(|peer| (peer.name, peer.is_installed()));
    let built = servers::BUILT_PEERS.iter().map(|peer| (peer.name, peer.is_built()));
    for (name, is_there) in python.chain(java).chain(built) {
        let state = if is_there { "is installed" } else { "is missing: will install it" };
        eprintln!("xtask: {name} {state}");
    }
}

fn intent(recipe: &Recipe, require: &Require) -> String {
    let need = if require.wants(recipe.name) { "required" } else { "optional" };
    if recipe.is_installed() {
        return format!("is installed ({need})");
    }
    let place = recipe.place().map(|root| format!(" in the root {}", root.name));
    let packages = recipe.packages.join(" ");
    format!("is missing ({need}): will install {packages}{}", place.unwrap_or_default())
}

/// Tells what is still missing; an error if something is that must not be.
fn report(require: &Require, missing: &[Unavailable]) -> Result<()> {
    for store in missing {
        let must = require.wants(store.store);
        ensure!(!must, "{store} ({} asks for it)", Require::VARIABLE);
        eprintln!("xtask: {store}; its tests will be reported as ignored");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_reach_the_test_programs() {
        let cargo = with_args(&["redis", "--nocapture"]).join(" ");
        assert!(cargo.ends_with(" -- redis --nocapture"), "{cargo}");
    }

    #[test]
    fn a_missing_store_is_a_failure_only_if_required() {
        let missing = [Unavailable { store: "redis", reason: "only root can".to_owned() }];
        assert!(report(&Require::parse("etcd"), &missing).is_ok());
        assert!(report(&Require::parse("redis"), &[]).is_ok());
        for required in ["redis", "all"] {
            let error = report(&Require::parse(required), &missing).unwrap_err().to_string();
            assert!(error.contains("redis: only root can"), "{error}");
        }
    }
}
