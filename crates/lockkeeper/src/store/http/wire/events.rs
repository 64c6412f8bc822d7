//! What the service says of changes: a stream of events, a lock's history, and how fresh both are.

use super::Fence;
use crate::model::{
    name::Name,
    ticket::{Mode, Owner, TicketId},
};
use serde::{Deserialize, Serialize};

/// The header with the id of the last event that a viewer has seen, when it connects again.
pub const LAST_EVENT_ID: &str = "last-event-id";

/// The longest label in an event, in bytes; the rest is cut off.
pub const EVENT_LABEL_MAX: usize = 256;

/// The most events in a [`LockHistory`].
pub const HISTORY_MAX: usize = 128;

/// The query of `GET /v1/events`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WatchEvents {
    /// How the names begin; empty for all that the caller may read.
    #[serde(default)]
    pub prefix: String,
}

/// The query of `GET /v1/locks/{name}`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LookAtLock {
    /// [`LockLine::change`](super::LockLine::change) of an earlier answer: answer when the line differs from that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wait_change: Option<String>,
    /// Answer after so long even if nothing has changed, at most [`WAIT_MAX_MS`](super::WAIT_MAX_MS); 30 s if
    /// missing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wait_ms: Option<u64>,
}

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EventKind {
    /// A ticket stands in line.
    Queued,
    /// A ticket was granted.
    Granted,
    /// A granted ticket was given back.
    Released,
    /// A waiting ticket left the line.
    Withdrawn,
    /// The client of a granted ticket was told that it is no longer held.
    Lost,
    /// A ticket's session was not renewed in time.
    Expired,
    /// A ticket was ended by force.
    Evicted,
    /// A ticket has another label.
    Label,
    /// A line has changed in another way.
    Changed,
    /// The store answers again.
    StoreUp,
    /// The store does not answer.
    StoreDown,
    /// Events are missing before this one: ask for the present state again.
    Reset,
}

impl EventKind {
    /// All of them.
    pub const ALL: [Self; 12] = [
        Self::Queued,
        Self::Granted,
        Self::Released,
        Self::Withdrawn,
        Self::Lost,
        Self::Expired,
        Self::Evicted,
        Self::Label,
        Self::Changed,
        Self::StoreUp,
        Self::StoreDown,
        Self::Reset,
    ];

    /// The type as it stands in JSON and in the field `event` of the stream.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Queued => "queued",
            Self::Granted => "granted",
            Self::Released => "released",
            Self::Withdrawn => "withdrawn",
            Self::Lost => "lost",
            Self::Expired => "expired",
            Self::Evicted => "evicted",
            Self::Label => "label",
            Self::Changed => "changed",
            Self::StoreUp => "store_up",
            Self::StoreDown => "store_down",
            Self::Reset => "reset",
        }
    }
}

/// One message of `GET /v1/events`, whose type is [`kind`](Self::kind) and whose id is opaque, and one entry of
/// [`LockHistory`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event {
    /// What happened.
    #[serde(rename = "type")]
    pub kind: EventKind,
    /// When, by the clock of the service: RFC 3339 with milliseconds.
    pub at: String,
    /// The lock; missing where the event is about all of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lock: Option<Name>,
    /// The ticket.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ticket: Option<TicketId>,
    /// How it takes the lock.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<Mode>,
    /// The number of its grant.
    #[serde(default, flatten, skip_serializing_if = "Option::is_none")]
    pub fence: Option<Fence>,
    /// The program that took it, if the service knows it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<Owner>,
    /// The ticket's label as text, at most [`EVENT_LABEL_MAX`] bytes of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
    /// For how long the ticket waited before its grant, or before it left.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waited_ms: Option<u64>,
    /// For how long the ticket was held before it ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held_ms: Option<u64>,
    /// `true`: this instance carried the request out. `false`: the service found the change by comparing two looks
    /// at the store, so `expired`, `released` and `withdrawn` are told apart by the time that was left.
    #[serde(default)]
    pub exact: bool,
    /// Of `reset` and `store_down`: why, in words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
}

/// The query of `GET /v1/locks/{name}/history`.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AskHistory {
    /// Only the last so many events, 1 to [`HISTORY_MAX`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<usize>,
}

/// `GET /v1/locks/{name}/history`: the last events of one lock that this instance has seen, the oldest first.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct LockHistory {
    /// The lock.
    pub lock: Name,
    /// Its events: all that went through this instance since [`since`](Self::since), and what other clients did
    /// while a viewer watched the lock.
    pub events: Vec<Event>,
    /// From then on nothing of this instance's own is missing.
    pub since: String,
    /// From then on, until now, what other clients did is there too; missing if no viewer watches the lock now.
    #[serde(default)]
    pub watched_since: Option<String>,
}

/// How soon `GET /v1/events` tells what went past this instance, in `GET /v1/store`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Freshness {
    /// Does the service look at the store now, because viewers watch?
    pub looking: bool,
    /// At most so long after the change, at the present pace; missing while it does not look.
    #[serde(default)]
    pub within_ms: Option<u64>,
    /// The shortest pause between two looks, while things change.
    pub pause_min_ms: u64,
    /// The longest pause, when nothing changes.
    pub pause_max_ms: u64,
    /// How long the last look took; missing before the first.
    #[serde(default)]
    pub look_ms: Option<u64>,
    /// How many lines it found.
    #[serde(default)]
    pub lines: Option<u64>,
}
