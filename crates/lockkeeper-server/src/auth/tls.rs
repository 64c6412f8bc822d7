//! TLS of our side, and the subject of a client's certificate.

use super::files;
use rustls::{
    RootCertStore, ServerConfig,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _},
    server::WebPkiClientVerifier,
};
use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};
use tokio::net::TcpStream;
use tokio_rustls::{TlsAcceptor, server::TlsStream};
use x509_cert::{
    Certificate,
    der::{
        Decode as _,
        asn1::{Ia5StringRef, PrintableStringRef, Utf8StringRef},
        oid::db::rfc4519::COMMON_NAME,
    },
};

/// For how long a handshake may take.
const HANDSHAKE_MAX: Duration = Duration::from_secs(10);

/// The files of TLS, in PEM.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct TlsFiles {
    /// The certificate with its chain.
    pub cert: PathBuf,
    /// Its private key.
    pub key: PathBuf,
    /// The authorities that sign the certificates of clients.
    pub client_ca: Option<PathBuf>,
}

impl TlsFiles {
    /// A certificate and its key; clients need no certificates.
    pub fn new(cert: impl Into<PathBuf>, key: impl Into<PathBuf>) -> Self {
        Self { cert: cert.into(), key: key.into(), client_ca: None }
    }

    pub(crate) fn paths(&self) -> Vec<PathBuf> {
        [&self.cert, &self.key].into_iter().chain(&self.client_ca).cloned().collect()
    }

    /// Reads the files. A client may show a certificate of the given authorities, or none.
    pub(crate) fn read(&self) -> Result<ServerConfig, String> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .map_err(|e| format!("TLS cannot be used: {e}"))?;
        let config = match &self.client_ca {
            None => config.with_no_client_auth(),
            Some(path) => {
                let mut roots = RootCertStore::empty();
                for authority in certificates(path)? {
                    roots.add(authority).map_err(|e| format!("{}: {e}", path.display()))?;
                }
                let verifier = WebPkiClientVerifier::builder_with_provider(roots.into(), provider)
                    .allow_unauthenticated()
                    .build();
                config.with_client_cert_verifier(
                    verifier.map_err(|e| format!("{}: {e}", path.display()))?,
                )
            }
        };
        files::refuse_readable_by_all(&self.key)?;
        let pem = read(&self.key)?;
        let key = PrivateKeyDer::from_pem_slice(&pem)
            .map_err(|e| format!("{} has no key: {e}", self.key.display()))?;
        let mut config = config
            .with_single_cert(certificates(&self.cert)?, key)
            .map_err(|e| format!("the certificate and the key cannot be used: {e}"))?;
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(config)
    }
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&read(path)?).collect();
    match all {
        Ok(all) if !all.is_empty() => Ok(all),
        Ok(_) => Err(format!("{} has no certificate", path.display())),
        Err(e) => Err(format!("{} has no certificate: {e}", path.display())),
    }
}

fn read(path: &Path) -> Result<Vec<u8>, String> {
    fs::read(path).map_err(|e| format!("{} cannot be read: {e}", path.display()))
}

/// The common name in the subject of the certificate that a client has shown, as an extension of its requests.
#[derive(Clone, Debug)]
pub(crate) struct ClientName(pub(crate) Arc<str>);

/// The handshake, within bounds of time.
pub(crate) async fn accept(
    stream: TcpStream,
    config: Arc<ServerConfig>,
) -> io::Result<(TlsStream<TcpStream>, Option<ClientName>)> {
    let shaking_hands = TlsAcceptor::from(config).accept(stream);
    let stream = tokio::time::timeout(HANDSHAKE_MAX, shaking_hands)
        .await
        .map_err(|_| io::Error::new(io::ErrorKind::TimedOut, "no TLS handshake in time"))??;
    let shown = stream.get_ref().1.peer_certificates().and_then(<[_]>::first);
    let name =
        shown.and_then(|certificate| common_name(certificate)).map(|name| ClientName(name.into()));
    Ok((stream, name))
}

/// The only common name of the subject. A certificate with two of them names no client.
fn common_name(certificate: &[u8]) -> Option<String> {
    let certificate = Certificate::from_der(certificate).ok()?;
    let parts = certificate.tbs_certificate.subject.0.iter().flat_map(|part| part.0.iter());
    let mut names = parts.filter(|part| part.oid == COMMON_NAME);
    let value = &names.next().filter(|_| names.next().is_none())?.value;
    let utf8 = value.decode_as::<Utf8StringRef<'_>>().map(|text| text.as_str().to_owned());
    utf8.or_else(|_| {
        value.decode_as::<PrintableStringRef<'_>>().map(|text| text.as_str().to_owned())
    })
    .or_else(|_| value.decode_as::<Ia5StringRef<'_>>().map(|text| text.as_str().to_owned()))
    .ok()
}
