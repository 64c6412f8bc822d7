//! Sessions: opening, renewing and closing them, and what this handle knows of them.
//!
//! The handle knows where its sessions are open and which sink gets their hints. Their tickets only the server
//! knows: another handle may act for the same session, and a server that was restored or has taken over may
//! have tickets that were left since.
//!
//! A renewal's reply tells whether the data is still what it was; no socket does. The script adds the number of
//! the session's tickets, the sum of their ids, and which server it runs on with which history. A replica that
//! has taken over shows another history, whatever proxy stands between it and us.

use super::{
    HOME, KIND, Redis,
    exec::Call,
    reply::{self, Entry, Reply, hex, micros, pack},
    scripts::SCRIPTS,
};
use crate::{
    error::StoreError,
    model::ticket::SessionId,
    store::{Hints, Open, Renewal, STRAY_MAX, StoreResult, TicketDigest, common::join},
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
    local: Mutex<HashMap<SessionId, LocalSession>>,
    pub(super) sinks: Mutex<HashMap<SessionId, Arc<dyn Hints>>>,
    /// What the server wants swept, by bucket.
    leftovers: Mutex<HashMap<u32, Vec<Entry>>>,
    /// The number of grants that messages have told of.
    pub(super) announced: AtomicU64,
}

/// One session, as this handle knows it.
#[derive(Clone)]
pub(super) struct LocalSession {
    pub(super) ask: Open,
    /// The buckets in which the server knows the session.
    pub(super) buckets: BTreeSet<u32>,
    /// The server and its history, as each bucket has last shown them.
    histories: HashMap<u32, String>,
    /// How often a bucket has shown another history than before.
    changes: u64,
}

impl LocalSession {
    fn new(ask: Open, buckets: BTreeSet<u32>) -> Self {
        Self { ask, buckets, histories: HashMap::new(), changes: 0 }
    }

    fn record_history(&mut self, bucket: u32, history: String) {
        let is_other = self.histories.get(&bucket).is_some_and(|before| *before != history);
        self.changes += u64::from(is_other);
        self.histories.insert(bucket, history);
    }
}

impl Sessions {
    pub(super) fn local(&self) -> MutexGuard<'_, HashMap<SessionId, LocalSession>> {
        self.local.lock()
    }

    /// The session's lock-delay, if this handle knows that it is open in the bucket.
    pub(super) fn lock_delay(&self, session: SessionId, bucket: u32) -> Option<Duration> {
        let local = self.local();
        let session = local.get(&session).filter(|session| session.buckets.contains(&bucket))?;
        Some(session.ask.lock_delay)
    }

    /// Takes what is to be swept in a bucket now.
    pub(super) fn leftovers(&self, bucket: u32) -> Vec<Entry> {
        self.leftovers.lock().remove(&bucket).unwrap_or_default()
    }

    pub(super) fn forget(&self, session: SessionId) {
        self.local().remove(&session);
        self.sinks.lock().remove(&session);
    }
}

/// What a renewal in one bucket has said.
struct Renewed {
    evictions: u64,
    joined: Vec<u32>,
    tickets: TicketDigest,
}

impl Redis {
    pub(super) async fn open_session(&self, ask: &Open) -> StoreResult<()> {
        // One round trip for both.
        let (identified, history) = tokio::join!(self.identify(), self.open_in(HOME, ask));
        identified?;
        let history = history?;
        // Only now: an opening that fails or is dropped leaves nothing behind.
        let mut local = self.sessions.local();
        let session = local
            .entry(ask.session)
            .or_insert_with(|| LocalSession::new(ask.clone(), BTreeSet::new()));
        session.buckets.insert(HOME);
        session.record_history(HOME, history);
        Ok(())
    }

    /// Opens a session in a bucket; returns the history that the server has shown.
    async fn open_in(&self, bucket: u32, ask: &Open) -> StoreResult<String> {
        let keys = &self.buckets[bucket as usize];
        let mut call = Call::new(&SCRIPTS.open, &keys.bucket());
        call.arg(hex(ask.session)).arg(micros(ask.ttl)).arg(micros(ask.lock_delay));
        call.arg(&self.channel).arg(pack(&ask.owner));
        let mut reply = match self.run(keys, None, &call).await? {
            Value::Int(_) => return Err(StoreError::session_over(KIND)),
            reply => Reply::of(reply)?,
        };
        self.server_clock.set(reply.int()?);
        self.sessions.leftovers.lock().insert(bucket, reply.entries()?);
        let history = reply.text()?;
        if bucket != HOME {
            self.join(bucket, ask).await?;
        }
        Ok(history)
    }

    /// Notes this bucket in the session's home bucket, so that every renewal covers it. A renewal that came
    /// home before the note did not cover it, and the handle that sent it believes for longer than the
    /// opening is good for: so the session is renewed here once.
    async fn join(&self, bucket: u32, ask: &Open) -> StoreResult<()> {
        let home = &self.buckets[HOME as usize];
        let mut call = Call::new(&SCRIPTS.join, &[&home.ends, &home.own]);
        call.arg(hex(ask.session)).arg(bucket);
        let is_open = self.run::<i64>(home, None, &call).await? == 1;
        if !is_open || self.renew_in(bucket, ask).await?.is_none() {
            return Err(StoreError::session_over(KIND));
        }
        Ok(())
    }

