//! What a caller wants of a lock, checked before anything is sent.

use crate::{
    api::retry::Retry,
    clock::Moment,
    error::{Error, Result},
    model::{
        name::Name,
        ticket::{LABEL_MAX, Mode, PERMITS_MAX},
    },
    session::{state::WaitUpdates, times::Times},
    store::{CELL_MAX, Manner, Wait},
};
use std::{convert::Infallible, future::pending, sync::Arc, time::Duration};
use tokio::sync::watch;

/// Told how a ticket stands: the user's code.
pub(crate) type OnWait = Arc<dyn Fn(&Wait) + Send + Sync>;

/// How long a caller is ready to wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Patience {
    /// One attempt.
    Try,
    /// For so long.
    For(Duration),
    /// As long as it takes.
    Forever,
}

/// What the caller wants, checked and complete.
#[derive(Clone)]
pub(crate) struct LockRequest {
    pub(crate) name: Name,
    pub(crate) mode: Mode,
    pub(crate) manner: Manner,
    pub(crate) patience: Patience,
    pub(crate) retry: Retry,
    pub(crate) times: Times,
    /// A fixed lease: not renewed once granted.
    pub(crate) leased: bool,
    pub(crate) at_least: Option<Duration>,
    pub(crate) max_hold: Option<Duration>,
    pub(crate) owner: Option<Arc<str>>,
    pub(crate) label: Vec<u8>,
    pub(crate) tell: Option<OnWait>,
    /// When the caller asked for it.
    pub(crate) began: Moment,
}

impl LockRequest {
    /// Calls the user's code. Only ever from the waiter's own task: there it can hold up or hurt that
    /// waiter and nothing else.
    pub(crate) fn tell(&self, wait: &Wait) {
        self.tell.as_ref().inspect(|tell| tell(wait));
    }

    /// How the session's task reaches the user's code: by leaving the latest news for the waiter's task.
    pub(crate) fn ear(&self) -> (Option<WaitUpdates>, UpdateReceiver) {
        if self.tell.is_none() {
            return (None, UpdateReceiver(None));
        }
        let (news, ear) = watch::channel(None);
        (Some(news), UpdateReceiver(Some(ear)))
    }
}

/// Where a waiter hears how it stands.
pub(crate) struct UpdateReceiver(Option<watch::Receiver<Option<Wait>>>);

impl UpdateReceiver {
    /// Tells the user's code whatever comes, for as long as the ticket waits.
    pub(crate) async fn hear(&mut self, request: &LockRequest) -> Infallible {
        let Some(ear) = &mut self.0 else { return pending().await };
        while ear.changed().await.is_ok() {
            let news = ear.borrow_and_update().clone();
            news.inspect(|wait| request.tell(wait));
        }
        pending().await
    }
}

pub(crate) fn check_mode(mode: Mode) -> Result<()> {
    let Mode::Permits { weight, of } = mode else { return Ok(()) };
    let wrong = match (weight, of) {
        (_, 0) => "a semaphore has at least 1 permit".to_owned(),
        (_, of) if of > PERMITS_MAX => {
            format!("a semaphore has at most {PERMITS_MAX} permits, not {of}")
        }
        (0, _) => "at least 1 permit must be asked for".to_owned(),
        (weight, of) if weight > of => {
            format!("{weight} permits were asked for, but the semaphore has only {of}")
        }
        _ => return Ok(()),
    };
    Err(Error::option("permits", wrong))
}

/// Can a cell have so many bytes, and be written under a grant of this mode?
pub(crate) fn check_cell(len: usize, mode: Mode) -> Result<()> {
    if len > CELL_MAX {
        let what = format!("a cell has at most {CELL_MAX} bytes, not {len}");
        return Err(Error::option("cell", what));
    }
    if mode.weight() != mode.capacity() {
        let what =
            format!("a cell can be written only under an exclusive lock, and this one is {mode}");
        return Err(Error::option("mode", what));
    }
    Ok(())
}

pub(crate) fn check_label(label: &[u8]) -> Result<()> {
    if label.len() <= LABEL_MAX {
        return Ok(());
    }
    let len = label.len();
    Err(Error::option("label", format!("a label has at most {LABEL_MAX} bytes, not {len}")))
}
