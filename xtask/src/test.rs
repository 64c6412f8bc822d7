//! `cargo xtask test`: every test, against real servers.

use std::env;
use std::process::{Command, ExitCode};

use anyhow::{Result, ensure};
use servers::{Recipe, Require, Unavailable};

use crate::workspace;

pub(crate) fn run(args: &[&str]) -> Result<ExitCode> {
    let require = Require::from_env();
    let steps = steps(args);
    announce(&require, &steps);
    report(&require, &servers::install_missing(servers::ALL))?;
    report(&require, &servers::install_peers(servers::PEERS))?;
    report(&require, &servers::install_java_peers(servers::JAVA_PEERS))?;
    report(&require, &servers::install_built_peers(servers::BUILT_PEERS))?;
    let mut worst = ExitCode::SUCCESS;
    for step in steps {
        let code = workspace::cargo(&step)?;
        if code != ExitCode::SUCCESS {
            worst = code;
        }
    }
    Ok(worst)
}

/// The same in a process whose environment asks for the newest servers.
pub(crate) fn run_newest(args: &[&str]) -> Result<ExitCode> {
    let mut again = Command::new(env::current_exe()?);
    again.arg("test").args(args).env(Recipe::VERSIONS, "newest");
    workspace::run(&mut again)
}

/// The calls of cargo. The conformance suite comes last, so that its report is what one sees. A failure stops
/// nothing: one run tells all of them.
fn steps<'a>(args: &[&'a str]) -> [Vec<&'a str>; 2] {
    let most = ["test", "--workspace", "--all-features", "--no-fail-fast", "--exclude", "testkit"];
    let suite = ["test", "--package", "testkit", "--all-features", "--no-fail-fast"];
    [with_args(&most, args), with_args(&suite, args)]
}

fn with_args<'a>(cargo: &[&'a str], args: &[&'a str]) -> Vec<&'a str> {
    if args.is_empty() { cargo.to_vec() } else { [cargo, &["--"], args].concat() }
}

fn announce(require: &Require, steps: &[Vec<&str>]) {
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
    for step in steps {
        eprintln!("xtask: cargo {}", step.join(" "));
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
    fn the_suite_comes_last_and_is_not_run_twice() {
        let [most, suite] = steps(&[]);
        assert!(most.join(" ").ends_with("--exclude testkit"));
        assert!(suite.join(" ").contains("--package testkit"));
    }

    #[test]
    fn arguments_reach_the_test_programs() {
        for step in steps(&["redis", "--nocapture"]) {
            assert!(step.join(" ").ends_with(" -- redis --nocapture"), "{step:?}");
        }
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
