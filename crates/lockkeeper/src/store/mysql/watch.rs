//! Telling waiters of their grants. The server cannot call us, so one query for all who wait in
//! this process asks it, often while things move and seldom while nothing does.

use super::{Mysql, connection::Link, reply, schema};
use crate::{
    clock::Clock,
    error::StoreError,
    model::ticket::{SessionId, TicketId},
    store::{Hints, StoreResult},
    sync::Mutex,
};
use mysql_async::Value;
use std::{
    collections::{HashMap, HashSet},
    convert::Infallible,
    iter,
    sync::{Arc, MutexGuard},
    time::Duration,
};
use tokio::sync::Notify;

/// The pauses between two looks.
const PAUSE_FIRST: Duration = Duration::from_millis(2);
const PAUSE_MOST: Duration = Duration::from_millis(50);

/// Grants that are older than this were told or are found by the waiter's own poll. Much longer than
/// a transaction takes from drawing a fence to its end.
const RECENT: i64 = 5_000_000;

/// Who waits in this process, and who is to be told.
#[derive(Default)]
pub(super) struct Watch {
    sinks: Mutex<HashMap<SessionId, Arc<dyn Hints>>>,
    waiting: Mutex<HashMap<TicketId, SessionId>>,
    /// Something may have moved: look now.
    stir: Notify,
    /// One session's task looks for all.
    turn: tokio::sync::Mutex<()>,
}

impl Watch {
    fn sinks(&self) -> MutexGuard<'_, HashMap<SessionId, Arc<dyn Hints>>> {
        self.sinks.lock()
    }

    fn waiting(&self) -> MutexGuard<'_, HashMap<TicketId, SessionId>> {
        self.waiting.lock()
    }

    /// From now on this session is told.
    pub(super) fn tell(&self, session: SessionId, to: Arc<dyn Hints>) {
        self.sinks().insert(session, to);
    }

    /// Nothing of this session is awaited any more.
    pub(super) fn forget(&self, session: SessionId) {
        self.sinks().remove(&session);
        self.waiting().retain(|_, of| *of != session);
    }

    /// This ticket waits, from its enter on.
    pub(super) fn waits(&self, session: SessionId, ticket: TicketId) {
        if self.waiting().insert(ticket, session).is_none() {
            self.stir.notify_one();
        }
    }

    pub(super) fn waits_no_more(&self, ticket: TicketId) {
        self.waiting().remove(&ticket);
    }

    /// A lock was handed over: perhaps to somebody here.
    pub(super) fn handed_over(&self) {
        if !self.waiting().is_empty() {
            self.stir.notify_one();
        }
    }

    /// Looks for all sessions of this handle, for as long as it is this one's turn.
    pub(super) async fn look(&self, store: &Mysql) -> StoreError {
        let _turn = self.turn.lock().await;
        match self.look_on(store).await {
            Err(e) => e,
        }
    }

    async fn look_on(&self, store: &Mysql) -> StoreResult<Infallible> {
        let mut pause = PAUSE_FIRST;
        loop {
            while self.waiting().is_empty() {
                self.stir.notified().await;
                pause = PAUSE_FIRST;
            }
            if self.look_once(&store.link, &store.sql.granted, store.server_micros()).await? {
                pause = PAUSE_FIRST;
            }
            if self.stirred(&store.clock, pause).await {
                pause = PAUSE_FIRST;
            } else {
                pause = (pause + pause / 4).min(PAUSE_MOST);
            }
        }
    }

    async fn stirred(&self, clock: &Clock, pause: Duration) -> bool {
        tokio::select! {
            () = self.stir.notified() => true,
            () = clock.sleep(pause) => false,
        }
    }

    /// Tells those whose turn has come; says whether there were any.
    async fn look_once(&self, link: &Link, sql: &Granted, now: i64) -> StoreResult<bool> {
        let waiting: HashSet<SessionId> = self.waiting().values().copied().collect();
        let mut sinks = self.sinks().clone();
        sinks.retain(|session, _| waiting.contains(session));
        let sessions: Vec<SessionId> = sinks.keys().copied().collect();
        let mut moved = false;
        for some in sessions.chunks(Granted::MOST) {
            let (sql, mut params) = sql.asking_for(some);
            params.push((now - RECENT).into());
            for row in link.insist(link.watch(), sql, params).await?.rows {
                let ticket = reply::ticket_id(reply::field(&row, "id")?)?;
                let Some(session) = self.waiting().remove(&ticket) else { continue };
                sinks[&session].granted(ticket, reply::fence(&row)?);
                moved = true;
            }
        }
        Ok(moved)
    }
}

/// The question for the grants of some sessions: who has waited is granted in a row of its own. There is one text for each power of two, so that the
/// server has to prepare few.
pub(super) struct Granted(Vec<String>);

impl Granted {
    /// How many sessions one query asks for.
    const MOST: usize = 64;

    pub(super) fn new(prefix: &str) -> Self {
        let text = |many: usize| {
            let marks = vec!["?"; many].join(", ");
            let sql =
                format!("SELECT id, fence FROM lk_ticket WHERE session IN ({marks}) AND fence > ?");
            schema::named(prefix, &sql)
        };
        Self((0..=Self::MOST.ilog2()).map(|power| text(1 << power)).collect())
    }

    /// The text for so many sessions, and what stands for them in it: one may be named repeatedly.
    fn asking_for(&self, sessions: &[SessionId]) -> (&str, Vec<Value>) {
        let room = sessions.len().next_power_of_two();
        let named = sessions.iter().chain(iter::repeat(&sessions[0])).take(room);
        let params = named.map(|session| session.to_bytes().as_slice().into()).collect();
        (&self.0[room.ilog2() as usize], params)
    }
}
