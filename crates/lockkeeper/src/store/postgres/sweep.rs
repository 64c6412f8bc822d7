//! Clearing away what the ended have left behind.

use super::{
    KIND, Shared,
    connection::{self, Repeat, Values},
    news,
    reply::{get, micros, nonsense, one},
};
use crate::{
    api::retry::jittered,
    error::{ErrorKind, StoreError},
    model::{
        name::Name,
        ticket::{Place, SessionId},
    },
    store::StoreResult,
};
use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};
use tokio::task::JoinHandle;
use tokio_postgres::Row;

/// For how long an idle line's last number is kept: longer than clocks may differ.
const IDLE: Duration = Duration::from_secs(24 * 3600);

/// How often leftovers are cleared away, and the connection that listens is asked whether it lives.
const TEND: Duration = Duration::from_secs(5);

/// With every so many renewals leftovers are cleared away, too.
const SELDOM: u64 = 16;

/// And when a session is closed, which waits for it so long at the most.
const AT_THE_END: Duration = Duration::from_millis(250);

/// How long after an enter nothing else is expected for the moment: who only tries for a lock is gone by then.
const NOT_URGENT: Duration = Duration::from_millis(3);

/// How many lines one call clears: an advisory lock or two for each, and servers have room for few.
const CLEAR: usize = 20;

/// How many lines one sweep looks at, and how often at the most it goes on at once with what one call has left.
const SWEEP: i32 = 2_000;
const SWEEPS: usize = 64;

impl Shared {
    /// Takes back the ticket of a session that is not there any more; says that it is over.
    pub(super) async fn take_back(&self, place: &Place) -> StoreError {
        let (ticket, session) = (place.ticket.to_bytes(), place.session.to_bytes());
        let values: Values<'_> = &[&place.name.as_str(), &&ticket[..], &&session[..]];
        // What stays behind is a ticket of the dead, which the next comer takes away.
        if let Ok(rows) = self.requests.once(&self.calls.leave, values).await
            && let Some(row) = rows.first()
        {
            let _ = self.parted(&place.name, row).await;
        }
        StoreError::not_applied(KIND, ErrorKind::SessionOver, "the session is over")
    }

