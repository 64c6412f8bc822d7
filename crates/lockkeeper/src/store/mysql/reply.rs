//! Reading what the procedures answer.

use super::KIND;
use crate::{
    error::{ErrorKind, StoreError},
    model::{
        line::{LINE_MAX, Ticket},
        ticket::{Mode, Owner, TicketId},
    },
    store::{Entered, Holder, StoreResult, TicketStatus, Wait},
};
use mysql_async::{Row, prelude::FromValue};
use std::time::Duration;

/// An answer that no procedure of ours gives.
pub(super) fn nonsense() -> StoreError {
    StoreError::unknown(KIND, ErrorKind::Corrupt, "the server's answer makes no sense")
}

/// The only row of an answer.
pub(super) fn one(rows: Vec<Row>) -> StoreResult<Row> {
    rows.into_iter().next().ok_or_else(nonsense)
}

pub(super) fn field<T: FromValue>(row: &Row, name: &str) -> StoreResult<T> {
    row.get_opt(name).and_then(Result::ok).ok_or_else(nonsense)
}

pub(super) fn what(row: &Row) -> StoreResult<String> {
    field(row, "what")
}

pub(super) fn fence(row: &Row) -> StoreResult<u64> {
    field(row, "fence")
}

/// A length of time in microseconds; what lies behind us is none.
pub(super) fn duration(row: &Row, name: &str) -> StoreResult<Duration> {
    let micros: i64 = field(row, name)?;
    Ok(Duration::from_micros(u64::try_from(micros).unwrap_or(0)))
}

pub(super) fn ticket_id(bytes: Vec<u8>) -> StoreResult<TicketId> {
    let bytes = <[u8; 16]>::try_from(bytes).map_err(|_| nonsense())?;
    Ok(TicketId::from_bytes(bytes))
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn owner(row: &Row) -> StoreResult<Option<Owner>> {
    let Some(host) = field::<Option<Vec<u8>>>(row, "host")? else { return Ok(None) };
    let program: Vec<u8> = field(row, "program")?;
    Ok(Some(Owner { host: text(&host), pid: field(row, "pid")?, program: text(&program) }))
}

fn wait(row: &Row) -> StoreResult<Wait> {
    let holder = match owner(row)? {
        None => None,
        Some(owner) => {
            let (note, held_for) = (field(row, "note")?, Some(duration(row, "held_for")?));
            Some(Holder { owner, label: note, held_for })
        }
    };
    // A deadline has passed only when the clock shows more.
    let recheck = duration(row, "recheck")? + Duration::from_millis(1);
    let ahead = usize::try_from(field::<u64>(row, "ahead")?).unwrap_or(usize::MAX);
    Ok(Wait { ahead, holder, recheck })
}

/// What is told to one who comes to a line that somebody's transaction sits on.
pub(super) fn blocked() -> Wait {
    Wait { ahead: 1, holder: None, recheck: Duration::from_millis(50) }
}

/// What became of an enter.
pub(super) enum Answer {
    Entered(Entered),
    /// It came too late; the server's clock says so much.
    Late(i64),
}

pub(super) fn entered(row: &Row) -> StoreResult<Answer> {
    let refuse = |kind, what: String| Err(StoreError::not_applied(KIND, kind, what));
    Ok(Answer::Entered(match what(row)?.as_str() {
        "granted" => Entered::Granted { fence: fence(row)? },
        "queued" => Entered::Queued(wait(row)?),
        "busy" => Entered::Busy(wait(row)?),
        "late" => return Ok(Answer::Late(field(row, "fence")?)),
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
        _ => return Err(nonsense()),
    }))
}

pub(super) fn stand(row: &Row) -> StoreResult<TicketStatus> {
    Ok(match what(row)?.as_str() {
        "granted" => TicketStatus::Granted { fence: fence(row)? },
        "queued" => TicketStatus::Waiting(wait(row)?),
        "gone" => TicketStatus::Gone,
        _ => return Err(nonsense()),
    })
}

/// A user's transaction has checked the ticket's fence and not ended yet.
pub(super) fn pinned() -> StoreError {
    let what = "a transaction has checked this lock's fence and is not over";
    StoreError::not_applied(KIND, ErrorKind::Unavailable, what)
}

/// A ticket as people see it.
pub(super) fn ticket(row: &Row) -> StoreResult<Ticket> {
    let fence = Some(fence(row)?).filter(|fence| *fence > 0);
    Ok(Ticket {
        id: ticket_id(field(row, "id")?)?,
        mode: Mode::of(field(row, "weight")?, field(row, "capacity")?),
        fence,
        owner: owner(row)?,
        label: field(row, "note")?,
        entered_ago: duration(row, "entered_ago")?,
        granted_ago: fence.map(|_| duration(row, "granted_ago")).transpose()?,
        ends_in: duration(row, "ends_in")?,
    })
}
