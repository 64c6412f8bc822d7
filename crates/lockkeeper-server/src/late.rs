//! Requests that come too late: an instance that stood still, and goes on, finds some that their clients gave up
//! long ago and may have sent to another instance since.

use crate::problem::Problem;
use axum::{
    extract::Request,
    middleware::Next,
    response::{IntoResponse as _, Response},
};
use http::HeaderMap;
use lockkeeper::store::http::wire::{CLOCK, DEADLINE};
use std::time::{SystemTime, UNIX_EPOCH};

/// Tells the service's time in every answer, and refuses a request whose deadline on this clock has passed.
pub(crate) async fn refuse(request: Request, next: Next) -> Response {
    let mut response = match is_late(request.headers(), now()) {
        Ok(false) => next.run(request).await,
        Ok(true) => {
            let what = "the request came after its deadline; send it again with a new one";
            Problem::new("too_late", what).not_applied().into_response()
        }
        Err(problem) => problem.into_response(),
    };
    response.headers_mut().insert(CLOCK, now().into());
    response
}

/// Milliseconds since 1970.
fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

fn is_late(headers: &HeaderMap, now: u64) -> Result<bool, Problem> {
    let Some(deadline) = headers.get(DEADLINE) else { return Ok(false) };
    match deadline.to_str().ok().and_then(|text| text.parse::<u64>().ok()) {
        Some(deadline) => Ok(deadline < now),
        None => {
            let what = "the header Lockkeeper-Deadline holds milliseconds since 1970";
            Err(Problem::new("request", what).not_applied())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_after_its_deadline_is_refused() {
        let headers =
            |text: &str| HeaderMap::from_iter([(DEADLINE.parse().unwrap(), text.parse().unwrap())]);
        assert!(is_late(&headers("999"), 1_000).unwrap());
        assert!(!is_late(&headers("1000"), 1_000).unwrap());
        assert!(!is_late(&HeaderMap::new(), 1_000).unwrap());
        assert_eq!(is_late(&headers("soon"), 1_000).err().unwrap().kind(), "request");
    }
}
