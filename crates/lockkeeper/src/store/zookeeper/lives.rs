//! What this handle knows of its sessions.
//!
//! A session is one ZooKeeper session, and further ones when its tickets have become many: what ends
//! with a ZooKeeper session is written down as one, and a server cannot read that if it is too long.
//! They live and end together. A ticket is never carried over to another, so a node found under a
//! ticket's id is its own.

use super::link::{Link, over};
use crate::{
    clock::Moment,
    model::{
        name::Name,
        ticket::{SessionId, TicketId},
    },
    store::{Hints, Holder, Open, STRAY_MAX, StoreResult, Terms},
    sync::Mutex,
};
use std::{
    collections::{HashMap, HashSet, hash_map::Entry},
    sync::{Arc, MutexGuard},
};
use tokio::sync::Notify;

#[derive(Default)]
pub(super) struct Lives(Mutex<Book>);

#[derive(Default)]
struct Book {
    sessions: HashMap<SessionId, Arc<Session>>,
    /// Sessions that are over, and until when late copies of their requests can come.
    over: HashMap<SessionId, Moment>,
}

impl Lives {
    fn book(&self) -> MutexGuard<'_, Book> {
        self.0.lock()
    }

    /// A session that is known and not over.
    pub(super) fn living(&self, session: SessionId, now: Moment) -> StoreResult<Arc<Session>> {
        let session = self.book().sessions.get(&session).cloned();
        session.filter(|session| session.expires() > now).ok_or_else(over)
    }

    /// A session that was opened before: its terms, or that it is over.
    pub(super) fn opened(&self, session: SessionId, now: Moment) -> StoreResult<Option<Terms>> {
        let known = {
            let mut book = self.book();
            book.over.retain(|_, until| *until > now);
            book.over.contains_key(&session) || book.sessions.contains_key(&session)
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
        book.sessions.retain(|_, session| session.expires() + STRAY_MAX > now);
        let session = book.sessions.entry(life.ask.session);
        session.or_insert_with(|| Arc::new(Session::new(life))).terms
    }

    /// Ends a session for ever, as far as this handle is concerned.
    pub(super) fn end(&self, session: SessionId, now: Moment) {
        let mut book = self.book();
        if book.sessions.remove(&session).is_some() {
            book.over.insert(session, now + STRAY_MAX);
        }
    }

    /// The path of a ticket of one of these sessions.
    pub(super) fn path(&self, ticket: TicketId) -> Option<String> {
        let sessions: Vec<Arc<Session>> = self.book().sessions.values().cloned().collect();
        let life = sessions.iter().find_map(|session| session.of(ticket))?;
        life.state().tickets.get(&ticket)?.path.clone()
    }
}

/// A session, which is all of its lives together.
pub(super) struct Session {
    pub(super) ask: Open,
    pub(super) terms: Terms,
    lives: Mutex<Alive>,
    /// One at a time makes another life.
    pub(super) growing: tokio::sync::Mutex<()>,
    /// There is another life.
    pub(super) grown: Notify,
}

struct Alive {
    /// Never empty.
    all: Vec<Arc<Life>>,
    /// When the last renewal began.
    renewing: Option<Moment>,
}

impl Session {
    fn new(first: Arc<Life>) -> Self {
        let (ask, terms) = (first.ask.clone(), first.terms);
        let lives = Mutex::new(Alive { all: vec![first], renewing: None });
        Self { ask, terms, lives, growing: tokio::sync::Mutex::default(), grown: Notify::new() }
    }

    fn alive(&self) -> MutexGuard<'_, Alive> {
        self.lives.lock()
    }

    pub(super) fn all(&self) -> Vec<Arc<Life>> {
        self.alive().all.clone()
    }

    /// The one that keeps what concerns all.
    pub(super) fn first(&self) -> Arc<Life> {
        Arc::clone(&self.alive().all[0])
    }

    /// The one that has this ticket.
    pub(super) fn of(&self, ticket: TicketId) -> Option<Arc<Life>> {
        let alive = self.alive();
        alive.all.iter().find(|life| life.state().tickets.contains_key(&ticket)).cloned()
    }

    /// One that can take a ticket in this line.
    pub(super) fn roomy(&self, line: &str) -> Option<Arc<Life>> {
        let fits = |life: &&Arc<Life>| life.state().load + load(line) <= LOAD_MAX;
        self.alive().all.iter().find(fits).cloned()
    }

    /// All that have to be renewed in a renewal that begins now.
    pub(super) fn renewing(&self, now: Moment) -> Vec<Arc<Life>> {
        let mut alive = self.alive();
        alive.renewing = Some(now);
        alive.all.clone()
    }

    /// Adds a life that was begun at that moment. Says whether a renewal that began since then does not
    /// know of it: who believes in that renewal believes for longer than this life is good for.
    pub(super) fn add(&self, life: &Arc<Life>, begun: Moment) -> bool {
        let sink = self.first().state().sink.clone();
        life.state().sink = sink;
        let mut alive = self.alive();
        alive.all.push(Arc::clone(life));
        self.grown.notify_one();
        alive.renewing.is_some_and(|renewing| renewing >= begun)
    }

    /// Takes out a life that was added in vain.
    pub(super) fn remove(&self, life: &Arc<Life>) {
        self.alive().all.retain(|other| !Arc::ptr_eq(other, life));
    }

    /// It is over as soon as one of its lives is.
    pub(super) fn expires(&self) -> Moment {
        let alive = self.alive();
        alive.all.iter().map(|life| life.state().expires).min().unwrap_or(Moment::NEVER)
    }
}

