//! How things are called in etcd. This layout is an interface: others may read it.
//!
//! ```text
//! ROOT/l/NAME!write/SESSION-SLOT               an exclusive ticket
//! ROOT/l/NAME!read/SESSION-SLOT                a reader
//! ROOT/l/NAME!sem/CAPACITY/SESSION-SLOT-WEIGHT
//! ROOT/c/NAME!                                 the name's cell
//! ROOT/s/SESSION/NUMBER                        a session's leases
//! ROOT/s/SESSION/evicted, …/turn               a session's mailbox: it is told of what happens to its tickets
//! ROOT/x/TICKET-SESSION                        a ticket that must not enter any more
//! ROOT/f/NAME!TICKET                           raw mode: its revision is the number of the ticket's grant
//! ROOT/id                                      the identity of the data
//! ROOT/compact/due, …/last                     when the history is compacted next, and up to where
//! ```
//!
//! A line is all keys that begin with `ROOT/l/NAME!`, in the order in which they were created. In a
//! name the characters up to `%` are written as `%20`; the end of the name sorts before all others, so
//! lines are in the order of their names.
//!
//! Which ticket stands at a key is said by the value. etcd remembers every key that was deleted until
//! its history is compacted, and walks over it whenever it looks into a line; so a session uses a few
//! keys, its slots, again and again. A ticket's slot is its lane. If another ticket of the session
//! stands there already, the ticket's whole id takes the place of the slot. In raw mode a line begins
//! with `NAME/` as with etcd's own clients, and whatever else stands there counts as exclusive.
//! A name whose line would hold keys below `ROOT/`, or lie below it, is refused there.

use crate::model::{
    name::Name,
    ticket::{Mode, TicketId},
};
use std::fmt::Write as _;

/// Ends a name.
const END: char = '!';

pub(super) struct Keys {
    root: String,
    raw: bool,
}

/// How many keys of a line a session uses again and again.
const SLOTS: u8 = 64;

/// The keys at which a ticket may stand.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Seats {
    pub(super) slot: Vec<u8>,
    /// Its alone, for when another ticket stands in the slot.
    pub(super) own: Vec<u8>,
}

/// A ticket as its key tells it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Spot {
    /// `None` if it stands in a slot: then the value tells.
    pub(super) ticket: Option<TicketId>,
    /// The public part of its session's id; `None` if another kind of client has made it.
    pub(super) session: Option<i64>,
    pub(super) mode: Mode,
}

/// Keys from one on and before another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Span {
    pub(super) from: Vec<u8>,
    pub(super) to: Vec<u8>,
}

impl Span {
    /// All keys that begin so.
    pub(super) fn of(prefix: impl Into<Vec<u8>>) -> Self {
        let from = prefix.into();
        let to = end(&from);
        Self { from, to }
    }
}

/// The first key after all that begin so.
fn end(prefix: &[u8]) -> Vec<u8> {
    let mut end = prefix.to_vec();
    while let Some(last) = end.pop() {
        if last < u8::MAX {
            end.push(last + 1);
            return end;
        }
    }
    // Nothing begins so that is not below this: etcd reads it as "to the end".
    vec![0]
}

impl Keys {
    pub(super) fn new(root: impl Into<String>, raw: bool) -> Self {
        Self { root: root.into(), raw }
    }

    pub(super) fn is_raw(&self) -> bool {
        self.raw
    }

    pub(super) fn id(&self) -> Vec<u8> {
        format!("{}/id", self.root).into_bytes()
    }

    /// Is there while the history need not be compacted yet.
    pub(super) fn compaction_due(&self) -> Vec<u8> {
        format!("{}/compact/due", self.root).into_bytes()
    }

    /// Was written when the history was compacted last.
    pub(super) fn compacted_last(&self) -> Vec<u8> {
        format!("{}/compact/last", self.root).into_bytes()
    }

    /// In raw mode: was written when the ticket was granted.
    pub(super) fn number(&self, name: &Name, ticket: TicketId) -> Vec<u8> {
        format!("{}/f/{}{END}{ticket}", self.root, escaped(name.as_str())).into_bytes()
    }

