//! Which files are read, and which are refused.
//!
//! The project's file is the first `lockkeeper.toml` in the current folder or in one above it. The file
//! decides where locks live, so another user must not be able to slip one in: two programs that read
//! different files exclude each other no more. So a file counts only if it and its folder belong to this user
//! or to root, and no other user may write to either. Any other file is an error, and is not passed over:
//! to lock elsewhere than the project says would be silent. A file that is named (`--config`,
//! `LOCKKEEPER_CONFIG`) is the user's own choice, is not questioned, and is the only one that is read.

use super::wrong;
use crate::{
    failure::Failure,
    sharing::{group_name, user_name},
};
use nix::unistd::{Gid, Group, Uid, User};
use std::{
    env,
    ffi::OsStr,
    fs::{self, Metadata},
    io,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
};

const PROJECT: &str = "lockkeeper.toml";
const OWN: &str = "lockkeeper/config.toml";

/// The files to read, the strongest first.
pub(super) fn files(named: Option<&OsStr>) -> Result<Vec<PathBuf>, Failure> {
    if let Some(named) = named {
        let named = (!named.is_empty()).then(|| std::path::absolute(named));
        let named = named.transpose().map_err(|e| wrong(format!("--config: {e}")))?;
        return Ok(named.into_iter().collect());
    }
    let here = env::current_dir().unwrap_or_default();
    let upwards = here.ancestors().map(|folder| folder.join(PROJECT));
    let files = [first(upwards)?, first(own().into_iter())?];
    Ok(files.into_iter().flatten().collect())
}

/// The first file that is there.
fn first(mut paths: impl Iterator<Item = PathBuf>) -> Result<Option<PathBuf>, Failure> {
    let found = paths.find_map(|path| match is_there(&path) {
        Ok(false) => None,
        Ok(true) => Some(check(&path).map(|()| path)),
        Err(e) => Some(Err(e)),
    });
    found.transpose()
}

/// The user's own file.
fn own() -> Option<PathBuf> {
    let absolute = |name| env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let folder = absolute("XDG_CONFIG_HOME").or_else(|| Some(absolute("HOME")?.join(".config")));
    folder.map(|folder| folder.join(OWN))
}

fn is_there(path: &Path) -> Result<bool, Failure> {
    match fs::metadata(path) {
        Ok(it) if it.is_dir() => Err(wrong(format!("{} is a folder, not a file", path.display()))),
        Ok(_) => Ok(true),
        // A dangling link is a file that was meant to be there.
        Err(e) if path.symlink_metadata().is_ok() => {
            Err(wrong(format!("cannot read {}: {e}", path.display())))
        }
        Err(_) => Ok(false),
    }
}

/// Refuses a file that another user could have put there. A link is followed: the folders at both of its
/// ends are looked at.
fn check(path: &Path) -> Result<(), Failure> {
    let looked_at = || -> io::Result<Vec<PathBuf>> {
        let real = path.canonicalize()?;
        let folders = [path, &real].into_iter().filter_map(Path::parent).map(Path::to_owned);
        let mut all: Vec<PathBuf> = folders.collect();
        all.dedup();
        all.insert(0, real);
        Ok(all)
    };
    let unreadable = |e: io::Error| wrong(format!("cannot read {}: {e}", path.display()));
    for place in looked_at().map_err(unreadable)? {
        let metadata = fs::metadata(&place).map_err(unreadable)?;
        if let Some(why) = distrust(&metadata, Uid::effective()) {
            let (path, place) = (path.display(), place.display());
            let hint = format!(
                "take that right away, or name the file if you trust it: --config {path} (or \
                 LOCKKEEPER_CONFIG); an empty name reads none"
            );
            return Err(wrong(format!(
                "{path} is not read, because another user could redirect your locks: {place} {why}"
            ))
            .hint(hint));
        }
    }
    Ok(())
}

/// Who but this user and root may change the file or folder, in words.
fn distrust(metadata: &Metadata, me: Uid) -> Option<String> {
    let owner = Uid::from_raw(metadata.uid());
    if owner != me && !owner.is_root() {
        return Some(format!("belongs to the user {}", user_name(owner)));
    }
    if metadata.mode() & 0o002 != 0 {
        return Some("can be written by every user".to_owned());
    }
    let group = Gid::from_raw(metadata.gid());
    let shared = metadata.mode() & 0o020 != 0 && !group_is_private(group, owner);
    shared.then(|| format!("can be written by the group {}", group_name(group)))
}

/// Is that the group that many systems give to each user alone? Files there are often writable by the
/// group (umask 002), which opens them to no other user.
fn group_is_private(group: Gid, user: Uid) -> bool {
    let (Ok(Some(group)), Ok(Some(user))) = (Group::from_gid(group), User::from_uid(user)) else {
        return false;
    };
    group.name == user.name && group.mem.iter().all(|member| *member == user.name)
}
