//! Reading what the functions answer.

use super::KIND;
use crate::{
    error::{StoreError, Trouble},
    line::{Line, Ticket},
    name::Name,
    store::{Holder, StoreResult, Wait},
    ticket::{Mode, Owner, TicketId},
};
use std::time::Duration;
use tokio_postgres::{Row, types::FromSql};

/// An answer that no function of ours gives.
pub(super) fn nonsense(what: impl std::fmt::Display) -> StoreError {
    let what = format!("the server's answer makes no sense: {what}");
    StoreError::unknown(KIND, Trouble::Corrupt, what)
}

/// One column of a row.
pub(super) fn get<'r, T: FromSql<'r>>(row: &'r Row, column: &str) -> StoreResult<T> {
    row.try_get(column).map_err(|e| nonsense(&e).because(e))
}

/// The only row of an answer.
pub(super) fn one(rows: &[Row]) -> StoreResult<&Row> {
    rows.first().ok_or_else(|| nonsense("no row"))
}

/// The first column of the only row.
pub(super) fn scalar<'r, T: FromSql<'r>>(rows: &'r [Row]) -> StoreResult<T> {
    one(rows)?.try_get(0).map_err(|e| nonsense(&e).because(e))
}

pub(super) fn micros(duration: Duration) -> i64 {
    i64::try_from(duration.as_micros()).unwrap_or(i64::MAX)
}

pub(super) fn duration(micros: i64) -> Duration {
    Duration::from_micros(u64::try_from(micros).unwrap_or(0))
}

pub(super) fn fence(row: &Row) -> StoreResult<u64> {
    Ok(get::<i64>(row, "o_fence")?.cast_unsigned())
}

pub(super) fn id(bytes: &[u8]) -> StoreResult<TicketId> {
    let bytes = bytes.try_into().map_err(|_| nonsense("a ticket's id is not 16 bytes long"))?;
    Ok(TicketId::from_bytes(bytes))
}

fn owner(row: &Row) -> StoreResult<Option<Owner>> {
    let Some(host) = get::<Option<String>>(row, "o_host")? else { return Ok(None) };
    let pid = u32::try_from(get::<i64>(row, "o_pid")?).unwrap_or(0);
    Ok(Some(Owner { host, pid, program: get(row, "o_program")? }))
}

pub(super) fn wait(row: &Row) -> StoreResult<Wait> {
    let ahead = usize::try_from(get::<Option<i32>>(row, "o_ahead")?.unwrap_or(0)).unwrap_or(0);
    // A moment later than the server says, so that its clock has surely passed the deadline.
    let recheck = duration(get::<Option<i64>>(row, "o_recheck")?.unwrap_or(0));
    let holder = match owner(row)? {
        Some(owner) => {
            let held_for = Some(duration(get(row, "o_held")?));
            Some(Holder { owner, note: get(row, "o_note")?, held_for })
        }
        None => None,
    };
    Ok(Wait { ahead, holder, recheck: recheck + Duration::from_millis(1) })
}

fn ticket(row: &Row) -> StoreResult<Ticket> {
    let small = |n: i32| u32::try_from(n).unwrap_or(0);
    Ok(Ticket {
        id: id(get(row, "o_id")?)?,
        mode: Mode::of(small(get(row, "o_weight")?), small(get(row, "o_capacity")?)),
        fence: get::<Option<i64>>(row, "o_fence")?.map(i64::cast_unsigned),
        owner: owner(row)?,
        note: get(row, "o_note")?,
        entered_ago: duration(get(row, "o_entered")?),
        granted_ago: get::<Option<i64>>(row, "o_granted")?.map(duration),
        ends_in: duration(get(row, "o_ends")?),
    })
}

/// Lines from their tickets, which come line by line.
pub(super) fn lines(rows: &[Row]) -> StoreResult<Vec<Line>> {
    let mut lines: Vec<Line> = Vec::new();
    for row in rows {
        // A name that is none was written by nobody of ours; it is left alone.
        let Ok(name) = Name::new(get::<&str>(row, "o_name")?) else { continue };
        let ticket = ticket(row)?;
        match lines.last_mut().filter(|line| line.name == name) {
            Some(line) => line.tickets.push(ticket),
            None => lines.push(Line::new(name, ticket.mode.capacity(), vec![ticket])),
        }
    }
    Ok(lines)
}
