//! An event before it has a number.

use super::diff::Change;
use crate::extract::millis;
use jiff::Timestamp;
use lockkeeper::{
    Mode, Name, Owner, TicketId,
    store::http::wire::{EVENT_LABEL_MAX, Event, EventKind},
};
use std::{sync::Arc, time::Duration};

/// What is known of an event. [`Tickets`](super::tickets::Tickets) fills in the rest.
#[derive(Clone, Debug)]
pub(super) struct Draft {
    pub(super) kind: EventKind,
    pub(super) name: Name,
    pub(super) ticket: TicketId,
    pub(super) mode: Option<Mode>,
    pub(super) fence: Option<u64>,
    pub(super) owner: Option<Owner>,
    pub(super) label: Option<String>,
    pub(super) waited: Option<Duration>,
    pub(super) held: Option<Duration>,
    /// The public half of its session, if the ticket went through this instance.
    pub(super) session: Option<Arc<str>>,
    /// How long ago it happened.
    pub(super) ago: Duration,
    /// A request of this instance did it.
    pub(super) exact: bool,
    /// The lock stays closed although the ticket is given back.
    pub(super) kept: bool,
}

impl Draft {
    pub(super) fn new(kind: EventKind, name: &Name, ticket: TicketId) -> Self {
        Self {
            kind,
            name: name.clone(),
            ticket,
            mode: None,
            fence: None,
            owner: None,
            label: None,
            waited: None,
            held: None,
            session: None,
            ago: Duration::ZERO,
            exact: true,
            kept: false,
        }
    }

    /// Does the ticket end with it?
    pub(super) fn is_end(&self) -> bool {
        use EventKind::{Evicted, Expired, Lost, Released, Withdrawn};
        matches!(self.kind, Released | Withdrawn | Lost | Expired | Evicted)
    }

    pub(super) fn into_event(self, wall_micros: u64) -> (Name, Event) {
        let ago = u64::try_from(self.ago.as_micros()).unwrap_or(u64::MAX);
        let event = Event {
            kind: self.kind,
            at: time(wall_micros.saturating_sub(ago)),
            lock: Some(self.name.clone()),
            ticket: Some(self.ticket),
            mode: self.mode,
            fence: self.fence.map(Into::into),
            owner: self.owner,
            label: self.label.filter(|label| !label.is_empty() || self.kind == EventKind::Label),
            waited_ms: self.waited.map(millis),
            held_ms: self.held.map(millis),
            exact: self.exact,
            why: None,
        };
        (self.name, event)
    }
}

impl From<Change> for Draft {
    fn from(change: Change) -> Self {
        let Change { kind, name, ticket, ago, waited, held } = change;
        Self {
            mode: Some(ticket.mode),
            fence: ticket.fence,
            owner: ticket.owner,
            label: Some(label(&ticket.label)),
            waited,
            held,
            ago,
            exact: false,
            ..Self::new(kind, &name, ticket.id)
        }
    }
}

/// A label as events show it.
pub(super) fn label(bytes: &[u8]) -> String {
    let mut text = String::from_utf8_lossy(bytes).into_owned();
    let end = (0..=EVENT_LABEL_MAX.min(text.len())).rev().find(|&at| text.is_char_boundary(at));
    text.truncate(end.unwrap_or(0));
    text
}

/// A time of the wall clock, as `2026-11-19T15:07:12.123Z`.
pub(super) fn time(wall_micros: u64) -> String {
    let micros = i64::try_from(wall_micros).unwrap_or(i64::MAX);
    let at = Timestamp::from_microsecond(micros).unwrap_or(Timestamp::MAX);
    format!("{at:.3}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_label_is_cut_between_two_characters() {
        assert_eq!(label("nightly".as_bytes()), "nightly");
        assert_eq!(label("夜".repeat(200).as_bytes()).len(), 255);
        assert_eq!(label(&[0xff; 4]), "\u{fffd}".repeat(4));
    }

    #[test]
    fn times_have_milliseconds() {
        assert_eq!(time(0), "1970-01-01T00:00:00.000Z");
        assert_eq!(time(1_700_000_000_123_456), "2023-11-14T22:13:20.123Z");
    }
}
