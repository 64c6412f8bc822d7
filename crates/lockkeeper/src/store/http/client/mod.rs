//! A client of HTTP services that knows nothing of locks: requests to one of several instances at a time.
//!
//! | file | holds |
//! |---|---|
//! | `retry` | how long a request is tried, at which instance, and when it may be sent again |
//! | `endpoint` | the connections to one instance, kept for the next request |
//! | `events` | a stream of server-sent events |
//! | `token` | the bearer token, and where it is from |
//!
//! HTTP/1.1, since every proxy forwards it to the service, and one request at a time needs the least work on both
//! sides. Every request is bounded in time.

mod endpoint;
mod events;
mod retry;
mod token;

pub(super) use endpoint::Address;
pub(super) use events::Events;
pub(super) use retry::Retry;
pub(super) use token::Token;

use super::{config::Config, wire};
use crate::{
    clock::Clock,
    error::{ErrorKind, Outcome, StoreError},
    store::{StoreResult, common::server_clock::ServerClock},
};
use bytes::Bytes;
use endpoint::Endpoint;
use http::{HeaderMap, HeaderValue, Method, Request, StatusCode, header};
use http_body_util::Full;
use serde::{Serialize, de::DeserializeOwned};
use std::fmt::Display;
use tokio::sync::{Semaphore, watch};

/// How many requests are under way at once, each on a connection of its own. The others wait for these; renewals do not.
const AT_ONCE: usize = 64;

const JSON: &str = "application/json";

/// Makes requests to a service.
pub(super) struct Client {
    clock: Clock,
    server_clock: ServerClock,
    endpoints: Vec<Endpoint>,
    /// Counts the changes of endpoint. Modulo the number of endpoints it is the one in use.
    epoch: watch::Sender<usize>,
    base: String,
    token: Token,
    places: Semaphore,
}

impl Client {
    pub(super) fn new(config: Config) -> Self {
        let Config { addresses, base, token } = config;
        let clock = Clock::system();
        let endpoint = |address| Endpoint::new(address, clock.clone());
        Self {
            endpoints: addresses.into_iter().map(endpoint).collect(),
            server_clock: ServerClock::new(clock.clone()),
            clock,
            epoch: watch::Sender::new(0),
            base,
            token,
            places: Semaphore::new(AT_ONCE),
        }
    }

    /// Can others on the network read what is sent?
    pub(super) fn shows_secrets_on_the_way(&self) -> bool {
        self.endpoints.iter().any(Endpoint::is_open_to_see)
    }

    /// The request to this endpoint. It says until when it may have an effect, once the service has told its time.
    fn request(&self, ask: &Ask, endpoint: &Endpoint) -> StoreResult<Request<Full<Bytes>>> {
        let mut request = Request::builder()
            .method(ask.method.clone())
            .uri(format!("{}{}", self.base, ask.path))
            .header(header::HOST, endpoint.host());
        for (name, value) in &ask.headers {
            let mut value = HeaderValue::from_str(value).map_err(malformed)?;
            value.set_sensitive(*name == wire::SECRET);
            request = request.header(*name, value);
        }
        if let Some(token) = self.token.header() {
            request = request.header(header::AUTHORIZATION, token);
        }
        if let Some(deadline) = self.server_clock.request_deadline_if_known() {
            request = request.header(wire::DEADLINE, deadline / 1_000);
        }
        request.body(Full::new(ask.body.clone())).map_err(malformed)
    }
}

/// A request that is none: a fault of ours.
fn malformed(e: impl Display) -> StoreError {
    StoreError::not_applied(super::KIND, ErrorKind::Other, format!("cannot make a request: {e}"))
}

/// What is asked of the service.
pub(super) struct Ask {
    method: Method,
    path: String,
    headers: Vec<(&'static str, String)>,
    body: Bytes,
    retry: Retry,
    is_urgent: bool,
}

impl Ask {
    pub(super) fn new(method: Method, path: impl Into<String>, retry: Retry) -> Self {
        let (path, headers) = (path.into(), Vec::new());
        Self { method, path, headers, body: Bytes::new(), retry, is_urgent: false }
    }

    pub(super) fn get(path: impl Into<String>) -> Self {
        Self::new(Method::GET, path, Retry::Safe)
    }

    pub(super) fn header(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.headers.push((name, value.into()));
        self
    }

    pub(super) fn bytes(mut self, body: impl Into<Bytes>, of: &str) -> Self {
        self.body = body.into();
        self.header("content-type", of)
    }

    pub(super) fn json(self, body: &impl Serialize) -> StoreResult<Self> {
        let text = serde_json::to_vec(body).map_err(malformed)?;
        Ok(self.bytes(text, JSON))
    }

    /// Does not wait behind other requests.
    pub(super) fn urgent(mut self) -> Self {
        self.is_urgent = true;
        self
    }
}

/// What the service has answered.
pub(super) struct Reply {
    pub(super) status: StatusCode,
    pub(super) headers: HeaderMap,
    pub(super) body: Bytes,
    /// An earlier copy of the request got no answer, and may still be carried out.
    pub(super) was_sent_before: bool,
}

impl Reply {
    pub(super) fn is_success(&self) -> bool {
        self.status.is_success()
    }

    /// The answer as JSON. One that is none comes from something other than the service.
    pub(super) fn read<T: DeserializeOwned>(&self) -> StoreResult<T> {
        serde_json::from_slice(&self.body).map_err(|e| {
            let what = "what answers is no lockkeeper service, or one of a version that this program does not \
                        understand";
            StoreError::unknown(super::KIND, ErrorKind::Misconfigured, what).because(e)
        })
    }

    pub(super) fn outcome(&self, of_this_copy: Outcome) -> Outcome {
        if self.was_sent_before { Outcome::Unknown } else { of_this_copy }
    }

    pub(super) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }
}
