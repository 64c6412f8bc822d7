//! Waiting for a change of one line: `GET /v1/locks/{name}?wait_change=TOKEN`.

use super::root::Root;
use crate::{problem::Problem, service::Service};
use lockkeeper::{
    Line, Name, Store as _,
    store::{ListScope, http::wire::WAIT_MAX_MS},
};
use ring::digest::{Context, SHA256};
use std::{pin::pin, time::Duration};

/// If the request says nothing.
const WAIT_DEFAULT: Duration = Duration::from_secs(30);

/// A text that differs when the line does: other tickets, grants or labels. Ages are no difference. Every instance
/// makes the same.
pub(crate) fn token(line: Option<&Line>) -> String {
    let mut context = Context::new(&SHA256);
    for ticket in line.into_iter().flat_map(|line| &line.tickets) {
        context.update(&ticket.id.to_bytes());
        context.update(&ticket.fence.unwrap_or(0).to_be_bytes());
        context.update(&[u8::from(ticket.fence.is_some()), u8::from(ticket.owner.is_some())]);
        context.update(&(ticket.label.len() as u64).to_be_bytes());
        context.update(&ticket.label);
    }
    context.finish().as_ref()[..12].iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The line as soon as it differs from the one with this token, and in any case after the wait.
pub(crate) async fn wait(
    service: &Service,
    name: &Name,
    known: &str,
    wait_ms: Option<u64>,
) -> Result<Option<Line>, Problem> {
    let wait = wait_ms.map_or(WAIT_DEFAULT, Duration::from_millis);
    if wait > Duration::from_millis(WAIT_MAX_MS) {
        return Err(Problem::option(format!("wait_ms is at most {WAIT_MAX_MS}")));
    }
    let line = look(service, name).await?;
    if token(line.as_ref()) != known || wait.is_zero() {
        return Ok(line);
    }
    let mut listening = service.hub.listen(name);
    let mut interest = service.hub.watch(vec![Root::Exact(name.clone())]);
    let mut late = pin!(tokio::time::sleep(wait));
    let mut is_complete = false;
    loop {
        let is_late = tokio::select! {
            () = service.stopped() => return Err(Problem::stopping()),
            () = late.as_mut() => true,
            () = listening.heard() => false,
            // From now on no change goes unheard; what happened before, the next look at the line shows.
            () = interest.is_complete(), if !is_complete => {
                is_complete = true;
                false
            }
        };
        let line = look(service, name).await?;
        if is_late || token(line.as_ref()) != known {
            return Ok(line);
        }
    }
}

async fn look(service: &Service, name: &Name) -> Result<Option<Line>, Problem> {
    Ok(service.store.list(ListScope::Exact(name.clone())).await?.pop())
}

#[cfg(test)]
mod tests {
    use super::*;
    use lockkeeper::{Mode, Ticket, TicketId};

    #[test]
    fn a_token_differs_when_the_line_does_and_not_as_it_grows_older() {
        let ticket = |label: &str| {
            let mut ticket = Ticket::new(TicketId::from_bytes([1; 16]), Mode::Exclusive);
            ticket.label = label.into();
            ticket
        };
        let token = |tickets| token(Some(&Line::new(Name::new("a").unwrap(), 1, tickets)));
        let first = token(vec![ticket("x")]);
        let mut older = ticket("x");
        older.entered_ago = Duration::from_secs(9);
        assert_eq!(token(vec![older]), first);
        let mut granted = ticket("x");
        granted.fence = Some(0);
        for other in [vec![ticket("y")], vec![granted], vec![ticket("x"), ticket("x")], vec![]] {
            assert_ne!(token(other), first);
        }
        assert_eq!(super::token(None), token(vec![]), "an empty line is no line");
    }
}
