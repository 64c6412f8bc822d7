//! One ZooKeeper session of a session of ours, and the tickets in it.

use super::{client::Session, watch::WatchTable};
use crate::{
    clock::Moment,
    model::{name::Name, ticket::TicketId},
    store::{Holder, Terms},
    sync::Mutex,
};
use std::{
    collections::HashMap,
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
    pub(super) terms: Terms,
    pub(super) zk: Session,
    pub(super) watches: Arc<WatchTable>,
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

impl Shard {
    pub(super) fn new(
        terms: Terms,
        zk: Session,
        watches: Arc<WatchTable>,
        expires: Moment,
    ) -> Self {
        let state = State { expires, version: 0, tickets: HashMap::new(), closing_bytes: 0 };
        Self { terms, zk, watches, state: Mutex::new(state) }
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
        self.forget_in(&mut state, ticket);
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
        self.watches.remove(ticket, before, watched);
    }

    pub(super) fn set_granted(&self, ticket: TicketId) {
        self.update(ticket, |local| local.granted = true);
        self.set_watched(ticket, &[]);
    }

    pub(super) fn forget(&self, ticket: TicketId) {
        self.forget_in(&mut self.state(), ticket);
    }

    pub(super) fn forget_in(&self, state: &mut State, ticket: TicketId) {
        if let Some(local) = state.tickets.remove(&ticket) {
            state.closing_bytes -= local.closing_bytes;
            self.watches.remove(ticket, local.watched, &[]);
        }
    }
}
