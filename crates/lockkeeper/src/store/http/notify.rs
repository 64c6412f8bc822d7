//! Hints: a stream of server-sent events for each session that waits.
//!
//! The first message says that any ticket may stand differently by now. When the stream breaks, the core opens it
//! again; it polls meanwhile.

use super::{
    Http, KIND,
    client::{Ask, Events},
    session::path_of,
    wire::Hint,
};
use crate::{
    error::{ErrorKind, StoreError},
    model::ticket::SessionId,
    store::{Hints, StoreResult},
};
use std::convert::Infallible;

impl Http {
    /// Delivers hints until the stream breaks. The core starts it again.
    pub(super) async fn deliver_hints(&self, session: SessionId, to: &dyn Hints) -> StoreError {
        if !self.capabilities.wakes {
            return std::future::pending().await;
        }
        // Not sent a second time by the client: an answer that breaks off is the end of the stream.
        let ask = Ask::get(path_of(session, "/hints"))
            .secret_of(session)
            .header("accept", "text/event-stream");
        match self.client.events(&ask).await {
            Err(e) => e,
            Ok(mut events) => match self.pass_on(&mut events, to).await {
                Err(e) => e,
                Ok(never) => match never {},
            },
        }
    }

    async fn pass_on(&self, events: &mut Events, to: &dyn Hints) -> StoreResult<Infallible> {
        loop {
            let data = self.client.next_event(events).await?;
            let hint = serde_json::from_str(&data).map_err(|e| {
                let what = "the service sends a hint that this program does not understand";
                StoreError::not_applied(KIND, ErrorKind::Other, what).because(e)
            })?;
            match hint {
                Hint::Granted { ticket, fence } => to.granted(ticket, fence),
                Hint::Ended { ticket } => to.ended(ticket),
                Hint::Freed { lock } => to.freed(&lock),
                Hint::Recheck { ticket } => to.recheck(ticket),
            }
        }
    }
}
