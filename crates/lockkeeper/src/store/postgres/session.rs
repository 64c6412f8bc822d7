//! Opening, renewing and closing sessions.

use super::{
    Shared,
    connection::Values,
    error,
    reply::{self, duration, get, micros, one},
    schema,
};
use crate::{
    model::{name::Name, ticket::SessionId},
    store::{Attach, Open, Renewal, StoreResult, Terms, TicketDigest},
};
use std::sync::{Arc, atomic::Ordering};
use tokio_postgres::Row;

impl Shared {
    pub(super) async fn open(&self, ask: Open) -> StoreResult<Terms> {
        let (id, owner) = (ask.session.to_bytes(), &ask.owner);
        let (ttl, delay) = (micros(ask.ttl), micros(ask.lock_delay));
        let pid = i64::from(owner.pid);
        let values: Values<'_> =
            &[&&id[..], &ttl, &delay, &self.channel, &owner.host, &pid, &owner.program];
        let rows = match self.ask(&self.statements.open, values).await {
            // Another database is behind the URL, or this one was emptied.
            Err(e) if error::is_missing(&e) => {
                let Self { requests, statements, clock, schema, create, .. } = self;
                schema::ensure(requests, statements, clock, schema, *create).await?;
                self.ask(&self.statements.open, values).await?
            }
            rows => rows?,
        };
        self.tickets.opened(ask.session);
        let row = one(&rows)?;
        let store = reply::store_id(get(row, "o_store")?)?;
        self.id.store(u64::from_be_bytes(store.0), Ordering::Release);
        self.server_clock.set(get(row, "o_now")?);
        Ok(Terms::new(duration(get(row, "o_ttl")?), duration(get(row, "o_lock_delay")?)))
    }

    /// Renews a session by the connection for renewals. The request carries the names of the session's tickets and the
    /// answer shows what the lines of these names have, because first tickets have no index by session.
    pub(super) async fn renew(self: &Arc<Self>, session: SessionId) -> StoreResult<Renewal> {
        // Read before the renewal: a break while it is under way must show in the next version at the latest.
        let breaks = self.breaks();
        let names = self.tickets.names(session);
        let names: Vec<&str> = names.iter().map(Name::as_str).collect();
        let values: Values<'_> = &[&&session.to_bytes()[..], &names];
        let rows = self.renewals.once(&self.statements.renew, values).await?;
        let row = one(&rows)?;
        self.server_clock.set(get(row, "o_now")?);
        let Some(evictions) = get::<Option<i64>>(row, "o_version")? else {
            self.fast.forget(session);
            return Ok(Renewal::Lost);
        };
        // A column is NULL if its table is locked: then the last known value holds.
        if let Some(layout) = get(row, "o_layout")? {
            self.note_layout(layout);
        }
        if let Some(history) = get::<Option<i64>>(row, "o_history")? {
            self.history.store(history.cast_unsigned(), Ordering::Relaxed);
        }
        self.sweep_with_some_renewals();
        let history = self.history.load(Ordering::Relaxed);
        let version = history.wrapping_add(breaks << 32).wrapping_add(evictions.cast_unsigned());
        let tickets = shown_tickets(row)?;
        self.tickets.renewed(session, version, tickets);
        Ok(Renewal::Renewed { version, tickets })
    }

    /// The schema was brought to another layout while we are connected. What our connections have prepared may
    /// answer differently now, so new connections are made.
    fn note_layout(&self, layout: i32) {
        if self.layout.swap(layout, Ordering::Relaxed) != layout {
            tracing::warn!(layout, "the schema was brought to another layout");
            self.requests.give_up();
            self.renewals.give_up();
        }
    }

    pub(super) async fn close(self: &Arc<Self>, session: SessionId) -> StoreResult<()> {
        self.sinks.remove(session);
        self.fast.forget(session);
        self.ask(&self.statements.close, &[&&session.to_bytes()[..]]).await?;
        self.clear(session, self.tickets.names(session)).await?;
        self.tickets.forget_all(session);
        self.sweep_at_close().await;
        Ok(())
    }

    /// Notes where the ticket of a session is that another handle has opened: renewals and the close name it.
    pub(super) fn attach(&self, ask: &Attach) {
        self.tickets.entering(&ask.place());
    }

    /// What this handle remembers of a session.
    pub(super) fn forget(&self, session: SessionId) {
        self.duplicates.forget(session);
        self.fast.forget(session);
        self.tickets.forget_all(session);
        self.sinks.remove(session);
    }
}

fn shown_tickets(row: &Row) -> StoreResult<Option<TicketDigest>> {
    let number = |column| StoreResult::Ok(get::<Option<i64>>(row, column)?.map(i64::cast_unsigned));
    let tickets = number("o_count")?.zip(number("o_sum")?);
    Ok(tickets.map(|(count, sum)| TicketDigest { count, sum }))
}
