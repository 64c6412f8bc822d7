//! Reading what the functions answer.

use super::KIND;
use crate::{
    error::{ErrorKind, StoreError},
    model::{
        line::{Line, Ticket},
        name::Name,
        ticket::{Mode, Owner, TicketId},
    },
    store::{Holder, StoreId, StoreResult, Wait},
};
use std::time::Duration;
use tokio_postgres::{
    Row,
    types::{FromSql, Type},
};

/// An answer that no function of ours gives.
pub(super) fn nonsense(what: impl std::fmt::Display) -> StoreError {
    let what = format!("the server's answer makes no sense: {what}");
    StoreError::unknown(KIND, ErrorKind::Corrupt, what)
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

pub(super) fn id(bytes: &[u8]) -> StoreResult<TicketId> {
    let bytes = bytes.try_into().map_err(|_| nonsense("a ticket's id is not 16 bytes long"))?;
    Ok(TicketId::from_bytes(bytes))
}

pub(super) fn store(bytes: &[u8]) -> StoreResult<StoreId> {
    let bytes = bytes.try_into();
    bytes.map(StoreId).map_err(|_| nonsense("the store's identity is not 8 bytes long"))
}

fn pid_of(pid: i64) -> u32 {
    u32::try_from(pid).unwrap_or(0)
}

fn owner(row: &Row) -> StoreResult<Option<Owner>> {
    let Some(host) = get::<Option<String>>(row, "o_host")? else { return Ok(None) };
    let pid = pid_of(get(row, "o_pid")?);
    Ok(Some(Owner { host, pid, program: get(row, "o_program")? }))
}

/// What lk_enter, lk_stand and lk_poll say about a ticket.
pub(super) struct Answer<'r> {
    pub(super) what: &'r str,
    fence: Option<i64>,
    ahead: Option<i32>,
    recheck: Option<i64>,
    owner: Option<Owner>,
    note: Option<Vec<u8>>,
    held: Option<i64>,
    /// The ticket came to an empty line: there was nobody to look at.
    pub(super) first: bool,
    pub(super) news: Vec<String>,
}

impl Answer<'_> {
    pub(super) fn fence(&self) -> StoreResult<u64> {
        self.fence.map(i64::cast_unsigned).ok_or_else(|| nonsense("no fence"))
    }

    pub(super) fn wait(self) -> Wait {
        let held_for = self.held.map(duration);
        let note = self.note.unwrap_or_default();
        Wait {
            ahead: usize::try_from(self.ahead.unwrap_or(0)).unwrap_or(0),
            holder: self.owner.map(|owner| Holder { owner, label: note, held_for }),
            // A moment later than the server says, so that its clock has surely passed the deadline.
            recheck: duration(self.recheck.unwrap_or(0)) + Duration::from_millis(1),
        }
    }
}

impl<'r> FromSql<'r> for Answer<'r> {
    fn from_sql(_: &Type, raw: &'r [u8]) -> Result<Self, Odd> {
        let mut record = Record::of(raw)?;
        let (what, fence): (_, Option<i64>) = (record.next()?, record.next()?);
        let ahead = record.next()?;
        let recheck = record.next()?;
        let owner = match (record.next()?, record.next()?, record.next()?) {
            (Some(host), Some(pid), Some(program)) => {
                Some(Owner { host, pid: pid_of(pid), program })
            }
            _ => None,
        };
        let (note, held) = (record.next()?, record.next()?);
        let polled = record.is_over();
        let news = if polled { None } else { record.next()? };
        let first = !polled && fence.is_some() && news.is_none();
        let news = news.unwrap_or_default();
        Ok(Self { what, fence, ahead, recheck, owner, note, held, first, news })
    }

    fn accepts(of: &Type) -> bool {
        *of == Type::RECORD
    }
}

/// What lk_leave and lk_pass_on say.
pub(super) struct Parting<'r> {
    pub(super) what: &'r str,
    pub(super) freed: bool,
    pub(super) news: Vec<String>,
}

impl<'r> FromSql<'r> for Parting<'r> {
    fn from_sql(_: &Type, raw: &'r [u8]) -> Result<Self, Odd> {
        let mut record = Record::of(raw)?;
        let (what, freed) = (record.next()?, record.next()?);
        let news: Option<_> = record.next()?;
        Ok(Self { what, freed, news: news.unwrap_or_default() })
    }

    fn accepts(of: &Type) -> bool {
        *of == Type::RECORD
    }
}

/// Why a value cannot be read.
type Odd = Box<dyn std::error::Error + Sync + Send>;

/// A value of several fields, each with its type, its length (-1 for NULL) and its bytes.
struct Record<'r>(&'r [u8]);

impl<'r> Record<'r> {
    fn of(raw: &'r [u8]) -> Result<Self, Odd> {
        let mut record = Self(raw);
        record.number()?;
        Ok(record)
    }

    fn is_over(&self) -> bool {
        self.0.is_empty()
    }

    fn number(&mut self) -> Result<i32, Odd> {
        let (number, rest) = self.0.split_first_chunk().ok_or("a record is too short")?;
        self.0 = rest;
        Ok(i32::from_be_bytes(*number))
    }

    fn next<T: FromSql<'r>>(&mut self) -> Result<T, Odd> {
        let of = Type::from_oid(self.number()?.cast_unsigned()).ok_or("a record's type is odd")?;
        if !T::accepts(&of) {
            return Err(format!("a record has {of} in an unexpected place").into());
        }
        let Ok(length) = usize::try_from(self.number()?) else { return T::from_sql_null(&of) };
        let (bytes, rest) = self.0.split_at_checked(length).ok_or("a record is too short")?;
        self.0 = rest;
        T::from_sql(&of, bytes)
    }
}

fn ticket(row: &Row) -> StoreResult<Ticket> {
    let small = |n: i32| u32::try_from(n).unwrap_or(0);
    Ok(Ticket {
        id: id(get(row, "o_id")?)?,
        mode: Mode::of(small(get(row, "o_weight")?), small(get(row, "o_capacity")?)),
        fence: get::<Option<i64>>(row, "o_fence")?.map(i64::cast_unsigned),
        owner: owner(row)?,
        label: get(row, "o_note")?,
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
