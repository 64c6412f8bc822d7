//! What happens to locks: as a stream, as a history, and as an answer that waits for a change.
//!
//! Two sources feed one [`Hub`]: the requests of this instance say what they did, at once; and one task compares looks
//! at the store for what other clients did, as long as there are viewers. Each step of a ticket is told once.
//!
//! | file | holds |
//! |---|---|
//! | `hub` | where both sources meet, and where viewers ask |
//! | `tickets` | what was told already of which ticket |
//! | `log` | the last events, all together and by lock |
//! | `root` | what is watched, and since when without a gap |
//! | `looker`, `book`, `diff` | the task that looks, what it knows, and the difference of two looks |
//! | `stream`, `change` | a viewer's stream; the wait for a change of one line |

mod book;
mod change;
mod diff;
mod draft;
mod hub;
mod log;
mod looker;
mod root;
mod stream;
mod tickets;

pub(crate) use change::{token, wait};
pub(crate) use hub::{Hub, Taken};

use crate::{
    extract::{self, Answer, Caller, LockName, Query},
    principal::Scope,
    problem::Problem,
    routes::{Route, route},
    service::Service,
};
use axum::{
    body::Body,
    extract::State,
    response::{IntoResponse as _, Response},
};
use http::{HeaderMap, HeaderName, HeaderValue, Method, header};
use lockkeeper::store::http::wire::{
    AskHistory, HISTORY_MAX, LAST_EVENT_ID, LockHistory, WatchEvents,
};
use root::Root;

/// The routes of this group.
pub(crate) fn routes() -> Vec<Route> {
    let get = Method::GET;
    vec![
        route(get.clone(), "/v1/events", Scope::Read, watch),
        route(get, "/v1/locks/{name}/history", Scope::Read, history),
    ]
}

/// `GET /v1/events`.
async fn watch(
    State(service): State<Service>,
    Caller(principal): Caller,
    Query(WatchEvents { prefix }): Query<WatchEvents>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    if service.is_stopping() {
        return Err(Problem::stopping());
    }
    let last_id = headers.get(LAST_EVENT_ID).and_then(|id| id.to_str().ok());
    extract::prefix(&prefix)?;
    // Names that the caller may not see are not looked at for its sake.
    let roots = principal.prefixes(Scope::Read, &prefix).into_iter().map(Root::Prefix).collect();
    let stream = stream::open(&service, principal, roots, last_id);
    let headers = [
        (header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream")),
        (header::CACHE_CONTROL, HeaderValue::from_static("no-store")),
        (HeaderName::from_static("x-accel-buffering"), HeaderValue::from_static("no")),
    ];
    Ok((headers, Body::from_stream(stream)).into_response())
}

/// `GET /v1/locks/{name}/history`.
async fn history(
    State(service): State<Service>,
    Caller(principal): Caller,
    LockName(name): LockName,
    Query(AskHistory { limit }): Query<AskHistory>,
) -> Result<Answer<LockHistory>, Problem> {
    principal.require(Scope::Read, &name)?;
    let limit = limit.unwrap_or(HISTORY_MAX);
    if !(1..=HISTORY_MAX).contains(&limit) {
        return Err(Problem::option(format!("limit is 1 to {HISTORY_MAX}")));
    }
    Ok(Answer::ok(service.hub.history(&name, limit)))
}
