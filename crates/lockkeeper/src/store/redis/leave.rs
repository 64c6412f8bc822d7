//! Ending tickets: the session's own, or another's (evict). Either is one script, which hands the lock over.

use super::{
    Redis,
    exec::Call,
    reply::{hex, micros},
    scripts::SCRIPTS,
};
use crate::{
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
        let left: String = self.run(keys, Some(name), &call).await?;
        Ok(match left.as_str() {
            "released" => Left::Released,
            "withdrawn" => Left::Withdrawn,
            _ => Left::Gone,
        })
    }

    pub(super) async fn evict_ticket(&self, name: &Name, ticket: TicketId) -> StoreResult<bool> {
        let keys = self.keys(name);
        let call = Call::over_line(&SCRIPTS.evict, keys, (name, ticket), &[]);
        Ok(self.run::<i64>(keys, Some(name), &call).await? == 1)
    }
}
