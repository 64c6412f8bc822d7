//! What the service and its clients say to each other: JSON in snake_case, times in whole milliseconds.
//!
//! Requests refuse fields that they do not know, so that a mistyped one never becomes a default. Answers may gain
//! fields, and clients skip those that they do not know. A fence is a number and, for languages whose numbers end
//! at 2^53, the same as text. What a client makes (a ticket's id, a session's secret) makes its request repeatable.
//!
//! A session has two halves. Its secret (32 hexadecimal digits, made by the client) travels in the header
//! [`SECRET`] and in the answer that opens it, nowhere else. Its public half, derived from the secret by
//! [`public_half`], names it in paths.

mod events;

pub use events::{
    AskHistory, EVENT_LABEL_MAX, Event, EventKind, Freshness, HISTORY_MAX, LAST_EVENT_ID,
    LockHistory, LookAtLock, WatchEvents,
};

use crate::{
    error::ErrorKind,
    model::{
        name::Name,
        ticket::{Mode, Owner, TicketId},
    },
};
use serde::{Deserialize, Serialize};

mod label;

pub use label::{Label, from_base64, to_base64};

/// The header with a session's secret.
pub const SECRET: &str = "lockkeeper-secret";
/// The header with a session's public half, where no path names it.
pub const SESSION: &str = "lockkeeper-session";
/// The header with the sequencer, plain or signed, under which a cell is written.
pub const SEQUENCER: &str = "lockkeeper-sequencer";
/// The header with the ticket under which its own session writes a cell.
pub const TICKET: &str = "lockkeeper-ticket";
/// The header with the number of such a write among the ticket's writes.
pub const EDIT: &str = "lockkeeper-edit";
/// The header of an answer with the fence under which a cell was written.
pub const FENCE: &str = "lockkeeper-fence";

/// The header of every answer with the service's clock, in milliseconds since 1970.
pub const CLOCK: &str = "lockkeeper-clock";
/// The header with the time, on that clock, after which the request must have no effect: the service refuses it then
/// (503, `too_late`). An instance that stood still carries out nothing that its client gave up long ago.
pub const DEADLINE: &str = "lockkeeper-deadline";

/// The longest wait of one request. A client that wants to wait longer asks again.
pub const WAIT_MAX_MS: u64 = 60_000;

/// `POST /v1/sessions`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OpenSession {
    /// 32 hexadecimal digits; the service makes them if they are missing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret: Option<String>,
    /// For how long a renewal is good.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl_ms: Option<u64>,
    /// For how long the locks stay closed after the session has died.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lock_delay_ms: Option<u64>,
    /// The program that asks, to show in listings.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<Owner>,
}

/// The answer to [`OpenSession`].
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SessionOpened {
    /// The public half.
    pub session: String,
    /// The secret.
    pub secret: String,
    /// The terms, as granted.
    #[serde(flatten)]
    pub terms: SessionTerms,
}

/// A session's terms, and when to renew.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct SessionTerms {
    /// For how long a renewal is good.
    pub ttl_ms: u64,
    /// For how long the locks stay closed after the session has died.
    pub lock_delay_ms: u64,
    /// How much earlier than the TTL the client stops believing.
    pub margin_ms: u64,
    /// Renew so long after the last renewal was sent.
    pub renew_after_ms: u64,
}

/// `POST /v1/sessions/{session}/renew`; the body may be empty.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RenewSession {
    /// Shall the answer list the session's tickets? That costs one more round trip to the store.
    #[serde(default = "yes")]
    pub tickets: bool,
}

impl Default for RenewSession {
    fn default() -> Self {
        Self { tickets: true }
    }
}

fn yes() -> bool {
    true
}

/// The answer to [`RenewSession`]. A session that is over answers 410.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SessionRenewed {
    /// The public half.
    pub session: String,
    /// As long as this text stays the same, no ticket of the session was evicted, and the same server with the
    /// same history has answered. When it changes, ask for the tickets.
    pub version: String,
    /// Count and sum of the session's tickets, if the store tells.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<Digest>,
    /// All tickets, if they were asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tickets: Option<Vec<TicketState>>,
    /// The session's terms, if this instance knows them: the answer that opened the session has them in any case.
    #[serde(default, flatten, skip_serializing_if = "Option::is_none")]
    pub terms: Option<SessionTerms>,
}

