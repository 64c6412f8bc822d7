//! Hints: the messages by which the server's scripts wake waiters of this process.
//!
//! A process has one channel. A message carries the ticket and its fence, so a waiter holds the lock when the
//! message arrives. Messages can be lost with the connection, and the core polls behind them.

use super::{KIND, Redis, connection::PushHandler, session::Sessions};
use crate::{
    error::{ErrorKind, StoreError},
    model::ticket::{SessionId, TicketId},
    store::Hints,
};
use redis::{PushInfo, PushKind, Value};
use std::sync::{Arc, atomic::Ordering};

/// What a message to a waiter says.
#[derive(Debug, PartialEq, Eq)]
enum Message {
    Granted(TicketId, u64),
    Ended(TicketId),
}

impl Message {
    fn parse(payload: &[u8]) -> Option<Self> {
        let (ticket, rest) = std::str::from_utf8(payload).ok()?.split_once(' ')?;
        let ticket = ticket.parse().ok()?;
        match rest {
            "ended" => Some(Self::Ended(ticket)),
            fence => Some(Self::Granted(ticket, fence.parse().ok()?)),
        }
    }
}

/// Passes the server's messages on to the sinks of all sessions: a message names the ticket, not its session.
pub(super) fn push_handler(sessions: &Arc<Sessions>) -> PushHandler {
    let sessions = Arc::clone(sessions);
    Arc::new(move |info: PushInfo| {
        if info.kind == PushKind::Message
            && let Some(Value::BulkString(payload)) = info.data.last()
            && let Some(message) = Message::parse(payload)
        {
            deliver(&sessions, &message);
        }
    })
}

fn deliver(sessions: &Sessions, message: &Message) {
    if matches!(message, Message::Granted(..)) {
        sessions.announced.fetch_add(1, Ordering::Relaxed);
    }
    let sinks: Vec<Arc<dyn Hints>> = sessions.sinks.lock().values().cloned().collect();
    for sink in sinks {
        match *message {
            Message::Granted(ticket, fence) => sink.granted(ticket, fence),
            Message::Ended(ticket) => sink.ended(ticket),
        }
    }
}

impl Redis {
    /// Delivers hints until the connection breaks.
    pub(super) async fn deliver_hints(&self, session: SessionId, to: Arc<dyn Hints>) -> StoreError {
        self.sessions.sinks.lock().insert(session, Arc::clone(&to));
        let breaks = self.connection.breaks();
        if let Err(e) = self.connection.subscribe(&self.channel).await {
            return e;
        }
        to.recheck(None);
        self.connection.broken(breaks).await;
        StoreError::not_applied(KIND, ErrorKind::Unavailable, "the connection broke")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_our_own_messages_are_understood() {
        let ticket = TicketId::random();
        let granted = Message::parse(format!("{ticket} 17").as_bytes());
        assert_eq!(granted, Some(Message::Granted(ticket, 17)));
        let ended = Message::parse(format!("{ticket} ended").as_bytes());
        assert_eq!(ended, Some(Message::Ended(ticket)));
        assert_eq!(Message::parse(b"hello world"), None);
        assert_eq!(Message::parse(b"\xff"), None);
    }
}
