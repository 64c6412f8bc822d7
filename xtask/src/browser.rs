//! `cargo xtask browser`: the console in a real browser, against the service of this build.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, ensure};

use crate::workspace;

/// The scripts, from the workspace's folder.
const SCRIPTS: &str = "crates/lockkeeper-server/browser";

pub(crate) fn test() -> Result<ExitCode> {
    node(&["--test", "--test-reporter=spec", "modules.mjs", "console.mjs"])
}

/// Takes the pictures of the documents anew.
pub(crate) fn pictures() -> Result<ExitCode> {
    node(&["pictures.mjs"])
}

fn node(args: &[&str]) -> Result<ExitCode> {
    let code = workspace::cargo(&["build", "--package", "lockkeeper-cli"])?;
    if code != ExitCode::SUCCESS {
        return Ok(code);
    }
    let root = workspace::root();
    let scripts = root.join(SCRIPTS);
    let driver = driver(&root, &scripts)?;
    let mut node = Command::new("node");
    node.args(args)
        .current_dir(&scripts)
        .env("PLAYWRIGHT", driver)
        .env("LOCKKEEPER", target(&root).join("debug/lockkeeper"));
    workspace::run(&mut node).context("install node (apt-get install nodejs npm)")
}

fn target(root: &Path) -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from)
}

/// Installs Playwright's library, without its browsers, beside what cargo builds; does nothing if it is there.
/// Answers with the file from which node finds it.
fn driver(root: &Path, scripts: &Path) -> Result<PathBuf> {
    let folder = target(root).join("browser");
    fs::create_dir_all(&folder)?;
    let (wanted, present) = (scripts.join("package.json"), folder.join("package.json"));
    let wanted = fs::read(wanted)?;
    let is_there = folder.join("node_modules/playwright-core").is_dir();
    if !is_there || fs::read(&present).ok() != Some(wanted.clone()) {
        fs::write(&present, wanted)?;
        let mut npm = Command::new("npm");
        npm.args(["install", "--no-audit", "--no-fund"]).current_dir(&folder);
        let code = workspace::run(&mut npm).context("install npm (apt-get install npm)")?;
        ensure!(code == ExitCode::SUCCESS, "npm could not install Playwright's library");
    }
    Ok(present)
}