    /// By which rule a name cannot be had, if it cannot. In raw mode a line is all keys below its name,
    /// and must neither hold our own keys nor lie among them.
    pub(super) fn refusal(&self, name: &Name) -> Option<String> {
        let (line, ours) = (self.line_text(name), format!("{}/", self.root));
        let overlap = self.raw && (line.starts_with(&ours) || ours.starts_with(&line));
        overlap.then(|| {
            format!(
                "with raw=true the lock {name:?} is all keys below \"{line}\", and lockkeeper's own \
                 keys are below \"{ours}\": take another name, or another prefix= than {:?}",
                self.root
            )
        })
    }

    pub(super) fn cell(&self, name: &Name) -> Vec<u8> {
        format!("{}/c/{}{END}", self.root, escaped(name.as_str())).into_bytes()
    }

    pub(super) fn closed(&self, session: i64, ticket: TicketId) -> Vec<u8> {
        format!("{}/x/{ticket}-{session:016x}", self.root).into_bytes()
    }

    /// All that is written about a session.
    pub(super) fn session(&self, session: i64) -> Span {
        Span::of(format!("{}/s/{session:016x}/", self.root))
    }

    /// What one of a session's leases carries, besides tickets.
    pub(super) fn shard(&self, session: i64, shard: usize) -> Vec<u8> {
        format!("{}/s/{session:016x}/{shard}", self.root).into_bytes()
    }

    /// Where a session is told of its evictions.
    pub(super) fn evicted(&self, session: i64) -> Vec<u8> {
        format!("{}/s/{session:016x}/evicted", self.root).into_bytes()
    }

    /// Where a session is told that the turn of one of its tickets has come.
    pub(super) fn turn(&self, session: i64) -> Vec<u8> {
        format!("{}/s/{session:016x}/turn", self.root).into_bytes()
    }

    /// Where a session is told anything. The numbers of its leases sort before it.
    pub(super) fn mailbox(&self, session: i64) -> Span {
        let after_numbers = format!("{}/s/{session:016x}/a", self.root).into_bytes();
        Span { from: after_numbers, ..self.session(session) }
    }

    fn line_text(&self, name: &Name) -> String {
        match self.raw {
            true => format!("{name}/"),
            false => format!("{}/l/{}{END}", self.root, escaped(name.as_str())),
        }
    }

    pub(super) fn line(&self, name: &Name) -> Span {
        Span::of(self.line_text(name))
    }

    /// Where lines of names that begin so are.
    pub(super) fn lines(&self, prefix: &str) -> Span {
        match self.raw {
            true if prefix.is_empty() => Span { from: vec![0], to: vec![0] },
            true => Span::of(prefix),
            false => Span::of(format!("{}/l/{}", self.root, escaped(prefix))),
        }
    }

    fn class(&self, name: &Name, mode: Mode) -> String {
        let line = self.line_text(name);
        match mode {
            Mode::Exclusive => line + "write/",
            Mode::Shared => line + "read/",
            Mode::Permits { of, .. } => format!("{line}sem/{of}/"),
        }
    }

    /// Where a ticket may stand. In raw mode the value is not ours, so there are no slots.
    pub(super) fn seats(&self, name: &Name, mode: Mode, ticket: TicketId, session: i64) -> Seats {
        let class = self.class(name, mode);
        let weight = match mode {
            Mode::Permits { weight, .. } => format!("-{weight}"),
            Mode::Exclusive | Mode::Shared => String::new(),
        };
        let key = |word: String| format!("{class}{session:016x}-{word}{weight}").into_bytes();
        let own = key(ticket.to_string());
        let slot = match self.raw {
            true => own.clone(),
            false => key(format!("{:02x}", ticket.lane() % SLOTS)),
        };
        Seats { slot, own }
    }

