//! A file that several users share: what stands in the way of one of them.

use crate::{output::printable, store};
use nix::{
    errno::Errno,
    unistd::{AccessFlags, Gid, Group, Uid, User, eaccess, getgroups},
};
use std::{
    fs,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
};

/// What keeps this user out of the file of this store, and what to do about it. None if it is no file or if
/// the rights suffice.
pub(crate) fn obstacle(url: &str) -> Option<String> {
    let file = std::path::absolute(store::file(url)?).ok()?;
    let file = file.canonicalize().unwrap_or(file);
    let folder = file.parent()?;
    if let Some(closed) = closed_above(folder) {
        return Some(format!("{}; it needs the right to enter (chmod +x)", described(&closed)));
    }
    let beside = |suffix: &str| {
        let mut path = file.clone().into_os_string();
        path.push(suffix);
        PathBuf::from(path)
    };
    // New files are made beside the database all the time: its log, the log's index, sockets.
    let folder_needs = AccessFlags::W_OK | AccessFlags::X_OK;
    let file_needs = AccessFlags::R_OK | AccessFlags::W_OK;
    let needed = [
        (folder.to_owned(), folder_needs),
        (file.clone(), file_needs),
        (beside("-wal"), file_needs),
        (beside("-shm"), file_needs),
    ];
    let (path, _) = needed
        .into_iter()
        .find(|(path, needs)| path.symlink_metadata().is_ok() && eaccess(path, *needs).is_err())?;
    Some(format!("{}; {}", described(&path), remedy(&path, &file)))
}

/// The first folder on the way that this user may not enter.
fn closed_above(folder: &Path) -> Option<PathBuf> {
    let mut folders: Vec<&Path> = folder.ancestors().skip(1).collect();
    folders.reverse();
    let closed = |path: &&&Path| eaccess(**path, AccessFlags::X_OK) == Err(Errno::EACCES);
    folders.iter().find(closed).map(|path| path.to_path_buf())
}

/// "PATH belongs to the user alice and the group locks (mode 0640), so the user bob may not …"
fn described(path: &Path) -> String {
    let me = user_name(Uid::effective());
    let shown = printable(&path.display().to_string());
    let Ok(it) = fs::metadata(path) else {
        return format!("the user {me} may not look at {shown}");
    };
    let (owner, group) = (Uid::from_raw(it.uid()), Gid::from_raw(it.gid()));
    let what = if it.is_dir() { "use this folder" } else { "read and write it" };
    format!(
        "{shown} belongs to the user {} and the group {} (mode {:04o}), so the user {me} may not {what}",
        user_name(owner),
        group_name(group),
        it.mode() & 0o7777
    )
}

/// What opens the folder, or one of the files of this database.
fn remedy(path: &Path, file: &Path) -> String {
    let Ok(it) = fs::metadata(path) else { return RECIPE.to_owned() };
    let (owner, group) = (Uid::from_raw(it.uid()), Gid::from_raw(it.gid()));
    let (me, name) = (user_name(Uid::effective()), group_name(group));
    let needs = if it.is_dir() { 0o030 } else { 0o060 };
    // Neither root's group nor another user's own one is there to be joined.
    let is_shared = it.mode() & needs == needs && group.as_raw() != 0 && name != user_name(owner);
    if is_shared && !is_member(group) {
        return format!(
            "join the group: usermod -aG {name} {me} (it counts from the next login on)"
        );
    }
    if is_shared {
        return "an access list or a read-only file system keeps it closed".to_owned();
    }
    let (shown, mode) = match it.is_dir() {
        true => (printable(&path.display().to_string()), 2770),
        false => (format!("{}*", printable(&file.display().to_string())), 660),
    };
    format!("for a group of users: chgrp GROUP {shown} && chmod {mode} {shown} ({RECIPE})")
}

const RECIPE: &str = "docs/cli.md, \"Several users of one machine\", has the whole recipe";

fn is_member(group: Gid) -> bool {
    Gid::effective() == group || getgroups().unwrap_or_default().contains(&group)
}

/// A user's name, or number if there is none.
pub(crate) fn user_name(user: Uid) -> String {
    let name = User::from_uid(user).ok().flatten().map(|user| user.name);
    name.unwrap_or_else(|| user.to_string())
}

/// A group's name, or number if there is none.
pub(crate) fn group_name(group: Gid) -> String {
    let name = Group::from_gid(group).ok().flatten().map(|group| group.name);
    name.unwrap_or_else(|| group.to_string())
}
