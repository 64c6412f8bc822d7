//! Taking over a session that another process has detached.

use super::{Claim, Store, StoreResult, Terms};
use crate::{
    error::{ErrorKind, StoreError},
    model::ticket::{Place, SessionId},
};
use std::fmt;

/// The wish to act for a session with one granted ticket, which another handle has opened and
/// [detached](super::Store::detach).
#[derive(Clone)]
pub struct Attach {
    /// The session's id, which is its secret.
    pub session: SessionId,
    /// The terms on which it was opened.
    pub terms: Terms,
    /// Its only ticket.
    pub claim: Claim,
    /// What [`detach`](super::Store::detach) has returned.
    pub state: Vec<u8>,
}

/// Without the state, which is a secret.
impl fmt::Debug for Attach {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut attach = f.debug_struct("Attach");
        attach.field("terms", &self.terms).field("claim", &self.claim).finish_non_exhaustive()
    }
}

impl Attach {
    /// The ticket, as requests name it.
    #[must_use]
    pub fn place(&self) -> Place {
        let Claim { name, ticket, .. } = &self.claim;
        Place { session: self.session, name: name.clone(), ticket: *ticket }
    }
}

/// A session that belongs to its handle cannot be handed to another one, unless the store knows how.
pub(super) fn unless_shared<S: Store + ?Sized>(store: &S) -> StoreResult<()> {
    if store.capabilities().sessions_shared {
        return Ok(());
    }
    let kind = ErrorKind::Unsupported("locks that are handed from one process to another");
    Err(StoreError::not_applied(store.scheme(), kind, "a session belongs to its handle"))
}
