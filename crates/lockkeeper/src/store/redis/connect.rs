//! From a URL to a connection.

use super::{KIND, Redis, link::Source};
use crate::{
    clock::Clock,
    error::{Error, ErrorKind, Result, StoreError},
    store::url::{Authority, StoreUrl},
};
use redis::{
    Client, ClientTlsConfig, ConnectionAddr, ConnectionInfo, IntoConnectionInfo, ProtocolVersion,
    RedisConnectionInfo, RedisResult, TlsCertificates, TlsMode,
    cluster::ClusterClient,
    sentinel::{SentinelClientBuilder, SentinelServerType},
};

/// The options of every Redis URL.
const OPTIONS: &[&str] = &["prefix", "password_file", "tls", "tls_ca", "tls_cert", "tls_key"];

const PORT: u16 = 6379;
const SENTINEL_PORT: u16 = 26379;

/// What a URL says, before anything is connected.
struct Plan {
    authority: Authority,
    prefix: String,
    password: Option<String>,
    certificates: Option<TlsCertificates>,
}

impl Plan {
    fn read(url: &mut StoreUrl, more: &[&str]) -> Result<Self> {
        let authority = url.authority()?;
        let prefix = url.take("prefix").unwrap_or_else(|| "lk".to_owned());
        if prefix.is_empty() || prefix.contains(['{', '}']) {
            return Err(Error::Url("prefix= must not be empty or contain braces".into()));
        }
        let password = url.take_file("password_file")?.or_else(|| authority.password.clone());
        // A user may have no password; but without one the client would not even name the user.
        let password = password.or_else(|| authority.user.is_some().then(String::new));
        let certificates = certificates(url)?;
        url.finish(&[OPTIONS, more].concat())?;
        if certificates.is_some() {
            install_crypto();
        }
        Ok(Self { authority, prefix, password, certificates })
    }

    fn address(&self, host: &str, port: u16) -> ConnectionAddr {
        let host = host.to_owned();
        match &self.certificates {
            None => ConnectionAddr::Tcp(host, port),
            Some(_) => ConnectionAddr::TcpTls { host, port, insecure: false, tls_params: None },
        }
    }

    /// The addresses as people write them.
    fn to(&self, default_port: u16) -> String {
        let addresses = self.addresses(default_port);
        let texts: Vec<String> = addresses.iter().map(ToString::to_string).collect();
        texts.join(", ")
    }

    fn addresses(&self, default_port: u16) -> Vec<ConnectionAddr> {
        let hosts = self.authority.hosts.iter();
        hosts.map(|(host, port)| self.address(host, port.unwrap_or(default_port))).collect()
    }

    fn redis(&self, db: i64) -> RedisConnectionInfo {
        let info = RedisConnectionInfo::default()
            .set_protocol(ProtocolVersion::RESP3)
            .set_lib_name("lockkeeper", env!("CARGO_PKG_VERSION"))
            .set_db(db);
        let info = match &self.authority.user {
            Some(user) => info.set_username(user),
            None => info,
        };
        match &self.password {
            Some(password) => info.set_password(password),
            None => info,
        }
    }

    fn infos(&self, db: i64) -> RedisResult<Vec<ConnectionInfo>> {
        let info = |address: ConnectionAddr| {
            Ok(address.into_connection_info()?.set_redis_settings(self.redis(db)))
        };
        self.addresses(PORT).into_iter().map(info).collect()
    }

    fn client(&self, info: ConnectionInfo) -> RedisResult<Client> {
        match &self.certificates {
            None => Client::open(info),
            Some(certificates) => Client::build_with_tls(info, certificates.clone()),
        }
    }
}

fn certificates(url: &mut StoreUrl) -> Result<Option<TlsCertificates>> {
    let tls = url.scheme() == "rediss" || url.take("tls").is_some_and(|on| on == "true");
    let ca = url.take_file_bytes("tls_ca")?;
    let (cert, key) = (url.take_file_bytes("tls_cert")?, url.take_file_bytes("tls_key")?);
    let client_tls = match (cert, key) {
        (Some(client_cert), Some(client_key)) => Some(ClientTlsConfig { client_cert, client_key }),
        (None, None) => None,
        _ => return Err(Error::Url("tls_cert= and tls_key= belong together".into())),
    };
    let wanted = tls || ca.is_some() || client_tls.is_some();
    Ok(wanted.then_some(TlsCertificates { client_tls, root_cert: ca }))
}

