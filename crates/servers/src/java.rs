//! Other people's lock libraries for Java, from Debian's packages.
//!
//! A program that uses one is compiled once, below the workspace's `target`.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};

use crate::install::{Apt, Unavailable};
use crate::peer;
use crate::program;

/// Where Debian puts archives.
const FOLDER: &str = "/usr/share/java";

/// The least that starts quickly: these programs are many, and none lives long.
pub(crate) const FLAGS: [&str; 3] = ["-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"];

/// A library for Java from Debian.
#[derive(Debug, Clone, Copy)]
pub struct JavaPeer {
    /// The word for it in `LOCKKEEPER_REQUIRE`.
    pub name: &'static str,
    /// What brings it, with a compiler.
    pub packages: &'static [&'static str],
    /// The archives of which it is made; they name those that they need themselves.
    pub archives: &'static [&'static str],
}

/// Curator, whose recipes are the usual locks on ZooKeeper.
pub const CURATOR: JavaPeer = JavaPeer {
    name: "curator",
    packages: &["libcurator-recipes-java", "libslf4j-java", "default-jdk-headless"],
    archives: &["curator-recipes.jar", "slf4j-nop.jar"],
};

/// Every library for Java there is.
pub const JAVA_PEERS: &[JavaPeer] = &[CURATOR];

impl JavaPeer {
    /// Whether it is on this machine.
    #[must_use]
    pub fn is_installed(&self) -> bool {
        let is_there = |name: &&str| program::find(name, &[FOLDER]).is_some();
        ["java", "javac"].iter().chain(self.archives).all(is_there)
    }

    /// Runs a program that uses it: the class that has the name of its file.
    ///
    /// # Errors
    ///
    /// If it cannot be compiled.
    pub fn program(&self, source: &Path) -> Result<Command> {
        let class = source.file_stem().and_then(OsStr::to_str).context("a file of Java")?;
        let home = peer::folder().join(self.name);
        let path: Vec<String> = self.archives.iter().map(|a| format!("{FOLDER}/{a}")).collect();
        let path = path.join(":");
        compile(source, class, &home, &path)?;
        let mut command = Command::new("java");
        command.args(FLAGS).arg("-cp").arg(format!("{path}:{}", home.display())).arg(class);
        Ok(command)
    }
}

/// Unless it was done before, by this program or by another one.
fn compile(source: &Path, class: &str, home: &Path, path: &str) -> Result<()> {
    fs::create_dir_all(home)?;
    let lock = File::create(home.join("lock"))?;
    lock.lock()?;
    let (text, mark) = (fs::read_to_string(source)?, home.join(format!("{class}.txt")));
    if fs::read_to_string(&mark).is_ok_and(|compiled| compiled == text) {
        return Ok(());
    }
    peer::run(Command::new("javac").args(["-cp", path, "-d"]).arg(home).arg(source))?;
    // Written last, so that what was left half-way is not taken for whole.
    Ok(fs::write(mark, text)?)
}

/// Installs the libraries for Java that are missing and returns those that still are.
#[must_use = "tells which libraries are still missing"]
pub fn install_java_peers(peers: &[JavaPeer]) -> Vec<Unavailable> {
    let install = |peer: &JavaPeer| Apt::open()?.install(peer.packages, || peer.is_installed());
    let missing = peers.iter().filter(|peer| !peer.is_installed());
    let failed = missing.filter_map(|peer| Some((peer, install(peer).err()?)));
    failed.map(|(peer, error)| peer::unavailable(peer.name, &error)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_lacks_an_archive_is_not_installed() {
        assert!(!JavaPeer { archives: &["no-such-archive.jar"], ..CURATOR }.is_installed());
    }

    #[test]
    fn a_program_that_was_compiled_is_not_compiled_again() {
        let folder = tempfile::tempdir().unwrap();
        let source = folder.path().join("Some.java");
        fs::write(&source, "this is not Java").unwrap();
        assert!(compile(&source, "Some", folder.path(), "").is_err());
        fs::write(folder.path().join("Some.txt"), "this is not Java").unwrap();
        compile(&source, "Some", folder.path(), "").unwrap();
    }
}