    /// What the key of an exclusive ticket ends with.
    pub(super) fn seat<'a>(&self, name: &Name, key: &'a [u8]) -> Option<&'a str> {
        std::str::from_utf8(key).ok()?.strip_prefix(&self.class(name, Mode::Exclusive))
    }

    /// The key of an exclusive ticket that ends so.
    pub(super) fn at_seat(&self, name: &Name, seat: &str) -> Vec<u8> {
        (self.class(name, Mode::Exclusive) + seat).into_bytes()
    }

    /// Where tickets of the line would be that have another capacity.
    pub(super) fn of_other_capacity(&self, name: &Name, mode: Mode) -> Vec<Span> {
        match mode {
            Mode::Exclusive | Mode::Shared => vec![Span::of(self.line_text(name) + "sem/")],
            Mode::Permits { .. } => self.around(name, &Span::of(self.class(name, mode))),
        }
    }

    /// Where nobody may stand if a ticket is to be granted without knowing more of its line.
    pub(super) fn in_the_way(&self, name: &Name, mode: Mode) -> Vec<Span> {
        match mode {
            Mode::Exclusive | Mode::Permits { .. } => vec![self.line(name)],
            Mode::Shared => self.around(name, &Span::of(self.class(name, mode))),
        }
    }

    /// The line without this part of it.
    fn around(&self, name: &Name, part: &Span) -> Vec<Span> {
        let line = self.line(name);
        let before = Span { from: line.from, to: part.from.clone() };
        vec![before, Span { from: part.to.clone(), to: line.to }]
    }

    /// What a key of a line says, if it is one.
    pub(super) fn parse(&self, key: &[u8], lease: i64) -> Option<(Name, Spot)> {
        let key = std::str::from_utf8(key).ok()?;
        let ours = key.strip_prefix(&self.root);
        if self.raw {
            let ours = ours.is_some_and(|rest| rest.starts_with('/'));
            return if ours { None } else { parse_raw(key, lease) };
        }
        let line = ours?.strip_prefix("/l/")?;
        let (name, rest) = line.split_once(END)?;
        Some((Name::new(&unescaped(name)?).ok()?, spot(rest)?))
    }

    /// What a key of the line of this name says. Every key there is a ticket.
    pub(super) fn spot(&self, name: &Name, key: &[u8]) -> Spot {
        let rest = key.get(self.line_text(name).len()..).unwrap_or_default();
        let own = std::str::from_utf8(rest).ok().and_then(spot);
        let own = own.filter(|spot| !self.raw || spot.ticket.is_some());
        own.unwrap_or_else(|| foreign(rest))
    }
}

fn spot(rest: &str) -> Option<Spot> {
    let (class, rest) = rest.split_once('/')?;
    let (of, rest) = match class {
        "sem" => {
            let (of, rest) = rest.split_once('/')?;
            (Some(of.parse().ok()?), rest)
        }
        _ => (None, rest),
    };
    let mut parts = rest.split('-');
    let session = Some(i64::from_str_radix(parts.next()?, 16).ok()?);
    let ticket = match parts.next()? {
        slot if slot.len() == 2 => u8::from_str_radix(slot, 16).ok().map(|_| None)?,
        ticket => Some(ticket.parse().ok()?),
    };
    let mode = match (class, of) {
        ("write", None) => Mode::Exclusive,
        ("read", None) => Mode::Shared,
        (_, Some(of)) => Mode::Permits { weight: parts.next()?.parse().ok()?, of },
        _ => return None,
    };
    parts.next().is_none().then_some(Spot { ticket, session, mode })
}

/// A key that another kind of client has put into the line. Its end is mostly its lease in
/// hexadecimal digits, and then that is its id here too; else the id is a hash (FNV-1a).
fn foreign(rest: &[u8]) -> Spot {
    let text = std::str::from_utf8(rest).unwrap_or_default();
    let id = u128::from_str_radix(text, 16).unwrap_or_else(|_| {
        rest.iter().fold(0x6c62_272e_07bb_0142_62b8_2175_6295_c58d, |hash, byte| {
            (hash ^ u128::from(*byte)).wrapping_mul(0x0100_0000_0000_0000_0000_013b)
        })
    });
    let ticket = Some(TicketId::from_bytes(id.to_be_bytes()));
    Spot { ticket, session: None, mode: Mode::Exclusive }
}

/// Among all of a cluster's keys, those that are tickets: ours, and those that end with their lease.
fn parse_raw(key: &str, lease: i64) -> Option<(Name, Spot)> {
    for class in ["/write/", "/read/", "/sem/"] {
        if let Some(at) = key.rfind(class)
            && let Some(spot) = spot(&key[at + 1..]).filter(|spot| spot.ticket.is_some())
        {
            return Some((Name::new(&key[..at]).ok()?, spot));
        }
    }
    let (name, rest) = key.rsplit_once('/')?;
    let by_lease = lease != 0 && i64::from_str_radix(rest, 16) == Ok(lease);
    by_lease.then(|| Some((Name::new(name).ok()?, foreign(rest.as_bytes()))))?
}

