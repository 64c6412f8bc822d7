//! Leaving a line: by one plain statement if the lock has no waiters, by a procedure otherwise.

use super::{
    Leave, Left, Mysql, STRAY_MAX, bytes, micros,
    reply::{self, one, what},
};
use crate::{model::ticket::Place, store::StoreResult};
use std::sync::atomic::Ordering;

impl Mysql {
    /// Releases a lock without waiters by one plain statement. Says whether it did.
    pub(super) async fn leave_first(&self, ask: &Leave) -> StoreResult<bool> {
        let Place { session, name, ticket } = &ask.place;
        let plain = ask.keep.is_none() && !ask.stray && !self.outdated.load(Ordering::Acquire);
        if !plain || self.fast.is_crowded(name) {
            return Ok(false);
        }
        let sql = if self.often.again(name) { &self.sql.leave_first } else { &self.sql.leave_rare };
        let params =
            vec![bytes(name.as_str()), bytes(ticket.to_bytes()), bytes(session.to_bytes())];
        let wrote = self.link.write(self.link.lines(), sql, params).await?;
        Ok(wrote.changed)
    }

    /// Leaves a line by the whole procedure.
    pub(super) async fn leave_line(&self, ask: Leave) -> StoreResult<Left> {
        let Place { session, name, ticket } = &ask.place;
        let params = vec![
            bytes(name.as_str()),
            bytes(ticket.to_bytes()),
            bytes(session.to_bytes()),
            micros(ask.keep.unwrap_or_default()).into(),
            if ask.stray { micros(STRAY_MAX) } else { 0 }.into(),
        ];
        let row = one(self.link.ask(self.link.lines(), &self.sql.leave, params).await?)?;
        if reply::fence(&row)? > 0 {
            self.fast.set_crowded(name, true);
            self.watch.handed_over();
        }
        let what = what(&row)?;
        if ask.stray && what != "pinned" {
            self.doubts.settle(*ticket);
        }
        match what.as_str() {
            "released" => Ok(Left::Released),
            "withdrawn" => Ok(Left::Withdrawn),
            "gone" => Ok(Left::Gone),
            "pinned" => Err(reply::pinned()),
            _ => Err(reply::nonsense()),
        }
    }
}
