//! The last events: all of them in a ring, and those of each lock for its history. Both are bounded.

use bytes::Bytes;
use lockkeeper::{
    Name,
    store::http::wire::{Event, HISTORY_MAX},
};
use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    sync::{Arc, OnceLock},
};

/// How many events a viewer may be behind.
pub(super) const RING: usize = 8_192;
/// How many events all histories hold together.
const HISTORIES: usize = 32_768;

/// An event with its number.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) seq: u64,
    /// By the wall clock.
    pub(super) wall_micros: u64,
    pub(super) name: Option<Name>,
    pub(super) event: Event,
    /// As it goes to viewers: written once for all of them.
    frame: OnceLock<Bytes>,
}

impl Entry {
    pub(super) fn frame(&self, write: impl FnOnce(&Self) -> Bytes) -> Bytes {
        self.frame.get_or_init(|| write(self)).clone()
    }
}

#[derive(Debug, Default)]
struct Past {
    events: VecDeque<Arc<Entry>>,
    /// When the last event that was dropped happened.
    dropped: Option<u64>,
}

#[derive(Debug, Default)]
pub(super) struct Log {
    head: u64,
    ring: VecDeque<Arc<Entry>>,
    past: HashMap<Name, Past>,
    /// Each lock with a history, by the number of its last event.
    touched: BTreeMap<u64, Name>,
    kept: usize,
    /// When the last history was dropped as a whole.
    dropped: Option<u64>,
}

impl Log {
    /// The number of the last event; the first one is 1.
    pub(super) fn head(&self) -> u64 {
        self.head
    }

    pub(super) fn push(&mut self, name: Option<Name>, event: Event, wall_micros: u64) {
        self.head += 1;
        let (seq, frame) = (self.head, OnceLock::new());
        let entry = Arc::new(Entry { seq, wall_micros, name, event, frame });
        if let Some(name) = &entry.name {
            self.remember(name, Arc::clone(&entry));
        }
        if self.ring.len() == RING {
            self.ring.pop_front();
        }
        self.ring.push_back(entry);
    }

    fn remember(&mut self, name: &Name, entry: Arc<Entry>) {
        let past = self.past.entry(name.clone()).or_default();
        if let Some(last) = past.events.back() {
            self.touched.remove(&last.seq);
        }
        self.touched.insert(entry.seq, name.clone());
        past.events.push_back(entry);
        self.kept += 1;
        if past.events.len() > HISTORY_MAX {
            past.dropped = past.events.pop_front().map(|entry| entry.wall_micros);
            self.kept -= 1;
        }
        while self.kept > HISTORIES
            && let Some((_, oldest)) = self.touched.pop_first()
            && let Some(past) = self.past.remove(&oldest)
        {
            self.kept -= past.events.len();
            self.dropped = past.events.back().map(|entry| entry.wall_micros);
        }
    }

    /// The events after this number, at most so many of them; `None` if some are gone, or if there never was such a
    /// number.
    pub(super) fn after(&self, seq: u64, most: usize) -> Option<Vec<Arc<Entry>>> {
        let oldest = self.ring.front().map_or(self.head + 1, |entry| entry.seq);
        if seq > self.head || seq + 1 < oldest {
            return None;
        }
        let skip = usize::try_from(seq + 1 - oldest).unwrap_or(usize::MAX);
        Some(self.ring.iter().skip(skip).take(most).cloned().collect())
    }

    /// The last events of a lock, the oldest first, and the time of the last one that was dropped before them.
    pub(super) fn history(&self, name: &Name, most: usize) -> (Vec<Arc<Entry>>, Option<u64>) {
        let Some(past) = self.past.get(name) else { return (Vec::new(), self.dropped) };
        let skip = past.events.len().saturating_sub(most);
        let cut = skip.checked_sub(1).and_then(|at| past.events.get(at));
        let dropped = cut.map(|entry| entry.wall_micros).or(past.dropped).max(self.dropped);
        (past.events.iter().skip(skip).cloned().collect(), dropped)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lockkeeper::store::http::wire::EventKind;

    fn log(names: impl IntoIterator<Item = String>) -> Log {
        let mut log = Log::default();
        for (at, name) in names.into_iter().enumerate() {
            let event = Event {
                kind: EventKind::Queued,
                at: String::new(),
                lock: None,
                ticket: None,
                mode: None,
                fence: None,
                owner: None,
                label: None,
                waited_ms: None,
                held_ms: None,
                exact: true,
                why: None,
            };
            log.push(Some(Name::new(&name).unwrap()), event, at as u64 + 1);
        }
        log
    }

    #[test]
    fn a_viewer_goes_on_where_it_stopped_unless_it_is_too_late() {
        let log = log((0..RING + 10).map(|_| "a".to_owned()));
        let head = log.head();
        assert_eq!(log.after(head, 5).unwrap().len(), 0);
        let two = log.after(head - 2, 5).unwrap();
        assert_eq!(two.iter().map(|entry| entry.seq).collect::<Vec<_>>(), [head - 1, head]);
        assert_eq!(log.after(10, 3).unwrap()[0].seq, 11);
        assert!(log.after(9, 3).is_none() && log.after(head + 1, 3).is_none());
        assert_eq!(Log::default().after(0, 3).unwrap().len(), 0);
    }

    #[test]
    fn histories_are_bounded_and_the_oldest_goes_first() {
        let busy = log((0..HISTORY_MAX + 3).map(|_| "a".to_owned()));
        let (events, dropped) = busy.history(&Name::new("a").unwrap(), HISTORY_MAX);
        assert_eq!((events.len(), dropped), (HISTORY_MAX, Some(3)));
        let (events, dropped) = busy.history(&Name::new("a").unwrap(), 2);
        assert_eq!((events.len(), dropped), (2, Some(HISTORY_MAX as u64 + 1)));
        let many = log((0..HISTORIES + 1).map(|at| format!("lock-{at}")));
        assert_eq!(many.history(&Name::new("lock-0").unwrap(), 9).0.len(), 0);
        assert_eq!(many.history(&Name::new("lock-1").unwrap(), 9).0.len(), 1);
        assert_eq!((many.past.len(), many.touched.len()), (HISTORIES, HISTORIES));
    }
}
