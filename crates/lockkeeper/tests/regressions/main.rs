//! Faults that once were there, each with a test that it stays away.
//!
//! A test says in its name what is promised and above it what went wrong. None depends on the speed
//! of the machine: it waits for conditions, moves the clock by hand, or counts turns instead of time.

mod belief;
#[cfg(feature = "sqlite")]
mod files;
mod meddled;
mod sessions;
mod stores;
mod support;
mod waiting;
