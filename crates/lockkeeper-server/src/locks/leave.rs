//! `DELETE` and `PATCH /v1/locks/{name}/tickets/{ticket}`: a ticket leaves, or gets another label.

use super::ask::unsupported;
use crate::{
    checks,
    extract::{Answer, Caller, Json, LockName, Query, Ticket},
    principal::Scope,
    problem::Problem,
    service::Service,
    session_id::{self, Session},
};
use axum::extract::State;
use http::HeaderMap;
use lockkeeper::{
    ErrorKind, Store as _, TicketId,
    store::{
        Edit, Edited, Leave, Left, Place, PollScope,
        http::wire::{ChangeTicket, Done, LeaveLock},
    },
};
use std::time::{SystemTime, UNIX_EPOCH};

pub(super) async fn leave(
    State(service): State<Service>,
    Caller(principal): Caller,
    LockName(name): LockName,
    Ticket(ticket): Ticket,
    Query(ask): Query<LeaveLock>,
    headers: HeaderMap,
) -> Result<Answer<Done>, Problem> {
    principal.require(Scope::Lock, &name)?;
    let session = session_id::needed(&headers, &principal)?;
    let keep = checks::keep(ask.keep_ms)?;
    if keep.is_some() && !service.store.capabilities().at_least {
        return Err(unsupported(&service, "keep_ms"));
    }
    service.seen(session.id)?;
    let place = Place { session: session.id, name, ticket };
    let leave = Leave { place: place.clone(), keep, stray: ask.stray };
    let (ending, kept) = (service.hub.ending(&place.name, ticket), keep.is_some());
    let left = match service.store.leave(leave).await {
        // Its tickets went with it.
        Err(e) if e.kind == ErrorKind::SessionOver => Left::Gone,
        answer => service.heard(answer)?,
    };
    ending.left(left, kept);
    close_with(&service, &session, ticket).await;
    let result = match left {
        Left::Released => "released",
        Left::Withdrawn => "withdrawn",
        Left::Gone => "gone",
    };
    Ok(Answer::ok(Done { result: result.to_owned() }))
}

/// Closes the session that ends with this ticket, before the client has its answer and can take another lock in it.
/// The store is asked first, for a ticket may have joined it at another instance. A session that stays, since the
/// store has failed, ends with its TTL.
async fn close_with(service: &Service, session: &Session, ticket: TicketId) {
    if !service.ends_with(session.id, ticket) {
        return;
    }
    let left = service.store.poll(session.id, PollScope::All).await;
    let is_empty = left.is_ok_and(|left| left.is_empty());
    // A ticket may have joined it here meanwhile.
    if is_empty
        && service.ends_with(session.id, ticket)
        && service.store.close(session.id).await.is_ok()
    {
        service.closed(session);
    }
}

pub(super) async fn change(
    State(service): State<Service>,
    Caller(principal): Caller,
    LockName(name): LockName,
    Ticket(ticket): Ticket,
    headers: HeaderMap,
    Json(ask): Json<ChangeTicket>,
) -> Result<Answer<Done>, Problem> {
    principal.require(Scope::Lock, &name)?;
    let session = session_id::needed(&headers, &principal)?;
    let has_label = ask.label.is_some() || ask.label_base64.is_some();
    let label = checks::label(ask.label, ask.label_base64.as_deref())?;
    service.seen(session.id)?;
    let edit = Edit {
        place: Place { session: session.id, name, ticket },
        edit: ask.edit.unwrap_or_else(edit_now),
        bytes: has_label.then(|| label.clone()),
    };
    let name = edit.place.name.clone();
    match service.heard(service.store.set_label(edit).await)? {
        Edited::Done => {
            service.hub.label(&name, ticket, &label);
            Ok(Answer::ok(Done { result: "done".to_owned() }))
        }
        Edited::NotHeld => {
            let what = "the ticket is not held: only a holder has a label to change";
            Err(Problem::new("not_held", what).not_applied())
        }
    }
}

/// The number of an edit whose client counts none: the time, so that a later one has a larger number.
pub(crate) fn edit_now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
}
