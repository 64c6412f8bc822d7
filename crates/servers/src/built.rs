//! Other people's lock libraries for Go, Node and the JVM, beside which ours must stand the test. The
//! tool of each language fetches them, in the versions that its lock file names, and builds the
//! programs that use them, below the workspace's `target`.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::install::{Apt, Unavailable};
use crate::{java, peer, program};

/// Written last, so that what was left half-way is not taken for whole.
const MARK: &str = "built.txt";

/// Libraries of one language, and programs that use them.
#[derive(Debug, Clone, Copy)]
pub struct BuiltPeer {
    /// The word for it in `LOCKKEEPER_REQUIRE`.
    pub name: &'static str,
    /// The programs that build and run it.
    pub tools: &'static [&'static str],
    /// The Debian packages that bring them.
    pub packages: &'static [&'static str],
    /// The folder of its sources, below the test kit's `peers`.
    pub sources: &'static str,
    /// Builds it in a folder that holds a copy of the sources.
    build: fn(&Path) -> Result<()>,
    /// Runs one of its programs, once it is built.
    run: fn(&Path, &str) -> Command,
}

/// etcd's package `concurrency` (`etcd`), `redsync`, `redislock` and go-zookeeper (`zookeeper`).
pub const GO_PEERS: BuiltPeer = BuiltPeer {
    name: "go-peers",
    tools: &["go"],
    packages: &["golang-go"],
    sources: "go",
    build: |home| {
        let mut go = Command::new(tool("go").context("there is no go")?);
        go.args(["build", "-trimpath", "-o", "bin/", "./..."]).env("GOTOOLCHAIN", "local");
        peer::run(go.current_dir(home))
    },
    run: |home, program| Command::new(home.join("bin").join(program)),
};

/// node-redlock (`node_redlock.mjs`).
pub const NODE_PEERS: BuiltPeer = BuiltPeer {
    name: "node-peers",
    tools: &["node", "npm"],
    packages: &["nodejs", "npm"],
    sources: "node",
    build: |home| {
        let mut npm = Command::new("npm");
        npm.args(["ci", "--ignore-scripts", "--no-audit", "--no-fund"]);
        peer::run(npm.current_dir(home))
    },
    run: |home, program| {
        let mut node = Command::new("node");
        node.arg(home.join(program));
        node
    },
};

/// jetcd (`JetcdLock`), which asks etcd's own lock service.
pub const JETCD: BuiltPeer = BuiltPeer {
    name: "jetcd",
    tools: &["java", "javac", "mvn"],
    packages: &["maven", "default-jdk-headless"],
    sources: "jetcd",
    build: |home| {
        let mut mvn = Command::new("mvn");
        let copy = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy-dependencies";
        peer::run(mvn.args(["-q", "-B", copy, "-DoutputDirectory=lib"]).current_dir(home))?;
        let mut javac = Command::new("javac");
        peer::run(javac.args(["-cp", "lib/*", "-d", ".", "JetcdLock.java"]).current_dir(home))
    },
    run: |home, class| {
        let mut java = Command::new("java");
        let path = format!("{0}/lib/*:{0}", home.display());
        java.args(java::FLAGS).arg("-cp").arg(path).arg(class);
        java
    },
};

/// Every library that is built.
pub const BUILT_PEERS: &[BuiltPeer] = &[GO_PEERS, NODE_PEERS, JETCD];

impl BuiltPeer {
    /// Whether it is built, from these sources.
    #[must_use]
    pub fn is_built(&self) -> bool {
        let mark = fs::read_to_string(self.home().join(MARK));
        let sources = sources(&self.folder()).map(|sources| text(&sources));
        mark.is_ok_and(|mark| sources.is_ok_and(|text| text == mark)) && self.has_tools()
    }

    /// Runs one of its programs.
    #[must_use]
    pub fn program(&self, name: &str) -> Command {
        (self.run)(&self.home(), name)
    }

    fn home(&self) -> PathBuf {
        peer::folder().join(self.name)
    }

    fn folder(&self) -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../testkit/peers").join(self.sources)
    }

    fn has_tools(&self) -> bool {
        self.tools.iter().all(|name| tool(name).is_some())
    }

    fn install(&self) -> Result<()> {
        fs::create_dir_all(peer::folder())?;
        let lock = File::create(peer::folder().join(format!("{}.lock", self.name)))?;
        lock.lock()?;
        if self.is_built() {
            // Another program did it while we waited for the lock.
            return Ok(());
        }
        if !self.has_tools() {
            Apt::open()?.install(self.packages, || self.has_tools())?;
        }
        let (home, sources) = (self.home(), sources(&self.folder())?);
        if home.exists() {
            fs::remove_dir_all(&home)?;
        }
        for (path, text) in &sources {
            let path = home.join(path);
            fs::create_dir_all(path.parent().context("a file has a folder")?)?;
            fs::write(path, text)?;
        }
        (self.build)(&home)?;
        Ok(fs::write(home.join(MARK), text(&sources))?)
    }
}

/// Go's own packages put it where few have their `PATH`.
fn tool(name: &str) -> Option<PathBuf> {
    program::find(name, &["/usr/local/go/bin"])
}

/// The files below a folder, by their paths from there, in order.
fn sources(folder: &Path) -> Result<Vec<(PathBuf, String)>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).with_context(|| folder.display().to_string())? {
        let entry = entry?;
        let name = PathBuf::from(entry.file_name());
        if entry.file_type()?.is_dir() {
            let below = sources(&entry.path())?.into_iter();
            found.extend(below.map(|(path, text)| (name.join(path), text)));
        } else {
            found.push((name, fs::read_to_string(entry.path())?));
        }
    }
    found.sort();
    Ok(found)
}

fn text(sources: &[(PathBuf, String)]) -> String {
    sources.iter().map(|(path, text)| format!("{}\n{text}", path.display())).collect()
}

/// Builds the libraries that are missing and returns those that still are.
#[must_use = "tells which libraries are still missing"]
pub fn install_built_peers(peers: &[BuiltPeer]) -> Vec<Unavailable> {
    let missing = peers.iter().filter(|peer| !peer.is_built());
    let failed = missing.filter_map(|peer| Some((peer, peer.install().err()?)));
    failed.map(|(peer, error)| peer::unavailable(peer.name, &error)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_changed_source_is_another_build() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("b")).unwrap();
        fs::write(folder.path().join("b/c.go"), "package c").unwrap();
        fs::write(folder.path().join("a.go"), "package a").unwrap();
        let before = text(&sources(folder.path()).unwrap());
        assert_eq!(before, "a.go\npackage ab/c.go\npackage c");
        fs::write(folder.path().join("b/c.go"), "package d").unwrap();
        assert_ne!(text(&sources(folder.path()).unwrap()), before);
    }

    #[test]
    fn every_library_comes_in_the_versions_of_a_lock_file() {
        for (peer, lock) in [(GO_PEERS, "go.sum"), (NODE_PEERS, "package-lock.json")] {
            assert!(peer.folder().join(lock).is_file(), "{}", peer.name);
        }
        let pom = fs::read_to_string(JETCD.folder().join("pom.xml")).unwrap();
        assert_eq!(pom.matches("<dependency>").count() + 1, pom.matches("<version>").count());
    }
}