fn escaped(name: &str) -> String {
    let mut text = String::with_capacity(name.len());
    for c in name.chars() {
        if c <= '%' {
            let _ = write!(text, "%{:02x}", u32::from(c));
        } else {
            text.push(c);
        }
    }
    text
}

fn unescaped(text: &str) -> Option<String> {
    percent_encoding::percent_decode_str(text).decode_utf8().ok().map(Into::into)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn name(text: &str) -> Name {
        Name::new(text).unwrap()
    }

    const MODES: [Mode; 3] = [Mode::Exclusive, Mode::Shared, Mode::Permits { weight: 2, of: 40 }];

    #[test]
    fn a_key_reads_as_it_was_written() {
        for keys in [Keys::new("lockkeeper", false), Keys::new("lockkeeper", true)] {
            for mode in MODES {
                let ticket = TicketId::random();
                let seats = keys.seats(&name("a/b"), mode, ticket, 7);
                let in_slot = if keys.is_raw() { Some(ticket) } else { None };
                for (key, ticket) in [(seats.slot, in_slot), (seats.own, Some(ticket))] {
                    let spot = Spot { ticket, session: Some(7), mode };
                    assert_eq!(keys.parse(&key, 7), Some((name("a/b"), spot)));
                    assert_eq!(keys.spot(&name("a/b"), &key), spot);
                }
            }
        }
    }

    #[test]
    fn the_parts_of_a_line_do_not_overlap() {
        let (keys, name) = (Keys::new("r", false), name("a"));
        let within = |span: &Span, key: &[u8]| *span.from <= *key && *key < *span.to;
        let key = |mode| keys.seats(&name, mode, TicketId::random(), 1).slot;
        let permits = |of| Mode::Permits { weight: 1, of };
        let others = |mode, key: &[u8]| {
            keys.of_other_capacity(&name, mode).iter().any(|span| within(span, key))
        };
        for (mode, other) in [
            (Mode::Exclusive, permits(4)),
            (Mode::Shared, permits(4)),
            (permits(4), Mode::Exclusive),
            (permits(4), Mode::Shared),
            (permits(4), permits(40)),
            (permits(4), permits(3)),
        ] {
            assert!(others(mode, &key(other)) && !others(mode, &key(mode)), "{mode} {other}");
        }
        let blocks =
            |mode, key: &[u8]| keys.in_the_way(&name, mode).iter().any(|span| within(span, key));
        assert!(blocks(Mode::Shared, &key(Mode::Exclusive)));
        assert!(!blocks(Mode::Shared, &key(Mode::Shared)));
        assert!(blocks(Mode::Exclusive, &key(Mode::Shared)));
    }

    #[test]
    fn foreign_keys_are_exclusive_and_named_by_their_lease() {
        let keys = Keys::new("lockkeeper", true);
        let spot = keys.spot(&name("a"), b"a/694d7a2f5a8c1e0b");
        assert_eq!((spot.mode, spot.session), (Mode::Exclusive, None));
        assert_eq!(spot.ticket.unwrap().to_string(), "0000000000000000694d7a2f5a8c1e0b");
        let lease = 0x694d_7a2f_5a8c_1e0b;
        assert_eq!(keys.parse(b"a/694d7a2f5a8c1e0b", lease).unwrap().0, name("a"));
        assert_eq!(keys.parse(b"a/694d7a2f5a8c1e0b", 5), None, "somebody's own key");
        assert_eq!(keys.parse(b"config/colour", 0), None);
    }

    proptest! {
        #[test]
        fn lines_are_in_the_order_of_their_names(a in "\\PC{1,20}", b in "\\PC{1,20}") {
            let keys = Keys::new("r", false);
            let (a, b) = (name(&a), name(&b));
            prop_assert_eq!(a.cmp(&b), keys.line(&a).from.cmp(&keys.line(&b).from));
            let key = keys.seats(&a, Mode::Exclusive, TicketId::random(), 1).slot;
            prop_assert_eq!(keys.parse(&key, 1).unwrap().0, a);
        }
    }
}
