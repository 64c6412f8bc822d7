//! Sessions: opening, renewing and closing them.

use super::{
    Http, KIND,
    client::{Ask, Client, Retry},
    error,
    wire::{self, OpenSession, RenewSession, SessionOpened, SessionRenewed, StoreInfo},
};
use crate::{
    error::{ErrorKind, StoreError},
    model::ticket::{Place, SessionId, TicketId},
    store::{Open, Renewal, StoreResult, Terms, TicketDigest},
};
use http::Method;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use std::{
    fmt::Display,
    hash::{DefaultHasher, Hash as _, Hasher as _},
    sync::atomic::Ordering,
    time::Duration,
};

/// What a path keeps as it is. Dots are encoded too: a segment of dots would be taken for another folder.
const KEPT: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_');

/// A text as one segment of a path, or as a value in a query.
pub(super) fn segment(text: &str) -> impl Display {
    utf8_percent_encode(text, KEPT)
}

pub(super) fn hex(bytes: [u8; 16]) -> String {
    format!("{:032x}", u128::from_be_bytes(bytes))
}

/// Whole milliseconds, at least so long.
pub(super) fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}

pub(super) fn path_of(session: SessionId, below: &str) -> String {
    format!("/v1/sessions/{}{below}", wire::public_half(&hex(session.to_bytes())))
}

pub(super) fn path_of_ticket(place: &Place) -> String {
    format!("/v1/locks/{}/tickets/{}", segment(place.name.as_str()), place.ticket)
}

impl Ask {
    /// Proves that the caller may act for the session.
    pub(super) fn secret_of(self, session: SessionId) -> Self {
        self.header(wire::SECRET, hex(session.to_bytes()))
    }

    /// The same where the path does not name the session.
    pub(super) fn for_session(self, session: SessionId) -> Self {
        let secret = hex(session.to_bytes());
        self.header(wire::SESSION, wire::public_half(&secret)).header(wire::SECRET, secret)
    }
}

/// What the store behind the service is, and what it can do.
pub(super) async fn info(client: &Client) -> StoreResult<StoreInfo> {
    let reply = client.call(&Ask::get("/v1/store")).await?;
    if !reply.is_success() {
        return Err(error::refusal(&reply));
    }
    reply.read()
}

pub(super) fn store_id(info: &StoreInfo) -> StoreResult<u64> {
    u64::from_str_radix(&info.store, 16).map_err(|e| {
        let what = "the identity of the service's store makes no sense";
        StoreError::not_applied(KIND, ErrorKind::Corrupt, what).because(e)
    })
}

impl Http {
    /// One that is repeated opens the same session.
    pub(super) async fn open_session(&self, ask: Open) -> StoreResult<Terms> {
        let open = OpenSession {
            secret: Some(hex(ask.session.to_bytes())),
            ttl_ms: Some(millis(ask.ttl)),
            lock_delay_ms: Some(millis(ask.lock_delay)),
            owner: Some(ask.owner),
        };
        let ask = Ask::new(Method::POST, "/v1/sessions", Retry::Safe).json(&open)?;
        let (info, reply) = tokio::join!(info(&self.client), self.client.call(&ask));
        let reply = reply?;
        if !reply.is_success() {
            return Err(error::refusal(&reply));
        }
        let SessionOpened { terms, .. } = reply.read()?;
        self.id.store(store_id(&info?)?, Ordering::Release);
        Ok(Terms {
            ttl: Duration::from_millis(terms.ttl_ms),
            lock_delay: Duration::from_millis(terms.lock_delay_ms),
            margin: Duration::from_millis(terms.margin_ms),
        })
    }

    pub(super) async fn renew_session(&self, session: SessionId) -> StoreResult<Renewal> {
        let ask = Ask::new(Method::POST, path_of(session, "/renew"), Retry::Safe)
            .secret_of(session)
            .json(&RenewSession { tickets: false })?
            .urgent();
        let reply = self.client.call(&ask).await?;
        if !reply.is_success() {
            let e = error::refusal(&reply);
            return match e.kind {
                ErrorKind::SessionOver => Ok(Renewal::Lost),
                _ => Err(e),
            };
        }
        let SessionRenewed { version, digest, .. } = reply.read()?;
        let tickets = digest.as_ref().map(read_digest).transpose()?;
        Ok(Renewal::Renewed { version: number(&version), tickets })
    }

    pub(super) async fn close_session(&self, session: SessionId) -> StoreResult<()> {
        let ask = Ask::new(Method::DELETE, path_of(session, ""), Retry::Safe).secret_of(session);
        let reply = self.client.call(&ask).await?;
        if reply.is_success() {
            return Ok(());
        }
        let e = error::refusal(&reply);
        if e.kind == ErrorKind::SessionOver { Ok(()) } else { Err(e) }
    }
}

/// Another number for another text. It is compared with what this process has seen and with nothing else.
fn number(version: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    version.hash(&mut hasher);
    hasher.finish()
}

fn read_digest(digest: &wire::Digest) -> StoreResult<TicketDigest> {
    let sum = digest.sum.parse().map_err(|e: std::num::ParseIntError| {
        let what = "the sum of a session's tickets makes no sense";
        StoreError::unknown(KIND, ErrorKind::Corrupt, what).because(e)
    })?;
    Ok(TicketDigest { count: digest.count, sum })
}

/// A ticket's path and session, for requests that change it.
pub(super) fn change(method: Method, place: &Place, query: &str, retry: Retry) -> Ask {
    let path = format!("{}{query}", path_of_ticket(place));
    Ask::new(method, path, retry).for_session(place.session)
}

/// A ticket among those of its session.
pub(super) fn reference(name: &crate::Name, ticket: TicketId) -> wire::TicketRef {
    wire::TicketRef { lock: name.clone(), ticket }
}
