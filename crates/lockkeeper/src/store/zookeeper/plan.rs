//! From a URL to servers, credentials and paths.

use super::{
    names::{Dialect, Paths},
    wire::Rights,
};
use crate::{
    error::{Error, Result},
    store::{
        common::tls::{self, Stream, dial},
        url::StoreUrl,
    },
};
use std::{
    io,
    sync::{Arc, atomic::AtomicI64},
    time::Duration,
};
use tokio_rustls::TlsConnector;

const OPTIONS: &[&str] =
    &["prefix", "raw", "password_file", "tls", "tls_ca", "tls_cert", "tls_key"];

const PORT: u16 = 2181;

/// What a URL says, before anything is connected. It has no `Debug`: it may hold a password.
pub(super) struct Plan {
    pub(super) hosts: Vec<(String, u16)>,
    /// `USER:PASSWORD`.
    pub(super) credentials: Option<String>,
    /// For the nodes that we make.
    pub(super) rights: Rights,
    pub(super) paths: Paths,
    /// The highest number of a write that any connection has seen. Who is behind it is not talked to, or
    /// fences could go back.
    pub(super) last_zxid: Arc<AtomicI64>,
    tls: Option<TlsConnector>,
}

impl Plan {
    /// `zookeeper://[USER:PASSWORD@]HOST[:PORT],…[/CHROOT]`.
    pub(super) fn read(mut url: StoreUrl) -> Result<Self> {
        let authority = url.authority()?;
        let prefix = url.take("prefix").unwrap_or_else(|| "lockkeeper".to_owned());
        let dialect = match url.take("raw").as_deref() {
            None | Some("false") => Dialect::Own,
            Some("true") => Dialect::Mutex,
            Some("rw") => Dialect::ReadWrite,
            Some("kazoo") => Dialect::Kazoo,
            Some(other) => {
                return Err(Error::Url(format!("raw={other} is not true, rw, kazoo or false")));
            }
        };
        let password = url.take_file("password_file")?.or(authority.password);
        let credentials = match (authority.user, password) {
            (Some(user), Some(password)) => Some(format!("{user}:{password}")),
            (None, None) => None,
            _ => return Err(Error::Url("a user and a password belong together".into())),
        };
        let tls = tls::config(&mut url, false)?;
        let tls = tls.map(|config| TlsConnector::from(Arc::new(config)));
        url.finish(OPTIONS)?;
        let hosts = authority.hosts.into_iter();
        Ok(Self {
            hosts: hosts.map(|(host, port)| (host, port.unwrap_or(PORT))).collect(),
            rights: if credentials.is_some() { Rights::Creator } else { Rights::Everybody },
            credentials,
            paths: Paths::new(&authority.path, &prefix, dialect).map_err(Error::Url)?,
            last_zxid: Arc::default(),
            tls,
        })
    }

    /// A stream to one of the hosts.
    pub(super) async fn reach(&self, at: usize, within: Duration) -> io::Result<Box<dyn Stream>> {
        let (host, port) = &self.hosts[at];
        dial(host, *port, self.tls.as_ref(), within).await
    }
}
