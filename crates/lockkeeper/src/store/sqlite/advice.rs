//! What about the file's place can hurt locks, and what to do about it. A network file system and a file that
//! cannot be written are refused when it is opened.

use super::Sqlite;
use crate::store::{Advice, Severity};
use std::{os::unix::fs::MetadataExt as _, path::Path};

/// The log alone can grow to several megabytes.
const ROOM_MIN: u64 = 64 << 20;
/// In the mode of a folder: all users may write, and only owners may remove.
const OTHERS_WRITE: u32 = 0o002;
const STICKY: u32 = 0o1000;

impl Sqlite {
    pub(super) fn setup_advice(&self) -> Vec<Advice> {
        let folder = self.files.path.parent().unwrap_or(Path::new("/"));
        let room = rustix::fs::statvfs(folder).ok().map(|disk| disk.f_bavail * disk.f_frsize);
        let mode = std::fs::metadata(folder).ok().map(|folder| folder.mode());
        let folder = folder.display().to_string();
        let found = [
            room.and_then(|room| nearly_full(room, &folder)),
            mode.and_then(|mode| open(mode, &folder)),
        ];
        found.into_iter().flatten().collect()
    }
}

fn nearly_full(room: u64, folder: &str) -> Option<Advice> {
    (room < ROOM_MIN).then(|| {
        Advice::new(
            "nearly-full",
            Severity::Availability,
            format!("the disk of {folder} has {} MB left", room >> 20),
            "when it is full no lock can be taken or renewed",
            "make room, or use a folder on another disk",
        )
    })
}

fn open(mode: u32, folder: &str) -> Option<Advice> {
    (mode & OTHERS_WRITE != 0 && mode & STICKY == 0).then(|| {
        Advice::new(
            "open-folder",
            Severity::Information,
            format!("every user of this machine may remove files from {folder}"),
            "a user who removes the file ends all locks in it",
            "chmod o-w the folder, and share it with a group",
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_disk_and_an_open_folder_are_named() {
        assert!(nearly_full(1 << 30, "/a").is_none() && nearly_full(1 << 20, "/a").is_some());
        for safe in [0o40755, 0o41777, 0o40770] {
            assert!(open(safe, "/a").is_none(), "{safe:o}");
        }
        assert!(open(0o40777, "/a").is_some());
    }
}
