//! `/v1/cells/{name}`: the small value that belongs to a lock, written only under its grant.

use crate::{
    extract::{self, Answer, Caller, LockName},
    locks,
    principal::Scope,
    problem::Problem,
    service::Service,
    session_id,
};
use axum::{
    extract::{Request, State},
    response::{IntoResponse as _, Response},
};
use http::{HeaderMap, HeaderName, HeaderValue, header};
use lockkeeper::{
    Cell, Mode, Name, Store as _, TicketId,
    store::{
        CELL_MAX, Claim, Edit, Edited, Place, SessionId, StoreResult,
        http::wire::{self, Done},
    },
};
use std::str::FromStr;

pub(crate) async fn get(
    State(service): State<Service>,
    Caller(principal): Caller,
    LockName(name): LockName,
) -> Result<Response, Problem> {
    principal.require(Scope::Read, &name)?;
    let Some(cell) = read(&service, &name).await? else {
        return Err(Problem::new(
            "no_cell",
            "the lock has no value: none was written, or it was taken away",
        ));
    };
    let (tag, fence) = (etag(&cell), cell.fence);
    let mut response = cell.bytes.into_response();
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(HeaderName::from_static(wire::FENCE), fence.into());
    headers.insert(header::ETAG, value(&tag));
    Ok(response)
}

pub(crate) async fn put(
    State(service): State<Service>,
    Caller(principal): Caller,
    LockName(name): LockName,
    request: Request,
) -> Result<Response, Problem> {
    principal.require(Scope::Lock, &name)?;
    let headers = request.headers().clone();
    let writer = Writer::read(&service, &headers, &principal, &name)?;
    let bytes = extract::body(request, &service, CELL_MAX).await?.to_vec();
    precondition(&service, &headers, &name).await?;
    let edited = match writer {
        Writer::Claim(claim) => service.store.write_under(claim, bytes).await,
        Writer::Ticket(place, edit) => {
            service.store.write(Edit { place, edit, bytes: Some(bytes) }).await
        }
    };
    done(&service, &name, edited).await
}

pub(crate) async fn delete(
    State(service): State<Service>,
    Caller(principal): Caller,
    LockName(name): LockName,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    principal.require(Scope::Lock, &name)?;
    let Writer::Ticket(place, edit) = Writer::read(&service, &headers, &principal, &name)? else {
        let what = "a sequencer writes a value and does not take it away: write an empty one, or send the \
                    holder's headers Lockkeeper-Secret and Lockkeeper-Ticket";
        return Err(Problem::option(what));
    };
    precondition(&service, &headers, &name).await?;
    let edited = service.store.write(Edit { place, edit, bytes: None }).await;
    done(&service, &name, edited).await
}

/// Under which grant a cell is written.
enum Writer {
    /// By a client that was given the sequencer.
    Claim(Claim),
    /// By the holder's own session.
    Ticket(Place, u64),
}

impl Writer {
    fn read(
        service: &Service,
        headers: &HeaderMap,
        principal: &crate::Principal,
        name: &Name,
    ) -> Result<Self, Problem> {
        if !service.store.capabilities().cells {
            return Err(locks::unsupported(service, "cells"));
        }
        if let Some(text) = text(headers, wire::SEQUENCER)? {
            return Self::claim(service, text, name).map(Self::Claim);
        }
        let Some(ticket) = parsed::<TicketId>(headers, wire::TICKET)? else {
            let what = "a value is written under a grant: send the header Lockkeeper-Sequencer, or \
                        Lockkeeper-Secret and Lockkeeper-Ticket";
            return Err(Problem::new("request", what).not_applied());
        };
        let session: SessionId = session_id::needed(headers, principal)?.id;
        service.seen(session)?;
        let edit = parsed(headers, wire::EDIT)?.unwrap_or_else(locks::edit_now);
        Ok(Self::Ticket(Place { session, name: name.clone(), ticket }, edit))
    }

