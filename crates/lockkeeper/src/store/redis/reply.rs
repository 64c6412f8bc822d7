//! How ids, times and owners are written in requests, and how the replies of scripts are read.

use super::KIND;
use crate::{
    error::{ErrorKind, StoreError},
    model::{
        line::Ticket,
        name::Name,
        ticket::{Mode, Owner, SessionId, TicketId},
    },
    store::{Holder, Open, StoreResult, TicketDigest, TicketStatus, Wait},
};
use redis::Value;
use std::time::Duration;

/// How a session's id is written.
pub(in crate::store) fn hex(session: SessionId) -> String {
    format!("{:032x}", u128::from_be_bytes(session.to_bytes()))
}

pub(in crate::store) fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

/// A ticket in the list of its session. The server also asks by it for what is to be swept: without a session it
/// stands for all that is old in a line.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) session: String,
    pub(super) ticket: String,
    pub(super) name: Name,
}

/// The error for a reply that no script of ours gives.
pub(in crate::store) fn unexpected(what: &Value) -> StoreError {
    let what = format!("the server's answer makes no sense: {what:?}");
    StoreError::unknown(KIND, ErrorKind::Corrupt, what)
}

/// The fields of a reply, read one after the other.
pub(in crate::store) struct Reply(std::vec::IntoIter<Value>);

impl Reply {
    pub(in crate::store) fn of(reply: Value) -> StoreResult<Self> {
        match reply {
            Value::Array(fields) => Ok(Self(fields.into_iter())),
            other => Err(unexpected(&other)),
        }
    }

    fn next(&mut self) -> StoreResult<Value> {
        self.0.next().ok_or_else(|| unexpected(&Value::Nil))
    }

    pub(in crate::store) fn int(&mut self) -> StoreResult<i64> {
        match self.next()? {
            Value::Int(n) => Ok(n),
            other => Err(unexpected(&other)),
        }
    }

    pub(in crate::store) fn bytes(&mut self) -> StoreResult<Vec<u8>> {
        match self.next()? {
            Value::BulkString(bytes) => Ok(bytes),
            Value::SimpleString(text) => Ok(text.into_bytes()),
            other => Err(unexpected(&other)),
        }
    }

    pub(in crate::store) fn text(&mut self) -> StoreResult<String> {
        Ok(String::from_utf8_lossy(&self.bytes()?).into_owned())
    }

    pub(in crate::store) fn list(&mut self) -> StoreResult<Self> {
        Self::of(self.next()?)
    }

    /// A list of what is to be swept.
    pub(super) fn entries(&mut self) -> StoreResult<Vec<Entry>> {
        let entry = |value| match value {
            Value::BulkString(bytes) => entry(std::str::from_utf8(&bytes).ok()?),
            _ => None,
        };
        Ok(self.list()?.filter_map(entry).collect())
    }

    /// How many tickets there are, and their sum.
    pub(super) fn digest(&mut self) -> StoreResult<TicketDigest> {
        Ok(TicketDigest { count: self.number()?, sum: self.number()? })
    }

    pub(in crate::store) fn number(&mut self) -> StoreResult<u64> {
        Ok(u64::try_from(self.int()?).unwrap_or(0))
    }

    pub(in crate::store) fn duration(&mut self) -> StoreResult<Duration> {
        Ok(Duration::from_micros(self.number()?))
    }

    pub(in crate::store) fn wait(&mut self) -> StoreResult<Wait> {
        let ahead = usize::try_from(self.int()?).unwrap_or(0);
        // A moment later than the server says, so that its clock has surely passed the deadline.
        let recheck = self.duration()? + Duration::from_millis(1);
        let (owner, label, held_for) = (self.text()?, self.bytes()?, Some(self.duration()?));
        let holder = unpack(&owner).map(|owner| Holder { owner, label, held_for });
        Ok(Wait { ahead, holder, recheck })
    }