/// [`TicketDigest`](crate::store::TicketDigest) as numbers and text.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Digest {
    /// How many tickets there are.
    pub count: u64,
    /// The sum of the first four bytes of each id, as text.
    pub sum: String,
}

/// `POST /v1/sessions/{session}/poll`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PollSession {
    /// These tickets; all of the session if missing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tickets: Option<Vec<TicketRef>>,
}

/// A ticket of a known session.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TicketRef {
    /// The lock.
    pub lock: Name,
    /// The ticket.
    pub ticket: TicketId,
}

/// The answer to [`PollSession`], and to `GET /v1/sessions/{session}`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SessionTickets {
    /// The public half.
    pub session: String,
    /// How the tickets stand.
    pub tickets: Vec<TicketState>,
}

/// How a ticket stands: `{"lock":"nightly","ticket":"…","state":"granted","fence":7,"fence_text":"7"}`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TicketState {
    /// The lock.
    pub lock: Name,
    /// The ticket.
    pub ticket: TicketId,
    /// How it stands.
    #[serde(flatten)]
    pub state: State,
}

/// How a ticket stands.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum State {
    /// It holds the lock.
    Granted(Fence),
    /// It stands in line.
    Waiting(Waiting),
    /// It is in no line.
    Gone,
}

/// The number of a grant, twice.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fence {
    /// As a number.
    pub fence: u64,
    /// The same as text, for languages whose numbers end at 2^53.
    pub fence_text: String,
}

impl From<u64> for Fence {
    fn from(fence: u64) -> Self {
        Self { fence, fence_text: fence.to_string() }
    }
}

/// What a waiter is told.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Waiting {
    /// How many tickets stand before this one, holders included.
    pub ahead: usize,
    /// The first holder, if the store can tell at once.
    #[serde(default)]
    pub holder: Option<HeldBy>,
    /// Look again after this time at the latest.
    pub recheck_ms: u64,
}

/// A lock's holder, as waiters are told.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeldBy {
    /// The program that holds it.
    pub owner: Owner,
    /// The label of its ticket.
    #[serde(flatten)]
    pub label: Label,
    /// For how long already, if the store has noted it.
    #[serde(default)]
    pub held_for_ms: Option<u64>,
}

/// `POST /v1/locks/{name}`.
///
/// Without the headers [`SESSION`] and [`SECRET`] it opens a session that ends with the ticket. The same request
/// again, with the same ticket and secret, gets the ticket's state as it is then.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TakeLock {
    /// The ticket's id; the service makes one if it is missing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ticket: Option<TicketId>,
    /// `"exclusive"` (the default), `"shared"` or `{"permits":{"weight":2,"of":4}}`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<Mode>,
    /// Stand in line, or not at all; `queue` if `wait_ms` is more than 0, else `contend`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub manner: Option<Manner>,
    /// Wait for so long for the grant before the answer, at most [`WAIT_MAX_MS`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wait_ms: Option<u64>,
    /// The ticket's label, for others to read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
    /// The same as bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label_base64: Option<String>,
    /// Withdraw the ticket if the client goes away while it waits: by default only if this request opened the session
    /// and cannot be repeated, since the service made the secret or the ticket.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub withdraw_on_disconnect: Option<bool>,
    /// The secret of the session to open.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret: Option<String>,
    /// The TTL of the session to open.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl_ms: Option<u64>,
    /// The lock-delay of the session to open.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lock_delay_ms: Option<u64>,
    /// The owner of the session to open.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<Owner>,
}

/// How a ticket wants to come to its grant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Manner {
    /// Stand in line.
    Queue,
    /// Take it if it is free; leave no ticket otherwise.
    Contend,
}