    fn claim(service: &Service, text: &str, name: &Name) -> Result<Claim, Problem> {
        let sequencer = service.options.security.read_sequencer(text)?;
        let refused = |what: &str| Err(Problem::new("sequencer", what).not_applied());
        if sequencer.store() != service.store.id() {
            return refused("the sequencer is of another store");
        }
        if sequencer.name() != name {
            return refused("the sequencer is of another lock");
        }
        if sequencer.mode() != Mode::Exclusive
            && sequencer.mode().weight() != sequencer.mode().capacity()
        {
            return refused(
                "a value is written under an exclusive lock, and this grant is not one",
            );
        }
        Ok(sequencer.claim().clone())
    }
}

fn text<'a>(headers: &'a HeaderMap, name: &str) -> Result<Option<&'a str>, Problem> {
    let Some(value) = headers.get(name) else { return Ok(None) };
    value.to_str().map(Some).map_err(|_| wrong(name))
}

fn parsed<T: FromStr>(headers: &HeaderMap, name: &str) -> Result<Option<T>, Problem> {
    text(headers, name)?.map(|text| text.parse().map_err(|_| wrong(name))).transpose()
}

fn wrong(header: &str) -> Problem {
    Problem::new("request", format!("the header {header} makes no sense")).not_applied()
}

async fn read(service: &Service, name: &Name) -> Result<Option<Cell>, Problem> {
    if !service.store.capabilities().cells {
        return Err(locks::unsupported(service, "cells"));
    }
    service.heard(service.store.read(name.clone()).await)
}

/// Compares with `If-Match` and `If-None-Match`. Between the look and the write only the same grant can write.
async fn precondition(service: &Service, headers: &HeaderMap, name: &Name) -> Result<(), Problem> {
    let (matches, differs) = (text(headers, "if-match")?, text(headers, "if-none-match")?);
    if matches.is_none() && differs.is_none() {
        return Ok(());
    }
    let cell = read(service, name).await?;
    let tag = cell.as_ref().map(etag);
    let is_among = |list: &str| {
        let mut tags = list.split(',').map(str::trim);
        tag.as_deref().is_some_and(|tag| tags.any(|one| one == "*" || one == tag))
    };
    if matches.is_none_or(is_among) && !differs.is_some_and(is_among) {
        return Ok(());
    }
    let what = match &tag {
        Some(tag) => format!("the value is another one by now; its ETag is {tag}"),
        None => "the lock has no value".to_owned(),
    };
    let problem = Problem::new("precondition", what).not_applied();
    Err(problem.with_fence(cell.map(|cell| cell.fence)))
}

async fn done(
    service: &Service,
    name: &Name,
    edited: StoreResult<Edited>,
) -> Result<Response, Problem> {
    if service.heard(edited)? == Edited::Done {
        return Ok(Answer::ok(Done { result: "done".to_owned() }).into_response());
    }
    let what = "the grant is not held any more: nothing was written";
    let fence = fence_now(service, name).await;
    Err(Problem::new("stale", what).not_applied().with_fence(fence))
}

/// The fence of the holder, or else of the last write. The refusal stands also if that cannot be had.
async fn fence_now(service: &Service, name: &Name) -> Option<u64> {
    let line = locks::line(service, name).await.ok().flatten();
    let held = line.and_then(|line| line.holders().filter_map(|ticket| ticket.fence).max());
    match held {
        Some(fence) => Some(fence),
        None => read(service, name).await.ok().flatten().map(|cell| cell.fence),
    }
}

/// A strong validator: the fence of the write, and a hash of the bytes.
fn etag(cell: &Cell) -> String {
    let digest = ring::digest::digest(&ring::digest::SHA256, &cell.bytes);
    let mut half = [0; 8];
    half.copy_from_slice(&digest.as_ref()[..8]);
    format!("\"{}-{:016x}\"", cell.fence, u64::from_be_bytes(half))
}

fn value(text: &str) -> HeaderValue {
    HeaderValue::from_str(text).unwrap_or_else(|_| HeaderValue::from_static(""))
}