    pub(in crate::store) fn ticket(&mut self) -> StoreResult<Ticket> {
        let id = self.text()?.parse().map_err(|_| unexpected(&Value::Nil))?;
        let (weight, capacity) = (self.small()?, self.small()?);
        let fence = Some(self.number()?).filter(|fence| *fence > 0);
        let (owner, label, entered_ago) = (unpack(&self.text()?), self.bytes()?, self.duration()?);
        let granted_ago = u64::try_from(self.int()?).ok().map(Duration::from_micros);
        let ends_in = self.duration()?;
        let mode = Mode::of(weight, capacity);
        Ok(Ticket { id, mode, fence, owner, label, entered_ago, granted_ago, ends_in })
    }

    pub(super) fn status(&mut self) -> StoreResult<TicketStatus> {
        Ok(match self.text()?.as_str() {
            "granted" => TicketStatus::Granted { fence: self.number()? },
            "queued" => TicketStatus::Waiting(self.wait()?),
            _ => TicketStatus::Gone,
        })
    }

    pub(super) fn small(&mut self) -> StoreResult<u32> {
        Ok(u32::try_from(self.int()?).unwrap_or(0))
    }
}

impl Iterator for Reply {
    type Item = Value;
    fn next(&mut self) -> Option<Value> {
        self.0.next()
    }
}

/// An owner in one field. The separator is taken out of its parts, so that they read back.
pub(in crate::store) fn pack(owner: &Owner) -> String {
    let clean = |text: &str| text.replace('\u{1f}', " ");
    format!("{}\u{1f}{}\u{1f}{}", owner.pid, clean(&owner.host), clean(&owner.program))
}

pub(in crate::store) fn unpack(text: &str) -> Option<Owner> {
    let mut parts = text.splitn(3, '\u{1f}');
    let pid = parts.next()?.parse().ok()?;
    let (host, program) = (parts.next()?.to_owned(), parts.next()?.to_owned());
    Some(Owner { host, pid, program })
}

/// A session as `open.lua` has written it down.
pub(in crate::store) fn session(session: SessionId, text: &str) -> Option<Open> {
    let mut parts = text.splitn(5, ' ').skip(1);
    let ttl = Duration::from_micros(parts.next()?.parse().ok()?);
    let lock_delay = Duration::from_micros(parts.next()?.parse().ok()?);
    let owner = unpack(parts.nth(1)?)?;
    Some(Open { session, ttl, lock_delay, owner })
}

/// An entry: `session ticket name`.
fn entry(text: &str) -> Option<Entry> {
    let mut parts = text.splitn(3, ' ').map(str::to_owned);
    let (session, ticket) = (parts.next()?, parts.next()?);
    Some(Entry { session, ticket, name: Name::new(&parts.next()?).ok()? })
}

/// The name and the ticket in an entry of a session's list.
pub(super) fn own(text: &str) -> Option<(Name, TicketId)> {
    let entry = entry(text)?;
    Some((entry.name, entry.ticket.parse().ok()?))
}

/// A note on another bucket in which a session is open: `session @bucket `.
pub(super) fn joined(note: &Value) -> Option<u32> {
    let Value::BulkString(bytes) = note else { return None };
    std::str::from_utf8(bytes).ok()?.split_once(" @")?.1.trim_end().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_owner_reads_back_as_it_was_written() {
        let owner = Owner { host: "ci 7".into(), pid: 42, program: "a b".into() };
        assert_eq!(unpack(&pack(&owner)), Some(owner));
        assert_eq!(unpack(""), None);
    }

    #[test]
    fn a_name_with_spaces_is_read_whole() {
        let ticket = TicketId::random();
        let name = Name::new(" a  b ").unwrap();
        assert_eq!(own(&format!("5e {ticket} {name}")), Some((name, ticket)));
        assert_eq!(own("5e"), None);
        assert_eq!(entry("- -  a  b ").map(|entry| entry.name), Some(Name::new(" a  b ").unwrap()));
    }
}
