//! Opening a session once for all tasks that want it.

use crate::{error::StoreError, session::Session, store::StoreResult, sync::Mutex};
use std::sync::{Arc, MutexGuard, Weak};
use tokio::sync::OnceCell;

/// The place of one session. Attempts to open it run one after another, and what an attempt has met with is the
/// answer to all tasks that came before it ended: otherwise each of them would wait for all attempts before its
/// own, while the store does not answer.
#[derive(Default)]
pub(crate) struct Opening {
    session: OnceCell<Weak<Session>>,
    failed: Mutex<Failed>,
}

/// How many attempts have failed, and what the last of them met with.
#[derive(Default)]
struct Failed {
    attempts: u64,
    last: Option<Arc<StoreError>>,
}

impl Opening {
    /// The session, if it was opened.
    pub(crate) fn get(&self) -> Option<&Weak<Session>> {
        self.session.get()
    }

    /// The session, opened if it was not.
    pub(crate) async fn get_or_open(
        &self,
        open: impl AsyncFnOnce() -> StoreResult<Weak<Session>>,
    ) -> StoreResult<&Weak<Session>> {
        let before = self.failed().attempts;
        let attempt = async || {
            if let Some(e) = self.failed_since(before) {
                return Err(e);
            }
            let opened = open().await;
            opened.map_err(|e| self.fail(e))
        };
        self.session.get_or_try_init(attempt).await
    }

    fn failed(&self) -> MutexGuard<'_, Failed> {
        self.failed.lock()
    }

    fn failed_since(&self, before: u64) -> Option<StoreError> {
        let failed = self.failed();
        let last = failed.last.as_ref().filter(|_| failed.attempts > before);
        last.map(StoreError::shared)
    }

    fn fail(&self, e: StoreError) -> StoreError {
        let (mut failed, e) = (self.failed(), Arc::new(e));
        failed.attempts += 1;
        failed.last = Some(Arc::clone(&e));
        StoreError::shared(&e)
    }
}
