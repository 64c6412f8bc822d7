//! The names of lockkeeper's keys in etcd. This layout is an interface: other programs may read it.
//!
//! ```text
//! ROOT/l/NAME!write/SESSION-SLOT               an exclusive ticket
//! ROOT/l/NAME!read/SESSION-SLOT                a reader
//! ROOT/l/NAME!sem/CAPACITY/SESSION-SLOT-WEIGHT
//! ROOT/c/NAME!                                 the name's cell
//! ROOT/s/SESSION/0                             a session's record
//! ROOT/s/SESSION/evicted, …/turn               a session's inbox: evictions and hand-offs of its tickets
//! ROOT/x/TICKET-SESSION                        a ticket that must not enter any more
//! ROOT/f/NAME!TICKET                           raw mode: its revision is the fence of the ticket's grant
//! ROOT/id                                      the identity of the data
//! ROOT/compact/due, …/last                     when the history is compacted next, and up to where
//! ```
//!
//! A line is all keys that begin with `ROOT/l/NAME!`, in the order in which they were created. In a
//! name the characters up to `%` are written as `%20`. The end of the name sorts before all others, so
//! lines are in the order of their names.
//!
//! etcd remembers every deleted key until its history is compacted, and walks over all of them when it
//! looks into a line. So a session uses a few keys of a line, its slots, again and again, and the value
//! says which ticket stands in a slot. A ticket's slot is its lane. If another ticket of the session
//! stands there already, the ticket's key ends with its whole id instead of the slot.
//!
//! In raw mode a line begins with `NAME/`, as with etcd's own clients, and every foreign key there counts
//! as an exclusive ticket. A name is refused if its line would hold keys below `ROOT/` or lie below it.

use super::client::KeyRange;
use crate::{
    model::{
        name::Name,
        ticket::{Mode, TicketId},
    },
    store::common::text::hashed_id,
};
use std::fmt::Write as _;

/// Ends a name.
const END: char = '!';

/// How many keys of a line a session uses again and again.
const SLOTS: u8 = 64;

/// Makes and reads the names of keys.
pub(super) struct Keys {
    root: String,
    raw: bool,
}

/// The two keys at which a ticket may stand.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TicketKeys {
    pub(super) slot: Vec<u8>,
    /// The key that no other ticket uses, for when another ticket stands in the slot.
    pub(super) own: Vec<u8>,
}

/// What a key says about its ticket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ParsedKey {
    /// `None` for a slot, whose value names the ticket.
    pub(super) ticket: Option<TicketId>,
    /// The public half of its session's id; `None` for a key of another kind of client.
    pub(super) session: Option<i64>,
    pub(super) mode: Mode,
}

impl Keys {
    pub(super) fn new(root: impl Into<String>, raw: bool) -> Self {
        Self { root: root.into(), raw }
    }

    pub(super) fn is_raw(&self) -> bool {
        self.raw
    }

    fn below_root(&self, path: std::fmt::Arguments<'_>) -> Vec<u8> {
        format!("{}/{path}", self.root).into_bytes()
    }

    pub(super) fn id(&self) -> Vec<u8> {
        self.below_root(format_args!("id"))
    }

    /// Exists until the history has to be compacted again.
    pub(super) fn compaction_due(&self) -> Vec<u8> {
        self.below_root(format_args!("compact/due"))
    }

    /// Was written when the history was compacted last.
    pub(super) fn compacted_last(&self) -> Vec<u8> {
        self.below_root(format_args!("compact/last"))
    }

    /// In raw mode: was written when the ticket was granted.
    pub(super) fn fence(&self, name: &Name, ticket: TicketId) -> Vec<u8> {
        self.below_root(format_args!("f/{}{END}{ticket}", escaped(name.as_str())))
    }

    pub(super) fn cell(&self, name: &Name) -> Vec<u8> {
        self.below_root(format_args!("c/{}{END}", escaped(name.as_str())))
    }

    /// Marks a ticket as closed: an enter of it that comes late is refused.
    pub(super) fn closed(&self, session: i64, ticket: TicketId) -> Vec<u8> {
        self.below_root(format_args!("x/{ticket}-{session:016x}"))
    }

    /// What is written about a session; its lease holds it.
    pub(super) fn record(&self, session: i64) -> Vec<u8> {
        self.below_root(format_args!("s/{session:016x}/0"))
    }

    /// Where a session is told of evictions.
    pub(super) fn evicted(&self, session: i64) -> Vec<u8> {
        self.below_root(format_args!("s/{session:016x}/evicted"))
    }

    /// Where a session is told that a lock was handed to one of its tickets.
    pub(super) fn handoff(&self, session: i64) -> Vec<u8> {
        self.below_root(format_args!("s/{session:016x}/turn"))
    }

    /// Where a session is told anything. Its record sorts before it.
    pub(super) fn inbox(&self, session: i64) -> KeyRange {
        let all = KeyRange::with_prefix(self.below_root(format_args!("s/{session:016x}/")));
        KeyRange { from: self.below_root(format_args!("s/{session:016x}/a")), ..all }
    }

