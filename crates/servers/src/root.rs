//! Servers newer than the machine's own Debian, in a root folder of their own.
//!
//! Debian's archive also holds its next release. `debootstrap` makes a folder with a small system of
//! that release, packages are installed into it, and a server from it runs under `chroot`. It shares
//! the machine's network, processes and users' ids, and of its files only the folder of its data.
//!
//! Every mount that this needs is made in a mount namespace which ends with the server, or with the
//! installation. A mount of `/dev` left behind in the folder would empty the machine's `/dev` when the
//! folder is removed; so a folder with mounts in it is never removed.
//!
//! An installation also has a namespace of its own for its processes, all of which the kernel kills when
//! this program is killed. What it leaves half done is finished by the next one.

use std::env;
use std::fs::{self, File, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use nix::unistd::geteuid;

use crate::install::{Apt, check_permitted};
use crate::{peer, program, spawn};

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

/// Finishes what an installation that was killed has left. A package that was being unpacked is unpacked
/// again from where apt-get has put it, or else dpkg refuses to touch it.
const REPAIR: &str = r#"
set -- /var/cache/apt/archives/*.deb
[ ! -e "$1" ] || dpkg --unpack "$@"
dpkg --configure -a
"#;

/// Options of `unshare`: mounts are seen by the command alone, and end with it.
const OWN_MOUNTS: [&str; 3] = ["--mount", "--propagation", "private"];

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

    /// A file that is there while packages are installed. The programs of packages that were only
    /// unpacked are there already, but neither their users nor their configuration.
    fn unfinished(self) -> PathBuf {
        Self::parent().join(format!("{}.unfinished", self.name))
    }

    /// The path inside the root of a program, as [`program::find`] finds those of the machine.
    ///
    /// A link there leads to a place inside the root, so it is not followed from here.
    pub(crate) fn find(self, name: &str, folders: &[&str]) -> Option<PathBuf> {
        let inside = |path: &Path| path.strip_prefix("/").map(|path| self.folder().join(path));
        let is_there = |path: &PathBuf| {
            inside(path).is_ok_and(|path| path.symlink_metadata().is_ok())
                && !self.unfinished().exists()
        };
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
        command.args(OWN_MOUNTS);
        self.enter(command, shared)
    }

    fn enter(self, mut command: Command, shared: Option<&Path>) -> Command {
        command.args(["sh", "-c", ENTER]).arg(self.folder());
        command.arg(shared.unwrap_or(Path::new("")));
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
        let run = |words: &[&str]| {
            let mut command = self.enter(enclosed(), None);
            command.args(words).env("DEBIAN_FRONTEND", "noninteractive").env("LC_ALL", "C.UTF-8");
            peer::run(&mut command)
        };
        // A mirror may be some days behind, or this machine's clock ahead.
        let apt = ["apt-get", "-q", "-y", "-o", "Acquire::Check-Valid-Until=false"];
        let apt = |words: &[&str]| run(&[&apt, words].concat());
        let repaired = if self.unfinished().exists() {
            // It fails if packages lack others that were not unpacked yet; `--fix-broken` brings these.
            run(&["sh", "-c", REPAIR])
        } else {
            // What is there later belongs to this installation.
            apt(&["clean"])
        };
        File::create(self.unfinished())?;
        apt(&["update"])?;
        let install = ["install", "--fix-broken", "--no-install-recommends"];
        if let Err(error) = apt(&[&install, packages].concat()) {
            let before = repaired.err().map(|error| format!("; before that, {error:#}"));
            bail!("{error:#}{}", before.unwrap_or_default());
        }
        apt(&["clean"])?;
        fs::remove_file(self.unfinished())?;
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
            remove(&half, &fs::read_to_string("/proc/self/mountinfo")?)?;
        }
        let mut debootstrap = enclosed();
        debootstrap.args(["debootstrap", "--variant=minbase", self.suite]);
        peer::run(debootstrap.arg(&half))?;
        // Packages ask this whether they may start their service.
        let policy = half.join("usr/sbin/policy-rc.d");
        fs::write(&policy, "#!/bin/sh\nexit 101\n")?;
        fs::set_permissions(&policy, Permissions::from_mode(0o755))?;
        // Servers ask for it when they name the host of a client.
        fs::write(half.join("etc/hosts"), "127.0.0.1 localhost\n::1 localhost\n")?;
        Ok(fs::rename(half, self.folder())?)
    }
}

/// Begins a command that installs something. Its mounts and its processes are its own, and the kernel ends
/// all of them when this program ends, even if it is killed.
fn enclosed() -> Command {
    let mut command = Command::new("unshare");
    if *spawn::SETPRIV {
        command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", "unshare"]);
    }
    command.args(OWN_MOUNTS).args(["--pid", "--fork", "--kill-child"]);
    // All processes end with the first one. apt-get may not be that one: the kernel forgets the wish to die
    // with its parent when a program changes its rights, as apt-get does.
    command.args(["sh", "-c", r#""$@"; exit $?"#, "sh"]);
    command
}

/// Removes a folder, unless anything is mounted in it: what is mounted there is the machine's own.
fn remove(folder: &Path, mountinfo: &str) -> Result<()> {
    let mounts = mounts_in(&folder.canonicalize()?, mountinfo);
    if let Some(mount) = mounts.first() {
        let (mount, folder) = (mount.display(), folder.display());
        bail!("{mount} is a mount left in {folder}: unmount it (umount {mount}), then try again");
    }
    Ok(fs::remove_dir_all(folder)?)
}

/// What is mounted at a folder or below it, the last mount first.
fn mounts_in(folder: &Path, mountinfo: &str) -> Vec<PathBuf> {
    let point = |line: &str| Some(PathBuf::from(unescaped(line.split(' ').nth(4)?)));
    let mut mounts: Vec<PathBuf> = mountinfo.lines().filter_map(point).collect();
    mounts.retain(|mount| mount.starts_with(folder));
    mounts.reverse();
    mounts
}

/// The kernel writes a blank, a tab, a line's end and a backslash as three octal digits.
fn unescaped(path: &str) -> String {
    let escapes = [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")];
    escapes.iter().fold(path.to_owned(), |path, (escape, c)| path.replace(escape, c))
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
    /// `/proc` and a folder with a blank in its name are mounted in a root; the root beside it has nothing.
    const MOUNTS: &str = "\
22 1 0:20 / / rw,relatime shared:1 - overlay overlay rw
61 22 0:52 / ROOTS/sid.half/proc rw,relatime shared:7 - proc proc rw
62 61 0:53 / ROOTS/sid.half/a\\040b rw,relatime - tmpfs tmpfs rw
63 22 0:54 / ROOTS/sid.half.old/sys rw,relatime - sysfs sysfs rw
";

    #[test]
    fn mounts_below_a_folder_are_found() {
        let mounts = |folder: &str| mounts_in(Path::new(folder), &MOUNTS.replace("ROOTS", "/r"));
        let wanted = ["/r/sid.half/a b", "/r/sid.half/proc"].map(PathBuf::from);
        assert_eq!(mounts("/r/sid.half"), wanted);
        assert_eq!(mounts("/r/sid.half/proc"), wanted[1..]);
        assert_eq!(mounts("/r/sid"), [] as [PathBuf; 0]);
    }

    #[test]
    fn a_root_made_half_way_is_not_removed_while_anything_is_mounted_in_it() {
        let roots = tempfile::tempdir().unwrap();
        let roots = roots.path().canonicalize().unwrap();
        let half = roots.join("sid.half");
        fs::create_dir_all(half.join("proc/1")).unwrap();
        let mounted = MOUNTS.replace("ROOTS", roots.to_str().unwrap());
        let error = remove(&half, &mounted).unwrap_err().to_string();
        assert!(error.contains("umount") && error.contains("sid.half/a b"), "{error}");
        assert!(half.join("proc/1").exists());
        let own = fs::read_to_string("/proc/self/mountinfo").unwrap();
        remove(&half, &own).unwrap();
        assert!(!half.exists());
    }
}
