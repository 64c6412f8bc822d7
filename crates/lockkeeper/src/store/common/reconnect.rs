//! One shared connection, made again when it breaks.

use crate::{store::StoreResult, sync::Mutex};
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::sync::watch;

/// The present connection, its number, and how many broke before it.
pub(in crate::store) struct Reconnect<C> {
    current: Mutex<Option<(u64, C)>>,
    /// Held while a connection is being made.
    connecting: tokio::sync::Mutex<()>,
    attempts: AtomicU64,
    breaks: watch::Sender<u64>,
}

impl<C: Clone> Reconnect<C> {
    pub(in crate::store) fn new() -> Self {
        let (current, connecting) = (Mutex::default(), tokio::sync::Mutex::default());
        Self { current, connecting, attempts: AtomicU64::new(0), breaks: watch::Sender::default() }
    }

    pub(in crate::store) fn current(&self) -> Option<(u64, C)> {
        self.current.lock().clone()
    }

    pub(in crate::store) fn is_current(&self, number: u64) -> bool {
        self.current.lock().as_ref().is_some_and(|(present, _)| *present == number)
    }

    /// Gives up the connection of this number, unless another has taken its place.
    pub(in crate::store) fn give_up(&self, number: u64) {
        if self.current.lock().take_if(|(present, _)| *present == number).is_some() {
            self.breaks.send_modify(|n| *n += 1);
        }
    }

    /// Changes whenever a connection breaks: what was written before may be gone with a server.
    pub(in crate::store) fn breaks(&self) -> u64 {
        *self.breaks.borrow()
    }

    /// Waits for the next break after the one of this number.
    pub(in crate::store) async fn broken(&self, since: u64) {
        let mut breaks = self.breaks.subscribe();
        let _ = breaks.wait_for(|now| *now != since).await;
    }

    /// The connection that another caller has made meanwhile, or a new one, which `connect` makes from its
    /// number. `None` if the attempt of another caller has failed while this one waited for it: its failure is
    /// that of all.
    ///
    /// Run it in a task of its own, so that callers with little patience do not cancel it for ever.
    pub(in crate::store) async fn reconnect<F>(
        &self,
        connect: impl FnOnce(u64) -> F,
    ) -> Option<StoreResult<C>>
    where
        F: Future<Output = StoreResult<C>>,
    {
        let before = self.attempts.load(Ordering::Relaxed);
        let _one_at_a_time = self.connecting.lock().await;
        if let Some((_, present)) = self.current() {
            return Some(Ok(present));
        }
        if self.attempts.load(Ordering::Relaxed) != before {
            return None;
        }
        let number = self.attempts.fetch_add(1, Ordering::Relaxed) + 1;
        let made = connect(number).await;
        if let Ok(connection) = &made {
            *self.current.lock() = Some((number, connection.clone()));
        }
        Some(made)
    }
}