    /// Why there can be no lock of this name, if so. In raw mode a line is all keys below its name, and
    /// must neither hold our own keys nor lie among them.
    pub(super) fn refusal(&self, name: &Name) -> Option<String> {
        let (line, ours) = (self.line_prefix(name), format!("{}/", self.root));
        let overlap = self.raw && (line.starts_with(&ours) || ours.starts_with(&line));
        overlap.then(|| {
            format!(
                "with raw=true the lock {name:?} is all keys below \"{line}\", and lockkeeper's own \
                 keys are below \"{ours}\": take another name, or another prefix= than {:?}",
                self.root
            )
        })
    }

    fn line_prefix(&self, name: &Name) -> String {
        match self.raw {
            true => format!("{name}/"),
            false => format!("{}/l/{}{END}", self.root, escaped(name.as_str())),
        }
    }

    pub(super) fn line(&self, name: &Name) -> KeyRange {
        KeyRange::with_prefix(self.line_prefix(name))
    }

    /// The lines of all names with this prefix.
    pub(super) fn lines(&self, prefix: &str) -> KeyRange {
        match self.raw {
            true if prefix.is_empty() => KeyRange { from: vec![0], to: vec![0] },
            true => KeyRange::with_prefix(prefix),
            false => KeyRange::with_prefix(format!("{}/l/{}", self.root, escaped(prefix))),
        }
    }

    /// How the keys of a line's tickets of one kind begin.
    fn kind_prefix(&self, name: &Name, mode: Mode) -> String {
        let line = self.line_prefix(name);
        match mode {
            Mode::Exclusive => line + "write/",
            Mode::Shared => line + "read/",
            Mode::Permits { of, .. } => format!("{line}sem/{of}/"),
        }
    }

    /// Where a ticket may stand. In raw mode other clients use the value, so there are no slots.
    pub(super) fn of_ticket(
        &self,
        name: &Name,
        mode: Mode,
        ticket: TicketId,
        session: i64,
    ) -> TicketKeys {
        let kind = self.kind_prefix(name, mode);
        let weight = match mode {
            Mode::Permits { weight, .. } => format!("-{weight}"),
            Mode::Exclusive | Mode::Shared => String::new(),
        };
        let key = |word: String| format!("{kind}{session:016x}-{word}{weight}").into_bytes();
        let own = key(ticket.to_string());
        let slot = match self.raw {
            true => own.clone(),
            false => key(format!("{:02x}", ticket.lane() % SLOTS)),
        };
        TicketKeys { slot, own }
    }

    /// The end of an exclusive ticket's key, `SESSION-SLOT`, after all that the line's exclusive tickets
    /// have in common.
    pub(super) fn exclusive_suffix<'a>(&self, name: &Name, key: &'a [u8]) -> Option<&'a str> {
        std::str::from_utf8(key).ok()?.strip_prefix(&self.kind_prefix(name, Mode::Exclusive))
    }

    /// The key of an exclusive ticket with this end.
    pub(super) fn with_exclusive_suffix(&self, name: &Name, suffix: &str) -> Vec<u8> {
        (self.kind_prefix(name, Mode::Exclusive) + suffix).into_bytes()
    }

    /// Where the line's tickets of another capacity would stand.
    pub(super) fn of_other_capacity(&self, name: &Name, mode: Mode) -> Vec<KeyRange> {
        match mode {
            Mode::Exclusive | Mode::Shared => {
                vec![KeyRange::with_prefix(self.line_prefix(name) + "sem/")]
            }
            Mode::Permits { .. } => self.all_but(name, mode),
        }
    }

    /// Where no ticket may stand if a new one is to be granted without knowing more of its line.
    pub(super) fn in_the_way(&self, name: &Name, mode: Mode) -> Vec<KeyRange> {
        match mode {
            Mode::Exclusive | Mode::Permits { .. } => vec![self.line(name)],
            Mode::Shared => self.all_but(name, mode),
        }
    }

    /// The line without its tickets of this kind.
    fn all_but(&self, name: &Name, mode: Mode) -> Vec<KeyRange> {
        let (line, kind) = (self.line(name), KeyRange::with_prefix(self.kind_prefix(name, mode)));
        vec![KeyRange { from: line.from, to: kind.from }, KeyRange { from: kind.to, to: line.to }]
    }

    /// The name and the ticket that a key stands for, if it is a ticket's.
    pub(super) fn parse(&self, key: &[u8], lease: i64) -> Option<(Name, ParsedKey)> {
        let key = std::str::from_utf8(key).ok()?;
        let ours = key.strip_prefix(&self.root);
        if self.raw {
            let ours = ours.is_some_and(|rest| rest.starts_with('/'));
            return if ours { None } else { parse_raw(key, lease) };
        }
        let (name, rest) = ours?.strip_prefix("/l/")?.split_once(END)?;
        Some((Name::new(&unescaped(name)?).ok()?, parse_in_line(rest)?))
    }

    /// The ticket that a key of this name's line stands for. Every key there is a ticket.
    pub(super) fn parse_in(&self, name: &Name, key: &[u8]) -> ParsedKey {
        let rest = key.get(self.line_prefix(name).len()..).unwrap_or_default();
        let ours = std::str::from_utf8(rest).ok().and_then(parse_in_line);
        let ours = ours.filter(|parsed| !self.raw || parsed.ticket.is_some());
        ours.unwrap_or_else(|| foreign(rest))
    }
}

