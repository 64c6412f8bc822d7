//! From a URL to a client: `etcd://[USER[:PASSWORD]@]HOST[:PORT],…[?OPTIONS]`.

use super::{Etcd, KIND, client::Client, keys::Keys, login::Credentials};
use crate::{
    clock::Clock,
    error::{Error, Result, StoreError, Trouble},
    store::url::StoreUrl,
};
use std::time::Duration;
use tonic::transport::{Certificate, ClientTlsConfig, Endpoint, Identity};

const OPTIONS: &[&str] =
    &["prefix", "raw", "password_file", "tls", "tls_ca", "tls_cert", "tls_key"];
const PORT: u16 = 2379;

/// For how long connecting to an endpoint may take: less than an attempt, so that it is known that nothing
/// was sent.
const CONNECT: Duration = Duration::from_secs(1);
/// How often an idle connection is tried. A server that is asked more often than every five seconds
/// takes it for an attack.
const PING: Duration = Duration::from_secs(6);
/// For how long the answer to that may take.
const PONG: Duration = Duration::from_secs(3);

/// Connects to the cluster that a URL names.
pub(in crate::store) async fn connect(mut url: StoreUrl) -> Result<Etcd> {
    let authority = url.authority()?;
    let root = url.take("prefix").unwrap_or_else(|| "lockkeeper".to_owned());
    if root.is_empty() {
        return Err(Error::Url("prefix= must not be empty".into()));
    }
    let raw = flag(&mut url, "raw")?;
    let password = url.take_file("password_file")?.or(authority.password);
    let tls = tls(&mut url)?;
    url.finish(OPTIONS)?;
    if !authority.path.is_empty() {
        let what = "etcd:// has no path; put prefix=NAME behind a question mark";
        return Err(Error::Url(what.into()));
    }
    let credentials = match (authority.user, password) {
        (Some(user), Some(password)) => Some(Credentials { user, password }),
        (None, None) => None,
        _ => return Err(Error::Url("a user and a password belong together".into())),
    };
    let endpoint = |(host, port): &(String, Option<u16>)| {
        endpoint(host, port.unwrap_or(PORT), tls.as_ref()).map_err(|e| bad(e).into())
    };
    let endpoints: Vec<Endpoint> = authority.hosts.iter().map(endpoint).collect::<Result<_>>()?;
    let client = Client::new(&endpoints, credentials, Clock::system());
    Ok(Etcd::over(client, Keys::new(root, raw), Clock::system()).await?)
}

fn flag(url: &mut StoreUrl, option: &str) -> Result<bool> {
    match url.take(option).as_deref() {
        None | Some("false") => Ok(false),
        Some("true") => Ok(true),
        Some(other) => Err(Error::Url(format!("option {option}={other} is not true or false"))),
    }
}

fn tls(url: &mut StoreUrl) -> Result<Option<ClientTlsConfig>> {
    let wanted = flag(url, "tls")?;
    let ca = url.take_file_bytes("tls_ca")?;
    let (cert, key) = (url.take_file_bytes("tls_cert")?, url.take_file_bytes("tls_key")?);
    let identity = match (cert, key) {
        (Some(cert), Some(key)) => Some(Identity::from_pem(cert, key)),
        (None, None) => None,
        _ => return Err(Error::Url("tls_cert= and tls_key= belong together".into())),
    };
    if !wanted && ca.is_none() && identity.is_none() {
        return Ok(None);
    }
    let config = match ca {
        Some(ca) => ClientTlsConfig::new().ca_certificate(Certificate::from_pem(ca)),
        None => ClientTlsConfig::new().with_native_roots(),
    };
    Ok(Some(match identity {
        Some(identity) => config.identity(identity),
        None => config,
    }))
}

fn endpoint(
    host: &str,
    port: u16,
    tls: Option<&ClientTlsConfig>,
) -> Result<Endpoint, tonic::transport::Error> {
    let scheme = if tls.is_some() { "https" } else { "http" };
    let host = if host.contains(':') { format!("[{host}]") } else { host.to_owned() };
    let endpoint = Endpoint::from_shared(format!("{scheme}://{host}:{port}"))?
        .connect_timeout(CONNECT)
        .tcp_nodelay(true)
        .http2_keep_alive_interval(PING)
        .keep_alive_timeout(PONG)
        .keep_alive_while_idle(true);
    match tls {
        Some(tls) => endpoint.tls_config(tls.clone()),
        None => Ok(endpoint),
    }
}

fn bad(e: tonic::transport::Error) -> StoreError {
    StoreError::not_applied(KIND, Trouble::Misconfigured, "the URL cannot be used").because(e)
}
