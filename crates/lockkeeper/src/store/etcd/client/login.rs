//! The user's name and password, and the token that the servers gave for them.

use super::{
    Client, error,
    proto::{AuthenticateRequest, AuthenticateResponse},
    retry::REQUEST,
};
use crate::{store::StoreResult, sync::Mutex};
use tonic::metadata::{Ascii, MetadataValue};

pub(super) const AUTHENTICATE: &str = "/etcdserverpb.Auth/Authenticate";
/// How many new tokens one request asks for.
pub(super) const LOGINS_MAX: u32 = 2;

type Token = MetadataValue<Ascii>;

/// A user of etcd.
pub(crate) struct Credentials {
    pub(crate) user: String,
    pub(crate) password: String,
}

pub(super) struct Login {
    credentials: Option<Credentials>,
    latest: Mutex<Latest>,
    /// One task at a time asks for a token: it costs the server a good part of a second.
    asking: tokio::sync::Mutex<()>,
}

#[derive(Default)]
struct Latest {
    token: Option<Token>,
    /// How many times a token was asked for.
    logins: u64,
}

impl Login {
    pub(super) fn new(credentials: Option<Credentials>) -> Self {
        Self { credentials, latest: Mutex::default(), asking: tokio::sync::Mutex::default() }
    }

    pub(super) fn is_needed(&self) -> bool {
        self.credentials.is_some()
    }

    pub(super) fn token(&self) -> Option<Token> {
        self.credentials.as_ref()?;
        self.latest.lock().token.clone()
    }

    /// Notes that a token was asked for. If none came, the old one stays.
    fn answered(&self, token: Option<Token>) {
        let mut latest = self.latest.lock();
        latest.logins += 1;
        if let Some(mut token) = token {
            token.set_sensitive(true);
            latest.token = Some(token);
        }
    }
}

impl Client {
    /// How many times this client has asked for a token: see [`log_in`](Self::log_in).
    pub(crate) fn logins(&self) -> u64 {
        if self.login.is_needed() { self.login.latest.lock().logins } else { 0 }
    }

    /// Gets a new token for the user, if there is one, unless another task has asked since `logins` was
    /// read.
    pub(crate) async fn log_in(&self, logins: u64) -> StoreResult<()> {
        let Some(Credentials { user, password }) = &self.login.credentials else { return Ok(()) };
        let _alone = self.login.asking.lock().await;
        if self.logins() != logins {
            return Ok(());
        }
        let request = AuthenticateRequest { name: user.clone(), password: password.clone() };
        let token = self.ask_for_token(request).await;
        self.login.answered(token.as_ref().ok().cloned());
        token.map(drop)
    }

    async fn ask_for_token(&self, request: AuthenticateRequest) -> StoreResult<Token> {
        let mut tries = 0;
        loop {
            let end = self.clock.now() + REQUEST;
            tries += 1;
            let answer = self.attempt(AUTHENTICATE, request.clone(), end).await;
            match answer.map(|AuthenticateResponse { token }| token.parse()) {
                Ok(token) => return token.map_err(|_| error::malformed("the token")),
                Err(failure) if failure.try_next_endpoint && tries <= self.endpoints.len() => {}
                Err(failure) => return Err(failure.error),
            }
        }
    }
}
