//! A mutex that ignores whether a thread panicked while it held the lock.
//!
//! What these mutexes guard is changed in single steps, so a panic leaves nothing half-done, and the locks
//! of other tasks must not end with it.

use std::sync::{MutexGuard, PoisonError};

#[derive(Debug, Default)]
pub(crate) struct Mutex<T>(std::sync::Mutex<T>);

impl<T> Mutex<T> {
    pub(crate) const fn new(value: T) -> Self {
        Self(std::sync::Mutex::new(value))
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What it guards: an exclusive reference needs no lock.
    pub(crate) fn get_mut(&mut self) -> &mut T {
        self.0.get_mut().unwrap_or_else(PoisonError::into_inner)
    }
}
