//! What a program calls: the keeper, the primitives and their options, the guard.

pub(crate) mod acquire;
pub(crate) mod builder;
pub(crate) mod detached;
pub(crate) mod election;
pub(crate) mod guard;
pub(crate) mod keeper;
pub(crate) mod loss_token;
pub(crate) mod many;
pub(crate) mod options;
pub(crate) mod retry;
pub(crate) mod rwlock;
pub(crate) mod semaphore;
pub(crate) mod watch;
