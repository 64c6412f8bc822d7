//! `POST /v1/locks/{name}/evict`: ends a ticket of any session.

use super::list::line;
use crate::{
    extract::{Answer, Caller, LockName, Needed},
    principal::Scope,
    problem::Problem,
    service::Service,
};
use axum::extract::State;
use lockkeeper::{
    Store as _,
    store::http::wire::{Done, Evict},
};

pub(super) async fn evict(
    State(service): State<Service>,
    Caller(principal): Caller,
    LockName(name): LockName,
    Needed(ask): Needed<Evict>,
) -> Result<Answer<Done>, Problem> {
    principal.require(Scope::Admin, &name)?;
    // A ticket is granted once, so its fence cannot change between the look and the eviction.
    if let Some(fence) = ask.fence {
        let line = line(&service, &name).await?;
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
    let ending = service.hub.ending(&name, ask.ticket);
    let found = service.heard(service.store.evict(name.clone(), ask.ticket).await)?;
    if found {
        ending.evicted(ask.fence);
    }
    let result = if found { "evicted" } else { "gone" };
    Ok(Answer::ok(Done { result: result.to_owned() }))
}
