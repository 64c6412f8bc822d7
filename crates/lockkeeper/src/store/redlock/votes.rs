//! How the replies of the scripts are read: votes, and what a node shows of a name.

use super::decide::Vote;
use crate::{
    model::{
        line::Ticket,
        ticket::{Mode, Owner, TicketId},
    },
    store::{
        StoreResult,
        redis::{Reply, unexpected, unpack},
    },
};
use redis::Value;
use std::time::Duration;

/// A node's vote, and after what time the node may vote otherwise although no client has written to it.
pub(super) type TimedVote = (Vote, Option<Duration>);

/// A ticket as one node shows it.
#[derive(Clone, Debug)]
pub(super) struct Shown {
    pub(super) ticket: Ticket,
    /// The number of its label's last edit.
    pub(super) edit: u64,
}

/// The reply to an enter.
pub(super) fn vote(reply: Value) -> StoreResult<TimedVote> {
    let mut reply = Reply::of(reply)?;
    Ok(match reply.text()?.as_str() {
        "yes" => (Vote::Yes, None),
        "closed" => (Vote::Closed, None),
        "low" => (Vote::Low(reply.number()?), None),
        "differs" => (Vote::Differs(reply.number()?), None),
        "void" => (Vote::Void, Some(reply.duration()?)),
        _ => (Vote::No, Some(reply.duration()?)),
    })
}

/// The number in the reply of scripts that say 1 or 0, or what `max_ttl` a node has.
pub(super) fn number(reply: Value) -> StoreResult<u64> {
    match reply {
        Value::Int(n) => Ok(u64::try_from(n).unwrap_or(0)),
        other => Err(unexpected(&other)),
    }
}

pub(super) fn flag(reply: Value) -> StoreResult<bool> {
    Ok(number(reply)? == 1)
}

/// A flag as a vote.
pub(super) fn yes_or_no(reply: Value) -> StoreResult<Vote> {
    Ok(if flag(reply)? { Vote::Yes } else { Vote::No })
}

/// The holder of a name, if there is one.
pub(super) fn shown(reply: Value) -> StoreResult<Option<Shown>> {
    let mut reply = Reply::of(reply)?;
    let Ok(id) = reply.bytes() else { return Ok(None) };
    let id = parse(&id).ok_or_else(|| unexpected(&Value::Nil))?;
    let fence = Some(reply.number()?);
    let (owner, label) = (unpack(&reply.text()?), reply.bytes()?);
    let (edit, entered_ago, ends_in) = (reply.number()?, reply.duration()?, reply.duration()?);
    let (mode, granted_ago) = (Mode::Exclusive, Some(entered_ago));
    let ticket = Ticket { id, mode, fence, owner, label, entered_ago, granted_ago, ends_in };
    Ok(Some(Shown { ticket, edit }))
}

/// The key of a name, which may hold another library's lock.
pub(super) struct Plain {
    /// The key's value; empty if it is no string.
    pub(super) value: Vec<u8>,
    kind: String,
    /// `None` if it stays for ever.
    ends_in: Option<Duration>,
}

impl Plain {
    pub(super) fn is_string(&self) -> bool {
        self.kind == "string"
    }

    /// The ticket that the key stands for. For another library's lock the id is made from its value, so it
    /// is the same whenever it is seen.
    pub(super) fn ticket(&self) -> TicketId {
        match self.is_string() {
            true => ours(&self.value).unwrap_or_else(|| stand_in(&self.value)),
            false => stand_in(self.kind.as_bytes()),
        }
    }

    /// What is known of the holder. The value is the holder's secret, so it is not shown.
    fn owner(&self) -> Owner {
        let program = match (self.is_string(), ours(&self.value)) {
            (true, None) => String::new(),
            (true, Some(_)) => "lockkeeper".to_owned(),
            (false, _) => format!("a key of type {}", self.kind),
        };
        Owner { program, ..Owner::default() }
    }
}

/// The key of a name, if there is one.
pub(super) fn plain(reply: Value) -> StoreResult<Option<Plain>> {
    let mut reply = Reply::of(reply)?;
    let Ok(value) = reply.bytes() else { return Ok(None) };
    let (kind, left) = (reply.text()?, reply.int()?);
    let ends_in = u64::try_from(left).ok().map(Duration::from_millis);
    Ok(Some(Plain { value, kind, ends_in }))
}

/// The same as [`shown`] of a plain string.
pub(super) fn shown_plain(reply: Value) -> StoreResult<Option<Shown>> {
    let ticket = |plain: Plain| Ticket {
        id: plain.ticket(),
        mode: Mode::Exclusive,
        // It is granted, and there is no number.
        fence: Some(0),
        owner: Some(plain.owner()),
        label: Vec::new(),
        entered_ago: Duration::ZERO,
        granted_ago: None,
        ends_in: plain.ends_in.unwrap_or(Duration::MAX),
    };
    Ok(plain(reply)?.map(|plain| Shown { ticket: ticket(plain), edit: 0 }))
}

/// The ticket in a plain string of ours, which has the session after a dot. A string without it belongs to
/// another library, whatever it looks like: redis-py's are as long as our ids, and as random.
fn ours(value: &[u8]) -> Option<TicketId> {
    let dot = value.len().checked_sub(33).filter(|at| value[*at] == b'.')?;
    value[dot + 1..].iter().all(u8::is_ascii_hexdigit).then(|| parse(&value[..dot]))?
}

fn parse(value: &[u8]) -> Option<TicketId> {
    std::str::from_utf8(value).ok()?.parse().ok()
}

/// An id for the value of another library's lock, the same whenever it is seen.
fn stand_in(value: &[u8]) -> TicketId {
    let prime = 0x0100_0000_0000_0000_0000_013b_u128;
    let fold = |hash: u128, byte: &u8| (hash ^ u128::from(*byte)).wrapping_mul(prime);
    let hash = value.iter().fold(0x6c62_272e_07bb_0142_62b8_2175_6295_c58d, fold);
    TicketId::from_bytes(hash.to_be_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_values_of_others_have_ids_of_their_own() {
        let ticket = TicketId::random();
        let session = "0123456789abcdef0123456789abcdef";
        assert_eq!(ours(format!("{ticket}.{session}").as_bytes()), Some(ticket));
        for others in ["f7c2", "", session, &ticket.to_string(), &format!("{ticket}.0123")] {
            assert_eq!(ours(others.as_bytes()), None, "{others}");
        }
        assert_eq!(ours(format!("\u{fc}{ticket}.{session}").as_bytes()), None);
        assert_eq!(stand_in(b"f7c2"), stand_in(b"f7c2"));
        assert_ne!(stand_in(b"f7c2"), stand_in(b"f7c3"));
    }
}
