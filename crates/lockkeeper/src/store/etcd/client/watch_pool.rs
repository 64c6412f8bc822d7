//! The watches of one stream.
//!
//! A watch that has served its purpose is kept idle for a moment instead of being cancelled: in a line
//! that moves quickly, keys are used again and again, and the next one who wants the same key watched
//! finds a watch there already. Cancels are sent together with the next new watch, or by [`WatchPool::age`].

use super::{
    proto::{
        NO_PUT, WatchCancelRequest, WatchCommand, WatchCreateRequest, WatchRequest, WatchResponse,
    },
    txn::KeyRange,
};
use std::{collections::HashMap, mem::replace};

/// The watches of a stream, each with the purpose `P` that it serves, or idle.
pub(crate) struct WatchPool<P> {
    last_id: i64,
    watches: HashMap<i64, Watch<P>>,
    /// The idle watches, by their keys.
    idle: HashMap<Vec<u8>, i64>,
    to_cancel: Vec<i64>,
}

struct Watch<P> {
    /// `None` for a watch of many keys.
    key: Option<Vec<u8>>,
    /// `None` while it is idle.
    purpose: Option<P>,
    /// It was idle already when the idle watches aged last.
    aged: bool,
    /// From which revision on it tells.
    since: i64,
    /// The revision of the last event.
    heard: i64,
}

impl<P: Copy> WatchPool<P> {
    /// The ids of the watches come after this one.
    pub(crate) fn after(last_id: i64) -> Self {
        let (watches, idle) = Default::default();
        Self { last_id, watches, idle, to_cancel: Vec::new() }
    }

    /// Watches keys for deletes, from this revision on: the id of the watch, and what to send for it.
    pub(crate) fn add(
        &mut self,
        purpose: P,
        keys: KeyRange,
        from: i64,
    ) -> (i64, Vec<WatchRequest>) {
        let key = keys.to.is_empty().then(|| keys.from.clone());
        if let Some(key) = &key
            && let Some(watch) = self.idle.get(key).and_then(|id| self.watches.get_mut(id))
            && watch.since <= from
            && let Some(id) = self.idle.remove(key)
        {
            (watch.purpose, watch.aged) = (Some(purpose), false);
            return (id, Vec::new());
        }
        self.last_id += 1;
        let watch = Watch { key, purpose: Some(purpose), aged: false, since: from, heard: 0 };
        self.watches.insert(self.last_id, watch);
        let mut requests = self.cancel();
        requests.push(create(self.last_id, keys, from, vec![NO_PUT]));
        (self.last_id, requests)
    }

    /// A watch has served its purpose.
    pub(crate) fn release(&mut self, id: i64) {
        let Some(watch) = self.watches.get_mut(&id) else { return };
        watch.purpose = None;
        match watch.key.clone() {
            Some(key) => self.to_cancel.extend(self.idle.insert(key, id)),
            None => self.to_cancel.push(id),
        }
    }

    /// The server has ended a watch.
    pub(crate) fn remove(&mut self, id: i64) {
        self.idle.retain(|_, idle| *idle != id);
        self.watches.remove(&id);
    }

    /// Notes what a response tells: the purpose of its watch and the revision of its last event. `None` if
    /// the watch serves no purpose any more.
    pub(crate) fn hear(&mut self, response: &WatchResponse) -> Option<(P, i64)> {
        let id = response.watch_id;
        let watch = self.watches.get_mut(&id)?;
        let revisions = response.events.iter().filter_map(|event| event.kv.as_ref());
        let last = revisions.map(|kv| kv.mod_revision).max().unwrap_or(0);
        watch.heard = watch.heard.max(last);
        let purpose = watch.purpose;
        if purpose.is_none() && response.canceled {
            self.remove(id);
        }
        Some((purpose?, last))
    }

    /// Has this watch, which may have been idle before, told of an event from this revision on?
    pub(crate) fn has_heard(&self, id: i64, from: i64) -> bool {
        self.watches.get(&id).is_some_and(|watch| watch.heard >= from)
    }

    pub(crate) fn has_idle(&self) -> bool {
        !(self.idle.is_empty() && self.to_cancel.is_empty())
    }

    /// Cancels the watches that were idle already when this was called last.
    pub(crate) fn age(&mut self) -> Vec<WatchRequest> {
        let watches = &mut self.watches;
        let old = self.idle.extract_if(|_, id| {
            watches.get_mut(id).is_none_or(|watch| replace(&mut watch.aged, true))
        });
        self.to_cancel.extend(old.map(|(_, id)| id));
        self.cancel()
    }

    fn cancel(&mut self) -> Vec<WatchRequest> {
        for id in &self.to_cancel {
            self.watches.remove(id);
        }
        let cancel = |watch_id| WatchCommand::Cancel(WatchCancelRequest { watch_id });
        self.to_cancel.drain(..).map(|id| WatchRequest { command: Some(cancel(id)) }).collect()
    }
}

/// A request for a watch of these keys, from this revision on.
pub(crate) fn create(
    watch_id: i64,
    keys: KeyRange,
    start_revision: i64,
    filters: Vec<i32>,
) -> WatchRequest {
    let KeyRange { from: key, to: range_end } = keys;
    let create = WatchCreateRequest { key, range_end, start_revision, filters, watch_id };
    WatchRequest { command: Some(WatchCommand::Create(create)) }
}
