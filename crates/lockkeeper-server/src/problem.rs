//! Errors as problem documents (RFC 9457).

use crate::principal::Scope;
use axum::response::{IntoResponse, Response};
use http::{HeaderValue, StatusCode, header};
use lockkeeper::{
    ErrorKind, NameError, Outcome, StoreError,
    store::http::wire::{self, Waiting},
};

const MEDIA_TYPE: HeaderValue = HeaderValue::from_static("application/problem+json");

/// An error as the client is told.
#[derive(Clone, Debug)]
pub struct Problem {
    body: Box<wire::Problem>,
    /// Ask again after so many seconds.
    retry_after: Option<u32>,
}

/// Every kind of problem that the service itself finds, with its status and its title. Those of stores are in
/// [`wire::kind`].
pub(crate) const KINDS: &[(&str, u16, &str)] = &[
    ("request", 400, "The request makes no sense"),
    ("secret", 403, "The session's secret is missing or wrong"),
    ("unauthenticated", 401, "The caller is not known"),
    ("denied", 403, "The caller may not do this"),
    ("origin", 403, "The page is another origin's"),
    ("no_route", 404, "There is no such path"),
    ("no_cell", 404, "The lock has no value"),
    ("method", 405, "The path does not know this method"),
    ("slow", 408, "The request took too long to arrive"),
    ("busy", 409, "The lock is taken"),
    ("not_held", 409, "The ticket is not held"),
    ("fence_changed", 409, "The ticket has another fence"),
    ("gone", 410, "The ticket is in no line any more"),
    ("stale", 412, "The grant is not held any more"),
    ("precondition", 412, "The value is another one"),
    ("too_large", 413, "The body is too large"),
    ("media_type", 415, "The body is not JSON"),
    ("other_instance", 421, "Another instance has this session"),
    ("host", 421, "The service has another name"),
    ("sequencer", 422, "The sequencer is not accepted"),
    ("unsigned", 422, "The sequencer has no signature"),
    ("option", 422, "A value is out of bounds"),
    ("limit", 429, "A limit of this caller is reached"),
    ("fault", 500, "A fault of the service"),
    ("too_late", 503, "The request came after its deadline"),
    ("stopping", 503, "This instance is stopping"),
];

impl Problem {
    /// A problem of one of the service's kinds. `detail` says what happened and what to do.
    pub(crate) fn new(kind: &'static str, detail: impl Into<String>) -> Self {
        let known = KINDS.iter().find(|(known, ..)| *known == kind);
        let (_, status, title) = known.expect("the kind is in the table");
        Self::of(kind, *status, title, detail.into())
    }

    fn of(kind: &str, status: u16, title: &str, detail: String) -> Self {
        let body = wire::Problem {
            uri: format!("urn:lockkeeper:{kind}"),
            kind: kind.to_owned(),
            title: title.to_owned(),
            status,
            detail,
            outcome: None,
            capacity: None,
            fence: None,
            waiting: None,
        };
        Self { body: Box::new(body), retry_after: None }
    }

    /// A value out of bounds; nothing was changed.
    pub(crate) fn option(detail: impl Into<String>) -> Self {
        Self::new("option", detail).not_applied()
    }

    /// The caller lacks a scope.
    pub(crate) fn denied(scope: Scope) -> Self {
        let what = format!("this needs the scope {scope:?}, for this lock's name").to_lowercase();
        Self::new("denied", what).not_applied()
    }

    /// The service is stopping, and the ticket stands where it stood.
    pub(crate) fn stopping() -> Self {
        let what = "this instance is stopping; send the same request again, to this address or another one";
        let mut problem = Self::new("stopping", what).unknown();
        problem.retry_after = Some(0);
        problem
    }

    /// Nothing was changed.
    pub(crate) fn not_applied(mut self) -> Self {
        self.body.outcome = Some("not_applied".to_owned());
        self
    }

    /// What was asked for may have come about.
    pub(crate) fn unknown(mut self) -> Self {
        self.body.outcome = Some("unknown".to_owned());
        self
    }

    /// With the fence as it is now.
    pub(crate) fn with_fence(mut self, fence: Option<u64>) -> Self {
        self.body.fence = fence.map(wire::Fence::from);
        self
    }

    /// With what a waiter is told.
    pub(crate) fn with_waiting(mut self, waiting: Waiting) -> Self {
        self.body.waiting = Some(waiting);
        self
    }

    /// With the time to wait before the next request.
    pub(crate) fn with_retry_after(mut self, seconds: u32) -> Self {
        self.retry_after = Some(seconds);
        self
    }

    /// The kind, as metrics count it.
    #[must_use]
    pub fn kind(&self) -> &str {
        &self.body.kind
    }
}

/// The title of a kind of store failure.
pub(crate) fn title(kind: ErrorKind) -> &'static str {
    match kind {
        ErrorKind::Unavailable => "The store does not answer",
        ErrorKind::SessionOver => "The session is over",
        ErrorKind::TicketClosed => "The ticket was left before",
        ErrorKind::Capacity(_) => "The lock is in use with another capacity",
        ErrorKind::Name => "There can be no lock of this name",
        ErrorKind::Full => "A limit of the store is reached",
        ErrorKind::Denied => "The store refuses the service",
        ErrorKind::Misconfigured => "The store is not set up for locks",
        ErrorKind::Corrupt => "The store's data makes no sense",
        ErrorKind::Unsupported(_) => "The store cannot do this",
        _ => "The store has failed",
    }
}

impl From<StoreError> for Problem {
    fn from(e: StoreError) -> Self {
        let (kind, status) = wire::kind(e.kind);
        let detail = match e.kind {
            ErrorKind::Unsupported(what) => {
                format!("the {} store does not support {what}", e.store)
            }
            _ => e.to_string(),
        };
        let mut problem = Self::of(kind, status, title(e.kind), detail);
        let outcome = match e.outcome {
            Outcome::NotApplied => "not_applied",
            Outcome::Unknown => "unknown",
        };
        problem.body.outcome = Some(outcome.to_owned());
        if let ErrorKind::Capacity(line) = e.kind {
            problem.body.capacity = Some(line);
        }
        problem.retry_after = (status == 503).then_some(1);
        problem
    }
}

impl From<NameError> for Problem {
    fn from(e: NameError) -> Self {
        let (kind, status) = wire::kind(ErrorKind::Name);
        Self::of(kind, status, title(ErrorKind::Name), e.to_string()).not_applied()
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.body.status);
        // A document of texts and numbers always becomes JSON.
        let text = serde_json::to_vec(&self.body).unwrap_or_default();
        let mut response = text.into_response();
        *response.status_mut() = status.unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, MEDIA_TYPE);
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
        if let Some(seconds) = self.retry_after {
            headers.insert(header::RETRY_AFTER, seconds.into());
        }
        if self.body.status == 401 {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response.extensions_mut().insert(self);
        response
    }
}
