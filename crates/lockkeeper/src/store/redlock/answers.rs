//! Reading what the scripts answer.

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

/// A node's vote, with what else it said.
#[derive(Debug)]
pub(super) struct Said {
    pub(super) vote: Vote,
    /// After what time the node may vote otherwise although no client has written to it.
    pub(super) remaining: Option<Duration>,
}

/// A ticket as one node shows it.
#[derive(Clone, Debug)]
pub(super) struct Shown {
    pub(super) ticket: Ticket,
    /// The number of its note's last edit.
    pub(super) edit: u64,
}

/// The answer to an enter.
pub(super) fn vote(answer: Value) -> StoreResult<Said> {
    let mut parts = Reply::of(answer)?;
    let mut remaining = None;
    let vote = match parts.text()?.as_str() {
        "yes" => Vote::Yes,
        "closed" => Vote::Closed,
        "low" => Vote::Low(parts.number()?),
        "void" => {
            remaining = Some(parts.duration()?);
            Vote::Void
        }
        "differs" => Vote::Differs(parts.number()?),
        _ => {
            remaining = Some(parts.duration()?);
            Vote::No
        }
    };
    Ok(Said { vote, remaining })
}

/// The answer of scripts that say 1 or 0.
pub(super) fn flag(answer: Value) -> StoreResult<bool> {
    match answer {
        Value::Int(n) => Ok(n == 1),
        other => Err(unexpected(&other)),
    }
}

/// What `max_ttl` a node was told, in microseconds; 0 if it was told none.
pub(super) fn told(answer: Value) -> StoreResult<u64> {
    match answer {
        Value::Int(n) => Ok(u64::try_from(n).unwrap_or(0)),
        other => Err(unexpected(&other)),
    }
}

/// The same as a vote.
pub(super) fn yes_or_no(answer: Value) -> StoreResult<Vote> {
    Ok(if flag(answer)? { Vote::Yes } else { Vote::No })
}

/// Who holds a name, if anybody does.
pub(super) fn shown(answer: Value) -> StoreResult<Option<Shown>> {
    let mut parts = Reply::of(answer)?;
    let Ok(id) = parts.bytes() else { return Ok(None) };
    let id = parse(&id).ok_or_else(|| unexpected(&Value::Nil))?;
    let fence = Some(parts.number()?);
    let (owner, note) = (unpack(&parts.text()?), parts.bytes()?);
    let (edit, held_for, ends_in) = (parts.number()?, parts.duration()?, parts.duration()?);
    let (mode, granted_ago) = (Mode::Exclusive, Some(held_for));
    let ticket =
        Ticket { id, mode, fence, owner, label: note, entered_ago: held_for, granted_ago, ends_in };
    Ok(Some(Shown { ticket, edit }))
}

/// A key of the name in which other libraries' locks stand as well.
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

    /// The ticket that the key stands for. Another library's has an id of our making, the same whenever
    /// it is seen.
    pub(super) fn ticket(&self) -> TicketId {
        match self.is_string() {
            true => ours(&self.value).unwrap_or_else(|| stand_in(&self.value)),
            false => stand_in(self.kind.as_bytes()),
        }
    }

    /// What is known of the holder. The value is the holder's secret, and no label.
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
pub(super) fn plain(answer: Value) -> StoreResult<Option<Plain>> {
    let mut parts = Reply::of(answer)?;
    let Ok(value) = parts.bytes() else { return Ok(None) };
    let (kind, left) = (parts.text()?, parts.int()?);
    let ends_in = u64::try_from(left).ok().map(Duration::from_millis);
    Ok(Some(Plain { value, kind, ends_in }))
}

/// The same as [`shown`] of a plain string.
pub(super) fn shown_plain(answer: Value) -> StoreResult<Option<Shown>> {
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
    Ok(plain(answer)?.map(|plain| Shown { ticket: ticket(plain), edit: 0 }))
}

/// The ticket in a plain string of ours, which has the session after a dot. Without it the string is
/// another's, whatever it looks like: redis-py's are as long as our ids, and as random.
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
