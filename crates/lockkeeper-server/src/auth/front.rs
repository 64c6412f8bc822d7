//! What holds for every request and every answer: the name under which the service was asked, the page that asks, and
//! headers that keep a browser from doing more than it should.

use crate::{connection::Peer, problem::Problem, service::Service};
use axum::{
    extract::{Request, State},
    middleware::Next,
    response::{IntoResponse as _, Response},
};
use http::{HeaderName, HeaderValue, Method, header};
use std::net::IpAddr;

use super::audit::Entry;

/// The headers of every answer. `Cache-Control` is the answer's own.
const HEADERS: [(HeaderName, HeaderValue); 6] = [
    (
        header::CONTENT_SECURITY_POLICY,
        HeaderValue::from_static(
            "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; \
             frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
        ),
    ),
    (header::REFERRER_POLICY, HeaderValue::from_static("no-referrer")),
    (header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff")),
    (header::X_FRAME_OPTIONS, HeaderValue::from_static("DENY")),
    (
        HeaderName::from_static("cross-origin-opener-policy"),
        HeaderValue::from_static("same-origin"),
    ),
    (
        HeaderName::from_static("cross-origin-resource-policy"),
        HeaderValue::from_static("same-origin"),
    ),
];

/// Stands before the whole router, also before paths that no route has.
pub(crate) async fn front(
    State(service): State<Service>,
    request: Request,
    next: Next,
) -> Response {
    let mut response = match check(&service.options.security.hosts, &request) {
        Ok(()) => next.run(request).await,
        Err(problem) => {
            let peer = request.extensions().get::<Peer>();
            let mut entry = Entry::new("refused").from(peer).detail(problem.kind());
            entry.method = Some(request.method().to_string());
            service.options.security.note_refused(entry);
            problem.into_response()
        }
    };
    for (name, value) in HEADERS {
        response.headers_mut().insert(name, value);
    }
    response
}

fn check(hosts: &[String], request: &Request) -> Result<(), Problem> {
    // No page reaches a socket in the file system, and its clients send any name.
    if request.extensions().get::<Peer>() == Some(&Peer::Unix) {
        return Ok(());
    }
    let host = host_of(request).ok_or_else(|| {
        Problem::new("request", "the header Host is missing or stands there twice").not_applied()
    })?;
    if !is_ours(host, hosts) {
        let what =
            "the header Host has a name that this service was not started with; add it with --host";
        return Err(Problem::new("host", what).not_applied());
    }
    if matches!(*request.method(), Method::GET | Method::HEAD | Method::OPTIONS) {
        return Ok(());
    }
    let mut origins = request.headers().get_all(header::ORIGIN).iter();
    let is_own = |origin: &HeaderValue| {
        let authority = origin.to_str().ok().and_then(|origin| origin.split_once("://"));
        authority.is_some_and(|(_, it)| {
            it.eq_ignore_ascii_case(host)
                || hosts.iter().any(|name| name_of(it).eq_ignore_ascii_case(name))
        })
    };
    match origins.all(is_own) {
        true => Ok(()),
        false => {
            let what = "a page of another origin must not change anything here";
            Err(Problem::new("origin", what).not_applied())
        }
    }
}

/// The name and the port under which the service was asked.
fn host_of(request: &Request) -> Option<&str> {
    if let Some(authority) = request.uri().authority() {
        return Some(authority.as_str());
    }
    let mut hosts = request.headers().get_all(header::HOST).iter();
    let host = hosts.next().filter(|_| hosts.next().is_none())?;
    host.to_str().ok()
}

/// A page can make a browser ask any address under the page's own name (DNS rebinding), but not under an IP address.
fn is_ours(host: &str, hosts: &[String]) -> bool {
    let name = name_of(host);
    let literal = name.trim_start_matches('[').trim_end_matches(']');
    literal.parse::<IpAddr>().is_ok()
        || name.eq_ignore_ascii_case("localhost")
        || hosts.iter().any(|ours| name.eq_ignore_ascii_case(ours))
}

/// The name without the port and without the dot of a complete name.
fn name_of(host: &str) -> &str {
    let end = host.rfind(':').filter(|at| !host[*at..].contains(']'));
    let name = end.map_or(host, |at| &host[..at]);
    name.strip_suffix('.').unwrap_or(name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::body::Body;

    fn asked(method: Method, headers: &[(&str, &str)]) -> Result<(), String> {
        let mut request = Request::builder().method(method).uri("/v1/locks");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let hosts = ["locks.example.org".to_owned()];
        check(&hosts, &request.body(Body::empty()).unwrap()).map_err(|e| e.kind().to_owned())
    }

    #[test]
    fn a_name_that_is_not_ours_is_refused() {
        for host in
            ["localhost:7601", "127.0.0.1", "[::1]:7601", "10.0.0.7:1", "Locks.example.org."]
        {
            assert_eq!(asked(Method::GET, &[("host", host)]), Ok(()), "{host}");
        }
        for host in ["evil.example", "localhost.evil.example", "127.0.0.1.evil.example:7601", ""] {
            assert_eq!(asked(Method::GET, &[("host", host)]), Err("host".to_owned()), "{host}");
        }
        assert_eq!(asked(Method::GET, &[]), Err("request".to_owned()));
        let twice = [("host", "localhost"), ("host", "evil.example")];
        assert_eq!(asked(Method::GET, &twice), Err("request".to_owned()));
    }

    #[test]
    fn a_page_of_another_origin_changes_nothing() {
        let host = ("host", "localhost:7601");
        let ask = |method, origin| asked(method, &[host, ("origin", origin)]);
        assert_eq!(asked(Method::POST, &[host]), Ok(()), "no browser");
        for origin in
            ["http://localhost:7601", "https://locks.example.org", "https://locks.example.org:444"]
        {
            assert_eq!(ask(Method::POST, origin), Ok(()), "{origin}");
        }
        for origin in
            ["null", "http://evil.example", "http://localhost:7602", "http://localhost", ""]
        {
            assert_eq!(ask(Method::DELETE, origin), Err("origin".to_owned()), "{origin}");
        }
        assert_eq!(ask(Method::GET, "http://evil.example"), Ok(()), "it cannot read the answer");
    }
}
