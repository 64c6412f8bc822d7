//! What the clones of a keeper share: the store, the local queue, and the sessions that are open.

use crate::{
    api::options::Renew,
    clock::Clock,
    error::{Error, Result},
    model::ticket::Owner,
    session::{
        Session, hold::Owned, local_queue::LocalQueue, opening::Opening, own_thread::OwnThread,
        times::Times,
    },
    store::{AnyStore, StoreResult},
    sync::Mutex,
};
use std::{
    sync::{
        Arc, MutexGuard, Weak,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};
use tokio::task::JoinHandle;

/// For how long closing waits for a store. What is not done then goes on in the background.
const CLOSE_MAX: Duration = Duration::from_secs(5);

pub(crate) struct KeeperState {
    pub(crate) store: AnyStore,
    pub(crate) clock: Clock,
    pub(crate) local_queue: Arc<LocalQueue>,
    pub(crate) owned: Arc<Owned>,
    times: Times,
    renew: Renew,
    owner: Owner,
    sessions: Mutex<Sessions>,
    closed: AtomicBool,
    /// Held while closing, so that a second close waits for the first.
    closing: tokio::sync::Mutex<()>,
    pub(crate) own_thread: Option<OwnThread>,
}

#[derive(Default)]
struct Sessions {
    /// One for each choice of times; few programs make more than one.
    shared: Vec<(Times, Arc<Opening>)>,
    /// The session of the keeper's own times stays open; all others live with their guards.
    home: Option<Arc<Session>>,
    /// Sessions of fixed leases and attached sessions, each with one lock.
    leased: Vec<Weak<Session>>,
    /// The tasks of all sessions that have not ended.
    tasks: Vec<JoinHandle<()>>,
}

impl KeeperState {
    pub(crate) fn new(
        store: AnyStore,
        clock: Clock,
        times: Times,
        renew: Renew,
        owner: Owner,
        own_thread: Option<OwnThread>,
    ) -> Self {
        Self {
            store,
            clock,
            local_queue: Arc::default(),
            owned: Arc::default(),
            times,
            renew,
            owner,
            sessions: Mutex::default(),
            closed: AtomicBool::new(false),
            closing: tokio::sync::Mutex::default(),
            own_thread,
        }
    }

    /// The times of a lock that names none.
    pub(crate) fn times(&self) -> Times {
        self.times
    }

    /// For how long the store has not answered.
    pub(crate) fn outage(&self) -> Option<Duration> {
        let now = self.clock.now();
        // The last handle of a session must not be dropped under this lock.
        let shared = self.sessions().shared.clone();
        let sessions = shared.iter().filter_map(|(_, cell)| cell.get()?.upgrade());
        let renewal_loop = sessions.filter(|s| !s.is_lost()).filter_map(|s| s.state.away());
        let waiting = self.local_queue.outages();
        renewal_loop.chain(waiting).map(|away| away.lasts(now)).max()
    }

    /// Ends all sessions, and waits for their tasks.
    pub(crate) async fn close(&self) {
        self.closed.store(true, Ordering::Release);
        let _one_at_a_time = self.closing.lock().await;
        let Sessions { shared, home, leased, tasks } = std::mem::take(&mut *self.sessions());
        let mut closing = Closing { keeper: self, tasks };
        let shared = shared.iter().filter_map(|(_, cell)| cell.get());
        for session in leased.iter().chain(shared).filter_map(Weak::upgrade) {
            session.close();
        }
        drop(home);
        // Also of sessions whose last guard is gone: their tasks may still have something to finish.
        let finished = async {
            for task in &mut closing.tasks {
                if !task.is_finished() {
                    let _ = task.await;
                }
            }
        };
        tokio::select! {
            () = finished => {}
            () = self.clock.sleep(CLOSE_MAX) => {}
        }
    }

    /// The session for these times, if it lives.
    pub(crate) fn living(&self, times: Times) -> Option<Arc<Session>> {
        if self.is_closed() {
            return None;
        }
        let session = {
            let sessions = self.sessions();
            let (_, cell) = sessions.shared.iter().find(|(of, _)| *of == times)?;
            cell.get()?.upgrade()?
        };
        (!session.is_lost()).then_some(session)
    }

    /// The session for these times, opened if there is none that lives.
    pub(crate) async fn session(&self, times: Times, leased: bool) -> Result<Arc<Session>> {
        if self.is_closed() {
            return Err(Error::Closed);
        }
        let session = if leased {
            self.leased_session(times).await?
        } else {
            self.shared_session(times).await?
        };
        // Closed while we opened: `close` has not seen this session.
        if self.is_closed() {
            session.close();
            return Err(Error::Closed);
        }
        Ok(session)
    }

    fn sessions(&self) -> MutexGuard<'_, Sessions> {
        self.sessions.lock()
    }

    async fn shared_session(&self, times: Times) -> Result<Arc<Session>> {
        loop {
            let cell = {
                let mut sessions = self.sessions();
                let over = |s: &Weak<Session>| s.upgrade().is_none_or(|s| s.is_lost());
                sessions.shared.retain(|(_, cell)| !cell.get().is_some_and(over));
                match sessions.shared.iter().find(|(of, _)| *of == times) {
                    Some((_, cell)) => Arc::clone(cell),
                    None => {
                        let cell = Arc::<Opening>::default();
                        sessions.shared.push((times, Arc::clone(&cell)));
                        cell
                    }
                }
            };
            let mut opened = None;
            let open = async || {
                let session = self.open(times, false).await?;
                let weak = Arc::downgrade(&session);
                opened = Some(session);
                Ok(weak)
            };
            let known = cell.get_or_open(open).await?;
            let Some(session) = known.upgrade() else { continue };
            if opened.is_some() && times == self.times {
                self.sessions().home = opened;
            }
            return Ok(session);
        }
    }

    async fn leased_session(&self, times: Times) -> Result<Arc<Session>> {
        let session = self.open(times, true).await?;
        self.add_own(&session);
        Ok(session)
    }

    async fn open(&self, times: Times, own: bool) -> StoreResult<Arc<Session>> {
        let (renew, owner) = (self.renew(times.ttl), self.owner.clone());
        let opening = Session::open(&self.store, &self.clock, times, renew, owner, own);
        let (session, task) = opening.await?;
        self.add_task(task);
        Ok(session)
    }

    /// The keeper's renewal interval need not suit a lock with a TTL of its own.
    pub(super) fn renew(&self, ttl: Duration) -> Renew {
        if ttl == self.times.ttl { self.renew } else { Renew::DEFAULT }
    }

    pub(super) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// Notes a session with one lock, so that closing the keeper ends it.
    pub(super) fn add_own(&self, session: &Arc<Session>) {
        let mut sessions = self.sessions();
        sessions.leased.retain(|s| s.strong_count() > 0);
        sessions.leased.push(Arc::downgrade(session));
    }

    pub(super) fn add_task(&self, task: JoinHandle<()>) {
        let mut sessions = self.sessions();
        sessions.tasks.retain(|task| !task.is_finished());
        sessions.tasks.push(task);
    }
}

/// The tasks that a close waits for. Those that it does not wait for to the end go back, so that a thread of the keeper's
/// own ends after them.
struct Closing<'a> {
    keeper: &'a KeeperState,
    tasks: Vec<JoinHandle<()>>,
}

impl Drop for Closing<'_> {
    fn drop(&mut self) {
        self.tasks.retain(|task| !task.is_finished());
        self.keeper.sessions().tasks.append(&mut self.tasks);
    }
}

impl Drop for KeeperState {
    fn drop(&mut self) {
        if let Some(thread) = self.own_thread.take() {
            let Sessions { home, tasks, .. } = std::mem::take(&mut *self.sessions());
            drop(home);
            thread.end_after(tasks);
        }
    }
}