    /// Sees to it that the session is open in the bucket; returns its terms.
    pub(super) async fn open_also_in(&self, bucket: u32, session: SessionId) -> StoreResult<Open> {
        let known = self.session(session).await?.ok_or_else(|| StoreError::session_over(KIND))?;
        if !known.buckets.contains(&bucket) {
            let history = self.open_in(bucket, &known.ask).await?;
            if let Some(local) = self.sessions.local().get_mut(&session) {
                local.buckets.insert(bucket);
                local.record_history(bucket, history);
            }
        }
        Ok(known.ask)
    }

    /// What is known of a session; asked from the server if another handle has opened it.
    async fn session(&self, session: SessionId) -> StoreResult<Option<LocalSession>> {
        let known = self.sessions.local().get(&session).cloned();
        if known.is_some() {
            return Ok(known);
        }
        let records = self.buckets.iter().map(|keys| {
            let mut get = redis::cmd("HGET");
            get.arg(&keys.sessions).arg(hex(session));
            async move { self.connection.query::<Option<String>>(&get).await }
        });
        let (mut found, mut buckets) = (None, BTreeSet::new());
        for (bucket, record) in (0..).zip(join::all(records).await) {
            if let Some(ask) = record?.and_then(|record| reply::session(session, &record)) {
                buckets.insert(bucket);
                found = Some(ask);
            }
        }
        let Some(ask) = found else { return Ok(None) };
        let found = LocalSession::new(ask, buckets);
        self.sessions.local().entry(session).or_insert_with(|| found.clone());
        Ok(Some(found))
    }

    pub(super) async fn renew_session(&self, session: SessionId) -> StoreResult<Renewal> {
        let Some(known) = self.session(session).await? else { return Ok(Renewal::Lost) };
        let (mut due, mut done) = (known.buckets, BTreeSet::new());
        due.insert(HOME);
        let (mut evictions, mut tickets) = (0_u64, TicketDigest::default());
        // The message of a grant may come from another server than the one that we renew at: from a node of the
        // cluster that has lost its slots, or through a proxy. After such a message all tickets are compared.
        let announced = self.sessions.announced.load(Ordering::Relaxed);
        // The home bucket may name buckets that another handle has opened since; then once more, for those.
        while !due.is_empty() {
            let renewals = due.iter().map(|bucket| self.renew_in(*bucket, &known.ask));
            let mut joined = BTreeSet::new();
            for renewal in join::all(renewals).await {
                let Some(renewed) = renewal? else { return Ok(Renewal::Lost) };
                evictions = evictions.wrapping_add(renewed.evictions);
                tickets.count += renewed.tickets.count;
                tickets.sum = tickets.sum.wrapping_add(renewed.tickets.sum);
                joined.extend(renewed.joined);
            }
            done.append(&mut due);
            due = joined.difference(&done).copied().collect();
        }
        let mut changes = announced;
        if let Some(local) = self.sessions.local().get_mut(&session) {
            local.buckets.append(&mut done);
            changes += local.changes;
        }
        let version = (changes << 32).wrapping_add(evictions);
        Ok(Renewal::Renewed { version, tickets: Some(tickets) })
    }

    /// `None` if the session is over.
    async fn renew_in(&self, bucket: u32, ask: &Open) -> StoreResult<Option<Renewed>> {
        let (keys, leftovers) = (&self.buckets[bucket as usize], self.sessions.leftovers(bucket));
        let terms = [micros(ask.ttl), micros(ask.lock_delay)];
        let call = Call::over_bucket(&SCRIPTS.renew, keys, ask.session, &terms, &leftovers);
        let mut reply = match self.run(keys, None, &call).await? {
            Value::Int(_) => return Ok(None),
            reply => Reply::of(reply)?,
        };
        let evictions = reply.number()?;
        self.sessions.leftovers.lock().insert(bucket, reply.entries()?);
        self.server_clock.set(reply.int()?);
        let joined = reply.list()?.filter_map(|note| reply::joined(&note)).collect();
        let history = reply.text()?;
        if let Some(local) = self.sessions.local().get_mut(&ask.session) {
            local.record_history(bucket, history);
        }
        Ok(Some(Renewed { evictions, joined, tickets: reply.digest()? }))
    }

    pub(super) async fn close_session(&self, session: SessionId) -> StoreResult<()> {
        let Some(known) = self.session(session).await? else { return Ok(()) };
        let mut tickets = self.by_bucket(self.tickets_of(session).await?);
        for bucket in known.buckets {
            tickets.entry(bucket).or_default();
        }
        self.over_tickets(&SCRIPTS.close, session, micros(STRAY_MAX), tickets, true).await?;
        self.sessions.forget(session);
        Ok(())
    }
}