/// How much the tickets of one ZooKeeper session may weigh: well below the megabyte that is the longest
/// that servers read unless told otherwise.
const LOAD_MAX: usize = 384 << 10;
/// The longest name of a ticket's node, with the lengths that are written with it.
const NODE: usize = 96;

/// What a ticket in this line adds to what is written at the end of its ZooKeeper session.
fn load(line: &str) -> usize {
    line.len() + NODE
}

/// A ZooKeeper session.
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
    /// What all these tickets weigh.
    load: usize,
    /// Tickets that were left while a copy of their enter may be under way, and until when.
    pub(super) closed: HashMap<TicketId, Moment>,
    pub(super) sink: Option<Arc<dyn Hints>>,
    /// Who wants to hear of a node, on the connection of this number.
    watches: HashMap<String, HashSet<Watcher>>,
    watched_over: u64,
}

impl State {
    pub(super) fn remove(&mut self, ticket: TicketId) {
        if let Some(held) = self.tickets.remove(&ticket) {
            self.load -= held.load;
            self.unwatch(ticket, held.watched, &[]);
        }
    }

    /// A ticket waits in another way than before, or no longer: of what it watched it wants to hear nothing
    /// but this. The rest may stay where it is for long.
    fn unwatch(&mut self, ticket: TicketId, before: Vec<String>, but: &[String]) {
        for path in before.into_iter().filter(|path| !but.contains(path)) {
            if let Entry::Occupied(mut watchers) = self.watches.entry(path) {
                watchers.get_mut().remove(&Watcher::Ticket(ticket));
                if watchers.get().is_empty() {
                    watchers.remove();
                }
            }
        }
    }
}

/// A ticket that stands in a line, or may.
#[derive(Clone, Debug)]
pub(super) struct Held {
    pub(super) name: Name,
    load: usize,
    /// Its node; `None` as long as the server has not told it.
    pub(super) path: Option<String>,
    /// The number of the write that made its node.
    pub(super) fence: u64,
    /// It was found that it may stay in the line.
    pub(super) accepted: bool,
    /// Once admitted, always admitted: nobody can come before it any more.
    pub(super) granted: bool,
    pub(super) leaving: bool,
    /// Who held the lock when it was last looked at.
    pub(super) holder: Option<Holder>,
    /// What it watches while it waits, besides itself.
    watched: Vec<String>,
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
            load: 0,
            closed: HashMap::new(),
            sink: None,
            watches: HashMap::new(),
            watched_over: 0,
        };
        Self { ask, terms, link, state: Mutex::new(state) }
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// What is known of a ticket in the line of this name.
    pub(super) fn held(&self, name: &Name, ticket: TicketId) -> Option<Held> {
        self.state().tickets.get(&ticket).filter(|held| held.name == *name).cloned()
    }

    /// Notes that a ticket is about to come into a line.
    pub(super) fn begin(&self, name: &Name, line: &str, ticket: TicketId) {
        let held = Held {
            name: name.clone(),
            load: load(line),
            path: None,
            fence: 0,
            accepted: false,
            granted: false,
            leaving: false,
            holder: None,
            watched: Vec::new(),
        };
        let mut state = self.state();
        state.remove(ticket);
        state.load += held.load;
        state.tickets.insert(ticket, held);
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

    /// Notes what a ticket waits for.
    pub(super) fn waits_for(&self, ticket: TicketId, watched: &[String]) {
        let mut state = self.state();
        let Some(held) = state.tickets.get_mut(&ticket) else { return };
        let before = std::mem::replace(&mut held.watched, watched.to_vec());
        state.unwatch(ticket, before, watched);
    }

    /// Notes that a ticket was admitted.
    pub(super) fn granted(&self, ticket: TicketId) {
        let mut state = self.state();
        let Some(held) = state.tickets.get_mut(&ticket) else { return };
        held.granted = true;
        let before = std::mem::take(&mut held.watched);
        state.unwatch(ticket, before, &[]);
    }

    pub(super) fn forget(&self, ticket: TicketId) {
        self.state().remove(ticket);
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
                Watcher::Ticket(ticket) => sink.recheck(Some(ticket)),
                Watcher::Line(name) => sink.freed(&name),
            }
        }
    }
}
