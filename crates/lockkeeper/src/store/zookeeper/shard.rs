//! One ZooKeeper session of a session of ours, and the tickets in it.

use super::client::Session;
use crate::{
    clock::Moment,
    model::{name::Name, ticket::TicketId},
    store::{Hints, Holder, Open, Terms},
    sync::Mutex,
};
use std::{
    collections::{HashMap, HashSet, hash_map::Entry},
    sync::{Arc, MutexGuard},
};

/// The longest name of a ticket's node, with the lengths that are written with it.
const NODE_BYTES: usize = 96;

/// What a ticket in this line adds to the write that ends its ZooKeeper session: the server writes the paths
/// of all nodes that end with the session.
pub(super) fn closing_bytes(line: &str) -> usize {
    line.len() + NODE_BYTES
}

/// One ZooKeeper session. A ticket belongs to one shard for ever.
pub(super) struct Shard {
    pub(super) ask: Open,
    pub(super) terms: Terms,
    pub(super) zk: Session,
    state: Mutex<State>,
}

pub(super) struct State {
    /// When it is over unless it is renewed.
    pub(super) expires: Moment,
    /// Counts the tickets that others have ended.
    pub(super) version: u64,
    pub(super) tickets: HashMap<TicketId, LocalTicket>,
    /// The sum over these tickets.
    pub(super) closing_bytes: usize,
    /// Where the core wants its hints.
    pub(super) hints: Option<Arc<dyn Hints>>,
    /// The watchers of each watched path.
    watches: HashMap<String, HashSet<Watcher>>,
    /// The number of the connection on which the server has these watches.
    watched_on: u64,
}

impl State {
    pub(super) fn forget(&mut self, ticket: TicketId) {
        let Some(local) = self.tickets.remove(&ticket) else { return };
        self.closing_bytes -= local.closing_bytes;
        self.unwatch(ticket, local.watched, &[]);
    }

    /// Takes a ticket off the watchers of these paths, but for some. The nodes may stay for long, and when
    /// they go the ticket must not be rechecked in vain.
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

/// What this handle knows of a ticket that is in a line, or may be.
#[derive(Clone, Debug)]
pub(super) struct LocalTicket {
    pub(super) name: Name,
    closing_bytes: usize,
    /// Its node; `None` until the server has told it.
    pub(super) path: Option<String>,
    /// The czxid of its node.
    pub(super) fence: u64,
    /// The line's capacity and length allow it to stay.
    pub(super) accepted: bool,
    /// Once granted, always granted: no ticket can come before it any more.
    pub(super) granted: bool,
    pub(super) leaving: bool,
    /// The holder of the lock when this ticket last looked.
    pub(super) holder: Option<Holder>,
    /// The paths that it watches while it waits, besides its own.
    watched: Vec<String>,
}

/// To what a fired watch leads.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Watcher {
    Ticket(TicketId),
    /// All contenders for a name.
    Line(Name),
}

impl Shard {
    pub(super) fn new(ask: Open, terms: Terms, zk: Session, expires: Moment) -> Self {
        let state = State {
            expires,
            version: 0,
            tickets: HashMap::new(),
            closing_bytes: 0,
            hints: None,
            watches: HashMap::new(),
            watched_on: 0,
        };
        Self { ask, terms, zk, state: Mutex::new(state) }
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    pub(super) fn has(&self, ticket: TicketId) -> bool {
        self.state().tickets.contains_key(&ticket)
    }

    /// What is known of a ticket in the line of this name.
    pub(super) fn ticket(&self, name: &Name, ticket: TicketId) -> Option<LocalTicket> {
        self.state().tickets.get(&ticket).filter(|local| local.name == *name).cloned()
    }

    /// The tickets whose nodes are known, unless they are leaving.
    pub(super) fn nodes(&self) -> Vec<(TicketId, String)> {
        let state = self.state();
        let staying = state.tickets.iter().filter(|(_, local)| !local.leaving);
        staying.filter_map(|(ticket, local)| Some((*ticket, local.path.clone()?))).collect()
    }

    /// Adds a ticket whose node is about to be created.
    pub(super) fn add(&self, name: &Name, line: &str, ticket: TicketId) {
        let local = LocalTicket {
            name: name.clone(),
            closing_bytes: closing_bytes(line),
            path: None,
            fence: 0,
            accepted: false,
            granted: false,
            leaving: false,
            holder: None,
            watched: Vec::new(),
        };
        let mut state = self.state();
        state.forget(ticket);
        state.closing_bytes += local.closing_bytes;
        state.tickets.insert(ticket, local);
    }

    /// Notes a ticket's node. Says whether the ticket is still known; it may have been left meanwhile.
    pub(super) fn set_node(&self, name: &Name, ticket: TicketId, path: &str, fence: u64) -> bool {
        let mut state = self.state();
        let local = state.tickets.get_mut(&ticket).filter(|local| local.name == *name);
        let Some(local) = local else { return false };
        (local.path, local.fence) = (Some(path.to_owned()), fence);
        true
    }

    pub(super) fn update(&self, ticket: TicketId, update: impl FnOnce(&mut LocalTicket)) {
        if let Some(local) = self.state().tickets.get_mut(&ticket) {
            update(local);
        }
    }

    /// Notes which nodes a waiting ticket watches.
    pub(super) fn set_watched(&self, ticket: TicketId, watched: &[String]) {
        let mut state = self.state();
        let Some(local) = state.tickets.get_mut(&ticket) else { return };
        let before = std::mem::replace(&mut local.watched, watched.to_vec());
        state.unwatch(ticket, before, watched);
    }

    pub(super) fn set_granted(&self, ticket: TicketId) {
        self.update(ticket, |local| local.granted = true);
        self.set_watched(ticket, &[]);
    }

    pub(super) fn forget(&self, ticket: TicketId) {
        self.state().forget(ticket);
    }

    /// Adds a watcher of a path on this connection. Says whether it is new: then the server has to be asked
    /// for a watch.
    pub(super) fn add_watcher(&self, connection: u64, path: &str, watcher: Watcher) -> bool {
        let mut state = self.state();
        // A caller that is late may still name an older connection.
        if state.watched_on < connection {
            state.watches.clear();
            state.watched_on = connection;
        }
        state.watches.entry(path.to_owned()).or_default().insert(watcher)
    }

    /// The server has no watch on this path.
    pub(super) fn drop_watch(&self, path: &str) {
        self.state().watches.remove(path);
    }

    /// Passes a fired watch on to the core.
    pub(super) fn watch_fired(&self, path: &str) {
        let (watchers, hints) = {
            let mut state = self.state();
            (state.watches.remove(path).unwrap_or_default(), state.hints.clone())
        };
        let Some(hints) = hints else { return };
        for watcher in watchers {
            match watcher {
                Watcher::Ticket(ticket) => hints.recheck(Some(ticket)),
                Watcher::Line(name) => hints.freed(&name),
            }
        }
    }
}
