//! Telling waiters of their grants: those of this process directly, those of others by `NOTIFY`.
//!
//! A notification is sent after the commit of the release, because a transaction that notifies holds up all
//! others that notify until it is on disk. One that is lost costs the waiter one re-check.

use super::{Shared, connection, connection::PushHandler, error, reply::get};
use crate::{
    error::StoreError,
    model::{
        name::Name,
        ticket::{SessionId, TicketId},
    },
    store::{Hints, StoreResult},
    sync::Mutex,
};
use std::{collections::HashMap, sync::Arc};
use tokio_postgres::Row;

/// What a message to a waiter says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Message {
    Granted(TicketId, u64),
    Ended(TicketId),
}

impl Message {
    fn parse(text: &str) -> Option<Self> {
        let (ticket, rest) = text.split_once(' ')?;
        let ticket = ticket.parse().ok()?;
        match rest {
            "ended" => Some(Self::Ended(ticket)),
            fence => Some(Self::Granted(ticket, fence.parse().ok()?)),
        }
    }
}

/// Where the sessions of this process get their hints.
#[derive(Default)]
pub(super) struct Sinks(Mutex<HashMap<SessionId, Arc<dyn Hints>>>);

impl Sinks {
    pub(super) fn remove(&self, session: SessionId) {
        self.0.lock().remove(&session);
    }

    fn each(&self, tell: impl Fn(&dyn Hints)) {
        // A copy: a sink may call back.
        let sinks: Vec<_> = self.0.lock().values().cloned().collect();
        sinks.iter().for_each(|sink| tell(sink.as_ref()));
    }

    pub(super) fn tell(&self, message: Message) {
        self.each(|sink| match message {
            Message::Granted(ticket, fence) => sink.granted(ticket, fence),
            Message::Ended(ticket) => sink.ended(ticket),
        });
    }

    pub(super) fn push_handler(self: &Arc<Self>) -> PushHandler {
        let sinks = Arc::clone(self);
        Arc::new(move |push| {
            if let Some(message) = Message::parse(push.payload()) {
                sinks.tell(message);
            }
        })
    }
}

/// The grants that a function has made for others: channel, ticket and fence, three by three.
pub(super) fn grants(row: &Row) -> StoreResult<Vec<String>> {
    Ok(get::<Option<Vec<String>>>(row, "o_news")?.unwrap_or_default())
}

/// Each grant's channel and message.
fn messages(grants: &[String]) -> impl Iterator<Item = (&str, String)> {
    grants.chunks_exact(3).map(|grant| (grant[0].as_str(), format!("{} {}", grant[1], grant[2])))
}

impl Shared {
    /// Gives a session its hints. Clears leftovers away meanwhile, and asks the listening connection whether it
    /// lives.
    pub(super) async fn hints(
        self: &Arc<Self>,
        session: SessionId,
        sink: Arc<dyn Hints>,
    ) -> StoreError {
        self.sinks.0.lock().insert(session, Arc::clone(&sink));
        if self.pooled {
            // Waiters of this process hear of each other's releases all the same.
            return self.sweep_regularly().await;
        }
        let (listening, requests) = (self.listener.breaks(), self.requests.breaks());
        let listen = format!("LISTEN {}", self.channel);
        if let Err(e) = self.listener.batch(&listen, connection::REQUEST).await {
            return e;
        }
        sink.recheck(None);
        tokio::select! {
            () = self.listener.broken(listening) => {}
            // A connection that is cut off without a word is noticed only where requests are sent.
            () = self.requests.broken(requests) => self.listener.give_up(),
            e = self.sweep_regularly() => return e,
        }
        error::unreachable("the connection broke".to_owned())
    }

    /// Tells the waiters to whom a function has granted: ours directly, those of other processes by one
    /// statement.
    pub(super) async fn tell_granted(&self, grants: &[String]) {
        if grants.is_empty() {
            return;
        }
        let others = messages(grants).filter(|(channel, text)| {
            let ours = *channel == self.channel;
            if let Some(message) = Message::parse(text).filter(|_| ours) {
                self.sinks.tell(message);
            }
            !ours
        });
        let (channels, texts): (Vec<&str>, Vec<String>) = others.unzip();
        Box::pin(self.notify(&channels, &texts)).await;
    }

    /// Tells the waiter behind a channel that its ticket was evicted.
    pub(super) async fn tell_ended(&self, channel: &str, ticket: TicketId) {
        if channel == self.channel {
            self.sinks.tell(Message::Ended(ticket));
        } else {
            self.notify(&[channel], &[format!("{ticket} ended")]).await;
        }
    }

    async fn notify(&self, channels: &[&str], texts: &[String]) {
        if !channels.is_empty() {
            // One that is lost costs the waiter one re-check.
            let _ = self.requests.once(&self.statements.notify, &[&channels, &texts]).await;
        }
    }

    /// The line is empty: contenders of this process may try again.
    pub(super) fn tell_freed(&self, name: &Name) {
        self.blocked.forget(name);
        self.sinks.each(|sink| sink.freed(name));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_our_own_messages_are_understood() {
        let ticket = TicketId::random();
        assert_eq!(Message::parse(&format!("{ticket} 17")), Some(Message::Granted(ticket, 17)));
        assert_eq!(Message::parse(&format!("{ticket} ended")), Some(Message::Ended(ticket)));
        assert_eq!(Message::parse("hello world"), None);
    }

    #[test]
    fn grants_come_three_by_three() {
        let grants = ["a", "01", "7", "b", "02", "8"].map(str::to_owned);
        let told: Vec<_> = messages(&grants).collect();
        assert_eq!(told, [("a", "01 7".to_owned()), ("b", "02 8".to_owned())]);
    }
}
