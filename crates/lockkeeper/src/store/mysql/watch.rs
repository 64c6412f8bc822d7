//! Telling waiters of their grants. The server cannot call us, so one query for all who wait in
//! this process asks it, often while things move and seldom while nothing does.

use super::{Mysql, link::Link, reply};
use crate::{
    clock::Clock,
    error::StoreError,
    store::{Hints, StoreResult},
    ticket::{SessionId, TicketId},
};
use mysql_async::Value;
use std::{
    collections::HashMap,
    convert::Infallible,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
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
        self.sinks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn waiting(&self) -> MutexGuard<'_, HashMap<TicketId, SessionId>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
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

    /// This ticket waits.
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
    async fn look_once(&self, link: &Link, sql: &str, now: i64) -> StoreResult<bool> {
        let sinks: Vec<(SessionId, Arc<dyn Hints>)> =
            self.sinks().iter().map(|(session, sink)| (*session, Arc::clone(sink))).collect();
        let mut moved = false;
        for (session, sink) in sinks {
            let params: Vec<Value> =
                vec![session.to_bytes().as_slice().into(), (now - RECENT).into()];
            for row in link.ask(link.watch(), sql, params).await? {
                let ticket = reply::ticket_id(reply::field(&row, "id")?)?;
                if self.waiting().remove(&ticket).is_some() {
                    sink.granted(ticket, reply::fence(&row)?);
                    moved = true;
                }
            }
        }
        Ok(moved)
    }
}