fn parse_in_line(rest: &str) -> Option<ParsedKey> {
    let (kind, rest) = rest.split_once('/')?;
    let (of, rest) = match kind {
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
    let mode = match (kind, of) {
        ("write", None) => Mode::Exclusive,
        ("read", None) => Mode::Shared,
        (_, Some(of)) => Mode::Permits { weight: parts.next()?.parse().ok()?, of },
        _ => return None,
    };
    parts.next().is_none().then_some(ParsedKey { ticket, session, mode })
}

/// A key that another kind of client has put into the line. It mostly ends with its lease in hexadecimal
/// digits, and then that is its ticket's id here; else the id is a hash.
fn foreign(rest: &[u8]) -> ParsedKey {
    let text = std::str::from_utf8(rest).unwrap_or_default();
    let id = u128::from_str_radix(text, 16).map(|id| TicketId::from_bytes(id.to_be_bytes()));
    let ticket = Some(id.unwrap_or_else(|_| hashed_id(rest)));
    ParsedKey { ticket, session: None, mode: Mode::Exclusive }
}

/// In raw mode any key of the cluster may be a ticket: ours, and those that end with their lease.
fn parse_raw(key: &str, lease: i64) -> Option<(Name, ParsedKey)> {
    for kind in ["/write/", "/read/", "/sem/"] {
        if let Some(at) = key.rfind(kind)
            && let Some(parsed) = parse_in_line(&key[at + 1..]).filter(|p| p.ticket.is_some())
        {
            return Some((Name::new(&key[..at]).ok()?, parsed));
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
                let both = keys.of_ticket(&name("a/b"), mode, ticket, 7);
                let in_slot = if keys.is_raw() { Some(ticket) } else { None };
                for (key, ticket) in [(both.slot, in_slot), (both.own, Some(ticket))] {
                    let parsed = ParsedKey { ticket, session: Some(7), mode };
                    assert_eq!(keys.parse(&key, 7), Some((name("a/b"), parsed)));
                    assert_eq!(keys.parse_in(&name("a/b"), &key), parsed);
                }
            }
        }
    }

    #[test]
    fn the_parts_of_a_line_do_not_overlap() {
        let (keys, name) = (Keys::new("r", false), name("a"));
        let within = |range: &KeyRange, key: &[u8]| *range.from <= *key && *key < *range.to;
        let key = |mode| keys.of_ticket(&name, mode, TicketId::random(), 1).slot;
        let permits = |of| Mode::Permits { weight: 1, of };
        let others = |mode, key: &[u8]| {
            keys.of_other_capacity(&name, mode).iter().any(|range| within(range, key))
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
            |mode, key: &[u8]| keys.in_the_way(&name, mode).iter().any(|range| within(range, key));
        assert!(blocks(Mode::Shared, &key(Mode::Exclusive)));
        assert!(!blocks(Mode::Shared, &key(Mode::Shared)));
        assert!(blocks(Mode::Exclusive, &key(Mode::Shared)));
    }

    #[test]
    fn foreign_keys_are_exclusive_and_named_by_their_lease() {
        let keys = Keys::new("lockkeeper", true);
        let parsed = keys.parse_in(&name("a"), b"a/694d7a2f5a8c1e0b");
        assert_eq!((parsed.mode, parsed.session), (Mode::Exclusive, None));
        assert_eq!(parsed.ticket.unwrap().to_string(), "0000000000000000694d7a2f5a8c1e0b");
        let lease = 0x694d_7a2f_5a8c_1e0b;
        assert_eq!(keys.parse(b"a/694d7a2f5a8c1e0b", lease).unwrap().0, name("a"));
        assert_eq!(keys.parse(b"a/694d7a2f5a8c1e0b", 5), None, "a key of another program");
        assert_eq!(keys.parse(b"config/colour", 0), None);
    }

    proptest! {
        #[test]
        fn lines_are_in_the_order_of_their_names(a in "\\PC{1,20}", b in "\\PC{1,20}") {
            let keys = Keys::new("r", false);
            let (a, b) = (name(&a), name(&b));
            prop_assert_eq!(a.cmp(&b), keys.line(&a).from.cmp(&keys.line(&b).from));
            let key = keys.of_ticket(&a, Mode::Exclusive, TicketId::random(), 1).slot;
            prop_assert_eq!(keys.parse(&key, 1).unwrap().0, a);
        }
    }
}
