//! A session: one lease in the store, one renewal, many tickets.
//!
//! Acquiring and releasing call the store directly. Beside them one task for each session renews it,
//! re-checks what waits, takes the store's hints, and finishes what dropped futures and guards have
//! begun. These are loops side by side; none awaits inside another's turn, so a slow request
//! cannot hold up a renewal.

mod detach;
pub(crate) mod hold;
pub(crate) mod hold_state;
pub(crate) mod keeper_state;
pub(crate) mod local_queue;
pub(crate) mod opening;
pub(crate) mod outage;
pub(crate) mod own_thread;
pub(crate) mod pending_ticket;
pub(crate) mod request;
pub(crate) mod state;
mod task;
pub(crate) mod times;
pub(crate) mod wait;

use crate::{
    api::options::Renew,
    clock::{Clock, Moment},
    error::{Error, Result, StoreError},
    model::{
        name::Name,
        ticket::{Owner, Place, SessionId, TicketId},
    },
    session::{
        state::{Lease, SessionState},
        task::{CleanupQueue, RenewReply, SessionTask, leave_now, leave_until_answered},
        times::Times,
    },
    store::{AnyStore, Entered, Leave, Left, Open, StoreResult, Terms},
};
use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};
use tokio::{
    sync::{mpsc, oneshot},
    task::JoinHandle,
};

/// A request whose future was dropped half-way. The task awaits it, so that the leave which follows
/// cannot overtake it.
pub(crate) type Unanswered = std::pin::Pin<Box<dyn Future<Output = StoreResult<Entered>> + Send>>;

/// Where a detached session's task says what another handle needs to act for the session.
pub(crate) type Taker = oneshot::Sender<StoreResult<Vec<u8>>>;

/// What is left to do for futures and guards that were dropped.
pub(crate) enum Cleanup {
    Leave {
        request: Option<Unanswered>,
        leave: Leave,
    },
    /// End the task, and leave the session to another process.
    Detach(Taker),
    Close,
}

pub(crate) struct Session {
    pub(crate) id: SessionId,
    pub(crate) store: AnyStore,
    pub(crate) terms: Terms,
    pub(crate) state: Arc<SessionState>,
    cleanups: mpsc::UnboundedSender<Cleanup>,
    renewals: mpsc::UnboundedSender<RenewReply>,
    /// Renew by the clock, or only when asked to (a fixed lease that has been granted).
    auto_renew: Arc<AtomicBool>,
    /// It has one lock and will have no other.
    own: bool,
}

/// A session of which the store has answered an opening or a renewal.
struct Opened {
    /// When that was sent.
    sent: Moment,
    /// It has one lock and will have no other.
    own: bool,
    /// A lock of it was handed out.
    used: bool,
}

impl Opened {
    /// Another process has opened it and held a lock of it.
    fn by_another(sent: Moment) -> Self {
        Self { sent, own: true, used: true }
    }
}

impl Session {
    pub(crate) async fn open(
        store: &AnyStore,
        clock: &Clock,
        times: Times,
        renew: Renew,
        owner: Owner,
        own: bool,
    ) -> StoreResult<(Arc<Self>, JoinHandle<()>)> {
        let (id, sent) = (SessionId::random(), clock.now());
        let Times { ttl, lock_delay } = times;
        let terms = store.open(Open { session: id, ttl, lock_delay, owner }).await?;
        Ok(Self::start(store, clock, id, terms, renew, Opened { sent, own, used: false }))
    }

    /// Starts the task of a session that was opened.
    fn start(
        store: &AnyStore,
        clock: &Clock,
        id: SessionId,
        terms: Terms,
        renew: Renew,
        Opened { sent, own, used }: Opened,
    ) -> (Arc<Self>, JoinHandle<()>) {
        let state = Arc::new(SessionState::new(clock.clone(), sent + terms.belief()));
        if used {
            state.set_used();
        }
        let (cleanups, handed_over) = mpsc::unbounded_channel();
        let (renewals, asked) = mpsc::unbounded_channel();
        let auto_renew = Arc::new(AtomicBool::new(true));
        let task = SessionTask {
            id,
            store: store.clone(),
            terms,
            renew,
            opened: sent,
            state: Arc::clone(&state),
            auto_renew: Arc::clone(&auto_renew),
            cleanups: cleanups.downgrade(),
        };
        let queue =
            CleanupQueue { cleanups: handed_over, store: store.clone(), state: Arc::clone(&state) };
        let task = store.spawn(task.run(queue, asked));
        let session =
            Self { id, store: store.clone(), terms, state, cleanups, renewals, auto_renew, own };
        (Arc::new(session), task)
    }

    pub(crate) fn place(&self, name: &Name, ticket: TicketId) -> Place {
        Place { session: self.id, name: name.clone(), ticket }
    }

    pub(crate) fn is_lost(&self) -> bool {
        matches!(self.state.lease(), Lease::Lost(_))
    }

    /// Hands what is left to do to the task. Never blocks; without a task there is no session.
    pub(crate) fn hand_over(&self, request: Option<Unanswered>, leave: Leave) {
        self.state.leaving(leave.place.ticket);
        let cleanup = Cleanup::Leave { request, leave };
        if let Err(mpsc::error::SendError(Cleanup::Leave { leave, .. })) =
            self.cleanups.send(cleanup)
        {
            // The runtime that ran the session's task has ended.
            leave_now(&self.store, &self.state, &leave);
        }
    }

    /// Leaves, however often it takes, until it is done or the session is over.
    pub(crate) async fn leave(&self, leave: Leave) -> Result<Left> {
        let name = leave.place.name.clone();
        tokio::select! {
            biased;
            left = leave_until_answered(&self.store, &self.state, leave, StoreError::is_transient) => match left {
                Some(left) => Ok(left?),
                None => Err(Error::Lost { name, why: self.state.lost().await }),
            },
            why = self.state.lost() => Err(Error::Lost { name, why }),
        }
    }

    /// Renews now, with one attempt.
    pub(crate) async fn renew_now(&self, name: &Name) -> Result<()> {
        let (reply, answer) = oneshot::channel();
        let _ = self.renewals.send(reply);
        match answer.await {
            Ok(answer) => Ok(answer?),
            // The task has dropped our wish, so the session is over or about to be.
            Err(_) => Err(Error::Lost { name: name.clone(), why: self.state.lost().await }),
        }
    }

    /// From now on the session ends by itself unless [`renew_now`](Self::renew_now) is called.
    pub(crate) fn stop_renewing(&self) {
        self.auto_renew.store(false, Ordering::Release);
    }

    /// Tells the task to finish what dropped futures have begun, and to end the session with all its
    /// tickets.
    pub(crate) fn close(&self) {
        let _ = self.cleanups.send(Cleanup::Close);
    }
}
