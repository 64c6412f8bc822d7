//! Reading what the procedures answer.

use super::KIND;
use crate::{
    error::{ErrorKind, StoreError},
    model::{
        line::{LINE_MAX, Line, Ticket},
        name::Name,
        ticket::{Mode, Owner, TicketId},
    },
    store::{Entered, StoreId, StoreResult, TicketStatus, Wait, common::decode},
};
pub(super) use decode::micros;
use mysql_async::{Row, prelude::FromValue};
use std::time::Duration;

pub(super) fn nonsense(detail: impl std::fmt::Display) -> StoreError {
    decode::nonsense(KIND, detail)
}

/// The only row of an answer.
pub(super) fn one(rows: Vec<Row>) -> StoreResult<Row> {
    rows.into_iter().next().ok_or_else(|| nonsense("no row"))
}

/// One column of a row.
pub(super) fn field<T: FromValue>(row: &Row, column: &str) -> StoreResult<T> {
    let value = row.get_opt(column).and_then(Result::ok);
    value.ok_or_else(|| nonsense(format_args!("column {column}")))
}

pub(super) fn what(row: &Row) -> StoreResult<String> {
    field(row, "what")
}

pub(super) fn fence(row: &Row) -> StoreResult<u64> {
    field(row, "fence")
}

/// A length of time in microseconds; a deadline that has passed is zero.
pub(super) fn time(row: &Row, column: &str) -> StoreResult<Duration> {
    field(row, column).map(decode::duration)
}

pub(super) fn ticket_id(row: &Row, column: &str) -> StoreResult<TicketId> {
    decode::ticket_id(KIND, &field::<Vec<u8>>(row, column)?)
}

pub(super) fn store_id(row: &Row) -> StoreResult<StoreId> {
    decode::store_id(KIND, &field::<Vec<u8>>(row, "store")?)
}

/// The row's name. `None` if it is invalid, so that another program has written it: such rows are left alone.
pub(super) fn name(row: &Row) -> StoreResult<Option<Name>> {
    let name: Vec<u8> = field(row, "name")?;
    Ok(std::str::from_utf8(&name).ok().and_then(|name| Name::new(name).ok()))
}

fn owner(row: &Row) -> StoreResult<Option<Owner>> {
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    let Some(host) = field::<Option<Vec<u8>>>(row, "host")?.map(text) else { return Ok(None) };
    let program = field(row, "program").map(text)?;
    Ok(Some(Owner { host, pid: field(row, "pid")?, program }))
}

fn wait(row: &Row) -> StoreResult<Wait> {
    let holder = match owner(row)? {
        None => None,
        Some(owner) => Some((owner, field(row, "note")?, Some(field(row, "held_for")?))),
    };
    Ok(decode::wait(field(row, "ahead")?, holder, field(row, "recheck")?))
}

/// What a ticket is told whose line a transaction of others has locked.
pub(super) fn blocked() -> Wait {
    Wait { ahead: 1, holder: None, recheck: Duration::from_millis(50) }
}

/// The answer to an enter.
pub(super) enum EnterAnswer {
    Entered(Entered),
    /// The request's deadline had passed. Carries the server's time.
    TooLate(i64),
}

pub(super) fn entered(row: &Row) -> StoreResult<EnterAnswer> {
    let refuse = |kind, what: String| Err(StoreError::not_applied(KIND, kind, what));
    Ok(EnterAnswer::Entered(match what(row)?.as_str() {
        "granted" => Entered::Granted { fence: fence(row)? },
        "queued" => Entered::Queued(wait(row)?),
        "busy" => Entered::Busy(wait(row)?),
        "late" => return Ok(EnterAnswer::TooLate(field(row, "fence")?)),
        "over" => return Err(StoreError::session_over(KIND)),
        "closed" => {
            let what = "the ticket was closed before this request came";
            return refuse(ErrorKind::TicketClosed, what.into());
        }
        "capacity" => {
            let line = u32::try_from(fence(row)?).unwrap_or(0);
            return refuse(ErrorKind::Capacity(line), format!("the line has capacity {line}"));
        }
        "full" => {
            let what = format!("{LINE_MAX} tickets stand in the line already");
            return refuse(ErrorKind::Full, what);
        }
        other => return Err(nonsense(other)),
    }))
}

pub(super) fn status(row: &Row) -> StoreResult<TicketStatus> {
    Ok(match what(row)?.as_str() {
        "granted" => TicketStatus::Granted { fence: fence(row)? },
        "queued" => TicketStatus::Waiting(wait(row)?),
        "gone" => TicketStatus::Gone,
        other => return Err(nonsense(other)),
    })
}

/// A user's transaction has checked the ticket's fence and has not ended yet.
pub(super) fn pinned() -> StoreError {
    let what = "a transaction has checked this lock's fence and is not over";
    StoreError::not_applied(KIND, ErrorKind::Unavailable, what)
}

fn ticket(row: &Row) -> StoreResult<Ticket> {
    let fence = Some(fence(row)?).filter(|fence| *fence > 0);
    Ok(Ticket {
        id: ticket_id(row, "id")?,
        mode: Mode::of(field(row, "weight")?, field(row, "capacity")?),
        fence,
        owner: owner(row)?,
        label: field(row, "note")?,
        entered_ago: time(row, "entered_ago")?,
        granted_ago: fence.map(|_| time(row, "granted_ago")).transpose()?,
        ends_in: time(row, "ends_in")?,
    })
}

/// Lines of the tickets that live, from rows in the order of names and places.
pub(super) fn lines(rows: &[Row]) -> StoreResult<Vec<Line>> {
    let mut tickets = Vec::with_capacity(rows.len());
    for row in rows {
        let ticket = ticket(row)?;
        if let Some(name) = name(row)?
            && !ticket.ends_in.is_zero()
        {
            tickets.push((name, ticket));
        }
    }
    Ok(decode::lines(tickets))
}
