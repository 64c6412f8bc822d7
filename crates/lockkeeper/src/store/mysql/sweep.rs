//! Clearing leftovers away: beside renewals and never in their way, and at the end of a session, for programs
//! that live too shortly to renew anything.

use super::{
    IDLE, bytes,
    connection::Link,
    micros,
    reply::{field, one},
};
use crate::{
    clock::{Clock, Moment},
    store::{STRAY_MAX, StoreResult},
};
use std::{sync::Arc, time::Duration};
use tokio::{
    sync::{Mutex, OwnedMutexGuard},
    task::JoinHandle,
    time::timeout,
};

/// At the end of a session nothing is swept if that was done less than this ago.
const SELDOM: Duration = Duration::from_secs(10);
/// For how long the end of a session may be put off.
const AT_THE_END: Duration = Duration::from_millis(250);

/// One sweep at a time, in a task of its own.
pub(super) struct Sweep {
    link: Arc<Link>,
    clock: Clock,
    sql: Arc<str>,
    /// Locked while one is under way.
    last: Arc<Mutex<Last>>,
}

/// What is to be known of the last sweep.
#[derive(Default)]
struct Last {
    began: Option<Moment>,
    /// Where the next one goes on looking for idle lines.
    after: Vec<u8>,
}

impl Sweep {
    pub(super) fn new(link: &Arc<Link>, clock: &Clock, sql: &str) -> Self {
        let (link, clock) = (Arc::clone(link), clock.clone());
        Self { link, clock, sql: sql.into(), last: Arc::default() }
    }

    /// Lets a few leftovers be cleared away, unless that is going on. Nobody waits for it, and nobody
    /// suffers if it fails.
    pub(super) fn begin(&self) {
        if let Ok(last) = Arc::clone(&self.last).try_lock_owned() {
            self.run(last);
        }
    }

    /// The same, if it was not done lately; waits a little for it, because the program may be at its end.
    pub(super) async fn at_the_end(&self) {
        let Ok(last) = Arc::clone(&self.last).try_lock_owned() else { return };
        let lately = |began| self.clock.now().saturating_since(began) < SELDOM;
        if !last.began.is_some_and(lately) {
            let _ = timeout(AT_THE_END, self.run(last)).await;
        }
    }

    fn run(&self, mut last: OwnedMutexGuard<Last>) -> JoinHandle<()> {
        let (link, sql) = (Arc::clone(&self.link), Arc::clone(&self.sql));
        last.began = Some(self.clock.now());
        tokio::spawn(async move {
            if let Ok(next) = once(&link, &sql, &last.after).await {
                last.after = next;
            }
        })
    }
}

async fn once(link: &Link, sql: &str, after: &[u8]) -> StoreResult<Vec<u8>> {
    let params = vec![micros(STRAY_MAX).into(), micros(IDLE).into(), bytes(after)];
    field(&one(link.ask(link.lines(), sql, params).await?)?, "next")
}
