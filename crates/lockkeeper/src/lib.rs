//! Distributed locks that you can trust and see.
//!
//! "Only one of us at a time", for tasks, processes and machines, over many stores with one model: a
//! *line* of *tickets* held by *sessions*, each grant with a *fence* that only grows.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> lockkeeper::Result<()> {
//! # let folder = tempfile::tempdir().unwrap();
//! # let url = format!("sqlite:{}", folder.path().join("locks.db").display());
//! # #[cfg(feature = "sqlite")] {
//! let keeper = lockkeeper::Keeper::connect(&url).await?;  // "sqlite:locks.db"
//! let guard = keeper.lock("invoices/2026-11").await?;     // waits its turn
//! println!("fence {}", guard.fence());                    // grows with every grant
//! guard.release().await?;                                 // or drop it
//! # keeper.close().await; } Ok(()) }
//! ```
//!
//! # What is promised
//! - In the store's own order, no two tickets that exclude each other are granted at once.
//! - A resource that checks fences never accepts an older exclusive holder after a newer one has
//!   written.
//! - A client stops believing in its lock before the store can grant it to another, as long as the
//!   clocks run at the same rate and nobody evicts it by force.
//!
//! # What is not
//! A process can be stopped for longer than its lease, between the check that it holds a lock and
//! the write that relies on it. **At a resource that does not check fences, no lock service can
//! prevent that two writers meet then.** Pass [`Guard::fence`] to whatever you write to.
//!
//! # Where to read on
//! [`Keeper`] has the primitives, [`Acquire`] their options, [`Guard`] what can be done with a lock
//! in hand. [`store`] is the contract for those who want to write a store.

#![cfg_attr(docsrs, feature(doc_cfg))]

mod api;
mod clock;
mod error;
mod model;
mod observe;
mod session;
pub mod store;
mod sync;

pub use api::{
    acquire::Acquire,
    election::{Campaign, Election, Leader, Observer, Term},
    guard::{Guard, Health},
    keeper::{Builder, Keeper},
    many::{Guards, LockAll},
    options::{Renew, TIME_MAX, TTL_DEFAULT, TTL_MIN},
    retry::Retry,
    rwlock::RwLock,
    semaphore::Semaphore,
    watch::Watch,
};
pub use error::{Error, ErrorKind, Loss, Outcome, Result, StoreError};
pub use model::{
    line::{Line, Ticket},
    name::{IntoName, NAME_MAX, Name, NameError},
    sequencer::Sequencer,
    ticket::{LABEL_MAX, Mode, Owner, PERMITS_MAX, TicketId, TicketIdError},
};
pub use store::{Capabilities, Cell, Holder, Store, Terms, Wait};
