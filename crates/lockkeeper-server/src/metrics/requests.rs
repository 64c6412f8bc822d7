//! Stands around all routes: gives each request an id, counts it, and logs it. What is logged is the route and never
//! the path or the query: a name is the caller's business, and a secret has no place in a log.

use crate::{problem::Problem, service::Service};
use axum::{
    extract::{MatchedPath, Request, State},
    middleware::Next,
    response::Response,
};
use http::{HeaderName, HeaderValue, Method};
use lockkeeper::store::clock::Clock;

/// The header with the id of a request. A caller's own id is kept if it is short and plain.
const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
const ID_MAX: usize = 64;

/// The id of a request, as an extension of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestId(HeaderValue);

impl RequestId {
    fn of(request: &Request) -> Self {
        let theirs = request.headers().get(REQUEST_ID).filter(|id| is_plain(id.as_bytes()));
        Self(theirs.cloned().unwrap_or_else(|| {
            let text = format!("{:016x}", rand::random::<u64>());
            HeaderValue::try_from(text).unwrap_or_else(|_| HeaderValue::from_static("0"))
        }))
    }

    /// As text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        self.0.to_str().unwrap_or_default()
    }
}

fn is_plain(id: &[u8]) -> bool {
    let plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"-_.".contains(byte);
    (1..=ID_MAX).contains(&id.len()) && id.iter().all(plain)
}

/// A method as a label: a client can invent methods.
fn word(method: &Method) -> &'static str {
    match *method {
        Method::GET => "GET",
        Method::HEAD => "HEAD",
        Method::POST => "POST",
        Method::PUT => "PUT",
        Method::PATCH => "PATCH",
        Method::DELETE => "DELETE",
        Method::OPTIONS => "OPTIONS",
        _ => "other",
    }
}

pub(crate) async fn observe(
    State(service): State<Service>,
    mut request: Request,
    next: Next,
) -> Response {
    let clock = Clock::system();
    let started = clock.now();
    let (id, method) = (RequestId::of(&request), word(request.method()));
    let route = request.extensions().get::<MatchedPath>().cloned();
    let route = route.as_ref().map_or("none", MatchedPath::as_str);
    request.extensions_mut().insert(id.clone());
    let under_way = service.metrics.request();
    let mut response = next.run(request).await;
    drop(under_way);
    let (status, took) = (response.status(), clock.now().saturating_since(started));
    let problem = response.extensions().get::<Problem>().map_or("", Problem::kind);
    service.metrics.answered(method, route, status.as_u16(), problem, took);
    let took_ms = took.as_secs_f64() * 1_000.0;
    let (request_id, status) = (id.as_str(), status.as_u16());
    match status {
        500.. => tracing::warn!(request_id, method, route, status, problem, took_ms, "request"),
        _ => tracing::info!(request_id, method, route, status, problem, took_ms, "request"),
    }
    response.headers_mut().insert(REQUEST_ID, id.0);
    response
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::body::Body;

    #[test]
    fn a_callers_id_is_kept_only_if_it_is_plain() {
        let of = |id: &[u8]| {
            let request =
                Request::builder().header(REQUEST_ID, HeaderValue::from_bytes(id).unwrap());
            RequestId::of(&request.body(Body::empty()).unwrap())
        };
        assert_eq!(of(b"a-1_b.C").as_str(), "a-1_b.C");
        for strange in [&b""[..], b"a b", b"x=\"y\"", &[b'a'; 65], "ü".as_bytes()] {
            let made = of(strange);
            assert!(made.as_str().len() == 16, "{made:?}");
        }
    }
}
