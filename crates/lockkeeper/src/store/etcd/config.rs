//! From a URL to a typed configuration: `etcd://[USER[:PASSWORD]@]HOST[:PORT],…[?OPTIONS]`.

use super::client::{Credentials, Endpoint};
use crate::{
    error::{Error, Result},
    store::{common::tls, url::StoreUrl},
};
use std::{sync::Arc, time::Duration};
use tokio_rustls::TlsConnector;

const OPTIONS: &[&str] =
    &["prefix", "raw", "compact", "password_file", "tls", "tls_ca", "tls_cert", "tls_key"];
const PORT: u16 = 2379;

/// What a URL says.
pub(super) struct Config {
    pub(super) endpoints: Vec<Endpoint>,
    pub(super) credentials: Option<Credentials>,
    /// How lockkeeper's own keys begin.
    pub(super) root: String,
    /// Use the keys of etcd's own clients.
    pub(super) raw: bool,
    /// For how long the history stays, if lockkeeper is to compact it.
    pub(super) compact: Option<Duration>,
}

impl Config {
    pub(super) fn from_url(mut url: StoreUrl) -> Result<Self> {
        let mut authority = url.authority()?;
        let root = url.take("prefix").unwrap_or_else(|| "lockkeeper".to_owned());
        if root.is_empty() {
            return Err(Error::url_option("prefix", "prefix= must not be empty"));
        }
        let raw = url.flag("raw")?.unwrap_or(false);
        let compact = url.take_duration("compact")?;
        if compact.is_some_and(|every| every < Duration::from_secs(1)) {
            let what =
                "compact= is how long the history stays, one second at least: write compact=1h";
            return Err(Error::url(what));
        }
        let credentials = url.credentials(&mut authority)?;
        let credentials = credentials.map(|(user, password)| Credentials { user, password });
        let tls = tls(&mut url)?;
        url.finish(OPTIONS)?;
        if !authority.path.is_empty() {
            let what = "etcd:// has no path; put prefix=NAME behind a question mark";
            return Err(Error::url(what));
        }
        let endpoint = |(host, port): (String, Option<u16>)| Endpoint {
            host,
            port: port.unwrap_or(PORT),
            tls: tls.clone(),
        };
        let endpoints = authority.hosts.into_iter().map(endpoint).collect();
        Ok(Self { endpoints, credentials, root, raw, compact })
    }
}

fn tls(url: &mut StoreUrl) -> Result<Option<TlsConnector>> {
    let config = tls::config(url, false)?.map(|mut config| {
        config.alpn_protocols = vec![b"h2".to_vec()];
        TlsConnector::from(Arc::new(config))
    });
    Ok(config)
}
