//! Installing the servers that are missing, where that can be done without asking.

use std::cell::OnceCell;
use std::fmt;
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use nix::unistd::geteuid;

use crate::program;
use crate::recipe::Recipe;

/// Asked by Debian's packages whether they may start their service.
const POLICY_FILE: &str = "/usr/sbin/policy-rc.d";

/// Held while installing; only root gets that far, so only root's folders come into question.
const LOCK_FILE: &str = "/run/lockkeeper-install.lock";

/// A store whose server is not on this machine, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unavailable {
    /// The recipe's name.
    pub store: &'static str,
    /// Why it could not be had.
    pub reason: String,
}

impl fmt::Display for Unavailable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.store, self.reason)
    }
}

/// Installs the servers that are missing and returns those that still are.
///
/// Works as root on Debian and its kin. Services are kept from starting on their own.
#[must_use = "tells which stores are still missing"]
pub fn install_missing(recipes: &[Recipe]) -> Vec<Unavailable> {
    let missing = recipes.iter().filter(|recipe| !recipe.is_installed());
    let (in_roots, here): (Vec<&Recipe>, _) = missing.partition(|recipe| recipe.place().is_some());
    let mut unavailable = install_here(&here);
    // Afterwards, because making a root may have to install something here.
    unavailable.extend(in_roots.into_iter().filter_map(|recipe| {
        let root = recipe.place()?;
        let installed = root.install(recipe.packages, || recipe.is_installed());
        Some(lacking(recipe, &installed.err()?))
    }));
    unavailable
}

/// Those that come from the machine's own packages.
fn install_here(recipes: &[&Recipe]) -> Vec<Unavailable> {
    if recipes.is_empty() {
        return Vec::new();
    }
    let apt = Apt::open();
    let install = |recipe: &Recipe| match &apt {
        Ok(apt) => apt.install(recipe.packages, || recipe.is_installed()),
        Err(error) => bail!("{error:#}"),
    };
    recipes.iter().filter_map(|recipe| Some(lacking(recipe, &install(recipe).err()?))).collect()
}

fn lacking(recipe: &Recipe, error: &anyhow::Error) -> Unavailable {
    let program = recipe.first_missing().unwrap_or(recipe.name);
    let reason = format!("{program} is not installed, and {error:#}");
    Unavailable { store: recipe.name, reason }
}

/// The right to install packages, held by one program at a time.
pub(crate) struct Apt {
    updated: OnceCell<Result<(), String>>,
    _policy: Option<Policy>,
    /// Dropped last: the next installation must not see our policy and take it for the machine's.
    _lock: File,
}

impl Apt {
    pub(crate) fn open() -> Result<Self> {
        check_permitted(geteuid().is_root(), program::find("apt-get", &[]).is_some())?;
        let lock = File::options().create(true).append(true).open(LOCK_FILE)?;
        lock.lock().with_context(|| format!("{LOCK_FILE} cannot be locked"))?;
        let policy = Policy::put(Path::new(POLICY_FILE))
            .with_context(|| format!("{POLICY_FILE} cannot be written"))?;
        Ok(Self { updated: OnceCell::new(), _policy: policy, _lock: lock })
    }

    /// What is needed for one purpose on its own, so that one unknown package does not cost the others.
    pub(crate) fn install(&self, packages: &[&str], is_there: impl Fn() -> bool) -> Result<()> {
        if is_there() {
            // Another program did it while we waited for the lock.
            return Ok(());
        }
        // Old package lists may do as well, so a failure here counts only together with the next.
        let updated =
            self.updated.get_or_init(|| apt_get(&["update"]).map_err(|error| format!("{error:#}")));
        let arguments = [&["install", "--no-install-recommends"], packages].concat();
        if let Err(error) = apt_get(&arguments) {
            let before = updated.as_ref().err().map(|error| format!("; before that, {error}"));
            bail!("{error:#}{}", before.unwrap_or_default());
        }
        ensure!(is_there(), "the packages {} did not bring it", packages.join(", "));
        Ok(())
    }
}

pub(crate) fn check_permitted(is_root: bool, has_apt: bool) -> Result<()> {
    ensure!(has_apt, "there is no apt-get on this system to install it with");
    ensure!(is_root, "only root can install it");
    Ok(())
}

fn apt_get(arguments: &[&str]) -> Result<()> {
    let output = Command::new("apt-get")
        .args(["-q", "-y", "-o", "DPkg::Lock::Timeout=300"])
        .args(arguments)
        .env("DEBIAN_FRONTEND", "noninteractive")
        .env("LC_ALL", "C.UTF-8")
        .stdin(Stdio::null())
        .output()
        .context("apt-get cannot be run")?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(
        output.status.success(),
        "apt-get {} failed: {}",
        arguments.join(" "),
        said.lines().map(str::trim).collect::<Vec<_>>().join("; ")
    );
    Ok(())
}

/// Forbids packages to start their services, until dropped.
struct Policy {
    file: PathBuf,
}

impl Policy {
    /// `None` if the machine has a policy of its own, which is then left alone.
    fn put(file: &Path) -> io::Result<Option<Self>> {
        match File::options().write(true).create_new(true).mode(0o755).open(file) {
            Ok(mut script) => {
                let policy = Self { file: file.to_owned() };
                script.write_all(b"#!/bin/sh\nexit 101\n")?;
                Ok(Some(policy))
            }
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(None),
            Err(error) => Err(error),
        }
    }
}

impl Drop for Policy {
    fn drop(&mut self) {
        // Left behind it would only keep services from starting by themselves.
        let _ = fs::remove_file(&self.file);
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use crate::REDIS;

    #[test]
    fn says_what_stands_in_the_way_of_installing() {
        let reason = |root, apt| check_permitted(root, apt).unwrap_err().to_string();
        assert!(reason(true, false).contains("no apt-get"));
        assert!(reason(false, true).contains("only root"));
        assert!(check_permitted(true, true).is_ok());
    }

    #[test]
    fn what_is_installed_is_left_alone() {
        let shell = Recipe { programs: &["sh"], packages: &["no-such-package"], ..REDIS };
        assert_eq!(install_missing(&[shell]), []);
    }

    #[test]
    fn a_missing_program_is_named_with_the_reason() {
        let recipe = Recipe { programs: &["sh", "no-such-server"], ..REDIS };
        let missing = lacking(&recipe, &anyhow::anyhow!("only root can install it"));
        assert_eq!(
            missing.to_string(),
            "redis: no-such-server is not installed, and only root can install it"
        );
    }

    #[test]
    fn the_policy_forbids_services_only_while_installing() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("policy-rc.d");
        let policy = Policy::put(&file).unwrap().expect("there was none");
        assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o755);
        let status = Command::new("sh").arg(&file).status().unwrap();
        assert_eq!(status.code(), Some(101));
        drop(policy);
        assert!(!file.exists());
    }

    #[test]
    fn the_machines_own_policy_is_kept() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("policy-rc.d");
        fs::write(&file, "theirs").unwrap();
        assert!(Policy::put(&file).unwrap().is_none());
        assert_eq!(fs::read_to_string(&file).unwrap(), "theirs");
    }
}
