//! Lines as JSON: the one schema of `ls --json` and `show --json`.

use crate::{
    duration::ms,
    event::{ModeView, label},
    failure::Failure,
    output,
};
use lockkeeper::{Line, Mode, Owner, PLAIN, Ticket};
use serde::Serialize;

/// The answer.
#[derive(Debug, Serialize)]
struct Listing<'a> {
    locks: Vec<LockView<'a>>,
}

#[derive(Debug, Serialize)]
struct LockView<'a> {
    name: &'a str,
    /// The number of permits of a semaphore; none for a plain lock.
    limit: Option<u32>,
    holders: Vec<TicketView>,
    waiters: Vec<TicketView>,
}

#[derive(Debug, Serialize)]
struct TicketView {
    ticket: String,
    mode: ModeView,
    /// The permits taken or asked for; none for a plain lock.
    permits: Option<u32>,
    fence: Option<u64>,
    /// None for a hold that has outlived its session (`--at-least`).
    owner: Option<OwnerView>,
    label: Option<String>,
    entered_at: String,
    entered_ago_ms: u64,
    granted_at: Option<String>,
    held_ms: Option<u64>,
    ends_in_ms: u64,
}

#[derive(Debug, Serialize)]
struct OwnerView {
    host: String,
    pid: u32,
    program: String,
}

impl<'a> From<&'a Line> for LockView<'a> {
    fn from(line: &'a Line) -> Self {
        Self {
            name: line.name.as_str(),
            limit: (line.capacity != PLAIN).then_some(line.capacity),
            holders: line.holders().map(Into::into).collect(),
            waiters: line.waiters().map(Into::into).collect(),
        }
    }
}

impl From<&Ticket> for TicketView {
    fn from(ticket: &Ticket) -> Self {
        let permits = match ticket.mode {
            Mode::Permits { weight, .. } => Some(weight),
            _ => None,
        };
        Self {
            ticket: ticket.id.to_string(),
            mode: ticket.mode.into(),
            permits,
            fence: ticket.fence,
            owner: ticket.owner.as_ref().map(Into::into),
            label: label(&ticket.note),
            entered_at: output::ago(ticket.entered_ago),
            entered_ago_ms: ms(ticket.entered_ago),
            granted_at: ticket.granted_ago.map(output::ago),
            held_ms: ticket.granted_ago.map(ms),
            ends_in_ms: ms(ticket.ends_in),
        }
    }
}

impl From<&Owner> for OwnerView {
    fn from(owner: &Owner) -> Self {
        let Owner { host, pid, program } = owner.clone();
        Self { host, pid, program }
    }
}

/// The lines as one JSON object.
pub(crate) fn json(lines: &[Line]) -> Result<String, Failure> {
    let listing = Listing { locks: lines.iter().map(Into::into).collect() };
    output::json_answer(listing).map_err(Failure::bug)
}
