//! What a handle knows of its sessions: where they are open, and who is to be told. Their tickets only the
//! server knows: another handle may act for the same session, and a server that was restored or has
//! taken over may have tickets that were left since.

use super::{link::Ear, reply::Message};
use crate::{
    name::Name,
    store::{Hints, Open},
    ticket::SessionId,
};
use redis::Value;
use std::{
    collections::{BTreeSet, HashMap},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

/// What this handle knows of its sessions.
#[derive(Default)]
pub(super) struct Sessions {
    lives: Mutex<HashMap<SessionId, Life>>,
    sinks: Mutex<HashMap<SessionId, Arc<dyn Hints>>>,
    /// Lines that the server wants swept, by bucket.
    dust: Mutex<HashMap<u32, Vec<Name>>>,
}

pub(super) struct Life {
    pub(super) ask: Open,
    /// The buckets in which the server knows the session.
    pub(super) buckets: BTreeSet<u32>,
}

impl Life {
    pub(super) fn new(ask: Open, buckets: BTreeSet<u32>) -> Self {
        Self { ask, buckets }
    }
}

impl Sessions {
    pub(super) fn lives(&self) -> MutexGuard<'_, HashMap<SessionId, Life>> {
        self.lives.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn sinks(&self) -> MutexGuard<'_, HashMap<SessionId, Arc<dyn Hints>>> {
        self.sinks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes what the server wants swept in a bucket.
    pub(super) fn sweep_later(&self, bucket: u32, names: Vec<Name>) {
        self.dust.lock().unwrap_or_else(PoisonError::into_inner).insert(bucket, names);
    }

    /// What is to be swept in a bucket now.
    pub(super) fn sweep_now(&self, bucket: u32) -> Vec<Name> {
        self.dust.lock().unwrap_or_else(PoisonError::into_inner).remove(&bucket).unwrap_or_default()
    }

    fn hear(&self, message: &Message) {
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
