//! Doorbells: how a process that waits is woken by one that releases.
//!
//! Every process that waits has a datagram socket beside the file, and its sessions carry the
//! socket's tag. Whoever grants a ticket rings the bell of that ticket's session and of nobody else.
//! A ring only says "look": the waiter reads the file before it believes anything. A bell that
//! cannot be made costs speed, not correctness: the core polls instead.

use std::{
    fs::File,
    io::{self, ErrorKind},
    os::{fd::AsRawFd, unix::net::UnixDatagram as StdDatagram},
    path::{Path, PathBuf},
};
use tokio::net::UnixDatagram;

/// The longest path that surely fits into a socket's address.
const ADDRESS_MAX: usize = 100;

/// So many rings at once may have filled the bell (the kernel's default is 10).
const BURST: usize = 8;

/// Which bell: part of a file name, so only what [`Tag::parse`] lets through.
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

/// Knows where the bells of one file are, and rings them.
pub(super) struct Ringer {
    folder: PathBuf,
    /// Held open for folders whose path is too long for an address.
    handle: Option<File>,
    stem: String,
    socket: Option<StdDatagram>,
}

impl Ringer {
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

    /// The path by which a socket is reached, short enough for an address.
    fn address(&self, tag: &Tag) -> PathBuf {
        match &self.handle {
            None => self.path(tag),
            Some(folder) => {
                let by_handle = format!("/proc/self/fd/{}", folder.as_raw_fd());
                Path::new(&by_handle).join(format!("{}{}", self.stem, tag.0))
            }
        }
    }

    /// Rings without waiting. A bell whose process is gone is taken away.
    pub(super) fn ring(&self, tag: &Tag, message: &[u8]) {
        let Some(socket) = &self.socket else { return };
        match socket.send_to(message, self.address(tag)) {
            Err(e) if e.kind() == ErrorKind::ConnectionRefused => {
                let _ = std::fs::remove_file(self.path(tag));
            }
            // No bell there, or a full one, which will be heard anyway.
            _ => {}
        }
    }

    /// Was the process of this bell ended without taking it down, as a kill does? A process that lives
    /// removes the socket's file before it closes the socket, so a file that is still there although no
    /// process listens is a proof.
    pub(super) fn is_deserted(&self, tag: &Tag) -> bool {
        let Ok(probe) = unbound() else { return false };
        let refused = |e: io::Error| e.kind() == ErrorKind::ConnectionRefused;
        probe.connect(self.address(tag)).is_err_and(refused)
            && self.path(tag).symlink_metadata().is_ok()
    }

    /// Hangs up a bell of our own.
    pub(super) fn hang(&self, tag: &Tag) -> io::Result<Bell> {
        let bell = Bell { socket: UnixDatagram::bind(self.address(tag))?, path: self.path(tag) };
        // Whoever may write to the file may ring.
        let file = self.folder.join(self.stem.trim_end_matches("-bell-"));
        if let Ok(file) = std::fs::metadata(file) {
            std::fs::set_permissions(&bell.path, file.permissions())?;
        }
        Ok(bell)
    }
}

fn unbound() -> io::Result<StdDatagram> {
    let socket = StdDatagram::unbound()?;
    socket.set_nonblocking(true)?;
    Ok(socket)
}

/// A bell of our own. Taken down when dropped.
pub(super) struct Bell {
    socket: UnixDatagram,
    path: PathBuf,
}

impl Bell {
    /// Waits for rings; says what came with them. After a burst that may have filled the bell, so
    /// that further rings got lost, the last one says nothing in particular.
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

impl Drop for Bell {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bells(folder: &Path) -> usize {
        std::fs::read_dir(folder).unwrap().count()
    }

    #[tokio::test]
    async fn a_ring_arrives_also_in_a_folder_with_a_long_path() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("x".repeat(120));
        std::fs::create_dir(&folder).unwrap();
        for folder in [root.path(), &folder] {
            let ringer = Ringer::beside(&folder.join("locks.db"));
            let tag = Tag::random();
            let bell = ringer.hang(&tag).unwrap();
            ringer.ring(&tag, &[7; 16]);
            assert_eq!(bell.rung().await.unwrap(), [Some([7; 16])]);
        }
    }

    #[tokio::test]
    async fn the_bell_of_a_dead_process_is_taken_away() {
        let folder = tempfile::tempdir().unwrap();
        let ringer = Ringer::beside(&folder.path().join("locks.db"));
        let tag = Tag::random();
        let path = ringer.path(&tag);
        drop(StdDatagram::bind(&path).unwrap()); // as a kill leaves it: the file without its socket
        assert_eq!(bells(folder.path()), 1);
        ringer.ring(&tag, b"");
        assert_eq!(bells(folder.path()), 0);
        drop(ringer.hang(&tag).unwrap());
        assert_eq!(bells(folder.path()), 0);
    }

    #[tokio::test]
    async fn only_a_bell_without_its_process_is_deserted() {
        let folder = tempfile::tempdir().unwrap();
        let ringer = Ringer::beside(&folder.path().join("locks.db"));
        let tag = Tag::random();
        assert!(!ringer.is_deserted(&tag), "there never was one");
        let bell = ringer.hang(&tag).unwrap();
        assert!(!ringer.is_deserted(&tag), "its process listens");
        drop(bell);
        assert!(!ringer.is_deserted(&tag), "its process has taken it down");
        drop(StdDatagram::bind(ringer.path(&tag)).unwrap()); // as a kill leaves it
        assert!(ringer.is_deserted(&tag));
    }

    #[test]
    fn a_tag_is_never_a_path() {
        assert!(Tag::parse(Tag::random().as_str()).is_some());
        for bad in ["", "../../etc/passwd", "0123456789abcde/", "0123456789abcdeg"] {
            assert_eq!(Tag::parse(bad), None);
        }
    }
}
