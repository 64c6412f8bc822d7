//! Opening, renewing and closing sessions.

use super::{
    Shared,
    connection::bytes,
    error,
    reply::{self, field, micros, one},
    schema,
};
use crate::{
    error::StoreError,
    model::ticket::SessionId,
    store::{Open, Renewal, STRAY_MAX, StoreResult, Terms, TicketDigest, common::repeat::Repeat},
};
use mysql_async::Row;
use std::sync::{Arc, atomic::Ordering};

/// Two answers of one server may differ by so many microseconds about its start, which it tells in seconds.
const START_TOLERANCE: u64 = 3_000_000;

/// The server process that has answered a renewal.
pub(super) struct ServerProcess {
    name: String,
    /// In microseconds since 1970, give or take a second.
    started: i64,
}

impl ServerProcess {
    fn is(&self, other: &Self) -> bool {
        self.name == other.name && self.started.abs_diff(other.started) <= START_TOLERANCE
    }
}

impl Shared {
    pub(super) async fn open(&self, ask: Open) -> StoreResult<Terms> {
        let Open { session, ttl, lock_delay, owner } = ask;
        let params = vec![
            bytes(session.to_bytes()),
            micros(ttl).into(),
            micros(lock_delay).into(),
            bytes(owner.host),
            owner.pid.into(),
            bytes(owner.program),
        ];
        let (sent, breaks) = (self.clock.now(), self.connections.breaks());
        let (pool, sql) = (&self.connections.requests, &self.statements.open);
        let opened = self.connections.call(pool, sql, params.clone(), Repeat::IfNotApplied).await;
        let opened = match opened {
            // The database was emptied, or another process is just making its procedures anew.
            Err(e) if error::is_missing(&e) => {
                schema::ensure(&self.connections, &self.clock, &self.prefix, self.create).await?;
                self.ask(sql, params).await?
            }
            Err(e) if e.is_transient() => self.ask(sql, params).await?,
            opened => opened?,
        };
        let row = one(opened)?;
        self.server_clock.set(field(&row, "now")?);
        self.note_store(&row)?;
        if field(&row, "is_over")? {
            return Err(StoreError::session_over(super::KIND));
        }
        self.fast.record_expiry(session, field(&row, "expires")?, sent, breaks);
        Ok(Terms::new(reply::time(&row, "ttl")?, reply::time(&row, "delay")?))
    }

    /// Renews a session by the connection for renewals. The request waits for no row and sweeps nothing itself.
    pub(super) async fn renew(self: &Arc<Self>, session: SessionId) -> StoreResult<Renewal> {
        // Read before the renewal: the next plain statement must not use a connection that was made since.
        let (sent, breaks) = (self.clock.now(), self.connections.breaks());
        let params = vec![bytes(session.to_bytes())];
        let (pool, sql) = (&self.connections.renewals, &self.statements.renew);
        let row = one(self.connections.call(pool, sql, params, Repeat::Always).await?)?;
        self.server_clock.set(field(&row, "now")?);
        if !self.note_store(&row)? || !field::<bool>(&row, "lives")? {
            self.fast.forget(session);
            return Ok(Renewal::Lost);
        }
        self.note_server(&row)?;
        self.note_layout(&row)?;
        self.fast.record_expiry(session, field(&row, "expires")?, sent, breaks);
        self.sweep_with_some_renewals(field(&row, "leftovers")?);
        let evictions: u64 = field(&row, "evictions")?;
        let version = (self.servers.load(Ordering::Acquire) << 32).wrapping_add(evictions);
        let tickets =
            TicketDigest { count: field(&row, "tickets")?, sum: field(&row, "ticket_sum")? };
        Ok(Renewal::Renewed { version, tickets: Some(tickets) })
    }

    /// Notes which data has answered. Says whether it is the same as before.
    fn note_store(&self, row: &Row) -> StoreResult<bool> {
        let store = u64::from_be_bytes(reply::store_id(row)?.0);
        Ok(self.id.swap(store, Ordering::AcqRel) == store)
    }

    /// Notes which server has answered a renewal. Another one than before, behind a proxy or under the same name, or
    /// one that was started anew, may not have what was written last.
    fn note_server(&self, row: &Row) -> StoreResult<()> {
        let now = ServerProcess { name: field(row, "server")?, started: field(row, "started")? };
        let mut last = self.server.lock();
        if last.as_ref().is_some_and(|last| !last.is(&now)) {
            self.servers.fetch_add(1, Ordering::AcqRel);
            // The other connections may still lead to the server of before.
            self.connections.give_up();
        }
        *last = Some(now);
        Ok(())
    }

    /// Notes of which layout the procedures are now.
    fn note_layout(&self, row: &Row) -> StoreResult<()> {
        let layout: i64 = field(row, "layout")?;
        let outdated = layout > schema::LAYOUT;
        if outdated && !self.outdated.swap(true, Ordering::AcqRel) {
            tracing::warn!(layout, "a newer lockkeeper has brought the tables up to date");
        }
        Ok(())
    }

    pub(super) async fn close(self: &Arc<Self>, session: SessionId) -> StoreResult<()> {
        self.watch.forget(session);
        self.fast.forget(session);
        let mut before = u64::MAX;
        loop {
            let params = vec![bytes(session.to_bytes()), micros(STRAY_MAX).into()];
            let row = one(self.ask(&self.statements.close, params).await?)?;
            let left: u64 = field(&row, "tickets")?;
            // The sweep takes what a user's transaction keeps from going now.
            if left == 0 || left >= before {
                break;
            }
            before = left;
        }
        self.sweep_at_close().await;
        Ok(())
    }

    /// What this handle remembers of a session.
    pub(super) fn forget(&self, session: SessionId) {
        self.watch.forget(session);
        self.fast.forget(session);
        self.duplicates.forget(session);
    }
}
