//! Entering a line.

use super::{
    Http, KIND,
    client::{Ask, Reply, Retry},
    error,
    session::segment,
    wire::{self, LockTaken, TakeLock},
};
use crate::{
    error::{ErrorKind, StoreError},
    store::{Enter, Entered, Holder, Manner, StoreResult, Wait},
};
use http::Method;
use std::time::Duration;

impl Http {
    /// Sent again only if no copy of it can have had an effect: the core must know of a second one, since its leave
    /// then closes the ticket.
    pub(super) async fn enter_line(&self, ask: Enter) -> StoreResult<Entered> {
        let (label, label_base64) = match String::from_utf8(ask.label) {
            Ok(label) => (Some(label).filter(|label| !label.is_empty()), None),
            Err(e) => (None, Some(wire::to_base64(e.as_bytes()))),
        };
        let take = TakeLock {
            ticket: Some(ask.place.ticket),
            mode: Some(ask.mode),
            manner: Some(match ask.manner {
                Manner::Queue => wire::Manner::Queue,
                Manner::Contend => wire::Manner::Contend,
            }),
            wait_ms: Some(0),
            label,
            label_base64,
            withdraw_on_disconnect: Some(false),
            ..TakeLock::default()
        };
        let path = format!("/v1/locks/{}", segment(ask.place.name.as_str()));
        let ask = Ask::new(Method::POST, path, Retry::Never)
            .for_session(ask.place.session)
            .json(&take)?;
        entered(&self.client.call(&ask).await?)
    }
}

fn entered(reply: &Reply) -> StoreResult<Entered> {
    if !reply.is_success() {
        return busy(reply).ok_or_else(|| error::refusal(reply));
    }
    let taken: LockTaken = reply.read()?;
    match (taken.held, taken.fence, taken.waiting) {
        // A store without fences gives every grant the number 0.
        (true, fence, _) => Ok(Entered::Granted { fence: fence.map_or(0, |fence| fence.fence) }),
        (false, _, Some(waiting)) => Ok(Entered::Queued(wait(waiting)?)),
        (false, _, None) => {
            let what = "the service says neither that the lock is held nor what it waits for";
            Err(StoreError::unknown(KIND, ErrorKind::Corrupt, what))
        }
    }
}

/// The lock is taken, and no ticket was left.
fn busy(reply: &Reply) -> Option<Entered> {
    let problem: wire::Problem = serde_json::from_slice(&reply.body).ok()?;
    let is_busy = reply.status == 409 && problem.kind == "busy";
    Some(Entered::Busy(wait(problem.waiting.filter(|_| is_busy)?).ok()?))
}

pub(super) fn wait(waiting: wire::Waiting) -> StoreResult<Wait> {
    // The service has cut off what is less than a millisecond; a look that is too early would have to be repeated.
    let recheck = Duration::from_millis(waiting.recheck_ms.saturating_add(1));
    let mut wait = Wait::new(waiting.ahead, recheck);
    wait.holder = waiting.holder.map(holder).transpose()?;
    Ok(wait)
}

fn holder(held: wire::HeldBy) -> StoreResult<Holder> {
    let held_for = held.held_for_ms.map(Duration::from_millis);
    Ok(Holder::new(held.owner, label(held.label)?, held_for))
}

pub(super) fn label(label: wire::Label) -> StoreResult<Vec<u8>> {
    label.into_bytes().ok_or_else(|| {
        StoreError::unknown(
            KIND,
            ErrorKind::Corrupt,
            "a label in the service's answer is no base64",
        )
    })
}
