//! Sessions: opening, renewing, closing, and what this handle knows of them.
//!
//! A session of ours is one ZooKeeper session, its first shard, and gets further shards when it has
//! many tickets. The shards are renewed together, and one that is lost ends the session.

use super::{
    ANSWER_TIMEOUT_MAX, ANSWER_TIMEOUT_MIN, KIND, Zookeeper,
    client::{OnExpiry, PushHandler, Request, Session},
    error::{outside_session, unavailable},
    shard::{Shard, closing_bytes},
    watch::{HintSink, WatchTable},
};
use crate::{
    clock::Moment,
    error::{ErrorKind, StoreError},
    model::ticket::{SessionId, TicketId},
    store::{Open, Renewal, STRAY_MAX, StoreResult, Terms, TicketDigest, common::join},
    sync::Mutex,
};
use std::{
    collections::HashMap,
    sync::{Arc, MutexGuard},
    time::Duration,
};
use tokio::sync::Notify;

/// How much the tickets of one shard may add to the write that ends it. Servers cannot read back a write of
/// more than a megabyte, unless configured (`jute.maxbuffer`).
const CLOSING_BYTES_MAX: usize = 384 << 10;

impl Zookeeper {
    pub(super) async fn open_session(&self, ask: Open) -> StoreResult<Terms> {
        if let Some(terms) = self.sessions.opened(ask.session, self.now())? {
            return Ok(terms);
        }
        let hints = HintSink::default();
        let first = self.open_shard(&ask, &hints).await?;
        Ok(self.sessions.add(LocalSession::new(ask, first, hints), self.now()))
    }

    async fn open_shard(&self, ask: &Open, hints: &HintSink) -> StoreResult<Arc<Shard>> {
        let began = self.now();
        let timeout = self.servers.timeout(ask.ttl, ask.lock_delay);
        let (watches, on_watch) = watch_table(hints);
        let (ensemble, answer_timeout) = (&self.config.ensemble, answer_timeout(ask.ttl));
        let zk = Session::new(ensemble, OnExpiry::Stop, timeout, answer_timeout, on_watch);
        self.expect_same_data(&zk).await.map_err(outside_session)?;
        let terms = self.servers.terms(ask.ttl, ask.lock_delay, zk.granted())?;
        Ok(Arc::new(Shard::new(terms, zk, watches, began + terms.ttl)))
    }

    /// One more shard for a session whose shards have no room for a ticket in this line.
    pub(super) async fn add_shard(
        &self,
        session: &LocalSession,
        line: &str,
    ) -> StoreResult<Arc<Shard>> {
        let _one_at_a_time = session.growing.lock().await;
        if let Some(shard) = session.shard_with_room(line) {
            return Ok(shard);
        }
        let began = self.now();
        let shard = self.open_shard(&session.ask, &session.hints).await?;
        if shard.terms != session.terms {
            // The new ZooKeeper session is dropped, and expires.
            return Err(unavailable("a server grants other times than another one"));
        }
        if session.add(&shard, began)
            && let Err(e) = self.renew_shard(&shard).await
        {
            session.remove(&shard);
            return Err(e);
        }
        Ok(shard)
    }

    pub(super) async fn renew_session(&self, session: SessionId) -> StoreResult<Renewal> {
        let renewed = match self.sessions.living(session, self.now()) {
            Ok(session) => self.renew_shards(&session).await,
            Err(over) => Err(over),
        };
        match renewed {
            Ok((version, tickets)) => Ok(Renewal::Renewed { version, tickets: Some(tickets) }),
            Err(e) if e.kind == ErrorKind::SessionOver => {
                // Nothing more is sent for the session: its ZooKeeper sessions only expire.
                self.sessions.end(session, self.now());
                Ok(Renewal::Lost)
            }
            Err(e) => Err(e),
        }
    }

