//! Bodies, paths and queries, with problems for those that make no sense.

use crate::{principal::Principal, problem::Problem, service::Service};
use axum::{
    extract::{FromRequest, FromRequestParts, Path, Query as AxumQuery, Request},
    response::{IntoResponse, Response},
};
use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, StatusCode, header, request::Parts};
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use lockkeeper::{NAME_MAX, Name, TicketId};
use serde::{Serialize, de::DeserializeOwned};
use std::time::Duration;

/// The longest body of JSON: a label of 4 KiB, doubled by escapes and base64, and names beside it.
const JSON_MAX: usize = 128 * 1024;

/// A body of JSON; an empty one is the default.
pub(crate) struct Json<T>(pub(crate) T);

impl<T: DeserializeOwned + Default> FromRequest<Service> for Json<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, service: &Service) -> Result<Self, Problem> {
        let is_json = is_json(request.headers());
        let body = body(request, service, JSON_MAX).await?;
        if body.is_empty() {
            return Ok(Self(T::default()));
        }
        // A page of another origin can send any other media type without asking first.
        if !is_json {
            let what = "a body needs the header `Content-Type: application/json` (curl: --json)";
            return Err(Problem::new("media_type", what).not_applied());
        }
        parse(&body).map(Self)
    }
}

/// A body of JSON that must be there.
pub(crate) struct Needed<T>(pub(crate) T);

impl<T: DeserializeOwned> FromRequest<Service> for Needed<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, service: &Service) -> Result<Self, Problem> {
        let Json(value) = Json::<serde_json::Value>::from_request(request, service).await?;
        T::deserialize(value).map(Self).map_err(|e| wrong_json(&e))
    }
}

fn parse<T: DeserializeOwned>(body: &[u8]) -> Result<T, Problem> {
    // A list would be taken for the fields in their order.
    if body.trim_ascii_start().first() != Some(&b'{') {
        return Err(Problem::new("request", "the body must be one JSON object").not_applied());
    }
    serde_json::from_slice(body).map_err(|e| wrong_json(&e))
}

fn wrong_json(e: &serde_json::Error) -> Problem {
    Problem::new("request", format!("the body: {e}")).not_applied()
}

fn is_json(headers: &HeaderMap) -> bool {
    let text = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
    let media = text.and_then(|text| text.split(';').next()).unwrap_or_default().trim();
    media.eq_ignore_ascii_case("application/json")
}

/// The bytes of a body, bounded in size and in time.
pub(crate) async fn body(
    request: Request,
    service: &Service,
    max: usize,
) -> Result<Bytes, Problem> {
    let collecting = Limited::new(request.into_body(), max).collect();
    match tokio::time::timeout(service.body_time(), collecting).await {
        Ok(Ok(body)) => Ok(body.to_bytes()),
        Ok(Err(e)) if e.is::<LengthLimitError>() => {
            let what = format!("the body has more than {max} bytes");
            Err(Problem::new("too_large", what).not_applied())
        }
        Ok(Err(e)) => Err(Problem::new("request", format!("the body: {e}")).not_applied()),
        Err(_) => {
            let what = "the body did not arrive in time; send it at once";
            Err(Problem::new("slow", what).not_applied())
        }
    }
}

/// A query; unknown parameters are refused.
pub(crate) struct Query<T>(pub(crate) T);

impl<T: DeserializeOwned> FromRequestParts<Service> for Query<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, service: &Service) -> Result<Self, Problem> {
        let query = AxumQuery::<T>::from_request_parts(parts, service).await;
        query
            .map(|AxumQuery(query)| Self(query))
            .map_err(|e| refused(&parts.method, format!("the query: {}", e.body_text())))
    }
}

fn refused(method: &Method, detail: String) -> Problem {
    let problem = Problem::new("request", detail);
    if method == Method::GET { problem } else { problem.not_applied() }
}

/// Can names begin so? Stores may refuse what cannot stand in a name, and take it for a fault.
///
/// # Errors
/// `option`.
pub(crate) fn prefix(text: &str) -> Result<(), Problem> {
    if text.len() > NAME_MAX || text.contains(char::is_control) {
        let what = format!("prefix has at most {NAME_MAX} bytes, and no control characters");
        return Err(Problem::option(what));
    }
    Ok(())
}

/// The lock that the path names.
pub(crate) struct LockName(pub(crate) Name);

impl FromRequestParts<Service> for LockName {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, service: &Service) -> Result<Self, Problem> {
        Ok(Self(Name::new(&parameter(parts, service, "name").await?)?))
    }
}

/// The ticket that the path names.
pub(crate) struct Ticket(pub(crate) TicketId);

impl FromRequestParts<Service> for Ticket {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, service: &Service) -> Result<Self, Problem> {
        let ticket = parameter(parts, service, "ticket").await?.parse();
        ticket.map(Self).map_err(|e| refused(&parts.method, format!("the path: {e}")))
    }
}

/// One parameter of the path, percent-decoded.
pub(crate) async fn parameter(
    parts: &mut Parts,
    service: &Service,
    name: &str,
) -> Result<String, Problem> {
    let all = Path::<Vec<(String, String)>>::from_request_parts(parts, service).await;
    let Path(all) = all.map_err(|e| refused(&parts.method, format!("the path: {e}")))?;
    let found = all.into_iter().find(|(key, _)| key == name).map(|(_, value)| value);
    found.ok_or_else(|| Problem::new("fault", format!("the route has no parameter {name}")))
}

/// Who sends the request.
pub(crate) struct Caller(pub(crate) Principal);

impl FromRequestParts<Service> for Caller {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &Service) -> Result<Self, Problem> {
        let principal = parts.extensions.get::<Principal>().cloned();
        principal
            .map(Self)
            .ok_or_else(|| Problem::new("unauthenticated", "the caller is not known"))
    }
}

/// An answer in JSON.
pub(crate) struct Answer<T>(pub(crate) StatusCode, pub(crate) T);

impl<T> Answer<T> {
    pub(crate) fn ok(value: T) -> Self {
        Self(StatusCode::OK, value)
    }
}

impl<T: Serialize> IntoResponse for Answer<T> {
    fn into_response(self) -> Response {
        let Ok(text) = serde_json::to_vec(&self.1) else {
            return Problem::new("fault", "the answer cannot be written as JSON").into_response();
        };
        let mut response = text.into_response();
        *response.status_mut() = self.0;
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
        response
    }
}

/// A time in whole milliseconds, as answers have it.
pub(crate) fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
