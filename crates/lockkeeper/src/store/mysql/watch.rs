//! Telling waiters of their grants. The server cannot notify us, so one query for all waiters of this process
//! asks it: every 2 ms while locks move, ever more rarely, up to every 50 ms, while none does.

use super::{Shared, reply, schema};
use crate::{
    error::StoreError,
    model::ticket::{SessionId, TicketId},
    store::{Hints, StoreResult, common::repeat::Repeat},
    sync::Mutex,
};
use mysql_async::Value;
use std::{
    collections::{HashMap, HashSet},
    convert::Infallible,
    iter,
    sync::Arc,
    time::Duration,
};
use tokio::sync::Notify;

/// The pauses between two queries.
const PAUSE: Duration = Duration::from_millis(2);
const LONGEST_PAUSE: Duration = Duration::from_millis(50);

/// Older grants were told already, or the waiter's own poll finds them. In microseconds; much longer than
/// a transaction takes from drawing a fence to its end.
const RECENT: i64 = 5_000_000;

/// The waiters of this process, and where their sessions get hints.
#[derive(Default)]
pub(super) struct Watch {
    sinks: Mutex<HashMap<SessionId, Arc<dyn Hints>>>,
    waiting: Mutex<HashMap<TicketId, SessionId>>,
    /// Something may have moved: ask now.
    changed: Notify,
    /// Held by the task of the session that asks for all sessions.
    asking: tokio::sync::Mutex<()>,
}

impl Watch {
    pub(super) fn forget(&self, session: SessionId) {
        self.sinks.lock().remove(&session);
        self.waiting.lock().retain(|_, of| *of != session);
    }

    /// This ticket waits for its grant from now on.
    pub(super) fn add(&self, session: SessionId, ticket: TicketId) {
        if self.waiting.lock().insert(ticket, session).is_none() {
            self.changed.notify_one();
        }
    }

    pub(super) fn remove(&self, ticket: TicketId) {
        self.waiting.lock().remove(&ticket);
    }

    /// This process has handed a lock over, perhaps to a waiter of its own.
    pub(super) fn handed_over(&self) {
        if !self.waiting.lock().is_empty() {
            self.changed.notify_one();
        }
    }
}

impl Shared {
    /// Gives a session its hints. The task of one session asks for all sessions of this handle.
    pub(super) async fn hints(&self, session: SessionId, sink: Arc<dyn Hints>) -> StoreError {
        self.watch.sinks.lock().insert(session, Arc::clone(&sink));
        sink.recheck(None);
        let _asking = self.watch.asking.lock().await;
        match self.ask_for_grants().await {
            Err(e) => e,
        }
    }

    async fn ask_for_grants(&self) -> StoreResult<Infallible> {
        let (watch, mut pause) = (&self.watch, PAUSE);
        loop {
            while watch.waiting.lock().is_empty() {
                watch.changed.notified().await;
                pause = PAUSE;
            }
            if self.tell_granted().await? {
                pause = PAUSE;
            }
            tokio::select! {
                () = watch.changed.notified() => pause = PAUSE,
                () = self.clock.sleep(pause) => pause = (pause + pause / 4).min(LONGEST_PAUSE),
            }
        }
    }

    /// Tells the waiters that were granted; says whether there were any.
    async fn tell_granted(&self) -> StoreResult<bool> {
        let waiting: HashSet<SessionId> = self.watch.waiting.lock().values().copied().collect();
        let mut sinks = self.watch.sinks.lock().clone();
        sinks.retain(|session, _| waiting.contains(session));
        let sessions: Vec<SessionId> = sinks.keys().copied().collect();
        let since = self.server_clock.now() - RECENT;
        let mut moved = false;
        for some in sessions.chunks(FindGrants::MOST) {
            let (sql, mut params) = self.statements.find_grants.of(some);
            params.push(since.into());
            let call = self.connections.call(&self.connections.watch, sql, params, Repeat::Always);
            for row in call.await? {
                let ticket = reply::ticket_id(&row, "id")?;
                let Some(session) = self.watch.waiting.lock().remove(&ticket) else { continue };
                sinks[&session].granted(ticket, reply::fence(&row)?);
                moved = true;
            }
        }
        Ok(moved)
    }
}

/// The query for the grants of some sessions. It reads the tickets behind the first: a ticket that has waited is
/// granted there. There is one text for each power of two, so that the server has to prepare few.
pub(super) struct FindGrants(Vec<String>);

impl FindGrants {
    /// How many sessions one query asks for.
    const MOST: usize = 64;

    pub(super) fn new(prefix: &str) -> Self {
        let text = |many: usize| {
            let marks = vec!["?"; many].join(", ");
            let sql =
                format!("SELECT id, fence FROM lk_ticket WHERE session IN ({marks}) AND fence > ?");
            schema::with_prefix(prefix, &sql)
        };
        Self((0..=Self::MOST.ilog2()).map(|power| text(1 << power)).collect())
    }

    /// The text for so many sessions, and its parameters, where one session may be repeated.
    fn of(&self, sessions: &[SessionId]) -> (&str, Vec<Value>) {
        let places = sessions.len().next_power_of_two();
        let named = sessions.iter().chain(iter::repeat(&sessions[0])).take(places);
        let params = named.map(|session| session.to_bytes().as_slice().into()).collect();
        (&self.0[places.ilog2() as usize], params)
    }
}
