//! Ending tickets: the session's own, or another's (evict). Either is one script, which hands the lock over.

use super::{
    KIND, Redis,
    exec::Call,
    reply::{hex, micros},
    scripts::SCRIPTS,
};
use crate::{
    error::{ErrorKind, StoreError},
    model::{
        name::Name,
        ticket::{Place, TicketId},
    },
    store::{Leave, Left, STRAY_MAX, StoreResult},
};

impl Redis {
    pub(super) async fn leave_line(&self, ask: &Leave) -> StoreResult<Left> {
        let Place { session, name, ticket } = &ask.place;
        let keys = self.keys(name);
        let mut call = Call::over_line(&SCRIPTS.leave, keys, (name, *ticket), &[&keys.closed]);
        call.arg(hex(*session)).arg(micros(ask.keep.unwrap_or_default()));
        call.arg(if ask.stray { micros(STRAY_MAX) } else { 0 });
        let breaks = self.connection.breaks();
        let left: String = self.run(keys, Some(name), &call).await?;
        match left.as_str() {
            "released" => Ok(Left::Released),
            "withdrawn" => Ok(Left::Withdrawn),
            _ if self.connection.may_have_resent(breaks).await => Err(sent_twice()),
            _ => Ok(Left::Gone),
        }
    }

    pub(super) async fn evict_ticket(&self, name: &Name, ticket: TicketId) -> StoreResult<bool> {
        let keys = self.keys(name);
        let call = Call::over_line(&SCRIPTS.evict, keys, (name, ticket), &[]);
        let breaks = self.connection.breaks();
        match self.run::<i64>(keys, Some(name), &call).await? {
            1 => Ok(true),
            _ if self.connection.may_have_resent(breaks).await => Err(sent_twice()),
            _ => Ok(false),
        }
    }
}

/// "There is no such ticket" may be the answer to a duplicate of the request.
fn sent_twice() -> StoreError {
    let what = "a connection to the cluster has ended, and the request may have been sent twice";
    StoreError::unknown(KIND, ErrorKind::Unavailable, what)
}