/// The answer to [`TakeLock`]: 200 if `held`, 202 if the ticket stands in line. A lock that is busy for one that
/// contends is a [`Problem`] with status 409 and kind `busy`, with the fields of [`Waiting`].
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct LockTaken {
    /// The lock.
    pub lock: Name,
    /// The ticket.
    pub ticket: TicketId,
    /// The public half of its session.
    pub session: String,
    /// The session's secret, if this request opened it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret: Option<String>,
    /// Is it granted?
    pub held: bool,
    /// The number of the grant.
    #[serde(default, flatten, skip_serializing_if = "Option::is_none")]
    pub fence: Option<Fence>,
    /// The grant as text for others to check, signed if the service has keys; it signs none for another mode than the
    /// ticket's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sequencer: Option<String>,
    /// What it waits for.
    #[serde(default, flatten, skip_serializing_if = "Option::is_none")]
    pub waiting: Option<Waiting>,
    /// The terms of the session, if this request opened it.
    #[serde(default, flatten, skip_serializing_if = "Option::is_none")]
    pub terms: Option<SessionTerms>,
}

/// The query of `DELETE /v1/locks/{name}/tickets/{ticket}`.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LeaveLock {
    /// Keep the lock closed for so long.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keep_ms: Option<u64>,
    /// A copy of the request that took the ticket may still be under way: refuse it when it comes.
    #[serde(default)]
    pub stray: bool,
}

/// `PATCH /v1/locks/{name}/tickets/{ticket}`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ChangeTicket {
    /// The new label; nothing takes it away.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
    /// The same as bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label_base64: Option<String>,
    /// The number of this change among the ticket's changes, so that a late copy of an older one undoes nothing;
    /// the service's clock in microseconds if it is missing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub edit: Option<u64>,
}

/// What became of a ticket, a session or a cell: `released`, `withdrawn`, `gone`, `evicted`, `closed`, `done`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Done {
    /// In one word.
    pub result: String,
}

/// The query of `GET /v1/locks`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ListLocks {
    /// How the names begin.
    #[serde(default)]
    pub prefix: String,
    /// Only names after this one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<Name>,
    /// At most so many, 1 to 1,000.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<usize>,
    /// `held`, `waiting` or `expiring`: only such lines.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<String>,
}

/// The answer to [`ListLocks`].
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct LocksPage {
    /// The lines, in the order of their names' bytes.
    pub locks: Vec<LockLine>,
    /// Where the next page begins (`after`), if there may be one.
    #[serde(default)]
    pub next: Option<Name>,
    /// What the listing does not show, in words.
    #[serde(default)]
    pub not_shown: Option<String>,
}

/// One line, in `GET /v1/locks` and as `GET /v1/locks/{name}`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct LockLine {
    /// The lock.
    pub lock: Name,
    /// The permits of a semaphore; nothing for a plain lock.
    #[serde(default)]
    pub permits: Option<u32>,
    /// The tickets in order, the holders first.
    pub tickets: Vec<LineTicket>,
    /// Give it as `wait_change` to `GET /v1/locks/{name}`, and the answer comes when the line has changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub change: Option<String>,
}

/// One ticket as listings show it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct LineTicket {
    /// Its id.
    pub ticket: TicketId,
    /// How it takes the lock.
    pub mode: Mode,
    /// The number of its grant; missing while it waits.
    #[serde(default, flatten, skip_serializing_if = "Option::is_none")]
    pub fence: Option<Fence>,
    /// The program that took it; nothing for a hold that has outlived its session.
    #[serde(default)]
    pub owner: Option<Owner>,
    /// Its label.
    #[serde(flatten)]
    pub label: Label,
    /// How long ago it entered the line.
    pub entered_ago_ms: u64,
    /// How long ago it was granted, if it was, and if the store has noted it.
    #[serde(default)]
    pub granted_ago_ms: Option<u64>,
    /// When it ends unless its session is renewed; nothing if it never ends by itself.
    #[serde(default)]
    pub ends_in_ms: Option<u64>,
}

