//! From a URL to a typed configuration. Nothing is connected here.

use super::{KIND, connection::Source};
use crate::{
    error::{Error, ErrorKind, Result, StoreError},
    store::url::{Authority, StoreUrl},
};
use redis::{
    Client, ClientTlsConfig, ConnectionAddr, ConnectionInfo, IntoConnectionInfo, ProtocolVersion,
    RedisConnectionInfo, RedisResult, TlsCertificates, TlsMode,
    cluster::ClusterClient,
    sentinel::{SentinelClientBuilder, SentinelServerType},
};

const PORT: u16 = 6379;
const SENTINEL_PORT: u16 = 26379;

/// What a store needs to connect.
pub(in crate::store) struct Config {
    pub(super) source: Source,
    /// The addresses in the URL, for error messages.
    pub(super) addresses: String,
    pub(super) prefix: String,
}

impl Config {
    /// One server: `redis://[USER[:PASSWORD]@]HOST[:PORT][/DB]`.
    pub(in crate::store) fn single(mut url: StoreUrl) -> Result<Self> {
        let access = Access::read(&mut url)?;
        let [client] = <[Client; 1]>::try_from(access.clients()?).map_err(|_| {
            let what =
                "redis:// takes one server; use redis+sentinel://, redis+cluster:// or redlock://";
            Error::url(what)
        })?;
        Ok(access.config(Source::Single(Box::new(client)), PORT))
    }

    /// A primary behind sentinels: `redis+sentinel://[USER[:PASSWORD]@]HOST,HOST,…/SERVICE[/DB]`.
    pub(in crate::store) fn sentinel(mut url: StoreUrl) -> Result<Self> {
        let access = Access::read(&mut url)?;
        let path = &access.authority.path;
        let (service, db) = path.split_once('/').unwrap_or((path, ""));
        if service.is_empty() {
            let what = "redis+sentinel:// needs the name of the service, as in redis+sentinel://a,b,c/mymaster";
            return Err(Error::url(what));
        }
        let addresses = access.addresses(SENTINEL_PORT);
        let mut builder =
            SentinelClientBuilder::new(addresses, service, SentinelServerType::Master)
                .map_err(unusable)?
                .set_client_to_redis_protocol(ProtocolVersion::RESP3)
                .set_client_to_redis_db(number(db)?);
        if let Some(user) = &access.authority.user {
            builder = builder.set_client_to_redis_username(user);
        }
        if let Some(password) = &access.password {
            builder = builder.set_client_to_redis_password(password);
        }
        if let Some(certificates) = &access.certificates {
            builder = builder
                .set_client_to_redis_tls_mode(TlsMode::Secure)
                .set_client_to_redis_certificates(certificates.clone());
        }
        let client = tokio::sync::Mutex::new(builder.build().map_err(unusable)?);
        Ok(access.config(Source::Sentinel(Box::new(client)), SENTINEL_PORT))
    }

    /// A cluster: `redis+cluster://[USER[:PASSWORD]@]HOST,HOST,…`.
    pub(in crate::store) fn cluster(mut url: StoreUrl) -> Result<Self> {
        let access = Access::read(&mut url)?;
        let nodes = access.servers(0).map_err(unusable)?;
        let mut builder =
            ClusterClient::builder(nodes).use_protocol(ProtocolVersion::RESP3).retries(3);
        if let Some(certificates) = &access.certificates {
            builder = builder.tls(TlsMode::Secure).certs(certificates.clone());
        }
        let client = builder.build().map_err(unusable)?;
        Ok(access.config(Source::Cluster(Box::new(client)), PORT))
    }
}

/// Servers that know nothing of each other, for Redlock; and the prefix of its keys.
pub(in crate::store) fn independent(url: &mut StoreUrl) -> Result<(Vec<Client>, String)> {
    let access = Access::read(url)?;
    Ok((access.clients()?, access.prefix))
}

/// What every Redis URL says: the servers, and how to be let in.
struct Access {
    authority: Authority,
    prefix: String,
    password: Option<String>,
    certificates: Option<TlsCertificates>,
}

