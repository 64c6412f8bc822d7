//! From a URL to servers, credentials and paths.

use super::{
    conn::Stream,
    names::{Dialect, Paths},
    wire::Rights,
};
use crate::{
    error::{Error, Result},
    store::url::StoreUrl,
};
use rustls::{
    ClientConfig, RootCertStore,
    pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject as _},
};
use std::{
    io,
    sync::{Arc, atomic::AtomicI64},
};
use tokio::net::TcpStream;
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
            Some(other) => {
                return Err(Error::Url(format!("raw={other} is not true, rw or false")));
            }
        };
        let password = url.take_file("password_file")?.or(authority.password);
        let credentials = match (authority.user, password) {
            (Some(user), Some(password)) => Some(format!("{user}:{password}")),
            (None, None) => None,
            _ => return Err(Error::Url("a user and a password belong together".into())),
        };
        let tls = tls(&mut url)?;
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
    pub(super) async fn reach(&self, at: usize) -> io::Result<Box<dyn Stream>> {
        let (host, port) = &self.hosts[at];
        let stream = TcpStream::connect((host.as_str(), *port)).await?;
        stream.set_nodelay(true)?;
        let Some(tls) = &self.tls else { return Ok(Box::new(stream)) };
        let name = ServerName::try_from(host.clone()).map_err(io::Error::other)?;
        Ok(Box::new(tls.connect(name, stream).await?))
    }
}

fn tls(url: &mut StoreUrl) -> Result<Option<TlsConnector>> {
    let wanted = url.take("tls").is_some_and(|on| on == "true");
    let ca = url.take_file_bytes("tls_ca")?;
    let (cert, key) = (url.take_file_bytes("tls_cert")?, url.take_file_bytes("tls_key")?);
    if !wanted && ca.is_none() && cert.is_none() && key.is_none() {
        return Ok(None);
    }
    let bad = |what: &str| Error::Url(format!("TLS for ZooKeeper needs {what}"));
    let ca = ca.ok_or_else(|| bad("tls_ca=, the certificates that sign the servers'"))?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|e| bad(&e.to_string()))?
        .with_root_certificates(roots(&ca).ok_or_else(|| bad("certificates in tls_ca="))?);
    let config = match (cert, key) {
        (None, None) => builder.with_no_client_auth(),
        (Some(cert), Some(key)) => {
            let chain = certificates(&cert).ok_or_else(|| bad("certificates in tls_cert="))?;
            let key = PrivateKeyDer::from_pem_slice(&key).map_err(|_| bad("a key in tls_key="))?;
            builder.with_client_auth_cert(chain, key).map_err(|e| bad(&e.to_string()))?
        }
        _ => return Err(Error::Url("tls_cert= and tls_key= belong together".into())),
    };
    Ok(Some(TlsConnector::from(Arc::new(config))))
}

fn certificates(pem: &[u8]) -> Option<Vec<CertificateDer<'static>>> {
    let chain: Vec<_> = CertificateDer::pem_slice_iter(pem).collect::<Result<_, _>>().ok()?;
    (!chain.is_empty()).then_some(chain)
}

fn roots(pem: &[u8]) -> Option<RootCertStore> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(pem)? {
        roots.add(certificate).ok()?;
    }
    Some(roots)
}
