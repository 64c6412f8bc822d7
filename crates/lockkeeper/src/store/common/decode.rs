//! Writing statements and reading what a database answers: times in microseconds, ids as bytes, lines as rows of
//! tickets.

use crate::{
    error::{ErrorKind, StoreError},
    model::{
        line::{Line, Ticket},
        name::Name,
        ticket::{Owner, TicketId},
    },
    store::{Holder, StoreId, StoreResult, Wait},
};
use std::{fmt::Display, time::Duration};

/// The statement on one line, without its comments: short on the wire and in a server's log.
pub(in crate::store) fn compact(sql: &str) -> String {
    let lines = sql.lines().map(str::trim).filter(|line| !line.starts_with("--"));
    lines.collect::<Vec<_>>().join(" ")
}

/// The error for an answer that none of our procedures gives.
pub(in crate::store) fn nonsense(kind: &'static str, detail: impl Display) -> StoreError {
    let what = format!("the server's answer makes no sense: {detail}");
    StoreError::unknown(kind, ErrorKind::Corrupt, what)
}

pub(in crate::store) fn micros(duration: Duration) -> i64 {
    i64::try_from(duration.as_micros()).unwrap_or(i64::MAX)
}

/// A length of time in microseconds; a negative one, a deadline that has passed, is zero.
pub(in crate::store) fn duration(micros: i64) -> Duration {
    Duration::from_micros(u64::try_from(micros).unwrap_or(0))
}

pub(in crate::store) fn ticket_id(kind: &'static str, bytes: &[u8]) -> StoreResult<TicketId> {
    let bytes = bytes.try_into().map(TicketId::from_bytes);
    bytes.map_err(|_| nonsense(kind, "a ticket's id is not 16 bytes long"))
}

pub(in crate::store) fn store_id(kind: &'static str, bytes: &[u8]) -> StoreResult<StoreId> {
    let bytes = bytes.try_into().map(StoreId);
    bytes.map_err(|_| nonsense(kind, "the store's identity is not 8 bytes long"))
}

/// What a waiter is told. `holder` is the first holder, its label and for how many microseconds it has
/// held the lock; `recheck` is when the line can move by expiry, in microseconds.
pub(in crate::store) fn wait(
    ahead: u64,
    holder: Option<(Owner, Vec<u8>, Option<i64>)>,
    recheck: i64,
) -> Wait {
    let holder = holder.map(|(owner, label, held)| {
        let held_for = held.map(duration);
        Holder { owner, label, held_for }
    });
    // A millisecond later than the server says, so that its clock has passed the deadline for sure.
    let recheck = duration(recheck) + Duration::from_millis(1);
    Wait { ahead: usize::try_from(ahead).unwrap_or(usize::MAX), holder, recheck }
}

/// Lines from tickets that are sorted by line and place.
pub(in crate::store) fn lines(tickets: impl IntoIterator<Item = (Name, Ticket)>) -> Vec<Line> {
    let mut lines: Vec<Line> = Vec::new();
    for (name, ticket) in tickets {
        match lines.last_mut().filter(|line| line.name == name) {
            Some(line) => line.tickets.push(ticket),
            None => lines.push(Line::new(name, ticket.mode.capacity(), vec![ticket])),
        }
    }
    lines
}
