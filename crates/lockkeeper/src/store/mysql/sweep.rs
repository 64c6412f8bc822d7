//! Clearing away what ended sessions and idle lines have left: beside renewals and never in their way, and when a
//! session is closed, for programs that end before their first renewal.

use super::{
    Shared,
    connection::bytes,
    reply::{field, micros, one},
};
use crate::{
    clock::Moment,
    store::{STRAY_MAX, StoreResult, common::repeat::Repeat},
};
use std::{sync::Arc, time::Duration};
use tokio::{sync::OwnedMutexGuard, task::JoinHandle};

/// For how long an idle line's last number is kept: longer than clocks may differ.
const IDLE: Duration = Duration::from_secs(24 * 3600);
/// One renewal of so many looks for idle lines, even if nothing else is to be swept.
const RENEWALS: u64 = 16;
/// A close sweeps only if the last sweep began longer ago than this.
const SELDOM: Duration = Duration::from_secs(10);
/// A close waits for its sweep so long at most.
const AT_CLOSE: Duration = Duration::from_millis(250);

/// The last sweep of this process. Locked while one is running.
#[derive(Default)]
pub(super) struct LastSweep {
    began: Option<Moment>,
    /// The name after which the next sweep goes on looking for idle lines.
    after: Vec<u8>,
}

impl Shared {
    /// A renewal was answered, and says whether it has seen leftovers. It does not wait for the sweep.
    pub(super) fn sweep_with_some_renewals(self: &Arc<Self>, leftovers: bool) {
        let due = self.renewed.fetch_add(1, std::sync::atomic::Ordering::Relaxed) % RENEWALS
            == RENEWALS - 1;
        if (due || leftovers)
            && let Ok(last) = Arc::clone(&self.sweeping).try_lock_owned()
        {
            self.sweep_in_background(last);
        }
    }

    pub(super) async fn sweep_at_close(self: &Arc<Self>) {
        let Ok(last) = Arc::clone(&self.sweeping).try_lock_owned() else { return };
        let lately = |began| self.clock.now().saturating_since(began) < SELDOM;
        if !last.began.is_some_and(lately) {
            tokio::select! {
                _ = self.sweep_in_background(last) => {}
                () = self.clock.sleep(AT_CLOSE) => {}
            }
        }
    }

    fn sweep_in_background(
        self: &Arc<Self>,
        mut last: OwnedMutexGuard<LastSweep>,
    ) -> JoinHandle<()> {
        let shared = Arc::clone(self);
        last.began = Some(self.clock.now());
        tokio::spawn(async move {
            match shared.sweep(&last.after).await {
                Ok(next) => last.after = next,
                Err(e) => tracing::debug!(error = %e, "leftovers were not cleared away"),
            }
        })
    }

    async fn sweep(&self, after: &[u8]) -> StoreResult<Vec<u8>> {
        let params = vec![micros(STRAY_MAX).into(), micros(IDLE).into(), bytes(after)];
        let (pool, sql) = (&self.connections.requests, &self.statements.sweep);
        let rows = self.connections.call(pool, sql, params, Repeat::IfNotApplied).await?;
        field(&one(rows)?, "next")
    }
}