impl Access {
    fn read(url: &mut StoreUrl) -> Result<Self> {
        let authority = url.authority()?;
        let prefix = url.take("prefix").unwrap_or_else(|| "lk".to_owned());
        if prefix.is_empty() || prefix.contains(['{', '}']) {
            return Err(Error::url_option("prefix", "prefix= must not be empty or contain braces"));
        }
        let password = url.take_file("password_file")?.or_else(|| authority.password.clone());
        // A user may have no password; but without one the client would not even name the user.
        let password = password.or_else(|| authority.user.is_some().then(String::new));
        let certificates = certificates(url)?;
        if matches!(url.scheme(), "redis" | "rediss") {
            // With compat= the URL leads to another store. It is asked for to be among the known options.
            url.take("compat");
        }
        url.finish(&[])?;
        if certificates.is_some() {
            install_crypto();
        }
        Ok(Self { authority, prefix, password, certificates })
    }

    fn config(self, source: Source, default_port: u16) -> Config {
        let addresses = self.addresses(default_port);
        let addresses: Vec<String> = addresses.iter().map(ToString::to_string).collect();
        Config { source, addresses: addresses.join(", "), prefix: self.prefix }
    }

    fn addresses(&self, default_port: u16) -> Vec<ConnectionAddr> {
        let address = |(host, port): &(String, Option<u16>)| {
            let (host, port) = (host.clone(), port.unwrap_or(default_port));
            match &self.certificates {
                None => ConnectionAddr::Tcp(host, port),
                Some(_) => ConnectionAddr::TcpTls { host, port, insecure: false, tls_params: None },
            }
        };
        self.authority.hosts.iter().map(address).collect()
    }

    fn servers(&self, db: i64) -> RedisResult<Vec<ConnectionInfo>> {
        let mut settings = RedisConnectionInfo::default()
            .set_protocol(ProtocolVersion::RESP3)
            .set_lib_name("lockkeeper", env!("CARGO_PKG_VERSION"))
            .set_db(db);
        if let Some(user) = &self.authority.user {
            settings = settings.set_username(user);
        }
        if let Some(password) = &self.password {
            settings = settings.set_password(password);
        }
        let server = |address: ConnectionAddr| {
            Ok(address.into_connection_info()?.set_redis_settings(settings.clone()))
        };
        self.addresses(PORT).into_iter().map(server).collect()
    }

    /// A client for each server, where the path is the number of a database.
    fn clients(&self) -> Result<Vec<Client>> {
        let servers = self.servers(number(&self.authority.path)?).map_err(unusable)?;
        let client = |server| match &self.certificates {
            None => Client::open(server),
            Some(certificates) => Client::build_with_tls(server, certificates.clone()),
        };
        servers.into_iter().map(client).collect::<RedisResult<_>>().map_err(unusable)
    }
}

fn certificates(url: &mut StoreUrl) -> Result<Option<TlsCertificates>> {
    let tls = url.flag("tls")?.unwrap_or(false) || url.scheme() == "rediss";
    let root_cert = url.take_file_bytes("tls_ca")?;
    let client_tls = match (url.take_file_bytes("tls_cert")?, url.take_file_bytes("tls_key")?) {
        (Some(client_cert), Some(client_key)) => Some(ClientTlsConfig { client_cert, client_key }),
        (None, None) => None,
        _ => return Err(Error::url_option("tls_cert", "tls_cert= and tls_key= belong together")),
    };
    let is_wanted = tls || root_cert.is_some() || client_tls.is_some();
    Ok(is_wanted.then_some(TlsCertificates { client_tls, root_cert }))
}

/// rustls needs to be told once which cryptography to use; a program that has chosen keeps its choice.
fn install_crypto() {
    let _ = rustls::crypto::ring::default_provider().install_default();
}

fn unusable(e: redis::RedisError) -> Error {
    let what = "the URL cannot be used";
    StoreError::not_applied(KIND, ErrorKind::Misconfigured, what).because(e).into()
}

/// The number of a database.
fn number(path: &str) -> Result<i64> {
    if path.is_empty() {
        return Ok(0);
    }
    let bad = |_| Error::url(format!("{path:?} is not the number of a Redis database"));
    path.parse().map_err(bad)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tls_option_that_is_not_understood_is_an_error_and_not_a_plain_connection() {
        for wrong in ["True", "yes", "1", ""] {
            let url = StoreUrl::parse(&format!("redis+cluster://host?tls={wrong}")).expect("a URL");
            let e = Config::cluster(url).err().expect("no configuration").to_string();
            assert!(e.contains("neither true nor false"), "{wrong}: {e}");
        }
        let url = StoreUrl::parse("redis+cluster://host?tls=true").expect("a URL");
        assert!(Config::cluster(url).is_ok());
    }
}
