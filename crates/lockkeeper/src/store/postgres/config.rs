//! From a URL to what is needed to connect.

use super::KIND;
use crate::{
    error::{Error, ErrorKind, Result, StoreError},
    store::{StoreResult, common::tls, url::StoreUrl},
};
use std::sync::atomic::AtomicUsize;
use tokio::net::TcpStream;
use tokio_postgres::{config::SslMode, tls::MakeTlsConnect};
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

/// What a URL says. It has no `Debug`: it may hold a password.
pub(super) struct Config {
    driver: tokio_postgres::Config,
    hosts: Vec<(String, u16)>,
    tls: Option<MakeRustlsConnect>,
    /// The schema's name, not quoted.
    pub(super) schema: String,
    /// May the store create the schema and bring it up to date?
    pub(super) create: bool,
    /// Does a pooler stand in between that lends connections for one transaction? `None`: the store finds out.
    pub(super) pooler: Option<bool>,
    /// The host that is tried first: the last one that a connection of this handle could use.
    pub(super) first_host: AtomicUsize,
}

/// TLS to one host.
pub(super) type Tls = <MakeRustlsConnect as MakeTlsConnect<TcpStream>>::TlsConnect;

impl Config {
    /// `postgres://[USER[:PASSWORD]@]HOST[:PORT],…[/DATABASE]`
    pub(super) fn read(url: &mut StoreUrl) -> Result<Self> {
        let authority = url.authority()?;
        let schema = url.take("schema").unwrap_or_else(|| "lockkeeper".to_owned());
        let forbidden = |c: char| c.is_control() || matches!(c, '"' | '\'' | '\\' | '$' | '.');
        if schema.is_empty() || schema.len() > 63 || schema.contains(forbidden) {
            let what =
                "schema= must be the name of a schema, 1 to 63 bytes without quotes and dots";
            return Err(Error::url(what));
        }
        let create = url.flag("create")?.unwrap_or(true);
        let pooler = url.flag("pooler")?;
        let password = url.take_file("password_file")?.or_else(|| authority.password.clone());
        let tls = tls(url)?;
        url.finish(OPTIONS)?;
        let mut driver = tokio_postgres::Config::new();
        driver.application_name("lockkeeper");
        driver.user(authority.user.as_deref().unwrap_or("postgres"));
        if !authority.path.is_empty() {
            driver.dbname(&authority.path);
        }
        if let Some(password) = password {
            driver.password(password);
        }
        driver.ssl_mode(if tls.is_some() { SslMode::Require } else { SslMode::Disable });
        let hosts = authority.hosts.into_iter();
        let hosts = hosts.map(|(host, port)| (host, port.unwrap_or(PORT))).collect();
        Ok(Self { driver, hosts, tls, schema, create, pooler, first_host: AtomicUsize::new(0) })
    }

    pub(super) fn driver(&self) -> &tokio_postgres::Config {
        &self.driver
    }

    pub(super) fn hosts(&self) -> &[(String, u16)] {
        &self.hosts
    }

    pub(super) async fn stream(&self, host: &str, port: u16) -> StoreResult<TcpStream> {
        let stream = TcpStream::connect((host, port)).await;
        stream.and_then(|stream| stream.set_nodelay(true).map(|()| stream)).map_err(|e| {
            let what = format!("cannot connect to {host}:{port}");
            StoreError::not_applied(KIND, ErrorKind::Unavailable, what).because(e)
        })
    }

    /// TLS to this host, if the URL asks for it.
    pub(super) fn tls(&self, host: &str) -> StoreResult<Option<Tls>> {
        let Some(mut tls) = self.tls.clone() else { return Ok(None) };
        let made = MakeTlsConnect::<TcpStream>::make_tls_connect(&mut tls, host);
        made.map(Some).map_err(|e| {
            let what = format!("{host:?} is no name that a certificate can have");
            StoreError::not_applied(KIND, ErrorKind::Misconfigured, what).because(e)
        })
    }
}

fn tls(url: &mut StoreUrl) -> Result<Option<MakeRustlsConnect>> {
    let mode = match url.take("sslmode").as_deref() {
        None | Some("disable") => false,
        // libpq's `require` accepts any certificate. Here a certificate is always verified.
        Some("require" | "verify-ca" | "verify-full") => true,
        Some(other) => {
            return Err(Error::url(format!(
                "option sslmode={other} is not known here; use disable or verify-full"
            )));
        }
    };
    Ok(tls::config(url, mode)?.map(MakeRustlsConnect::new))
}
