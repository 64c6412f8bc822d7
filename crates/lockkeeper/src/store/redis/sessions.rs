//! What a handle knows of its sessions: where they are open, and who is to be told. Their tickets only the
//! server knows: another handle may act for the same session, and a server that was restored or has
//! taken over may have tickets that were left since.

use super::{link::Ear, reply::Message};
use crate::{
    model::{name::Name, ticket::SessionId},
    store::{Hints, Open},
    sync::Mutex,
};
use redis::Value;
use std::{
    collections::{BTreeSet, HashMap},
    sync::{
        Arc, MutexGuard,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

/// What this handle knows of its sessions.
#[derive(Default)]
pub(super) struct Sessions {
    lives: Mutex<HashMap<SessionId, Life>>,
    sinks: Mutex<HashMap<SessionId, Arc<dyn Hints>>>,
    /// What the server wants swept, by bucket.
    dust: Mutex<HashMap<u32, Vec<Dust>>>,
    /// How many grants messages have told of.
    told: AtomicU64,
}

/// Something to be swept: a ticket that a session has left, or all that is old in a line.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Dust {
    pub(super) session: String,
    pub(super) ticket: String,
    pub(super) name: Name,
}

pub(super) struct Life {
    pub(super) ask: Open,
    /// The buckets in which the server knows the session.
    pub(super) buckets: BTreeSet<u32>,
    /// The server and its history, as each bucket has last shown them.
    histories: HashMap<u32, String>,
    /// How often a bucket has shown another history than before.
    changes: u64,
}

impl Life {
    pub(super) fn new(ask: Open, buckets: BTreeSet<u32>) -> Self {
        Self { ask, buckets, histories: HashMap::new(), changes: 0 }
    }

    /// The session is open in a bucket, which shows this history.
    pub(super) fn opened(&mut self, bucket: u32, history: String) {
        self.buckets.insert(bucket);
        self.shown(bucket, history);
    }

    /// Takes in the history that a bucket shows.
    pub(super) fn shown(&mut self, bucket: u32, history: String) {
        let is_other = self.histories.get(&bucket).is_some_and(|before| *before != history);
        self.changes += u64::from(is_other);
        self.histories.insert(bucket, history);
    }

    pub(super) fn changes(&self) -> u64 {
        self.changes
    }
}

impl Sessions {
    pub(super) fn lives(&self) -> MutexGuard<'_, HashMap<SessionId, Life>> {
        self.lives.lock()
    }

    pub(super) fn sinks(&self) -> MutexGuard<'_, HashMap<SessionId, Arc<dyn Hints>>> {
        self.sinks.lock()
    }

    /// Takes in the history that a bucket shows for a session.
    pub(super) fn shown(&self, session: SessionId, bucket: u32, history: String) {
        if let Some(life) = self.lives().get_mut(&session) {
            life.shown(bucket, history);
        }
    }

    /// Notes what the server wants swept in a bucket.
    pub(super) fn sweep_later(&self, bucket: u32, dust: Vec<Dust>) {
        self.dust.lock().insert(bucket, dust);
    }

    /// What is to be swept in a bucket now.
    pub(super) fn sweep_now(&self, bucket: u32) -> Vec<Dust> {
        self.dust.lock().remove(&bucket).unwrap_or_default()
    }

    /// How many grants messages have told of so far.
    pub(super) fn told(&self) -> u64 {
        self.told.load(Ordering::Relaxed)
    }

    fn hear(&self, message: &Message) {
        if matches!(message, Message::Granted(..)) {
            self.told.fetch_add(1, Ordering::Relaxed);
        }
        let sinks: Vec<Arc<dyn Hints>> = self.sinks().values().cloned().collect();
        for sink in sinks {
            match *message {
                Message::Granted(ticket, fence) => sink.granted(ticket, fence),
                Message::Ended(ticket) => sink.ended(ticket),
            }
        }
    }

    pub(super) fn ear(self: &Arc<Self>) -> Ear {
        let sessions = Arc::clone(self);
        Arc::new(move |info| {
            if info.kind == redis::PushKind::Message
                && let Some(Value::BulkString(payload)) = info.data.last()
                && let Some(message) = Message::parse(payload)
            {
                sessions.hear(&message);
            }
        })
    }
}

/// How an id is written.
pub(super) fn hex(session: SessionId) -> String {
    format!("{:032x}", u128::from_be_bytes(session.to_bytes()))
}

pub(super) fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}
