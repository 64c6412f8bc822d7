//! Leaving a line, eviction, and labels.

use super::{
    Http, KIND,
    client::{Ask, Reply, Retry},
    error,
    session::{change, millis, segment},
    wire::{self, ChangeTicket, Done, Evict},
};
use crate::{
    error::{ErrorKind, StoreError},
    model::{name::Name, ticket::TicketId},
    store::{Edit, Edited, Leave, Left, StoreResult},
};
use http::Method;

impl Http {
    /// A second copy would be told that there is no such ticket; the core sends it where that does no harm.
    pub(super) async fn leave_line(&self, ask: &Leave) -> StoreResult<Left> {
        let keep = ask.keep.map(|keep| format!("&keep_ms={}", millis(keep))).unwrap_or_default();
        let query = format!("?stray={}{keep}", ask.stray);
        let reply =
            self.client.call(&change(Method::DELETE, &ask.place, &query, Retry::Never)).await?;
        match done(&reply)?.as_str() {
            "released" => Ok(Left::Released),
            "withdrawn" => Ok(Left::Withdrawn),
            "gone" => Ok(Left::Gone),
            other => Err(unexpected(other)),
        }
    }

    pub(super) async fn evict_ticket(&self, name: &Name, ticket: TicketId) -> StoreResult<bool> {
        let path = format!("/v1/locks/{}/evict", segment(name.as_str()));
        let evict = Evict { ticket, fence: None };
        let ask = Ask::new(Method::POST, path, Retry::Never).json(&evict)?;
        let reply = self.client.call(&ask).await?;
        match done(&reply)?.as_str() {
            "evicted" => Ok(true),
            "gone" => Ok(false),
            other => Err(unexpected(other)),
        }
    }

    pub(super) async fn change_label(&self, edit: Edit) -> StoreResult<Edited> {
        let (label, label_base64) = match String::from_utf8(edit.bytes.unwrap_or_default()) {
            Ok(label) => (Some(label), None),
            Err(e) => (None, Some(wire::to_base64(e.as_bytes()))),
        };
        let body = ChangeTicket { label, label_base64, edit: Some(edit.edit) };
        let ask = change(Method::PATCH, &edit.place, "", Retry::Safe).json(&body)?;
        edited(&self.client.call(&ask).await?)
    }
}

/// Whether a label or a cell was written.
pub(super) fn edited(reply: &Reply) -> StoreResult<Edited> {
    if reply.is_success() {
        return Ok(Edited::Done);
    }
    match error::kind_of(reply).as_deref() {
        Some("stale" | "not_held") if reply.was_sent_before => {
            let what = "the ticket is not held now; an earlier copy of the request may have been carried out";
            Err(StoreError::unknown(KIND, ErrorKind::Unavailable, what))
        }
        Some("stale" | "not_held") => Ok(Edited::NotHeld),
        _ => Err(error::refusal(reply)),
    }
}

fn done(reply: &Reply) -> StoreResult<String> {
    match reply.is_success() {
        true => Ok(reply.read::<Done>()?.result),
        false => Err(error::refusal(reply)),
    }
}

fn unexpected(result: &str) -> StoreError {
    let what = format!("the service answers with an unknown result: {result:?}");
    StoreError::unknown(KIND, ErrorKind::Other, what)
}
