//! Where the service listens: TCP, or a socket in the file system.

use std::{
    fmt, fs, io,
    net::SocketAddr,
    os::unix::{
        fs::{FileTypeExt as _, PermissionsExt as _},
        net::UnixStream as StdUnixStream,
    },
    path::{Path, PathBuf},
    str::FromStr,
};
use tokio::net::{TcpListener, UnixListener};

/// An address to listen on: `127.0.0.1:7601`, or `unix:/run/lockkeeper.sock`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// An IP address and a port.
    Tcp(SocketAddr),
    /// A path.
    Unix(PathBuf),
}

impl Address {
    /// Can only programs on this host reach it?
    #[must_use]
    pub fn is_local(&self) -> bool {
        match self {
            Self::Tcp(address) => address.ip().to_canonical().is_loopback(),
            Self::Unix(_) => true,
        }
    }
}

/// A text that is no address.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("write an IP address with a port, as in 127.0.0.1:7601, or unix:/path/of/a/socket")]
pub struct AddressError;

impl FromStr for Address {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        if let Some(path) = text.strip_prefix("unix:") {
            return if path.is_empty() { Err(AddressError) } else { Ok(Self::Unix(path.into())) };
        }
        let numbered = text.replacen("localhost:", "127.0.0.1:", 1);
        numbered.parse().map(Self::Tcp).map_err(|_| AddressError)
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => address.fmt(f),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

/// A socket that listens.
#[derive(Debug)]
pub enum Listener {
    /// By IP.
    Tcp(TcpListener),
    /// By path. The file goes with the listener.
    Unix(UnixListener, SocketFile),
}

impl Listener {
    /// Listens. A socket in the file system gets these access rights (`0o600`: this user alone). One that an
    /// earlier process has left is removed, if no process answers on it.
    ///
    /// # Errors
    /// The system's error.
    pub async fn bind(address: &Address, socket_mode: u32) -> io::Result<Self> {
        match address {
            Address::Tcp(address) => TcpListener::bind(address).await.map(Self::Tcp),
            Address::Unix(path) => {
                remove_stale(path)?;
                bind_unix(path, socket_mode)
            }
        }
    }

    /// Where it listens, with the real port.
    ///
    /// # Errors
    /// The system's error.
    pub fn address(&self) -> io::Result<Address> {
        match self {
            Self::Tcp(listener) => listener.local_addr().map(Address::Tcp),
            Self::Unix(_, file) => Ok(Address::Unix(file.0.clone())),
        }
    }
}

/// The file of a socket; it is removed with this.
#[derive(Debug)]
pub struct SocketFile(PathBuf);

impl Drop for SocketFile {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

/// Listens under a private name first: the socket is never reachable with other rights than those asked for.
fn bind_unix(path: &Path, mode: u32) -> io::Result<Listener> {
    let mut hidden = path.as_os_str().to_owned();
    hidden.push(format!(".{}", std::process::id()));
    let hidden = PathBuf::from(hidden);
    let _ = fs::remove_file(&hidden);
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    if folder.is_some_and(|folder| !folder.is_dir()) {
        return Err(io::Error::new(io::ErrorKind::NotFound, "the socket's folder does not exist"));
    }
    let listener = UnixListener::bind(&hidden)?;
    let shown = fs::set_permissions(&hidden, fs::Permissions::from_mode(mode))
        .and_then(|()| fs::rename(&hidden, path));
    // Removes it, too, if it could not be shown.
    let file = SocketFile(if shown.is_ok() { path.to_owned() } else { hidden });
    shown.map(|()| Listener::Unix(listener, file))
}

fn remove_stale(path: &Path) -> io::Result<()> {
    let Ok(found) = fs::symlink_metadata(path) else { return Ok(()) };
    if !found.file_type().is_socket() {
        let what = "there is a file of this name, and it is no socket";
        return Err(io::Error::new(io::ErrorKind::AlreadyExists, what));
    }
    match StdUnixStream::connect(path) {
        Ok(_) => Err(io::Error::new(io::ErrorKind::AddrInUse, "another process answers on it")),
        Err(e) if e.kind() == io::ErrorKind::ConnectionRefused => fs::remove_file(path),
        Err(e) => Err(e),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_an_ip_with_a_port_or_a_path() {
        for text in ["127.0.0.1:7601", "[::1]:0", "unix:/run/a.sock"] {
            assert_eq!(text.parse::<Address>().unwrap().to_string(), text);
        }
        assert_eq!("localhost:1".parse::<Address>().unwrap().to_string(), "127.0.0.1:1");
        for text in ["", "7601", "unix:", "example.org:80", "/run/a.sock"] {
            assert!(text.parse::<Address>().is_err(), "{text}");
        }
    }

    #[test]
    fn only_loopback_and_sockets_are_local() {
        let is_local = |text: &str| text.parse::<Address>().unwrap().is_local();
        assert!(is_local("127.0.0.1:1") && is_local("[::1]:1") && is_local("unix:/a"));
        assert!(is_local("[::ffff:127.0.0.1]:1") && is_local("127.9.9.9:1"));
        assert!(!is_local("0.0.0.0:1") && !is_local("[::]:1") && !is_local("10.0.0.1:1"));
    }
}
