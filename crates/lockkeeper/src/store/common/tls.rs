//! TLS as the URL of a store asks for it: `tls=true`, `tls_ca=`, `tls_cert=` and `tls_key=`.

use crate::error::{Error, Result};
use crate::store::url::StoreUrl;
use rustls::{
    ClientConfig, RootCertStore,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _},
};
use std::sync::Arc;
#[cfg(any(feature = "etcd", feature = "http"))]
pub(in crate::store) use wire::late;
#[cfg(any(feature = "etcd", feature = "http", feature = "zookeeper"))]
pub(in crate::store) use wire::{Stream, dial};

/// What a URL says about TLS. `None` if it says nothing and it is not `wanted` either.
pub(in crate::store) fn config(url: &mut StoreUrl, wanted: bool) -> Result<Option<ClientConfig>> {
    let wanted = url.flag("tls")?.unwrap_or(false) || wanted;
    let ca = url.take_file_bytes("tls_ca")?;
    let client = match (url.take_file_bytes("tls_cert")?, url.take_file_bytes("tls_key")?) {
        (Some(certificate), Some(key)) => Some((certificate, key)),
        (None, None) => None,
        _ => return Err(Error::url_option("tls_cert", "tls_cert= and tls_key= belong together")),
    };
    if !(wanted || ca.is_some() || client.is_some()) {
        return Ok(None);
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|e| Error::url(format!("TLS cannot be used: {e}")))?
        .with_root_certificates(roots(ca)?);
    let Some((certificate, key)) = client else { return Ok(Some(config.with_no_client_auth())) };
    let key = PrivateKeyDer::from_pem_slice(&key).map_err(|e| {
        Error::url_option("tls_key", format!("the file of tls_key= has no key: {e}"))
    })?;
    let config = config
        .with_client_auth_cert(certificates(&certificate, "tls_cert")?, key)
        .map_err(|e| {
            Error::url_option("tls_cert", format!("tls_cert= and tls_key= cannot be used: {e}"))
        })?;
    Ok(Some(config))
}

/// The authorities of the given file, or the system's.
fn roots(ca: Option<Vec<u8>>) -> Result<RootCertStore> {
    let mut roots = RootCertStore::empty();
    let trusted = match ca {
        Some(file) => certificates(&file, "tls_ca")?,
        None => rustls_native_certs::load_native_certs().certs,
    };
    let (added, _) = roots.add_parsable_certificates(trusted);
    if added == 0 {
        return Err(Error::url("no certificate authority is trusted; say tls_ca=FILE"));
    }
    Ok(roots)
}

fn certificates(pem: &[u8], option: &str) -> Result<Vec<CertificateDer<'static>>> {
    let all: Vec<_> =
        CertificateDer::pem_slice_iter(pem).collect::<std::result::Result<_, _>>().map_err(
            |e| Error::url_option(option, format!("the file of {option}= has no certificate: {e}")),
        )?;
    if all.is_empty() {
        return Err(Error::url_option(option, format!("the file of {option}= has no certificate")));
    }
    Ok(all)
}

#[cfg(any(feature = "etcd", feature = "http", feature = "zookeeper"))]
mod wire {
    use crate::clock::timeout;
    use rustls::pki_types::ServerName;
    use std::{io, net::SocketAddr, time::Duration};
    use tokio::{
        io::{AsyncRead, AsyncWrite},
        net::{TcpStream, lookup_host},
    };
    use tokio_rustls::TlsConnector;

    /// A connection, with or without TLS.
    pub(in crate::store) trait Stream:
        AsyncRead + AsyncWrite + Send + Unpin
    {
    }
    impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

    /// A connection to a host. Each of its addresses has its share of the time.
    pub(in crate::store) async fn dial(
        host: &str,
        port: u16,
        tls: Option<&TlsConnector>,
        within: Duration,
    ) -> io::Result<Box<dyn Stream>> {
        let addresses: Vec<SocketAddr> = lookup_host((host, port)).await?.collect();
        let share = within / u32::try_from(addresses.len().max(1)).unwrap_or(1);
        let mut reached = Err(io::Error::other("the host has no address"));
        for address in addresses {
            let connect = timeout(share, TcpStream::connect(address)).await;
            reached = connect.unwrap_or_else(|_| Err(late(share)));
            if reached.is_ok() {
                break;
            }
        }
        let stream = reached?;
        stream.set_nodelay(true)?;
        let Some(tls) = tls else { return Ok(Box::new(stream)) };
        let name = ServerName::try_from(host.to_owned()).map_err(io::Error::other)?;
        Ok(Box::new(tls.connect(name, stream).await?))
    }

    pub(in crate::store) fn late(after: Duration) -> io::Error {
        let what = format!("no connection within {after:.1?}");
        io::Error::new(io::ErrorKind::TimedOut, what)
    }
}
