//! From a URL to servers, credentials and paths.

use super::{
    client::{Acl, Ensemble},
    names::{Dialect, Paths},
};
use crate::{
    error::{Error, Result},
    store::{common::tls, url::StoreUrl},
};
use std::sync::Arc;
use tokio_rustls::TlsConnector;

const OPTIONS: &[&str] =
    &["prefix", "raw", "password_file", "tls", "tls_ca", "tls_cert", "tls_key"];

const PORT: u16 = 2181;

/// What a URL says.
pub(super) struct Config {
    pub(super) ensemble: Arc<Ensemble>,
    /// Of the nodes that we create.
    pub(super) acl: Acl,
    pub(super) paths: Paths,
}

impl Config {
    /// `zookeeper://[USER:PASSWORD@]HOST[:PORT],…[/CHROOT]`.
    pub(super) fn read(mut url: StoreUrl) -> Result<Self> {
        let mut authority = url.authority()?;
        let prefix = url.take("prefix").unwrap_or_else(|| "lockkeeper".to_owned());
        let dialect = match url.take("raw").as_deref() {
            None | Some("false") => Dialect::Own,
            Some("true") => Dialect::Mutex,
            Some("rw") => Dialect::ReadWrite,
            Some("kazoo") => Dialect::Kazoo,
            Some(other) => {
                return Err(Error::url_option(
                    "raw",
                    format!("raw={other} is not true, rw, kazoo or false"),
                ));
            }
        };
        let credentials = url.credentials(&mut authority)?;
        let credentials = credentials.map(|(user, password)| format!("{user}:{password}"));
        let tls = tls::config(&mut url, false)?;
        url.finish(OPTIONS)?;
        let servers = authority.hosts.into_iter();
        Ok(Self {
            acl: if credentials.is_some() { Acl::Creator } else { Acl::Open },
            ensemble: Arc::new(Ensemble {
                servers: servers.map(|(host, port)| (host, port.unwrap_or(PORT))).collect(),
                credentials,
                tls: tls.map(|config| TlsConnector::from(Arc::new(config))),
                last_zxid: Arc::default(),
            }),
            paths: Paths::new(&authority.path, &prefix, dialect).map_err(Error::url)?,
        })
    }
}