    /// Takes what an ended session has out of its lines, a few lines at a time.
    pub(super) async fn clear(&self, session: SessionId, mut names: Vec<Name>) -> StoreResult<()> {
        names.sort_unstable();
        names.dedup();
        let (id, most) = (session.to_bytes(), i32::try_from(CLEAR).unwrap_or(i32::MAX));
        let mut pages = names.chunks(CLEAR);
        let mut skipped = Vec::new();
        loop {
            let page = pages.next().unwrap_or_default();
            let last = page.is_empty();
            let page: Vec<&str> = page.iter().map(Name::as_str).collect();
            let rows = self.ask(&self.calls.clear, &[&&id[..], &page, &most]).await?;
            let row = one(&rows)?;
            self.cleared(row).await?;
            skipped.extend(get::<Vec<String>>(row, "o_skipped")?);
            if last && !get::<bool>(row, "o_more")? {
                break;
            }
        }
        skipped.sort_unstable();
        skipped.dedup();
        for name in skipped {
            let alone = vec![name];
            let values: Values<'_> = &[&&id[..], &alone, &0];
            match self.requests.call(&self.calls.clear, values, Repeat::Unblocked).await {
                Ok(rows) => self.cleared(one(&rows)?).await?,
                // Its ticket is dead, and falls out when the next one comes.
                Err(e) if connection::is_blocked(&e) => {}
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }

    async fn cleared(&self, row: &Row) -> StoreResult<()> {
        self.tell(&news(row)?).await;
        for name in get::<Vec<&str>>(row, "o_freed")? {
            if let Ok(name) = Name::new(name) {
                self.freed(&name);
            }
        }
        Ok(())
    }

    /// Prepares what a release and a hand-over will need on the present connection, the first time that
    /// somebody has entered over it: the first of each costs the server milliseconds of reading and planning, and a
    /// program that locks once in its life has no other. Behind a pooler the next request has another
    /// connection.
    pub(super) fn warm_aside(self: &Arc<Self>) {
        let connection = self.requests.breaks().wrapping_add(1);
        if self.pooled || self.warmed.swap(connection, Ordering::Relaxed) == connection {
            return;
        }
        let (shared, clock) = (Arc::downgrade(self), self.clock.clone());
        tokio::spawn(async move {
            clock.sleep(NOT_URGENT).await;
            if let Some(shared) = shared.upgrade()
                && let Err(e) = shared.warm().await
            {
                tracing::debug!(error = %e, "a release was not prepared for");
            }
        });
    }

    /// One thing after the other, so that no request has to wait for more than one of them.
    async fn warm(&self) -> StoreResult<()> {
        let nothing: &[u8] = &[];
        let none: Values<'_> = &[&"", &nothing, &nothing];
        self.requests.once(&self.calls.leave, none).await?;
        let none: Values<'_> = &[&"", &nothing, &nothing, &0_i64, &0_i64];
        self.requests.once(&self.calls.leave_oddly, none).await?;
        let news: [&str; 0] = [];
        self.requests.once(&self.calls.tell, &[&&news[..], &&news[..]]).await?;
        self.requests.once(&self.calls.warm, &[]).await?;
        Ok(())
    }

    /// Clears a few leftovers of others away.
    async fn sweep(&self) -> StoreResult<()> {
        for _ in 0..SWEEPS {
            let rows = self.requests.once(&self.calls.sweep, &[&micros(IDLE), &SWEEP]).await?;
            let row = one(&rows)?;
            if get::<Option<Vec<String>>>(row, "o_news")?.is_none() {
                break;
            }
            self.tell(&news(row)?).await;
            for session in get::<Vec<&[u8]>>(row, "o_sessions")? {
                let session = session.try_into().map_err(|_| nonsense("a session's id"))?;
                self.clear(SessionId::from_bytes(session), Vec::new()).await?;
            }
        }
        Ok(())
    }

    /// Does so beside everything else. It is not given up when nobody waits for it any more: a slow server
    /// would be asked for the same again and again, and silence be counted against a sound connection.
    fn sweep_aside(self: &Arc<Self>) -> Option<JoinHandle<()>> {
        let alone = Arc::clone(&self.sweeping).try_lock_owned().ok()?;
        let shared = Arc::clone(self);
        Some(tokio::spawn(async move {
            tell(shared.sweep().await);
            drop(alone);
        }))
    }

    /// Clears away with a renewal now and then, for programs that never wait for a lock. The renewal does
    /// not wait for it.
    pub(super) fn sweep_now_and_then(self: &Arc<Self>) {
        if self.renewed.fetch_add(1, Ordering::Relaxed) % SELDOM == SELDOM - 1 {
            self.sweep_aside();
        }
    }

    /// Clears away when a session is closed, for programs that live too shortly for anything else.
    pub(super) async fn sweep_at_the_end(self: &Arc<Self>) {
        let Some(sweeping) = self.sweep_aside() else { return };
        tokio::select! {
            _ = sweeping => {}
            () = self.clock.sleep(AT_THE_END) => {}
        }
    }

    /// Does now and then what nobody waits for. It is no part of a renewal: nothing that it waits for
    /// may cost a session its life.
    pub(super) async fn tend(self: &Arc<Self>) -> StoreError {
        loop {
            self.clock.sleep(jittered(TEND, 2)).await;
            if !self.pooled
                && let Err(e) = self.ear.batch("", connection::REQUEST).await
            {
                return e;
            }
            self.sweep_aside();
        }
    }
}

/// Nobody suffers if it fails.
fn tell(swept: StoreResult<()>) {
    if let Err(e) = swept {
        tracing::debug!(error = %e, "leftovers were not cleared away");
    }
}
