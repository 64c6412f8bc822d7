//! Reading what the scripts answer.

use super::{KIND, sessions::Dust};
use crate::{
    error::{ErrorKind, StoreError},
    model::{
        line::Ticket,
        name::Name,
        ticket::{Mode, Owner, SessionId, TicketId},
    },
    store::{Holder, Open, StoreResult, TicketDigest, Wait},
};
use redis::Value;
use std::time::Duration;

/// An answer that no script of ours gives.
pub(in crate::store) fn nonsense(what: &Value) -> StoreError {
    let what = format!("the server's answer makes no sense: {what:?}");
    StoreError::unknown(KIND, ErrorKind::Corrupt, what)
}

/// The parts of an answer, taken one after the other.
pub(in crate::store) struct Parts(std::vec::IntoIter<Value>);

impl Parts {
    pub(in crate::store) fn of(value: Value) -> StoreResult<Self> {
        match value {
            Value::Array(parts) => Ok(Self(parts.into_iter())),
            other => Err(nonsense(&other)),
        }
    }

    fn next(&mut self) -> StoreResult<Value> {
        self.0.next().ok_or_else(|| nonsense(&Value::Nil))
    }

    pub(in crate::store) fn int(&mut self) -> StoreResult<i64> {
        match self.next()? {
            Value::Int(n) => Ok(n),
            other => Err(nonsense(&other)),
        }
    }

    pub(in crate::store) fn bytes(&mut self) -> StoreResult<Vec<u8>> {
        match self.next()? {
            Value::BulkString(bytes) => Ok(bytes),
            Value::SimpleString(text) => Ok(text.into_bytes()),
            other => Err(nonsense(&other)),
        }
    }

    pub(in crate::store) fn text(&mut self) -> StoreResult<String> {
        Ok(String::from_utf8_lossy(&self.bytes()?).into_owned())
    }

    pub(in crate::store) fn parts(&mut self) -> StoreResult<Self> {
        Self::of(self.next()?)
    }

    /// A list of what is to be swept, each "session ticket name".
    pub(super) fn dust(&mut self) -> StoreResult<Vec<Dust>> {
        let dust = |value| match value {
            Value::BulkString(bytes) => dust(std::str::from_utf8(&bytes).ok()?),
            _ => None,
        };
        Ok(self.parts()?.filter_map(dust).collect())
    }

    /// How many tickets there are, and their sum.
    pub(super) fn digest(&mut self) -> StoreResult<TicketDigest> {
        Ok(TicketDigest { count: self.number()?, sum: self.number()? })
    }

    fn number(&mut self) -> StoreResult<u64> {
        Ok(u64::try_from(self.int()?).unwrap_or(0))
    }

    pub(in crate::store) fn duration(&mut self) -> StoreResult<Duration> {
        Ok(Duration::from_micros(self.number()?))
    }

    pub(in crate::store) fn fence(&mut self) -> StoreResult<u64> {
        self.number()
    }

    pub(in crate::store) fn wait(&mut self) -> StoreResult<Wait> {
        let ahead = usize::try_from(self.int()?).unwrap_or(0);
        // A moment later than the server says, so that its clock has surely passed the deadline.
        let recheck = self.duration()? + Duration::from_millis(1);
        let (owner, note, held_for) = (self.text()?, self.bytes()?, Some(self.duration()?));
        let holder = unpack(&owner).map(|owner| Holder { owner, label: note, held_for });
        Ok(Wait { ahead, holder, recheck })
    }

    pub(in crate::store) fn ticket(&mut self) -> StoreResult<Ticket> {
        let id = self.text()?.parse().map_err(|_| nonsense(&Value::Nil))?;
        let (weight, capacity) = (self.small()?, self.small()?);
        let fence = Some(self.number()?).filter(|fence| *fence > 0);
        let (owner, note, entered_ago) = (unpack(&self.text()?), self.bytes()?, self.duration()?);
        let granted_ago = u64::try_from(self.int()?).ok().map(Duration::from_micros);
        let ends_in = self.duration()?;
        let mode = Mode::of(weight, capacity);
        Ok(Ticket { id, mode, fence, owner, label: note, entered_ago, granted_ago, ends_in })
    }

    fn small(&mut self) -> StoreResult<u32> {
        Ok(u32::try_from(self.int()?).unwrap_or(0))
    }
}

impl Iterator for Parts {
    type Item = Value;
    fn next(&mut self) -> Option<Value> {
        self.0.next()
    }
}

/// An owner in one field. The parts are cleaned of the separator, so that they read back.
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

/// A ticket as it stands among those of its session: `session ticket name`.
pub(in crate::store) fn own(entry: &str) -> Option<(Name, TicketId)> {
    let mut parts = entry.splitn(3, ' ').skip(1);
    let ticket = parts.next()?.parse().ok()?;
    Some((Name::new(parts.next()?).ok()?, ticket))
}

/// Something to be swept: `session ticket name`.
fn dust(entry: &str) -> Option<Dust> {
    let mut parts = entry.splitn(3, ' ').map(str::to_owned);
    let (session, ticket) = (parts.next()?, parts.next()?);
    Some(Dust { session, ticket, name: Name::new(&parts.next()?).ok()? })
}

/// A note on another bucket in which a session is open: `session @bucket `.
pub(in crate::store) fn joined(entry: &Value) -> Option<u32> {
    let Value::BulkString(bytes) = entry else { return None };
    std::str::from_utf8(bytes).ok()?.split_once(" @")?.1.trim_end().parse().ok()
}

/// What a message to a waiter says.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::store) enum Message {
    Granted(TicketId, u64),
    Ended(TicketId),
}

impl Message {
    pub(in crate::store) fn parse(payload: &[u8]) -> Option<Self> {
        let (ticket, rest) = std::str::from_utf8(payload).ok()?.split_once(' ')?;
        let ticket = ticket.parse().ok()?;
        match rest {
            "ended" => Some(Self::Ended(ticket)),
            fence => Some(Self::Granted(ticket, fence.parse().ok()?)),
        }
    }
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
        assert_eq!(dust("- -  a  b ").map(|dust| dust.name), Some(Name::new(" a  b ").unwrap()));
    }

    #[test]
    fn only_our_own_messages_are_understood() {
        let ticket = TicketId::random();
        let granted = Message::parse(format!("{ticket} 17").as_bytes());
        assert_eq!(granted, Some(Message::Granted(ticket, 17)));
        let ended = Message::parse(format!("{ticket} ended").as_bytes());
        assert_eq!(ended, Some(Message::Ended(ticket)));
        assert_eq!(Message::parse(b"hello world"), None);
        assert_eq!(Message::parse(b"\xff"), None);
    }
}
