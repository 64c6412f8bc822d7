//! Who is told what: the sessions of this process at once, those of others by a notification.

use super::connection::Ear;
use crate::{
    model::{
        name::Name,
        ticket::{SessionId, TicketId},
    },
    store::Hints,
    sync::Mutex,
};
use std::{
    collections::HashMap,
    sync::{Arc, MutexGuard},
};

/// What a message to a waiter says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Message {
    Granted(TicketId, u64),
    Ended(TicketId),
}

impl Message {
    pub(super) fn parse(text: &str) -> Option<Self> {
        let (ticket, rest) = text.split_once(' ')?;
        let ticket = ticket.parse().ok()?;
        match rest {
            "ended" => Some(Self::Ended(ticket)),
            fence => Some(Self::Granted(ticket, fence.parse().ok()?)),
        }
    }
}

/// Where the sessions of this process are told.
#[derive(Default)]
pub(super) struct Sinks(Mutex<HashMap<SessionId, Arc<dyn Hints>>>);

impl Sinks {
    pub(super) fn lock(&self) -> MutexGuard<'_, HashMap<SessionId, Arc<dyn Hints>>> {
        self.0.lock()
    }

    fn all(&self) -> Vec<Arc<dyn Hints>> {
        self.lock().values().cloned().collect()
    }

    pub(super) fn hear(&self, message: Message) {
        for sink in self.all() {
            match message {
                Message::Granted(ticket, fence) => sink.granted(ticket, fence),
                Message::Ended(ticket) => sink.ended(ticket),
            }
        }
    }

    pub(super) fn freed(&self, name: &Name) {
        self.all().iter().for_each(|sink| sink.freed(name));
    }

    pub(super) fn ear(self: &Arc<Self>) -> Ear {
        let sinks = Arc::clone(self);
        Arc::new(move |news| {
            if let Some(message) = Message::parse(news.payload()) {
                sinks.hear(message);
            }
        })
    }
}

/// Grants as a function reports them: channel, ticket and fence, three by three.
pub(super) fn grants(news: &[String]) -> impl Iterator<Item = (&str, String)> {
    news.chunks_exact(3).map(|grant| (grant[0].as_str(), format!("{} {}", grant[1], grant[2])))
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
        let news = ["a", "01", "7", "b", "02", "8"].map(str::to_owned);
        let told: Vec<_> = grants(&news).collect();
        assert_eq!(told, [("a", "01 7".to_owned()), ("b", "02 8".to_owned())]);
    }
}
