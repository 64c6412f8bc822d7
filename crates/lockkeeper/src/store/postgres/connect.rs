//! From a URL to a connection.

use super::KIND;
use crate::{
    error::{Error, Result, StoreError, Trouble},
    store::{StoreResult, url::StoreUrl},
};
use rustls::{
    ClientConfig, RootCertStore,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _},
};
use tokio::net::TcpStream;
use tokio_postgres::{Config, config::SslMode, tls::MakeTlsConnect};
use tokio_postgres_rustls::MakeRustlsConnect;

/// The options of a PostgreSQL URL.
const OPTIONS: &[&str] = &[
    "schema",
    "create",
    "pooler",
    "password_file",
    "sslmode",
    "tls",
    "tls_ca",
    "tls_cert",
    "tls_key",
];

const PORT: u16 = 5432;

/// What a URL says, before anything is connected. It has no `Debug`: it may hold a password.
pub(super) struct Plan {
    config: Config,
    hosts: Vec<(String, u16)>,
    tls: Option<MakeRustlsConnect>,
    /// The schema's name, as it is.
    pub(super) schema: String,
    /// May the schema be created and brought up to date?
    pub(super) create: bool,
    /// Does a pooler stand in between that lends connections for a transaction? `None` if it has to be
    /// found out.
    pub(super) pooler: Option<bool>,
}

/// How a server is spoken to over TLS.
pub(super) type Tls = <MakeRustlsConnect as MakeTlsConnect<TcpStream>>::TlsConnect;

impl Plan {
    /// `postgres://[USER[:PASSWORD]@]HOST[:PORT],…[/DATABASE]`
    pub(super) fn read(url: &mut StoreUrl) -> Result<Self> {
        let authority = url.authority()?;
        let schema = url.take("schema").unwrap_or_else(|| "lockkeeper".to_owned());
        let odd = |c: char| c.is_control() || matches!(c, '"' | '\'' | '\\' | '$' | '.');
        if schema.is_empty() || schema.len() > 63 || schema.contains(odd) {
            let what =
                "schema= must be the name of a schema, 1 to 63 bytes without quotes and dots";
            return Err(Error::Url(what.into()));
        }
        let create = flag(url, "create")?.unwrap_or(true);
        let pooler = flag(url, "pooler")?;
        let password = url.take_file("password_file")?.or_else(|| authority.password.clone());
        let tls = tls(url)?;
        url.finish(OPTIONS)?;
        let mut config = Config::new();
        config.application_name("lockkeeper");
        config.user(authority.user.as_deref().unwrap_or("postgres"));
        if !authority.path.is_empty() {
            config.dbname(&authority.path);
        }
        if let Some(password) = password {
            config.password(password);
        }
        config.ssl_mode(if tls.is_some() { SslMode::Require } else { SslMode::Disable });
        let hosts = authority.hosts.into_iter();
        let hosts = hosts.map(|(host, port)| (host, port.unwrap_or(PORT))).collect();
        Ok(Self { config, hosts, tls, schema, create, pooler })
    }

    pub(super) fn config(&self) -> &Config {
        &self.config
    }

    pub(super) fn hosts(&self) -> &[(String, u16)] {
        &self.hosts
    }

    pub(super) async fn stream(&self, host: &str, port: u16) -> StoreResult<TcpStream> {
        let stream = TcpStream::connect((host, port)).await.and_then(|stream| {
            stream.set_nodelay(true)?;
            Ok(stream)
        });
        stream.map_err(|e| {
            let what = format!("cannot connect to {host}:{port}");
            StoreError::not_applied(KIND, Trouble::Unavailable, what).because(e)
        })
    }

    /// TLS to this host, if it is asked for.
    pub(super) fn tls(&self, host: &str) -> StoreResult<Option<Tls>> {
        let Some(mut tls) = self.tls.clone() else { return Ok(None) };
        let made = MakeTlsConnect::<TcpStream>::make_tls_connect(&mut tls, host);
        made.map(Some).map_err(|e| {
            let what = format!("{host:?} is no name that a certificate can have");
            StoreError::not_applied(KIND, Trouble::Misconfigured, what).because(e)
        })
    }
}

fn flag(url: &mut StoreUrl, option: &str) -> Result<Option<bool>> {
    match url.take(option).as_deref() {
        None => Ok(None),
        Some("true") => Ok(Some(true)),
        Some("false") => Ok(Some(false)),
        Some(other) => {
            Err(Error::Url(format!("option {option}={other} is neither true nor false")))
        }
    }
}

fn tls(url: &mut StoreUrl) -> Result<Option<MakeRustlsConnect>> {
    let mode = match url.take("sslmode").as_deref() {
        None => false,
        Some("disable") => false,
        // Whatever libpq would let pass, a certificate is always verified here.
        Some("require" | "verify-ca" | "verify-full") => true,
        Some(other) => {
            return Err(Error::Url(format!(
                "option sslmode={other} is not known here; use disable or verify-full"
            )));
        }
    };
    let wanted = flag(url, "tls")?.unwrap_or(false);
    let ca = url.take_file_bytes("tls_ca")?;
    let client = match (url.take_file_bytes("tls_cert")?, url.take_file_bytes("tls_key")?) {
        (Some(certificate), Some(key)) => Some((certificate, key)),
        (None, None) => None,
        _ => return Err(Error::Url("tls_cert= and tls_key= belong together".into())),
    };
    if !(mode || wanted || ca.is_some() || client.is_some()) {
        return Ok(None);
    }
    let provider = std::sync::Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|e| Error::Url(format!("TLS cannot be used: {e}")))?
        .with_root_certificates(roots(ca)?);
    let config = match client {
        None => config.with_no_client_auth(),
        Some((certificate, key)) => {
            let key = PrivateKeyDer::from_pem_slice(&key)
                .map_err(|e| Error::Url(format!("the file of tls_key= has no key: {e}")))?;
            config
                .with_client_auth_cert(certificates(&certificate, "tls_cert")?, key)
                .map_err(|e| Error::Url(format!("tls_cert= and tls_key= cannot be used: {e}")))?
        }
    };
    Ok(Some(MakeRustlsConnect::new(config)))
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
        return Err(Error::Url("no certificate authority is trusted; say tls_ca=FILE".into()));
    }
    Ok(roots)
}

fn certificates(pem: &[u8], option: &str) -> Result<Vec<CertificateDer<'static>>> {
    CertificateDer::pem_slice_iter(pem)
        .collect::<std::result::Result<_, _>>()
        .map_err(|e| Error::Url(format!("the file of {option}= has no certificate: {e}")))
}