    /// All shards at once; says how many tickets others have ended, and which there are.
    async fn renew_shards(&self, session: &LocalSession) -> StoreResult<(u64, TicketDigest)> {
        let shards = session.begin_renewal(self.now());
        let renewed = join::all(shards.iter().map(|shard| self.renew_shard(shard))).await;
        let (mut version, mut all) = (0, TicketDigest::default());
        let mut failed = None;
        for shard in renewed {
            match shard {
                Ok((evictions, tickets)) => {
                    version += evictions;
                    all.count += tickets.count;
                    all.sum = all.sum.wrapping_add(tickets.sum);
                }
                Err(e) if e.kind == ErrorKind::SessionOver => return Err(e),
                Err(e) => failed = Some(e),
            }
        }
        failed.map_or(Ok((version, all)), Err)
    }

    /// A write that a majority has to agree upon; a server that is cut off still answers reads. The list of
    /// the session's nodes is read behind the write, so it is not older than that.
    async fn renew_shard(&self, shard: &Shard) -> StoreResult<(u64, TicketDigest)> {
        let began = self.now();
        let paths = &self.config.paths;
        let known = shard.nodes();
        let write = Request::multi(&[Request::check(paths.root())]);
        let [write, own] = shard.zk.ask([write, Request::ephemerals(&paths.base())]).await?;
        // Any answer to the multi will do, also that the root is not there. A refusal of the whole request
        // comes from a server that has asked no other one.
        write?;
        let tickets = self.reconcile(shard, &known, &own.and_then(|own| own.names())?).await;
        let mut state = shard.state();
        if self.now() >= state.expires {
            return Err(StoreError::session_over(KIND));
        }
        state.expires = state.expires.max(began + shard.terms.ttl);
        Ok((state.version, tickets))
    }

    pub(super) async fn close_session(&self, id: SessionId) -> StoreResult<()> {
        if let Ok(session) = self.sessions.living(id, self.now()) {
            // The session stays in the table until the close was answered, so that it can be repeated.
            let shards = session.shards();
            let closed = join::all(shards.iter().map(|shard| shard.zk.close())).await;
            closed.into_iter().collect::<Result<(), _>>()?;
        }
        self.sessions.end(id, self.now());
        Ok(())
    }
}

/// For how long an answer may take in a session with this TTL.
pub(super) fn answer_timeout(ttl: Duration) -> Duration {
    (ttl / 3).clamp(ANSWER_TIMEOUT_MIN, ANSWER_TIMEOUT_MAX)
}

/// The watches of a shard, and what tells them that one has fired.
pub(super) fn watch_table(hints: &HintSink) -> (Arc<WatchTable>, PushHandler) {
    let watches = Arc::new(WatchTable::new(Arc::clone(hints)));
    let fired = Arc::clone(&watches);
    (watches, Arc::new(move |path| fired.fired(path)))
}

/// The sessions of this handle.
#[derive(Default)]
pub(super) struct SessionTable(Mutex<Sessions>);

#[derive(Default)]
struct Sessions {
    open: HashMap<SessionId, Arc<LocalSession>>,
    /// Sessions that have ended, and until when late copies of their requests can come.
    ended: HashMap<SessionId, Moment>,
}

impl SessionTable {
    fn sessions(&self) -> MutexGuard<'_, Sessions> {
        self.0.lock()
    }

    /// A session that is known and has not expired.
    pub(super) fn living(&self, session: SessionId, now: Moment) -> StoreResult<Arc<LocalSession>> {
        let session = self.sessions().open.get(&session).cloned();
        let living = session.filter(|session| session.expires() > now);
        living.ok_or_else(|| StoreError::session_over(KIND))
    }

    /// The terms of a session that was opened before; an error if it is over.
    fn opened(&self, session: SessionId, now: Moment) -> StoreResult<Option<Terms>> {
        let mut sessions = self.sessions();
        sessions.ended.retain(|_, until| *until > now);
        match sessions.open.get(&session) {
            Some(open) if open.expires() > now => Ok(Some(open.terms)),
            None if !sessions.ended.contains_key(&session) => Ok(None),
            _ => Err(StoreError::session_over(KIND)),
        }
    }

    /// Adds a session, unless another copy of the request was quicker.
    fn add(&self, new: LocalSession, now: Moment) -> Terms {
        let mut sessions = self.sessions();
        // The core has forgotten these long ago.
        sessions.open.retain(|_, session| session.expires() + STRAY_MAX > now);
        sessions.open.entry(new.ask.session).or_insert_with(|| Arc::new(new)).terms
    }

    /// Adds a session that another handle has opened. If this handle has given it up before, that was to hand
    /// it over.
    pub(super) fn attach(&self, new: LocalSession) {
        let mut sessions = self.sessions();
        sessions.ended.remove(&new.ask.session);
        sessions.open.insert(new.ask.session, Arc::new(new));
    }

    /// Ends a session for ever, as far as this handle is concerned.
    pub(super) fn end(&self, session: SessionId, now: Moment) {
        let mut sessions = self.sessions();
        if sessions.open.remove(&session).is_some() {
            sessions.ended.insert(session, now + STRAY_MAX);
        }
    }

    /// The path of a ticket of one of these sessions.
    pub(super) fn path(&self, ticket: TicketId) -> Option<String> {
        let sessions: Vec<Arc<LocalSession>> = self.sessions().open.values().cloned().collect();
        let shard = sessions.iter().find_map(|session| session.shard_of(ticket))?;
        shard.state().tickets.get(&ticket)?.path.clone()
    }
}

