//! Clearing leftovers away, beside renewals and never in their way.

use super::{
    IDLE, bytes,
    link::Link,
    micros,
    reply::{field, one},
};
use crate::store::{STRAY_MAX, StoreResult};
use std::sync::Arc;
use tokio::sync::Mutex;

/// One sweep at a time, in a task of its own.
pub(super) struct Sweep {
    link: Arc<Link>,
    sql: Arc<str>,
    /// Where the next one goes on looking for idle lines. Locked while one is under way.
    after: Arc<Mutex<Vec<u8>>>,
}

impl Sweep {
    pub(super) fn new(link: &Arc<Link>, sql: &str) -> Self {
        Self { link: Arc::clone(link), sql: sql.into(), after: Arc::default() }
    }

    /// Lets a few leftovers be cleared away, unless that is going on. Nobody waits for it, and nobody
    /// suffers if it fails.
    pub(super) fn begin(&self) {
        if let Ok(mut after) = Arc::clone(&self.after).try_lock_owned() {
            let (link, sql) = (Arc::clone(&self.link), Arc::clone(&self.sql));
            tokio::spawn(async move {
                if let Ok(next) = once(&link, &sql, &after).await {
                    *after = next;
                }
            });
        }
    }
}

async fn once(link: &Link, sql: &str, after: &[u8]) -> StoreResult<Vec<u8>> {
    let params = vec![micros(STRAY_MAX).into(), micros(IDLE).into(), bytes(after)];
    field(&one(link.ask(link.lines(), sql, params).await?)?, "next")
}
