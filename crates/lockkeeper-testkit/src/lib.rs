//! The conformance suite for lockkeeper stores.
//!
//! Every store is held to the same promises: those of [the contract](lockkeeper::store) and, through
//! a [`Keeper`](lockkeeper::Keeper) over it, those that users are given. A case is one promise, in a
//! function whose name says it. A case that needs a capability runs on the stores that claim it; on
//! the others it is reported as ignored, never as passed.
//!
//! # Testing a store of your own
//! Make a test without harness (`harness = false` in `Cargo.toml`) whose `main` says what the store
//! claims to be able to do, and how to get fresh data and handles to it:
//!
//! ```
//! use lockkeeper::store::{AnyStore, memory::Memory};
//! use std::{process::ExitCode, sync::Arc};
//! use lockkeeper_testkit::{Dataset, Subject};
//!
//! # struct MyStore;
//! # impl MyStore {
//! #     async fn fresh() -> anyhow::Result<Arc<Memory>> { Ok(Arc::new(Memory::new())) }
//! # }
//! fn main() -> ExitCode {
//!     let mine = Subject::new("mine", Subject::memory().can(), || async {
//!         let data = MyStore::fresh().await?;                 // for this case alone
//!         Ok(Dataset::new(move || {
//!             let data = data.clone();                        // a handle, as another process has it
//!             async move { Ok(AnyStore::shared(data)) }
//!         }))
//!     });
//!     let all = [mine];
//! #   if std::env::args().count() > 100 {
//!     return lockkeeper_testkit::main(&all, None);
//! #   }
//! #   ExitCode::from(lockkeeper_testkit::suite(&all, None).trials.len().min(1) as u8 - 1)
//! }
//! ```
//!
//! A store with a URL scheme of the library is easier still: `Dataset::url("…")`. If other processes can reach
//! the data by a URL ([`Dataset::at`], [`Subject::across_processes`]) and the path of a `taker` program is given
//! (its `main` calls [`taker::serve`]), the cases that kill and stop processes run too. A store that cannot be had is
//! [`unavailable`](Subject::unavailable): ignored with the reason, or failed where
//! `LOCKKEEPER_REQUIRE` demands it.
//!
//! # What is in it
//! [`FaultStore`](fault_store::FaultStore) puts faults between the core and the store,
//! [`Layer`](layer::Layer) is a store around a store, [`RawSession`] drives a session request by request,
//! [`Register`](register::Register) and [`ledger`] are resources that check fences, [`model`] compares a store with
//! a tiny reference, and [`invariants`] says which cases stand for which invariant.

pub mod case;
mod cases;
pub mod chaos;
pub mod fault_store;
pub mod hint_filter;
pub mod invariants;
pub mod layer;
pub mod ledger;
pub mod model;
pub mod mutex_like;
pub mod raw_session;
pub mod register;
pub mod report;
mod subject;
mod suite;
pub mod taker;
mod taker_program;
pub mod world;

pub use case::{Case, Need, Verdict};
pub use raw_session::{LONG, RawSession};
pub use subject::{Boxed, Dataset, Subject};
pub use suite::{Suite, run_one, suite};
pub use world::World;

use std::{path::Path, process::ExitCode};

/// Runs the suite as a test program: reads the arguments that `cargo test` passes on, runs the
/// cases, and prints a report of stores × groups.
#[must_use]
pub fn main(subjects: &[Subject], taker: Option<&Path>) -> ExitCode {
    let mut args = libtest_mimic::Arguments::from_args();
    args.test_threads = args.test_threads.or_else(threads);
    let Suite { trials, report } = suite(subjects, taker);
    let conclusion = libtest_mimic::run(&args, trials);
    if !args.list {
        print!("{report}");
    }
    conclusion.exit_code()
}

/// Cases wait more than they work, so there are more of them at once than processors.
fn threads() -> Option<usize> {
    Some(std::thread::available_parallelism().map_or(3, |n| n.get() + 1))
}