/// What this handle knows of a session.
pub(super) struct LocalSession {
    pub(super) ask: Open,
    terms: Terms,
    /// Of all shards.
    pub(super) hints: HintSink,
    state: Mutex<State>,
    /// One task at a time adds a shard.
    growing: tokio::sync::Mutex<()>,
    /// A shard was added.
    pub(super) grown: Notify,
}

struct State {
    /// Never empty.
    shards: Vec<Arc<Shard>>,
    /// When the last renewal began.
    renewal_began: Option<Moment>,
    /// Tickets that were left while a copy of their enter may be under way, and until when.
    closed: HashMap<TicketId, Moment>,
}

impl LocalSession {
    pub(super) fn new(ask: Open, first: Arc<Shard>, hints: HintSink) -> Self {
        let terms = first.terms;
        let state = State { shards: vec![first], renewal_began: None, closed: HashMap::new() };
        let (growing, grown) = (tokio::sync::Mutex::default(), Notify::new());
        Self { ask, terms, hints, state: Mutex::new(state), growing, grown }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    pub(super) fn shards(&self) -> Vec<Arc<Shard>> {
        self.state().shards.clone()
    }

    /// The shard that has this ticket. A ticket never moves to another shard.
    pub(super) fn shard_of(&self, ticket: TicketId) -> Option<Arc<Shard>> {
        self.state().shards.iter().find(|shard| shard.has(ticket)).cloned()
    }

    /// A shard that can take a ticket in this line.
    pub(super) fn shard_with_room(&self, line: &str) -> Option<Arc<Shard>> {
        let fits = |shard: &&Arc<Shard>| {
            shard.state().closing_bytes + closing_bytes(line) <= CLOSING_BYTES_MAX
        };
        self.state().shards.iter().find(fits).cloned()
    }

    /// Notes that a late copy of this ticket's enter must be refused.
    pub(super) fn refuse_enter(&self, ticket: TicketId, until: Moment) {
        self.state().closed.insert(ticket, until);
    }

    pub(super) fn refuses_enter(&self, ticket: TicketId) -> bool {
        self.state().closed.contains_key(&ticket)
    }

    /// The shards to renew in a renewal that begins now.
    fn begin_renewal(&self, now: Moment) -> Vec<Arc<Shard>> {
        let mut state = self.state();
        state.renewal_began = Some(now);
        state.closed.retain(|_, until| *until > now);
        state.shards.clone()
    }

    /// Adds a shard whose opening began at that moment. Says whether a renewal has begun since and does not
    /// include the shard: the core will believe in that renewal for longer than the shard lives.
    fn add(&self, shard: &Arc<Shard>, began: Moment) -> bool {
        let mut state = self.state();
        state.shards.push(Arc::clone(shard));
        self.grown.notify_one();
        state.renewal_began.is_some_and(|renewal| renewal >= began)
    }

    /// Takes out a shard that could not be renewed.
    fn remove(&self, shard: &Arc<Shard>) {
        self.state().shards.retain(|other| !Arc::ptr_eq(other, shard));
    }

    /// The session ends with the first of its shards.
    fn expires(&self) -> Moment {
        let state = self.state();
        state.shards.iter().map(|shard| shard.state().expires).min().unwrap_or(Moment::NEVER)
    }
}