/// rustls needs to be told once which cryptography to use; a program that has chosen keeps its choice.
fn install_crypto() {
    let _ = rustls::crypto::ring::default_provider().install_default();
}

fn bad(e: redis::RedisError) -> Error {
    let what = "the URL cannot be used";
    StoreError::not_applied(KIND, ErrorKind::Misconfigured, what).because(e).into()
}

fn db(path: &str) -> Result<i64> {
    match path {
        "" => Ok(0),
        number => number
            .parse()
            .map_err(|_| Error::Url(format!("{number:?} is not the number of a Redis database"))),
    }
}

/// One server: `redis://[USER[:PASSWORD]@]HOST[:PORT][/DB]`.
pub(in crate::store) async fn single(mut url: StoreUrl) -> Result<Redis> {
    let plan = Plan::read(&mut url, &[])?;
    let mut infos = plan.infos(db(&plan.authority.path)?).map_err(bad)?;
    let (Some(info), true) = (infos.pop(), infos.is_empty()) else {
        let what =
            "redis:// takes one server; use redis+sentinel://, redis+cluster:// or redlock://";
        return Err(Error::Url(what.into()));
    };
    let source = Source::Single(Box::new(plan.client(info).map_err(bad)?));
    Ok(Redis::over(source, plan.to(PORT), &plan.prefix, Clock::system()).await?)
}

/// Servers that know nothing of each other, for Redlock; and the prefix of its keys.
pub(in crate::store) fn independent(
    url: &mut StoreUrl,
    options: &[&str],
) -> Result<(Vec<Client>, String)> {
    let plan = Plan::read(url, options)?;
    let infos = plan.infos(db(&plan.authority.path)?).map_err(bad)?;
    let clients = infos.into_iter().map(|info| plan.client(info)).collect::<RedisResult<_>>();
    Ok((clients.map_err(bad)?, plan.prefix))
}

/// A primary behind sentinels: `redis+sentinel://[USER[:PASSWORD]@]HOST,HOST,…/SERVICE[/DB]`.
pub(in crate::store) async fn sentinel(mut url: StoreUrl) -> Result<Redis> {
    let plan = Plan::read(&mut url, &[])?;
    let (service, number) =
        plan.authority.path.split_once('/').unwrap_or((&plan.authority.path, ""));
    if service.is_empty() {
        let what = "redis+sentinel:// needs the name of the service, as in redis+sentinel://a,b,c/mymaster";
        return Err(Error::Url(what.into()));
    }
    let (addresses, to) = (plan.addresses(SENTINEL_PORT), plan.to(SENTINEL_PORT));
    let builder = SentinelClientBuilder::new(addresses, service, SentinelServerType::Master);
    let mut builder = builder
        .map_err(bad)?
        .set_client_to_redis_protocol(ProtocolVersion::RESP3)
        .set_client_to_redis_db(db(number)?);
    if let Some(user) = &plan.authority.user {
        builder = builder.set_client_to_redis_username(user);
    }
    if let Some(password) = &plan.password {
        builder = builder.set_client_to_redis_password(password);
    }
    if let Some(certificates) = &plan.certificates {
        builder = builder
            .set_client_to_redis_tls_mode(TlsMode::Secure)
            .set_client_to_redis_certificates(certificates.clone());
    }
    let client = builder.build().map_err(bad)?;
    let source = Source::Sentinel(Box::new(tokio::sync::Mutex::new(client)));
    Ok(Redis::over(source, to, &plan.prefix, Clock::system()).await?)
}

/// A cluster: `redis+cluster://[USER[:PASSWORD]@]HOST,HOST,…`.
pub(in crate::store) async fn cluster(mut url: StoreUrl) -> Result<Redis> {
    let plan = Plan::read(&mut url, &[])?;
    let infos = plan.infos(0).map_err(bad)?;
    let mut builder = ClusterClient::builder(infos).use_protocol(ProtocolVersion::RESP3).retries(3);
    if let Some(certificates) = &plan.certificates {
        builder = builder.tls(TlsMode::Secure).certs(certificates.clone());
    }
    let client = builder.build().map_err(bad)?;
    let source = Source::Cluster(Box::new(client));
    Ok(Redis::over(source, plan.to(PORT), &plan.prefix, Clock::system()).await?)
}
