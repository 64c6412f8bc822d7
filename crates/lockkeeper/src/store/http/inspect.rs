//! Listing lines, and checking grants.

use super::{
    Http,
    client::{Ask, Reply, Retry},
    enter, error,
    session::segment,
    wire::{Check, Checked, LineTicket, LockLine, LocksPage},
};
use crate::{
    model::{
        line::{Line, Ticket},
        name::Name,
        sequencer::Sequencer,
        ticket::PLAIN_CAPACITY,
    },
    store::{Claim, LIST_MAX, ListScope, Store as _, StoreResult},
};
use http::Method;
use serde::de::DeserializeOwned;
use std::time::Duration;

impl Http {
    pub(super) async fn lines(&self, which: ListScope) -> StoreResult<Vec<Line>> {
        match which {
            ListScope::Exact(name) => self.line(&name).await,
            ListScope::Prefix { prefix, after } => self.page(&prefix, after).await,
        }
    }

    async fn line(&self, name: &Name) -> StoreResult<Vec<Line>> {
        let ask = Ask::get(format!("/v1/locks/{}", segment(name.as_str())));
        let found: LockLine = self.get(&ask).await?;
        if found.tickets.is_empty() {
            return Ok(Vec::new());
        }
        Ok(vec![line(found)?])
    }

    /// The service leaves out what the token does not cover, so a page may be short although more follow.
    async fn page(&self, prefix: &str, mut after: Option<Name>) -> StoreResult<Vec<Line>> {
        let mut lines = Vec::new();
        loop {
            let limit = LIST_MAX - lines.len();
            let mut path = format!("/v1/locks?prefix={}&limit={limit}", segment(prefix));
            if let Some(after) = &after {
                path.push_str(&format!("&after={}", segment(after.as_str())));
            }
            let page: LocksPage = self.get(&Ask::get(path)).await?;
            for found in page.locks {
                lines.push(line(found)?);
            }
            after = page.next;
            if after.is_none() || lines.len() >= LIST_MAX {
                return Ok(lines);
            }
        }
    }

    pub(super) async fn get<T: DeserializeOwned>(&self, ask: &Ask) -> StoreResult<T> {
        answer(&self.client.call(ask).await?)
    }

    pub(super) async fn is_held(&self, claim: Claim) -> StoreResult<bool> {
        let sequencer = self.sequencer(claim);
        let ask = Ask::new(Method::POST, "/v1/check", Retry::Safe).json(&Check { sequencer })?;
        Ok(self.get::<Checked>(&ask).await?.held)
    }

    /// A claim as the service takes it.
    pub(super) fn sequencer(&self, claim: Claim) -> String {
        Sequencer::of(self.id(), claim).to_string()
    }
}

fn answer<T: DeserializeOwned>(reply: &Reply) -> StoreResult<T> {
    match reply.is_success() {
        true => reply.read(),
        false => Err(error::refusal(reply)),
    }
}

fn line(found: LockLine) -> StoreResult<Line> {
    let tickets = found.tickets.into_iter().map(ticket).collect::<StoreResult<_>>()?;
    Ok(Line::new(found.lock, found.permits.unwrap_or(PLAIN_CAPACITY), tickets))
}

fn ticket(found: LineTicket) -> StoreResult<Ticket> {
    Ok(Ticket {
        fence: found.fence.map(|fence| fence.fence),
        owner: found.owner,
        label: enter::label(found.label)?,
        entered_ago: Duration::from_millis(found.entered_ago_ms),
        granted_ago: found.granted_ago_ms.map(Duration::from_millis),
        ends_in: found.ends_in_ms.map_or(Duration::MAX, Duration::from_millis),
        ..Ticket::new(found.ticket, found.mode)
    })
}
