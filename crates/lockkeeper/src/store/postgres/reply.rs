//! Reading what the functions answer.

use super::KIND;
use crate::{
    error::StoreError,
    model::{
        line::{Line, Ticket},
        name::Name,
        ticket::{Mode, Owner, TicketId},
    },
    store::{StoreId, StoreResult, TicketStatus, Wait, common::decode},
};
pub(super) use decode::{duration, micros};
use tokio_postgres::{
    Row,
    types::{FromSql, Type},
};

pub(super) fn nonsense(detail: impl std::fmt::Display) -> StoreError {
    decode::nonsense(KIND, detail)
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

pub(super) fn store_id(bytes: &[u8]) -> StoreResult<StoreId> {
    decode::store_id(KIND, bytes)
}

fn ticket_id(row: &Row, column: &str) -> StoreResult<TicketId> {
    decode::ticket_id(KIND, get(row, column)?)
}

fn owner(host: Option<String>, pid: Option<i64>, program: Option<String>) -> Option<Owner> {
    let pid = u32::try_from(pid.unwrap_or(0)).unwrap_or(0);
    Some(Owner { host: host?, pid, program: program? })
}

/// What lk_enter, lk_stand and lk_poll say about a ticket.
pub(super) struct Answer<'r> {
    pub(super) what: &'r str,
    fence: Option<i64>,
    ahead: Option<i32>,
    recheck: Option<i64>,
    owner: Option<Owner>,
    label: Option<Vec<u8>>,
    held: Option<i64>,
    /// The ticket was granted in a free line.
    pub(super) first: bool,
    /// The grants that were made for others, see [`grants`](super::notify::grants).
    pub(super) granted: Vec<String>,
}

impl Answer<'_> {
    pub(super) fn fence(&self) -> StoreResult<u64> {
        self.fence.map(i64::cast_unsigned).ok_or_else(|| nonsense("no fence"))
    }

    pub(super) fn wait(self) -> Wait {
        let (label, held) = (self.label.unwrap_or_default(), self.held);
        let ahead = self.ahead.and_then(|ahead| ahead.try_into().ok());
        let holder = self.owner.map(|owner| (owner, label, held));
        decode::wait(ahead.unwrap_or(0), holder, self.recheck.unwrap_or(0))
    }

    pub(super) fn status(self) -> StoreResult<TicketStatus> {
        Ok(match self.what {
            "granted" => TicketStatus::Granted { fence: self.fence()? },
            "queued" => TicketStatus::Waiting(self.wait()),
            _ => TicketStatus::Gone,
        })
    }
}

impl<'r> FromSql<'r> for Answer<'r> {
    fn from_sql(_: &Type, raw: &'r [u8]) -> Result<Self, Unreadable> {
        let mut record = Record::new(raw)?;
        let (what, fence): (_, Option<i64>) = (record.next()?, record.next()?);
        let (ahead, recheck) = (record.next()?, record.next()?);
        let owner = owner(record.next()?, record.next()?, record.next()?);
        let (label, held) = (record.next()?, record.next()?);
        // lk_poll's record ends here. The others have an array of grants, NULL where the line was free.
        let polled = record.is_over();
        let granted: Option<Vec<String>> = if polled { None } else { record.next()? };
        let first = !polled && fence.is_some() && granted.is_none();
        let granted = granted.unwrap_or_default();
        Ok(Self { what, fence, ahead, recheck, owner, label, held, first, granted })
    }

    fn accepts(of: &Type) -> bool {
        *of == Type::RECORD
    }
}

/// What lk_leave and lk_pass_on say.
pub(super) struct Departure<'r> {
    pub(super) what: &'r str,
    pub(super) freed: bool,
    pub(super) granted: Vec<String>,
}

impl<'r> FromSql<'r> for Departure<'r> {
    fn from_sql(_: &Type, raw: &'r [u8]) -> Result<Self, Unreadable> {
        let mut record = Record::new(raw)?;
        let (what, freed) = (record.next()?, record.next()?);
        let granted: Option<_> = record.next()?;
        Ok(Self { what, freed, granted: granted.unwrap_or_default() })
    }

    fn accepts(of: &Type) -> bool {
        *of == Type::RECORD
    }
}

/// Why a value cannot be read.
type Unreadable = Box<dyn std::error::Error + Sync + Send>;

/// A value of several fields, each with its type, its length (-1 for NULL) and its bytes.
struct Record<'r>(&'r [u8]);

impl<'r> Record<'r> {
    fn new(raw: &'r [u8]) -> Result<Self, Unreadable> {
        let mut record = Self(raw);
        record.number()?;
        Ok(record)
    }

    fn is_over(&self) -> bool {
        self.0.is_empty()
    }

    fn number(&mut self) -> Result<i32, Unreadable> {
        let (number, rest) = self.0.split_first_chunk().ok_or("a record is too short")?;
        self.0 = rest;
        Ok(i32::from_be_bytes(*number))
    }

    fn next<T: FromSql<'r>>(&mut self) -> Result<T, Unreadable> {
        let of =
            Type::from_oid(self.number()?.cast_unsigned()).ok_or("a record's type is unknown")?;
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
        id: ticket_id(row, "o_id")?,
        mode: Mode::of(small(get(row, "o_weight")?), small(get(row, "o_capacity")?)),
        fence: get::<Option<i64>>(row, "o_fence")?.map(i64::cast_unsigned),
        owner: owner(get(row, "o_host")?, get(row, "o_pid")?, get(row, "o_program")?),
        label: get(row, "o_note")?,
        entered_ago: duration(get(row, "o_entered")?),
        granted_ago: get::<Option<i64>>(row, "o_granted")?.map(duration),
        ends_in: duration(get(row, "o_ends")?),
    })
}

/// Rows with the names that `column` has. Rows with invalid names are left out: other programs wrote them.
fn named<'r>(rows: &'r [Row], column: &str) -> StoreResult<Vec<(Name, &'r Row)>> {
    let mut named = Vec::with_capacity(rows.len());
    for row in rows {
        if let Ok(name) = Name::new(get::<&str>(row, column)?) {
            named.push((name, row));
        }
    }
    Ok(named)
}

/// Tickets with their names.
pub(super) fn places(rows: &[Row]) -> StoreResult<Vec<(Name, TicketId)>> {
    let named = named(rows, "name")?.into_iter();
    named.map(|(name, row)| Ok((name, ticket_id(row, "id")?))).collect()
}

/// Lines from their tickets, which come line by line.
pub(super) fn lines(rows: &[Row]) -> StoreResult<Vec<Line>> {
    let named = named(rows, "o_name")?.into_iter();
    let tickets: StoreResult<Vec<_>> = named.map(|(name, row)| Ok((name, ticket(row)?))).collect();
    Ok(decode::lines(tickets?))
}
