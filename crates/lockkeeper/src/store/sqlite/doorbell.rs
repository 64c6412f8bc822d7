//! Doorbells: how a process that releases wakes a process that waits.
//!
//! Every process that waits has a datagram socket beside the file, and its sessions' rows have the socket's
//! tag. The process that grants a ticket sends a datagram to the socket of that ticket's session and to no
//! other. A ring only says "look": the waiter reads the file before it believes anything. If a doorbell
//! cannot be made, the core polls instead.

use std::{
    fs::File,
    io::{self, ErrorKind},
    os::{fd::AsRawFd, unix::net::UnixDatagram as StdDatagram},
    path::{Path, PathBuf},
};
use tokio::net::UnixDatagram;

/// A path of this length fits into a socket's address everywhere.
const ADDRESS_MAX: usize = 100;

/// After this many rings at once the socket's buffer may have been full (the kernel's default is 10).
const BURST: usize = 8;

/// Names a doorbell. It is part of a file name, so it is checked ([`Tag::parse`]).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Tag(String);

impl Tag {
    pub(super) fn random() -> Self {
        Self(format!("{:016x}", rand::random::<u64>()))
    }

    /// A tag read from the file. Anything but hexadecimal digits could be a path.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let plain = text.len() == 16 && text.bytes().all(|b| b.is_ascii_hexdigit());
        plain.then(|| Self(text.to_owned()))
    }

    pub(super) fn as_str(&self) -> &str {
        &self.0
    }
}

/// The doorbells beside one file.
pub(super) struct Doorbells {
    folder: PathBuf,
    /// Open if the folder's path is too long for an address.
    handle: Option<File>,
    stem: String,
    socket: Option<StdDatagram>,
}

impl Doorbells {
    pub(super) fn beside(file: &Path) -> Self {
        let folder = file.parent().unwrap_or(Path::new(".")).to_owned();
        let stem = file.file_name().unwrap_or_default().to_string_lossy();
        let stem = format!("{stem}-bell-");
        let long = folder.as_os_str().len() + stem.len() + 17 > ADDRESS_MAX;
        let handle = if long { File::open(&folder).ok() } else { None };
        Self { folder, handle, stem, socket: unbound().ok() }
    }

    fn path(&self, tag: &Tag) -> PathBuf {
        self.folder.join(format!("{}{}", self.stem, tag.0))
    }

    /// A path to a socket that is short enough for an address.
    fn address(&self, tag: &Tag) -> PathBuf {
        match &self.handle {
            None => self.path(tag),
            Some(folder) => {
                let by_handle = format!("/proc/self/fd/{}", folder.as_raw_fd());
                Path::new(&by_handle).join(format!("{}{}", self.stem, tag.0))
            }
        }
    }

    /// Rings without waiting. The file of a process that has ended is removed.
    pub(super) fn ring(&self, tag: &Tag, message: &[u8]) {
        let Some(socket) = &self.socket else { return };
        match socket.send_to(message, self.address(tag)) {
            Err(e) if e.kind() == ErrorKind::ConnectionRefused => {
                let _ = std::fs::remove_file(self.path(tag));
            }
            // No such doorbell, or a full one: its process will look anyway.
            _ => {}
        }
    }

    /// Whether the process of this doorbell was killed. A live process removes the socket's file before it
    /// closes the socket, so a file without a listening process proves the kill.
    pub(super) fn is_deserted(&self, tag: &Tag) -> bool {
        let Ok(probe) = unbound() else { return false };
        let refused = |e: io::Error| e.kind() == ErrorKind::ConnectionRefused;
        probe.connect(self.address(tag)).is_err_and(refused)
            && self.path(tag).symlink_metadata().is_ok()
    }

    /// Makes a doorbell of our own.
    pub(super) fn bind(&self, tag: &Tag) -> io::Result<Doorbell> {
        let doorbell =
            Doorbell { socket: UnixDatagram::bind(self.address(tag))?, path: self.path(tag) };
        // Every user that may write to the file may ring.
        let file = self.folder.join(self.stem.trim_end_matches("-bell-"));
        if let Ok(file) = std::fs::metadata(file) {
            std::fs::set_permissions(&doorbell.path, file.permissions())?;
        }
        Ok(doorbell)
    }
}

fn unbound() -> io::Result<StdDatagram> {
    let socket = StdDatagram::unbound()?;
    socket.set_nonblocking(true)?;
    Ok(socket)
}

/// A doorbell of our own. Dropping it removes its file.
pub(super) struct Doorbell {
    socket: UnixDatagram,
    path: PathBuf,
}

impl Doorbell {
    /// Waits for rings; returns the tickets that they name. After a burst that may have filled the buffer, so
    /// that further rings were lost, the last one names none.
    pub(super) async fn rung(&self) -> io::Result<Vec<Option<[u8; 16]>>> {
        let mut message = [0; 16];
        let ticket = |len: usize, message: [u8; 16]| (len == message.len()).then_some(message);
        let mut rings = vec![ticket(self.socket.recv(&mut message).await?, message)];
        while let Ok(len) = self.socket.try_recv(&mut message) {
            rings.push(ticket(len, message));
        }
        if rings.len() >= BURST {
            rings.push(None);
        }
        Ok(rings)
    }
}

impl Drop for Doorbell {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files(folder: &Path) -> usize {
        std::fs::read_dir(folder).unwrap().count()
    }

    #[tokio::test]
    async fn a_ring_arrives_also_in_a_folder_with_a_long_path() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("x".repeat(120));
        std::fs::create_dir(&folder).unwrap();
        for folder in [root.path(), &folder] {
            let doorbells = Doorbells::beside(&folder.join("locks.db"));
            let tag = Tag::random();
            let doorbell = doorbells.bind(&tag).unwrap();
            doorbells.ring(&tag, &[7; 16]);
            assert_eq!(doorbell.rung().await.unwrap(), [Some([7; 16])]);
        }
    }

    #[tokio::test]
    async fn the_socket_of_a_dead_process_is_removed() {
        let folder = tempfile::tempdir().unwrap();
        let doorbells = Doorbells::beside(&folder.path().join("locks.db"));
        let tag = Tag::random();
        let path = doorbells.path(&tag);
        drop(StdDatagram::bind(&path).unwrap()); // as a kill leaves it: the file without its socket
        assert_eq!(files(folder.path()), 1);
        doorbells.ring(&tag, b"");
        assert_eq!(files(folder.path()), 0);
        drop(doorbells.bind(&tag).unwrap());
        assert_eq!(files(folder.path()), 0);
    }

    #[tokio::test]
    async fn only_a_socket_without_its_process_is_deserted() {
        let folder = tempfile::tempdir().unwrap();
        let doorbells = Doorbells::beside(&folder.path().join("locks.db"));
        let tag = Tag::random();
        assert!(!doorbells.is_deserted(&tag), "there never was one");
        let doorbell = doorbells.bind(&tag).unwrap();
        assert!(!doorbells.is_deserted(&tag), "its process listens");
        drop(doorbell);
        assert!(!doorbells.is_deserted(&tag), "its process has removed it");
        drop(StdDatagram::bind(doorbells.path(&tag)).unwrap()); // as a kill leaves it
        assert!(doorbells.is_deserted(&tag));
    }

    #[test]
    fn a_tag_is_never_a_path() {
        assert!(Tag::parse(Tag::random().as_str()).is_some());
        for bad in ["", "../../etc/passwd", "0123456789abcde/", "0123456789abcdeg"] {
            assert_eq!(Tag::parse(bad), None);
        }
    }
}