/// `POST /v1/locks/{name}/evict`.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Evict {
    /// The ticket to end.
    pub ticket: TicketId,
    /// Only if this is its fence now; 409 otherwise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fence: Option<u64>,
}

/// `POST /v1/check`.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Check {
    /// A sequencer, plain or signed.
    pub sequencer: String,
}

/// The answer to [`Check`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Checked {
    /// Is the grant held now?
    pub held: bool,
}

/// `GET /v1/store`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct StoreInfo {
    /// The identity of the data, 16 hexadecimal digits.
    pub store: String,
    /// The kind of store behind the service.
    pub scheme: String,
    /// What it can do, by the names of [`Capabilities`](crate::Capabilities)' fields.
    pub capabilities: crate::Capabilities,
    /// What its listings do not show, in words.
    #[serde(default)]
    pub not_shown: Option<String>,
    /// The service's version.
    pub version: String,
    /// This instance of the service: another number after every start.
    pub instance: String,
    /// How soon the events tell what went past this instance.
    #[serde(default)]
    pub events: Freshness,
}

/// One message of `GET /v1/sessions/{session}/hints`, a stream of server-sent events whose type is the variant and
/// whose data is this. Hints may be lost and may be spurious.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "hint", rename_all = "snake_case")]
pub enum Hint {
    /// This ticket was granted.
    Granted {
        /// The ticket.
        ticket: TicketId,
        /// The number of its grant.
        fence: u64,
    },
    /// This ticket was ended by another client.
    Ended {
        /// The ticket.
        ticket: TicketId,
    },
    /// This line has room, and no ticket waits in it.
    Freed {
        /// The lock.
        lock: Name,
    },
    /// This ticket may stand differently now, or any of the session's; always the first message.
    Recheck {
        /// The ticket; any if missing.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        ticket: Option<TicketId>,
    },
}

/// An error: `application/problem+json` (RFC 9457).
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Problem {
    /// `urn:lockkeeper:KIND`.
    #[serde(rename = "type")]
    pub uri: String,
    /// The kind, for programs: `busy`, `session_over`, `unavailable`…
    pub kind: String,
    /// The kind in words.
    pub title: String,
    /// The status, as in the answer's first line.
    pub status: u16,
    /// What happened here, and what to do.
    pub detail: String,
    /// `not_applied` or `unknown`, wherever a change was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outcome: Option<String>,
    /// Of the kind `capacity`: what the line has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub capacity: Option<u32>,
    /// Of the kinds `stale` and `fence_changed`: the fence as it is now.
    #[serde(default, flatten, skip_serializing_if = "Option::is_none")]
    pub fence: Option<Fence>,
    /// Of the kind `busy`: who holds it, and when to look again.
    #[serde(default, flatten, skip_serializing_if = "Option::is_none")]
    pub waiting: Option<Waiting>,
}

/// The kind and the status of a store's failure.
#[must_use]
pub fn kind(of: ErrorKind) -> (&'static str, u16) {
    match of {
        ErrorKind::Unavailable => ("unavailable", 503),
        ErrorKind::SessionOver => ("session_over", 410),
        ErrorKind::TicketClosed => ("ticket_closed", 409),
        ErrorKind::Capacity(_) => ("capacity", 422),
        ErrorKind::Name => ("name", 422),
        ErrorKind::Full => ("full", 507),
        ErrorKind::Denied => ("store_denied", 502),
        ErrorKind::Misconfigured => ("store_misconfigured", 502),
        ErrorKind::Corrupt => ("store_corrupt", 500),
        ErrorKind::Unsupported(_) => ("unsupported", 501),
        ErrorKind::Other => ("store_failed", 500),
    }
}

/// The public half of a session: the first 128 bits of the SHA-256 of its secret's text, in hexadecimal digits.
#[must_use]
pub fn public_half(secret: &str) -> String {
    let digest = ring::digest::digest(&ring::digest::SHA256, secret.as_bytes());
    let mut half = [0; 16];
    half.copy_from_slice(&digest.as_ref()[..16]);
    format!("{:032x}", u128::from_be_bytes(half))
}
