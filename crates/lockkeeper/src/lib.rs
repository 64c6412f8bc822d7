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

mod acquire;
pub mod admission;
pub mod clock;
mod desk;
mod election;
mod error;
mod gate;
mod grip;
mod guard;
mod keeper;
pub mod line;
mod many;
mod name;
mod observe;
mod opening;
mod options;
mod outage;
mod retry;
mod rwlock;
mod seat;
mod semaphore;
mod sequencer;
mod session;
pub mod store;
mod ticket;
mod wait;
mod watch;

pub use acquire::Acquire;
pub use election::{Campaign, Election, Leader, Observer, Term};
pub use error::{Error, Loss, Outcome, Result, StoreError, Trouble};
pub use guard::{Guard, Health};
pub use keeper::{Builder, Keeper};
pub use line::{Line, Ticket};
pub use many::{Guards, LockAll};
pub use name::{IntoName, NAME_MAX, Name, NameError};
pub use options::{Renew, TIME_MAX, TTL_DEFAULT, TTL_MIN};
pub use retry::Retry;
pub use rwlock::RwLock;
pub use semaphore::Semaphore;
pub use sequencer::Sequencer;
pub use store::{Capabilities, Cell, Holder, Store, Terms, Wait};
pub use ticket::{
    Mode, NOTE_MAX, Owner, PERMITS_MAX, PLAIN, Place, SessionId, TicketId, TicketIdError,
};
pub use watch::Watch;
