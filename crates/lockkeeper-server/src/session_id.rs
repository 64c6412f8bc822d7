//! From the secret in a header to the session in the store.
//!
//! The client makes the secret. The store never sees it: its session id is derived from the secret and the
//! principal, so the secret alone, under another principal, is another session.

use crate::{
    extract::{Caller, parameter},
    principal::Principal,
    problem::Problem,
    service::Service,
};
use axum::extract::FromRequestParts;
use http::{HeaderMap, request::Parts};
use lockkeeper::store::{SessionId, http::wire};
use ring::digest::{Context, SHA256};
use std::fmt;
use subtle::ConstantTimeEq as _;

/// A session of the caller.
#[derive(Clone)]
pub(crate) struct Session {
    /// As the store knows it.
    pub(crate) id: SessionId,
    /// Its public half.
    pub(crate) public: String,
}

/// A session's secret: 32 hexadecimal digits.
#[derive(Clone)]
pub(crate) struct Secret(String);

impl Secret {
    /// A fresh one.
    pub(crate) fn random() -> Self {
        let bytes = SessionId::random().to_bytes();
        Self(format!("{:032x}", u128::from_be_bytes(bytes)))
    }

    /// Reads one.
    pub(crate) fn read(text: &str) -> Result<Self, Problem> {
        match text.len() == 32 && text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            true => Ok(Self(text.to_owned())),
            false => {
                let what = "a session's secret has 32 hexadecimal digits, drawn at random";
                Err(Problem::new("request", what).not_applied())
            }
        }
    }

    /// As it is, for the answer that opens the session.
    pub(crate) fn into_text(self) -> String {
        self.0
    }

    /// The session with this secret.
    pub(crate) fn session(&self, of: &Principal) -> Session {
        let mut context = Context::new(&SHA256);
        context.update(b"lockkeeper-session:");
        context.update(of.name().as_bytes());
        context.update(&[0]);
        context.update(self.0.as_bytes());
        let mut id = [0; 16];
        id.copy_from_slice(&context.finish().as_ref()[..16]);
        Session { id: SessionId::from_bytes(id), public: wire::public_half(&self.0) }
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(hidden)")
    }
}

/// The session whose secret stands in the header, if there is one. A public half beside it must be the secret's.
pub(crate) fn in_headers(
    headers: &HeaderMap,
    principal: &Principal,
) -> Result<Option<Session>, Problem> {
    let named = headers.get(wire::SESSION).map(|value| value.as_bytes());
    let Some(secret) = headers.get(wire::SECRET) else {
        return match named {
            None => Ok(None),
            Some(_) => Err(missing()),
        };
    };
    let secret = Secret::read(secret.to_str().unwrap_or_default())?;
    let session = secret.session(principal);
    if named.is_some_and(|named| !are_equal(named, session.public.as_bytes())) {
        return Err(mismatch());
    }
    Ok(Some(session))
}

/// The session whose secret stands in the header, as a route without a session in its path needs it.
pub(crate) fn needed(headers: &HeaderMap, principal: &Principal) -> Result<Session, Problem> {
    in_headers(headers, principal)?.ok_or_else(missing)
}

fn missing() -> Problem {
    let what = "the session's secret is missing: send it in the header Lockkeeper-Secret";
    Problem::new("secret", what).not_applied()
}

fn mismatch() -> Problem {
    let what = "the secret in the header Lockkeeper-Secret is not that of the session";
    Problem::new("secret", what).not_applied()
}

/// The session that the path names and whose secret stands in the header.
impl FromRequestParts<Service> for Session {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, service: &Service) -> Result<Self, Problem> {
        let Caller(principal) = Caller::from_request_parts(parts, service).await?;
        let named = parameter(parts, service, "session").await?;
        let session = needed(&parts.headers, &principal)?;
        match are_equal(named.as_bytes(), session.public.as_bytes()) {
            true => Ok(session),
            false => Err(mismatch()),
        }
    }
}

/// Compares without telling by its time where the first difference is.
fn are_equal(a: &[u8], b: &[u8]) -> bool {
    a.ct_eq(b).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECRET: &str = "000102030405060708090a0b0c0d0e0f";

    fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        pairs.iter().map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap())).collect()
    }

    #[test]
    fn a_session_is_known_by_its_secret_and_named_by_its_public_half() {
        let anyone = Principal::everything();
        let secret = Secret::read(SECRET).unwrap();
        let public = secret.session(&anyone).public;
        let said = headers(&[(wire::SECRET, SECRET), (wire::SESSION, &public)]);
        let found = in_headers(&said, &anyone).unwrap().unwrap();
        assert!(found.id == secret.session(&anyone).id);
        assert!(found.id.to_bytes() != u128::from_str_radix(SECRET, 16).unwrap().to_be_bytes());
        let other = headers(&[(wire::SECRET, SECRET), (wire::SESSION, &"0".repeat(32))]);
        assert_eq!(in_headers(&other, &anyone).err().unwrap().kind(), "secret");
        let alone = headers(&[(wire::SESSION, &public)]);
        assert_eq!(in_headers(&alone, &anyone).err().unwrap().kind(), "secret");
        assert!(in_headers(&HeaderMap::new(), &anyone).unwrap().is_none());
    }

    #[test]
    fn what_is_no_secret_is_refused_and_never_shown() {
        for text in ["", "0", &"g".repeat(32), &"0".repeat(33)] {
            assert!(Secret::read(text).is_err(), "{text}");
        }
        assert_eq!(format!("{:?}", Secret::read(SECRET).unwrap()), "Secret(hidden)");
        assert_eq!(Secret::random().into_text().len(), 32);
    }
}
