//! `GET /v1/locks` and `GET /v1/locks/{name}`: who holds, who waits.

use crate::{
    checks, events,
    extract::{self, Answer, Caller, LockName, Query, millis},
    principal::{Principal, Scope},
    problem::Problem,
    service::Service,
};
use axum::extract::State;
use lockkeeper::{
    Line, Name, Store as _, Ticket,
    store::{
        LIST_MAX, ListScope, PLAIN_CAPACITY,
        http::wire::{LineTicket, ListLocks, LockLine, LocksPage, LookAtLock},
    },
};
use std::{collections::VecDeque, time::Duration};

/// The lines of a page whose request names no limit.
const LIMIT_DEFAULT: usize = 100;
/// The most lines that one request looks through for those that it shows.
const LOOKED_MAX: usize = 10 * LIST_MAX;
/// A holder that ends so soon unless it renews has missed a renewal, at the default TTL.
const EXPIRING: Duration = Duration::from_secs(5);

/// Which lines a listing shows.
#[derive(Clone, Copy)]
enum Which {
    All,
    Held,
    Waiting,
    Expiring,
}

impl Which {
    fn read(state: Option<&str>) -> Result<Self, Problem> {
        match state {
            None => Ok(Self::All),
            Some("held") => Ok(Self::Held),
            Some("waiting") => Ok(Self::Waiting),
            Some("expiring") => Ok(Self::Expiring),
            Some(_) => Err(Problem::option("state is held, waiting or expiring")),
        }
    }

    fn has(self, line: &Line) -> bool {
        match self {
            Self::All => true,
            Self::Held => line.holders().next().is_some(),
            Self::Waiting => line.waiters().next().is_some(),
            Self::Expiring => line.holders().any(|ticket| ticket.ends_in < EXPIRING),
        }
    }
}

pub(super) async fn list(
    State(service): State<Service>,
    Caller(principal): Caller,
    Query(ask): Query<ListLocks>,
) -> Result<Answer<LocksPage>, Problem> {
    let which = Which::read(ask.state.as_deref())?;
    let limit = ask.limit.unwrap_or(LIMIT_DEFAULT);
    if !(1..=LIST_MAX).contains(&limit) {
        return Err(Problem::option(format!("limit must be between 1 and {LIST_MAX}")));
    }
    extract::prefix(&ask.prefix)?;
    let is_shown = |line: &Line| which.has(line) && may_see(&principal, line);
    // Other names are not listed at all: a page might end among them, and `next` would show one.
    let mut parts: VecDeque<_> = principal.listings(Scope::Read, &ask.prefix).into();
    let (mut locks, mut after, mut looked) = (Vec::new(), ask.after, 0);
    let next = loop {
        let Some(part) = parts.front().cloned() else { break None };
        let Some(scope) = behind(part, after.as_ref()) else {
            parts.pop_front();
            continue;
        };
        let is_exact = matches!(scope, ListScope::Exact(_));
        let page = service.heard(service.store.list(scope).await)?;
        looked += page.len();
        if is_exact || page.len() < LIST_MAX {
            parts.pop_front();
        }
        let end = page.last().map(|line| line.name.clone());
        let mut shown = page.into_iter().filter(is_shown);
        locks.extend(shown.by_ref().take(limit - locks.len()).map(|line| self::shown(&line)));
        if locks.len() == limit {
            let more = !parts.is_empty() || shown.next().is_some();
            break locks.last().map(|line: &LockLine| line.lock.clone()).filter(|_| more);
        }
        after = end.or(after);
        if looked >= LOOKED_MAX {
            break after.filter(|_| !parts.is_empty());
        }
    };
    let not_shown = service.store.blind_spots().map(str::to_owned);
    Ok(Answer::ok(LocksPage { locks, next, not_shown }))
}

/// What of this part comes after this name; `None` if nothing does.
fn behind(part: ListScope, after: Option<&Name>) -> Option<ListScope> {
    match (part, after) {
        (ListScope::Exact(name), Some(after)) if name <= *after => None,
        (ListScope::Prefix { prefix, .. }, Some(after))
            if prefix.as_str() < after.as_str() && !after.as_str().starts_with(&prefix) =>
        {
            None
        }
        (ListScope::Prefix { prefix, .. }, after) => {
            Some(ListScope::Prefix { prefix, after: after.cloned() })
        }
        (exact @ ListScope::Exact(_), _) => Some(exact),
    }
}

fn may_see(principal: &Principal, line: &Line) -> bool {
    principal.may(Scope::Read, &line.name)
}

pub(super) async fn look(
    State(service): State<Service>,
    Caller(principal): Caller,
    LockName(name): LockName,
    Query(ask): Query<LookAtLock>,
) -> Result<Answer<LockLine>, Problem> {
    principal.require(Scope::Read, &name)?;
    let line = match &ask.wait_change {
        Some(known) => events::wait(&service, &name, known, ask.wait_ms).await?,
        None => line(&service, &name).await?,
    };
    let change = Some(events::token(line.as_ref()));
    // A free lock is a line without tickets.
    let line = line.unwrap_or_else(|| Line::new(name, PLAIN_CAPACITY, Vec::new()));
    Ok(Answer::ok(LockLine { change, ..shown(&line) }))
}

/// One line, if there is a ticket in it.
pub(crate) async fn line(service: &Service, name: &Name) -> Result<Option<Line>, Problem> {
    let found = service.store.list(ListScope::Exact(name.clone())).await;
    Ok(service.heard(found)?.pop())
}

/// A line as answers have it.
pub(crate) fn shown(line: &Line) -> LockLine {
    LockLine {
        lock: line.name.clone(),
        permits: (line.capacity != PLAIN_CAPACITY).then_some(line.capacity),
        tickets: line.tickets.iter().map(ticket).collect(),
        change: None,
    }
}

fn ticket(ticket: &Ticket) -> LineTicket {
    LineTicket {
        ticket: ticket.id,
        mode: ticket.mode,
        fence: ticket.fence.map(Into::into),
        owner: ticket.owner.clone(),
        label: checks::shown(&ticket.label),
        entered_ago_ms: millis(ticket.entered_ago),
        granted_ago_ms: ticket.granted_ago.map(millis),
        ends_in_ms: (ticket.ends_in != Duration::MAX).then(|| millis(ticket.ends_in)),
    }
}
