//! Other people's lock libraries for Go: a program that uses one, built once below the workspace's `target`.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::install::Unavailable;
use crate::peer;
use crate::program;

/// Written last, so that what was left half-way is not taken for whole.
const MARK: &str = "built.txt";

/// A program in `peers/` that takes the locks of a library for Go.
#[derive(Debug, Clone, Copy)]
pub struct GoPeer {
    /// The word for it in `LOCKKEEPER_REQUIRE`, and the name of its folder.
    pub name: &'static str,
    /// Its files: the versions and hashes of what it needs, and its text.
    pub files: &'static [(&'static str, &'static str)],
}

/// go-zookeeper, whose `Lock` stands in lines of ZooKeeper.
pub const GO_ZOOKEEPER: GoPeer = GoPeer {
    name: "go-zookeeper",
    files: &[
        ("go.mod", include_str!("../peers/go-zookeeper/go.mod")),
        ("go.sum", include_str!("../peers/go-zookeeper/go.sum")),
        ("main.go", include_str!("../peers/go-zookeeper/main.go")),
    ],
};

/// Every library for Go there is.
pub const GO_PEERS: &[GoPeer] = &[GO_ZOOKEEPER];

impl GoPeer {
    /// The program, if it is built from these files.
    #[must_use]
    pub fn program(&self) -> Option<PathBuf> {
        self.program_in(&peer::folder())
    }

    fn program_in(&self, folder: &Path) -> Option<PathBuf> {
        let home = folder.join(self.name);
        let mark = fs::read_to_string(home.join(MARK)).ok()?;
        let program = home.join(self.name);
        (mark == self.text() && program.is_file()).then_some(program)
    }

    fn text(&self) -> String {
        self.files.iter().map(|(_, text)| *text).collect()
    }

    fn build(&self, folder: &Path) -> Result<()> {
        let go = program::find("go", &["/usr/local/go/bin"]).context("there is no `go`")?;
        let home = folder.join(self.name);
        fs::create_dir_all(&home)?;
        let lock = File::create(home.join("lock"))?;
        lock.lock()?;
        if self.program_in(folder).is_some() {
            // Another program did it while we waited for the lock.
            return Ok(());
        }
        for (name, text) in self.files {
            fs::write(home.join(name), text)?;
        }
        let exact = ["build", "-mod=readonly", "-trimpath", "-o", self.name, "."];
        let mut command = Command::new(go);
        peer::run(command.args(exact).current_dir(&home).env("GOTOOLCHAIN", "local"))?;
        Ok(fs::write(home.join(MARK), self.text())?)
    }
}

/// Builds the programs that are missing and returns those that still are.
#[must_use = "tells which programs are still missing"]
pub fn install_go_peers(peers: &[GoPeer]) -> Vec<Unavailable> {
    let missing = peers.iter().filter(|peer| peer.program().is_none());
    let failed = missing.filter_map(|peer| Some((peer, peer.build(&peer::folder()).err()?)));
    failed.map(|(peer, error)| peer::unavailable(peer.name, &error)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_built_from_other_files_does_not_count() {
        let folder = tempfile::tempdir().unwrap();
        let home = folder.path().join("peer");
        fs::create_dir_all(&home).unwrap();
        fs::write(home.join("peer"), "").unwrap();
        let peer = GoPeer { name: "peer", files: &[("main.go", "new")] };
        assert_eq!(peer.program_in(folder.path()), None, "no mark");
        fs::write(home.join(MARK), "old").unwrap();
        assert_eq!(peer.program_in(folder.path()), None, "an older one");
        fs::write(home.join(MARK), "new").unwrap();
        assert_eq!(peer.program_in(folder.path()), Some(home.join("peer")));
    }

    #[test]
    fn every_program_names_the_hashes_of_what_it_needs() {
        for peer in GO_PEERS {
            let text = |name| peer.files.iter().find(|(file, _)| *file == name).unwrap().1;
            assert!(text("go.mod").contains("require") && text("go.sum").contains("h1:"));
        }
    }
}
