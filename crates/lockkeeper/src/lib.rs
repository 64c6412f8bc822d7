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
//! A program without async code uses [`blocking::Keeper`]: the same locks, called from any thread.
//!
//! # What is promised
//! - In the store's own order, no two tickets that exclude each other are granted at once.
//! - A resource that checks fences never accepts an older exclusive holder after a newer one has
//!   written.
//! - A client stops believing in its lock before the store can grant it to another, as long as the
//!   clocks run at the same rate and no operator evicts it by force.
//!
//! # What is not
//! A process can be stopped for longer than its lease, between the check that it holds a lock and
//! the write that relies on it. **At a resource that does not check fences, no lock service can
//! prevent that two writers meet then.** Pass [`Guard::fence`] to whatever you write to.
//!
//! # Which type does what
//! | you want | use |
//! |---|---|
//! | one at a time | [`Keeper::lock`], with the options of [`Acquire`] |
//! | readers together, writers alone | [`Keeper::rwlock`] |
//! | at most n at a time | [`Keeper::semaphore`] |
//! | several locks without a deadlock | [`Keeper::lock_all`] |
//! | one leader, and to know which | [`Keeper::election`] |
//! | to stop when the lock is lost | [`Acquire::run`], [`Guard::lost`], [`Guard::loss`] |
//! | to refuse an overtaken writer | [`Guard::fence`], [`Guard::sequencer`] with [`Keeper::check`] |
//! | to hand a lock to another process | [`Guard::detach`], [`Keeper::attach`] |
//! | a small value under the lock | [`Guard::write`], [`Keeper::write_under`], [`Keeper::read`] |
//! | to see holders and waiters | [`Keeper::list`], [`Keeper::get`], [`Keeper::watch`] |
//! | to know what in the server's set-up can hurt locks | [`Keeper::advice`] |
//! | the same without async | [`blocking::Keeper`] |
//!
//! [`store`] is the contract with stores, for authors of one.
//!
//! # Features
//! `sqlite` (default), `etcd`, `http` (the lock service), `mysql`, `postgres`, `redis` (with Redlock) and
//! `zookeeper` are the stores; the memory store is always there. `serde` makes listings and ids serializable.
//! `signed` signs sequencers and verifies them ([`SigningKeys`]). `metrics` counts with the
//! crate of that name; events go to `tracing` in any case.
//!
//! # Platforms
//! Unix only: leases are measured on a clock that goes on while the machine sleeps, and the SQLite store
//! wakes other processes through Unix sockets. The tests run on Linux; nothing in the library is meant for
//! Linux alone, but no test runs elsewhere.

#![cfg_attr(docsrs, feature(doc_cfg))]

#[cfg(not(unix))]
compile_error!("lockkeeper runs on Unix: it needs CLOCK_BOOTTIME or its like, and Unix sockets");

mod api;
pub mod blocking;
mod clock;
mod error;
mod model;
mod observe;
mod session;
pub mod store;
mod sync;

pub use api::{
    acquire::Acquire,
    builder::Builder,
    detached::Detached,
    election::{Campaign, Election, Leader, Observer, Term},
    guard::{Guard, Health},
    keeper::Keeper,
    loss_token::LossToken,
    many::{Guards, LockAll},
    options::{Renew, TIME_MAX, TTL_DEFAULT, TTL_MIN},
    retry::Retry,
    rwlock::RwLock,
    semaphore::Semaphore,
    watch::Watch,
};
pub use error::{Error, ErrorKind, Loss, OptionError, Outcome, Result, StoreError, UrlError};
#[cfg(feature = "signed")]
pub use model::signed::{Signed, SignedError, SigningKeys, SigningKeysError};
pub use model::{
    line::{Line, Ticket},
    name::{IntoName, NAME_MAX, Name, NameError},
    sequencer::Sequencer,
    ticket::{LABEL_MAX, Mode, Owner, PERMITS_MAX, TicketId, TicketIdError},
};
pub use store::{Advice, Capabilities, Cell, Holder, Severity, Store, Terms, Wait};
