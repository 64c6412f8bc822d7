//! Clearing away what ended sessions and idle lines have left, and preparing a connection for its first release.

use super::{
    Shared,
    connection::{REQUEST, Values},
    error,
    notify::grants,
    reply::{get, micros, nonsense, one},
};
use crate::{
    api::retry::jittered,
    error::StoreError,
    model::{name::Name, ticket::SessionId},
    store::{StoreResult, common::repeat::Repeat},
};
use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};
use tokio::task::JoinHandle;
use tokio_postgres::Row;

/// For how long an idle line's last number is kept: longer than clocks may differ.
const IDLE: Duration = Duration::from_secs(24 * 3600);

/// How often a process that waits for locks sweeps, and asks its listening connection whether it lives.
const INTERVAL: Duration = Duration::from_secs(5);

/// One renewal of so many sweeps, too, for programs that never wait for a lock.
const RENEWALS: u64 = 16;

/// A close sweeps, too, and waits for the sweep so long at most.
const AT_CLOSE: Duration = Duration::from_millis(250);

/// Preparing a release begins so long after an enter: a program that only tries a lock, or runs a command of a
/// moment under it, has ended by then.
const WARM_AFTER: Duration = Duration::from_millis(20);

/// How many lines one call clears: it takes an advisory lock or two for each, and servers have room for few.
const CLEAR: usize = 20;

/// How many lines one call of a sweep looks at, and how many calls one sweep makes at most.
const SWEEP: i32 = 2_000;
const SWEEP_CALLS: usize = 64;

impl Shared {
    /// Takes the tickets of an ended session out of its lines, a few lines at a time.
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
            let rows = self.ask(&self.statements.clear, &[&&id[..], &page, &most]).await?;
            let row = one(&rows)?;
            self.tell_cleared(row).await?;
            skipped.extend(get::<Vec<String>>(row, "o_skipped")?);
            if last && !get::<bool>(row, "o_more")? {
                break;
            }
        }
        skipped.sort_unstable();
        skipped.dedup();
        for name in skipped {
            let page = vec![name];
            let values: Values<'_> = &[&&id[..], &page, &0];
            let call = &self.statements.clear;
            match self.requests.call(call, values, Repeat::UnlessBlocked).await {
                Ok(rows) => self.tell_cleared(one(&rows)?).await?,
                // The next ticket in this line takes the dead one away.
                Err(e) if error::is_blocked(&e) => {}
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }

    async fn tell_cleared(&self, row: &Row) -> StoreResult<()> {
        self.tell_granted(&grants(row)?).await;
        for name in get::<Vec<&str>>(row, "o_freed")? {
            if let Ok(name) = Name::new(name) {
                self.tell_freed(&name);
            }
        }
        Ok(())
    }

    /// Prepares what a release and a hand-over will need, once for each connection, after the first enter over it.
    /// The first release costs the server milliseconds of reading and planning otherwise, and a program that locks
    /// once in its life has no other. Behind a pooler the next request has another connection.
    pub(super) fn warm_in_background(self: &Arc<Self>) {
        let connection = self.requests.breaks().wrapping_add(1);
        if self.pooled || self.warmed.swap(connection, Ordering::Relaxed) == connection {
            return;
        }
        let (shared, clock) = (Arc::downgrade(self), self.clock.clone());
        tokio::spawn(async move {
            clock.sleep(WARM_AFTER).await;
            if let Some(shared) = shared.upgrade()
                && let Err(e) = shared.warm().await
            {
                tracing::debug!(error = %e, "a release was not prepared for");
            }
        });
    }

    /// One statement after the other, so that no request waits for more than one of them.
    async fn warm(&self) -> StoreResult<()> {
        let (nothing, no_texts): (&[u8], [&str; 0]) = (&[], []);
        let Self { requests, statements, .. } = self;
        for call in [&statements.leave_first, &statements.leave, &statements.notify] {
            requests.prepare(call).await?;
        }
        requests.once(&statements.leave_first, &[&"", &nothing, &nothing]).await?;
        requests.once(&statements.leave, &[&"", &nothing, &nothing, &0_i64, &0_i64]).await?;
        requests.once(&statements.notify, &[&&no_texts[..], &&no_texts[..]]).await?;
        requests.once(&statements.warm, &[]).await?;
        Ok(())
    }

    /// Clears a few leftovers of all sessions away.
    async fn sweep(&self) -> StoreResult<()> {
        for _ in 0..SWEEP_CALLS {
            let rows = self.requests.once(&self.statements.sweep, &[&micros(IDLE), &SWEEP]).await?;
            let row = one(&rows)?;
            if get::<Option<Vec<String>>>(row, "o_news")?.is_none() {
                break;
            }
            self.tell_granted(&grants(row)?).await;
            for session in get::<Vec<&[u8]>>(row, "o_sessions")? {
                let session = session.try_into().map_err(|_| nonsense("a session's id"))?;
                self.clear(SessionId::from_bytes(session), Vec::new()).await?;
            }
        }
        Ok(())
    }

    /// Sweeps in a task of its own, unless a sweep is running. The task goes on when its caller gives up waiting: a
    /// slow server would be asked for the same again and again, and its silence be counted against a sound
    /// connection.
    fn sweep_in_background(self: &Arc<Self>) -> Option<JoinHandle<()>> {
        let running = Arc::clone(&self.sweeping).try_lock_owned().ok()?;
        let shared = Arc::clone(self);
        Some(tokio::spawn(async move {
            if let Err(e) = shared.sweep().await {
                tracing::debug!(error = %e, "leftovers were not cleared away");
            }
            drop(running);
        }))
    }

    /// The renewal does not wait for the sweep.
    pub(super) fn sweep_with_some_renewals(self: &Arc<Self>) {
        if self.renewed.fetch_add(1, Ordering::Relaxed) % RENEWALS == RENEWALS - 1 {
            self.sweep_in_background();
        }
    }

    /// For programs that end before their first renewal.
    pub(super) async fn sweep_at_close(self: &Arc<Self>) {
        let Some(sweep) = self.sweep_in_background() else { return };
        tokio::select! {
            _ = sweep => {}
            () = self.clock.sleep(AT_CLOSE) => {}
        }
    }

    /// Sweeps and asks the listening connection for a sign of life, again and again. This is no part of a renewal:
    /// nothing that it waits for may cost a session its life.
    pub(super) async fn sweep_regularly(self: &Arc<Self>) -> StoreError {
        loop {
            self.clock.sleep(jittered(INTERVAL, 2)).await;
            if !self.pooled
                && let Err(e) = self.listener.batch("", REQUEST).await
            {
                return e;
            }
            self.sweep_in_background();
        }
    }
}
