//! From a URL to a typed configuration: `lockkeeper+http://HOST[:PORT],…[/PATH][?OPTIONS]`, the same with `https`,
//! and `lockkeeper+unix:PATH`.

use super::client::{Address, Token};
use crate::{
    error::{Error, Result},
    store::{common::tls, url::StoreUrl},
};
use std::{env, sync::Arc};
use tokio_rustls::TlsConnector;

const OPTIONS: &[&str] = &["token_file", "tls_ca", "tls_cert", "tls_key"];

/// Where the service listens unless it is told otherwise.
const PORT: u16 = 7601;

/// Names the token of programs whose URL names no file with it.
const TOKEN: &str = "LOCKKEEPER_TOKEN";

/// What a URL says.
pub(in crate::store) struct Config {
    /// Where the instances of the service are.
    pub(super) addresses: Vec<Address>,
    /// What comes before the paths of the service, without a slash at its end.
    pub(super) base: String,
    pub(super) token: Token,
}

impl Config {
    /// Over TCP, with TLS if it is `secure`.
    pub(in crate::store) fn tcp(mut url: StoreUrl, secure: bool) -> Result<Self> {
        let authority = url.authority()?;
        if authority.user.is_some() || authority.password.is_some() {
            return Err(Error::url(format!(
                "{}: has no user; put the token into a file and write token_file=PATH, or into {TOKEN}",
                url.scheme()
            )));
        }
        let config = tls::config(&mut url, secure)?;
        if config.is_some() && !secure {
            return Err(Error::url("TLS is asked for: write lockkeeper+https://"));
        }
        let tls = config.map(|mut config| {
            config.alpn_protocols = vec![b"http/1.1".to_vec()];
            TlsConnector::from(Arc::new(config))
        });
        let token = token(&mut url)?;
        url.finish(OPTIONS)?;
        let address = |(host, given): (String, Option<u16>)| Address::Tcp {
            host,
            port: given.unwrap_or(PORT),
            tls: tls.clone(),
        };
        let addresses = authority.hosts.into_iter().map(address).collect();
        Ok(Self { addresses, base: base(&authority.path)?, token })
    }

    /// Over a unix socket.
    pub(in crate::store) fn unix(mut url: StoreUrl) -> Result<Self> {
        let token = token(&mut url)?;
        url.finish(&["token_file"])?;
        let socket = Address::Unix(url.socket_path()?);
        Ok(Self { addresses: vec![socket], base: String::new(), token })
    }
}

fn token(url: &mut StoreUrl) -> Result<Token> {
    match url.take_path("token_file")? {
        Some(path) => Token::from_file(path),
        None => match env::var(TOKEN) {
            Ok(token) if !token.is_empty() => Token::fixed(&token),
            _ => Ok(Token::none()),
        },
    }
}

/// What comes before the service's own paths, where a proxy has put it below one.
fn base(path: &str) -> Result<String> {
    let path = path.trim_matches('/');
    if path.is_empty() {
        return Ok(String::new());
    }
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"/-._~".contains(&b);
    match path.bytes().all(plain) {
        true => Ok(format!("/{path}")),
        false => Err(Error::url("the path behind the host has characters that need encoding")),
    }
}
