//! Lines as JSON: the one schema of `ls --json` and `show --json`.

use crate::{
    duration::ms,
    event::{ModeView, label},
    failure::Failure,
    output,
};
use lockkeeper::{Line, Mode, Owner, Ticket, store::PLAIN_CAPACITY};
use serde::Serialize;
use std::time::Duration;

/// The answer.
#[derive(Debug, Serialize)]
pub(crate) struct Listing<'a> {
    locks: Vec<LockView<'a>>,
    /// What the store's listing does not show, in words; none if it shows all.
    not_shown: Option<&'a str>,
}

#[derive(Debug, Serialize)]
struct LockView<'a> {
    name: &'a str,
    /// The number of permits of a semaphore; none for a plain lock.
    limit: Option<u32>,
    holders: Vec<TicketView>,
    waiters: Vec<TicketView>,
}

/// A ticket.
#[derive(Debug, Serialize)]
pub(crate) struct TicketView {
    ticket: String,
    mode: ModeView,
    /// The permits taken or asked for; none for a plain lock.
    permits: Option<u32>,
    fence: Option<u64>,
    /// None for a hold that has outlived its session (`--at-least`).
    owner: Option<OwnerView>,
    label: Option<String>,
    entered_at: Option<String>,
    entered_ago_ms: Option<u64>,
    granted_at: Option<String>,
    held_ms: Option<u64>,
    /// None if that is not known, or if it never ends by itself.
    ends_in_ms: Option<u64>,
}

/// Host and process are none for a client of another library.
#[derive(Debug, Serialize)]
pub(crate) struct OwnerView {
    host: Option<String>,
    pid: Option<u32>,
    program: String,
}

/// The number of a grant, if it has one: 0 stands for none.
pub(crate) fn known_fence(ticket: &Ticket) -> Option<u64> {
    ticket.fence.filter(|fence| *fence != 0)
}

/// How long ago the ticket entered the line; none if another library did not note it.
pub(crate) fn known_age(ticket: &Ticket) -> Option<Duration> {
    known(ticket, ticket.entered_ago)
}

/// When the ticket ends by itself; none if another library's ticket does not tell.
pub(crate) fn known_end(ticket: &Ticket) -> Option<Duration> {
    known(ticket, ticket.ends_in)
}

fn known(ticket: &Ticket, time: Duration) -> Option<Duration> {
    let foreign = ticket.owner.as_ref().is_some_and(Owner::is_unknown);
    (!foreign || !time.is_zero()).then_some(time)
}

impl<'a> Listing<'a> {
    pub(crate) fn new(lines: &'a [Line], not_shown: Option<&'a str>) -> Self {
        Self { locks: lines.iter().map(Into::into).collect(), not_shown }
    }
}

impl<'a> From<&'a Line> for LockView<'a> {
    fn from(line: &'a Line) -> Self {
        Self {
            name: line.name.as_str(),
            limit: (line.capacity != PLAIN_CAPACITY).then_some(line.capacity),
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
            fence: known_fence(ticket),
            owner: ticket.owner.as_ref().map(Into::into),
            label: label(&ticket.label),
            entered_at: known_age(ticket).map(output::ago),
            entered_ago_ms: known_age(ticket).map(ms),
            granted_at: ticket.granted_ago.map(output::ago),
            held_ms: ticket.granted_ago.map(ms),
            ends_in_ms: known_end(ticket).filter(|end| *end != Duration::MAX).map(ms),
        }
    }
}

impl From<&Owner> for OwnerView {
    fn from(owner: &Owner) -> Self {
        let known = !owner.is_unknown();
        Self {
            host: known.then(|| owner.host.clone()),
            pid: known.then_some(owner.pid),
            program: owner.program.clone(),
        }
    }
}

/// The lines as one JSON object.
pub(crate) fn json(lines: &[Line], not_shown: Option<&str>) -> Result<String, Failure> {
    output::json_answer(Listing::new(lines, not_shown)).map_err(Failure::bug)
}
