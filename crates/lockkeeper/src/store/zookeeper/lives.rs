//! What this handle knows of its sessions. One session here is one ZooKeeper session, for ever: a
//! ticket is never carried over to another, so a node found under a ticket's id is its own.

use super::link::Link;
use crate::{
    clock::Moment,
    name::Name,
    store::{Hints, Holder, Open, STRAY_MAX, StoreResult, Terms},
    ticket::{SessionId, TicketId},
};
use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

#[derive(Default)]
pub(super) struct Lives(Mutex<Book>);

#[derive(Default)]
struct Book {
    lives: HashMap<SessionId, Arc<Life>>,
    /// Sessions that are over, and until when late copies of their requests can come.
    over: HashMap<SessionId, Moment>,
}

impl Lives {
    fn book(&self) -> MutexGuard<'_, Book> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A session that is known and not over.
    pub(super) fn living(&self, session: SessionId, now: Moment) -> StoreResult<Arc<Life>> {
        let life = self.book().lives.get(&session).cloned();
        life.filter(|life| life.state().expires > now).ok_or_else(super::link::over)
    }

    /// A session that was opened before: its terms, or that it is over.
    pub(super) fn opened(&self, session: SessionId, now: Moment) -> StoreResult<Option<Terms>> {
        let known = {
            let mut book = self.book();
            book.over.retain(|_, until| *until > now);
            book.over.contains_key(&session) || book.lives.contains_key(&session)
        };
        if !known {
            return Ok(None);
        }
        Ok(Some(self.living(session, now)?.terms))
    }

    /// Adds a session, unless another copy of the request was quicker.
    pub(super) fn add(&self, life: Arc<Life>, now: Moment) -> Terms {
        let mut book = self.book();
        // Nobody renews these any more, and nobody asks.
        book.lives.retain(|_, life| life.state().expires + STRAY_MAX > now);
        book.lives.entry(life.ask.session).or_insert(life).terms
    }

    /// Ends a session for ever, as far as this handle is concerned.
    pub(super) fn end(&self, session: SessionId, now: Moment) -> Option<Arc<Life>> {
        let mut book = self.book();
        let life = book.lives.remove(&session)?;
        book.over.insert(session, now + STRAY_MAX);
        Some(life)
    }

    /// The path of a ticket of one of these sessions.
    pub(super) fn path(&self, ticket: TicketId) -> Option<String> {
        let lives: Vec<Arc<Life>> = self.book().lives.values().cloned().collect();
        lives.iter().find_map(|life| life.state().tickets.get(&ticket)?.path.clone())
    }
}

/// A session.
pub(super) struct Life {
    pub(super) ask: Open,
    pub(super) terms: Terms,
    pub(super) link: Link,
    state: Mutex<State>,
}

pub(super) struct State {
    /// When it is over unless it is renewed.
    pub(super) expires: Moment,
    /// Counts the tickets that others have ended.
    pub(super) version: u64,
    pub(super) tickets: HashMap<TicketId, Held>,
    /// Tickets that were left while a copy of their enter may be under way, and until when.
    pub(super) closed: HashMap<TicketId, Moment>,
    pub(super) sink: Option<Arc<dyn Hints>>,
    /// Who wants to hear of a node, on the connection of this number.
    watches: HashMap<String, HashSet<Watcher>>,
    watched_over: u64,
}

/// A ticket that stands in a line, or may.
#[derive(Clone, Debug)]
pub(super) struct Held {
    pub(super) name: Name,
    /// Its node; `None` as long as the server has not told it.
    pub(super) path: Option<String>,
    /// The number of the write that made its node.
    pub(super) fence: u64,
    /// Once admitted, always admitted: nobody can come before it any more.
    pub(super) granted: bool,
    pub(super) leaving: bool,
    /// Who held the lock when it was last looked at.
    pub(super) holder: Option<Holder>,
}

/// Who wants to hear of a node.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Watcher {
    Ticket(TicketId),
    /// Those who contend for a name.
    Line(Name),
}

impl Life {
    pub(super) fn new(ask: Open, terms: Terms, link: Link, expires: Moment) -> Self {
        let state = State {
            expires,
            version: 0,
            tickets: HashMap::new(),
            closed: HashMap::new(),
            sink: None,
            watches: HashMap::new(),
            watched_over: 0,
        };
        Self { ask, terms, link, state: Mutex::new(state) }
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is known of a ticket in the line of this name.
    pub(super) fn held(&self, name: &Name, ticket: TicketId) -> Option<Held> {
        self.state().tickets.get(&ticket).filter(|held| held.name == *name).cloned()
    }

    /// Notes that a ticket is about to come into a line.
    pub(super) fn begin(&self, name: &Name, ticket: TicketId) {
        let held = Held {
            name: name.clone(),
            path: None,
            fence: 0,
            granted: false,
            leaving: false,
            holder: None,
        };
        self.state().tickets.insert(ticket, held);
    }

    /// Notes where a ticket stands, unless it was given up meanwhile.
    pub(super) fn placed(&self, name: &Name, ticket: TicketId, path: &str, fence: u64) -> bool {
        let mut state = self.state();
        let held = state.tickets.get_mut(&ticket).filter(|held| held.name == *name);
        let Some(held) = held else { return false };
        (held.path, held.fence) = (Some(path.to_owned()), fence);
        true
    }

    pub(super) fn change(&self, ticket: TicketId, change: impl FnOnce(&mut Held)) {
        if let Some(held) = self.state().tickets.get_mut(&ticket) {
            change(held);
        }
    }

    pub(super) fn forget(&self, ticket: TicketId) {
        self.state().tickets.remove(&ticket);
    }

    /// Notes who wants to hear of a node on this connection. Says whether that is news: then the server
    /// has to be asked.
    pub(super) fn watch(&self, connection: u64, path: &str, watcher: Watcher) -> bool {
        let mut state = self.state();
        // One who asks late still has the connection before this one in mind.
        if state.watched_over < connection {
            state.watches.clear();
            state.watched_over = connection;
        }
        state.watches.entry(path.to_owned()).or_default().insert(watcher)
    }

    /// The watch did not come about.
    pub(super) fn unwatch(&self, path: &str) {
        self.state().watches.remove(path);
    }

    /// A watch has fired.
    pub(super) fn hear(&self, path: &str) {
        let (watchers, sink) = {
            let mut state = self.state();
            (state.watches.remove(path).unwrap_or_default(), state.sink.clone())
        };
        let Some(sink) = sink else { return };
        for watcher in watchers {
            match watcher {
                Watcher::Ticket(ticket) => sink.look(Some(ticket)),
                Watcher::Line(name) => sink.freed(&name),
            }
        }
    }
}
