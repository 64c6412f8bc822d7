//! Servers newer than the machine's own Debian, in a root folder of their own.
//!
//! Debian's archive also holds its next release. `debootstrap` makes a folder with a small system of
//! that release, packages are installed into it, and a server from it runs under `chroot`. It shares
//! the machine's network, processes and users' ids, and of its files only the folder of its data.
//!
//! Every mount that this needs is made in a mount namespace which ends with the server. A mount of
//! `/dev` left behind in the folder would empty the machine's `/dev` when the folder is removed.

use std::env;
use std::fs::{self, File, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use nix::unistd::geteuid;

use crate::install::{Apt, check_permitted};
use crate::{peer, program};

/// Where roots are kept between runs, and for every clone of the repository; `LOCKKEEPER_ROOTS`
/// names another folder.
const FOLDER: &str = "/var/cache/lockkeeper/roots";

/// Mounts what a server needs and becomes it. Arguments: the root, the folder that is shared with
/// the machine (or nothing), the words of the command.
const ENTER: &str = r#"
root=$0 folder=$1; shift
mount -t proc proc "$root/proc" && mount --rbind /dev "$root/dev" || exit
if [ -n "$folder" ]; then
    mount -t tmpfs -o mode=1777 tmpfs "$root/tmp" &&
    mkdir -p "$root$folder" && mount --bind "$folder" "$root$folder" || exit
fi
exec chroot "$root" sh -c 'cd "${0:-/}" && exec "$@"' "$folder" "$@"
"#;

/// A small Debian system in a folder, with servers that are newer than the machine's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Root {
    /// Its folder's name.
    pub name: &'static str,
    /// The release of Debian.
    pub suite: &'static str,
}

/// The newest servers of all kinds but MariaDB.
pub const NEWEST: Root = Root { name: "sid", suite: "sid" };

/// The newest MariaDB. Its packages exclude those of MySQL.
pub const NEWEST_MARIADB: Root = Root { name: "sid-mariadb", suite: "sid" };

impl Root {
    fn parent() -> PathBuf {
        env::var_os("LOCKKEEPER_ROOTS").map_or_else(|| FOLDER.into(), PathBuf::from)
    }

    fn folder(self) -> PathBuf {
        Self::parent().join(self.name)
    }

    /// The path inside the root of a program, as [`program::find`] finds those of the machine.
    ///
    /// A link there leads to a place inside the root, so it is not followed from here.
    pub(crate) fn find(self, name: &str, folders: &[&str]) -> Option<PathBuf> {
        let inside = |path: &Path| path.strip_prefix("/").map(|path| self.folder().join(path));
        let is_there =
            |path: &PathBuf| inside(path).is_ok_and(|path| path.symlink_metadata().is_ok());
        let system = ["/usr/local/bin", "/usr/local/sbin", "/usr/bin", "/usr/sbin"];
        let folders = system.iter().chain(folders);
        folders.map(|folder| Path::new(folder).join(name)).find(is_there)
    }

    /// The ids of a user and its group inside the root.
    pub(crate) fn user(self, name: &str) -> Result<(u32, u32)> {
        let file = self.folder().join("etc/passwd");
        let users = fs::read_to_string(&file).with_context(|| file.display().to_string())?;
        let ids = users.lines().find_map(|line| {
            let mut fields = line.split(':');
            let is_it = fields.next() == Some(name);
            let (uid, gid) = (fields.nth(1)?.parse().ok()?, fields.next()?.parse().ok()?);
            is_it.then_some((uid, gid))
        });
        ids.with_context(|| format!("there is no user {name} in {}", file.display()))
    }

    /// A command that runs inside the root, in `shared`, a folder of the machine that it sees under the
    /// same path; or, without one, at the root's top. The words of the command are still to come.
    pub(crate) fn command(self, shared: Option<&Path>) -> Command {
        let mut command = Command::new("unshare");
        command.args(["--mount", "--propagation", "private", "sh", "-c", ENTER]);
        command.arg(self.folder()).arg(shared.unwrap_or(Path::new("")));
        command
    }

    /// Whether servers can be started from a root at all: mounts need the rights of root.
    pub(crate) fn check_usable() -> Result<()> {
        ensure!(geteuid().is_root(), "only root can start a server of another Debian release");
        Ok(())
    }

    /// Installs packages into the root, which is made first if it is not there.
    pub(crate) fn install(self, packages: &[&str], is_there: impl Fn() -> bool) -> Result<()> {
        check_permitted(geteuid().is_root(), program::find("apt-get", &[]).is_some())?;
        fs::create_dir_all(Self::parent())?;
        let lock = File::create(Self::parent().join(format!("{}.lock", self.name)))?;
        lock.lock()?;
        if is_there() {
            // Another program did it while we waited for the lock.
            return Ok(());
        }
        if !self.folder().exists() {
            self.make()?;
        }
        let apt = |words: &[&str]| {
            let mut command = self.command(None);
            // A mirror may be some days behind, or this machine's clock ahead.
            command.args(["apt-get", "-q", "-y", "-o", "Acquire::Check-Valid-Until=false"]);
            command.args(words);
            command.env("DEBIAN_FRONTEND", "noninteractive").env("LC_ALL", "C.UTF-8");
            peer::run(&mut command)
        };
        apt(&["update"])?;
        apt(&[&["install", "--no-install-recommends"], packages].concat())?;
        apt(&["clean"])?;
        ensure!(is_there(), "the packages {} did not bring it", packages.join(", "));
        Ok(())
    }

    /// Made under another name first, so that what was left half-way is not taken for whole.
    fn make(self) -> Result<()> {
        let has_it = || program::find("debootstrap", &[]).is_some();
        if !has_it() {
            Apt::open()?.install(&["debootstrap"], has_it)?;
        }
        let half = Self::parent().join(format!("{}.half", self.name));
        if half.exists() {
            fs::remove_dir_all(&half)?;
        }
        let mut debootstrap = Command::new("debootstrap");
        peer::run(debootstrap.args(["--variant=minbase", self.suite]).arg(&half))?;
        // Packages ask this whether they may start their service.
        let policy = half.join("usr/sbin/policy-rc.d");
        fs::write(&policy, "#!/bin/sh\nexit 101\n")?;
        fs::set_permissions(&policy, Permissions::from_mode(0o755))?;
        Ok(fs::rename(half, self.folder())?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_root_that_was_not_made_has_no_programs() {
        let root = Root { name: "no-such-root", suite: "none" };
        assert_eq!(root.find("sh", &[]), None);
        assert!(root.user("root").is_err());
    }
}
