//! From a URL to what is needed to connect.

use super::connection::GREETING;
use crate::{
    error::{Error, Result},
    store::url::StoreUrl,
};
use mysql_async::{ClientIdentity, Opts, OptsBuilder, SslOpts};
use rustls::{RootCertStore, pki_types::CertificateDer};
use std::time::Duration;

const OPTIONS: &[&str] =
    &["prefix", "create", "password_file", "tls", "tls_ca", "tls_cert", "tls_key"];
const PORT: u16 = 3306;
/// The longest packet that we send or take; what is longer than the server's own limit is refused by it.
const PACKET_MAX: usize = 64 << 20;
/// For how many seconds an idle connection stays, as [`GREETING`] says.
const WAIT_TIMEOUT: usize = 86_400;
/// Ends a connection whose other end has gone without a word.
const KEEPALIVE: Duration = Duration::from_secs(30);
/// With this the longest name of a table or procedure still fits.
const PREFIX_MAX: usize = 40;

/// What a URL says.
pub(super) struct Config {
    pub(super) opts: Opts,
    pub(super) prefix: String,
    /// May the store make the tables and bring them up to date?
    pub(super) create: bool,
}

impl Config {
    /// `mysql://[USER[:PASSWORD]@]HOST[:PORT]/DATABASE`
    pub(super) fn read(url: &mut StoreUrl) -> Result<Self> {
        let authority = url.authority()?;
        let prefix = url.take("prefix").unwrap_or_else(|| "lk".to_owned());
        let password = url.take_file("password_file")?.or(authority.password);
        let create = url.flag("create")?.unwrap_or(true);
        let tls = tls(url)?;
        url.finish(OPTIONS)?;
        let is_plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
        if prefix.is_empty() || prefix.len() > PREFIX_MAX || !prefix.chars().all(is_plain) {
            let what = format!("prefix= has 1 to {PREFIX_MAX} of the characters a-z, 0-9 and _");
            return Err(Error::url(what));
        }
        let [(host, port)] = &authority.hosts[..] else {
            return Err(Error::url("mysql:// takes one server"));
        };
        if authority.path.is_empty() || authority.path.contains('/') {
            let what = "mysql:// needs the name of a database, as in mysql://host/lockkeeper";
            return Err(Error::url(what));
        }
        let opts = OptsBuilder::default()
            .ip_or_hostname(host)
            .tcp_port(port.unwrap_or(PORT))
            .user(authority.user)
            .pass(password)
            .db_name(Some(authority.path))
            .prefer_socket(false)
            .tcp_nodelay(true)
            .tcp_keepalive(Some(KEEPALIVE))
            .ssl_opts(tls)
            // More than there are, so that the driver closes no statement of ours.
            .stmt_cache_size(256)
            // Otherwise the driver asks for both whenever it connects.
            .max_allowed_packet(Some(PACKET_MAX))
            .wait_timeout(Some(WAIT_TIMEOUT))
            .setup(GREETING.to_vec());
        Ok(Self { opts: opts.into(), prefix, create })
    }
}

fn tls(url: &mut StoreUrl) -> Result<Option<SslOpts>> {
    let wanted = url.flag("tls")?.unwrap_or(false);
    let ca = url.take_file_bytes("tls_ca")?;
    let (cert, key) = (url.take_file_bytes("tls_cert")?, url.take_file_bytes("tls_key")?);
    let identity = match (cert, key) {
        (Some(cert), Some(key)) => Some(ClientIdentity::new(cert.into(), key.into())),
        (None, None) => None,
        _ => return Err(Error::url_option("tls_cert", "tls_cert= and tls_key= belong together")),
    };
    if !wanted && ca.is_none() && identity.is_none() {
        return Ok(None);
    }
    // rustls must be told once which cryptography to use; a program that has chosen keeps its choice.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let opts = SslOpts::default().with_client_identity(identity);
    let roots = roots(ca)?.into_iter().map(Into::into).collect();
    Ok(Some(opts.with_root_certs(roots).with_disable_built_in_roots(true)))
}

/// The authorities of the given file, or the system's.
fn roots(ca: Option<Vec<u8>>) -> Result<Vec<Vec<u8>>> {
    if let Some(file) = ca {
        return Ok(vec![file]);
    }
    let trusted = rustls_native_certs::load_native_certs().certs;
    // The driver fails if it cannot read one of them.
    let readable = |root: &CertificateDer<'_>| RootCertStore::empty().add(root.clone()).is_ok();
    let roots: Vec<_> = trusted.into_iter().filter(readable).map(|root| root.to_vec()).collect();
    if roots.is_empty() {
        return Err(Error::url("no certificate authority is trusted; say tls_ca=FILE"));
    }
    Ok(roots)
}
