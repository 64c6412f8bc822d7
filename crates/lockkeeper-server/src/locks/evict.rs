//! `POST /v1/locks/{name}/evict`: ends a ticket of any session.

use super::list::line;
use crate::{
    auth::Forced,
    extract::{Answer, Caller, LockName, Needed},
    principal::{Principal, Scope},
    problem::Problem,
    service::Service,
};
use axum::{
    Extension,
    extract::State,
    response::{IntoResponse as _, Response},
};
use lockkeeper::{
    Name, Store as _,
    store::http::wire::{Done, Evict},
};

pub(super) async fn evict(
    State(service): State<Service>,
    Caller(principal): Caller,
    LockName(name): LockName,
    Needed(ask): Needed<Evict>,
) -> Response {
    let ended = end(&service, &principal, &name, &ask).await;
    let is_done = matches!(ended, Ok(true));
    let result = if is_done { "evicted" } else { "gone" };
    let forced = Forced { ticket: ask.ticket, fence: ask.fence, is_done };
    let answer = ended.map(|_| Answer::ok(Done { result: result.to_owned() }));
    (Extension(forced), answer).into_response()
}

/// Ends the ticket; was it in the line?
async fn end(
    service: &Service,
    principal: &Principal,
    name: &Name,
    ask: &Evict,
) -> Result<bool, Problem> {
    principal.require(Scope::Admin, name)?;
    // A ticket is granted once, so its fence cannot change between the look and the eviction.
    if let Some(fence) = ask.fence {
        let line = line(service, name).await?;
        let ticket = line.iter().flat_map(|line| &line.tickets).find(|of| of.id == ask.ticket);
        if let Some(ticket) = ticket.filter(|ticket| ticket.fence != Some(fence)) {
            let what = match ticket.fence {
                Some(now) => format!("the ticket has the fence {now}, not {fence}"),
                None => format!("the ticket waits, and has no fence {fence}"),
            };
            let problem = Problem::new("fence_changed", what).not_applied();
            return Err(problem.with_fence(ticket.fence));
        }
    }
    let ending = service.hub.ending(name, ask.ticket);
    let found = service.heard(service.store.evict(name.clone(), ask.ticket).await)?;
    if found {
        ending.evicted(ask.fence);
    }
    Ok(found)
}
