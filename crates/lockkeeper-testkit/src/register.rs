//! Resources that a lock protects: one that checks fences, and one that only counts.

use crate::fault_store::locked;
use std::sync::{
    Mutex,
    atomic::{AtomicU32, Ordering},
};
use tokio::task::yield_now;

/// A number behind a fence. A writer with a lower fence than an earlier one is turned away, when
/// reading as well as when writing: else a value could be read before, and overwritten after, a
/// newer holder's time.
#[derive(Debug, Default)]
pub struct Register {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    highest: u64,
    value: u64,
    written: u64,
    refused: u64,
}

impl Register {
    /// Reads on behalf of this grant; `None` if it is too old.
    pub fn read(&self, fence: u64) -> Option<u64> {
        let mut state = locked(&self.state);
        state.admit(fence).then(|| state.value)
    }

    /// Writes on behalf of this grant; says whether it was accepted.
    pub fn write(&self, fence: u64, value: u64) -> bool {
        let mut state = locked(&self.state);
        if !state.admit(fence) {
            return false;
        }
        (state.value, state.written) = (value, state.written + 1);
        true
    }

    /// Reads, lets others run, and writes one more; says whether that was accepted.
    pub async fn increment(&self, fence: u64) -> bool {
        let Some(value) = self.read(fence) else { return false };
        yield_now().await;
        self.write(fence, value + 1)
    }

    /// Every accepted write has added one, so the value is their number unless one was lost.
    ///
    /// # Panics
    /// If an update was lost.
    pub fn assert_no_update_was_lost(&self) {
        let state = locked(&self.state);
        assert_eq!(state.value, state.written, "an accepted update was lost: {state:?}");
    }

    /// The value.
    #[must_use]
    pub fn value(&self) -> u64 {
        locked(&self.state).value
    }

    /// How many came too late.
    #[must_use]
    pub fn refused(&self) -> u64 {
        locked(&self.state).refused
    }
}

impl State {
    fn admit(&mut self, fence: u64) -> bool {
        let fresh = fence >= self.highest;
        self.highest = self.highest.max(fence);
        self.refused += u64::from(!fresh);
        fresh
    }
}

/// Counts what is inside, in weights, and panics when it is more than there is room for.
#[derive(Debug)]
pub struct Room {
    capacity: u32,
    inside: AtomicU32,
    most: AtomicU32,
}

impl Room {
    /// A room for so much.
    #[must_use]
    pub fn outage(capacity: u32) -> Self {
        Self { capacity, inside: AtomicU32::new(0), most: AtomicU32::new(0) }
    }

    /// Goes in, lets others run, and goes out.
    ///
    /// # Panics
    /// If it is too crowded.
    pub async fn visit(&self, weight: u32) {
        let inside = self.inside.fetch_add(weight, Ordering::SeqCst) + weight;
        assert!(inside <= self.capacity, "{inside} in a room for {}", self.capacity);
        self.most.fetch_max(inside, Ordering::SeqCst);
        for _ in 0..3 {
            yield_now().await;
        }
        self.inside.fetch_sub(weight, Ordering::SeqCst);
    }

    /// The most that was ever inside.
    #[must_use]
    pub fn most(&self) -> u32 {
        self.most.load(Ordering::SeqCst)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lower_fence_is_refused_once_a_higher_one_has_come() {
        let register = Register::default();
        assert_eq!(register.read(5), Some(0));
        assert!(register.write(7, 1));
        assert!(!register.write(5, 9) && register.read(5).is_none());
        assert_eq!((register.value(), register.refused()), (1, 2));
        register.assert_no_update_was_lost();
    }

    #[test]
    #[should_panic(expected = "an accepted update was lost")]
    fn a_lost_update_is_noticed() {
        let register = Register::default();
        assert!(register.write(1, 1) && register.write(2, 1));
        register.assert_no_update_was_lost();
    }
}
