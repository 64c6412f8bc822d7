//! The one task that looks at the store for all viewers. It runs while there are viewers, and looks only at what they
//! watch: every 50 ms while things change, every 2 s when nothing does, and never so often that the looks take more
//! than a twentieth of the time.

use super::{
    book::Book,
    hub::{Hub, now},
    root::Root,
};
use lockkeeper::{
    ErrorKind, Line, Store as _,
    store::{LIST_MAX, ListScope, StoreResult, clock::Moment, http::wire::Freshness},
};
use std::time::Duration;

pub(super) const PAUSE_MIN: Duration = Duration::from_millis(50);
pub(super) const PAUSE_MAX: Duration = Duration::from_secs(2);
/// After a look the task rests so many times as long as the look took.
const REST: u32 = 19;
/// But no longer than this.
const REST_MAX: Duration = Duration::from_secs(30);

/// What is said of the looks while there are none.
pub(super) fn at_rest() -> Freshness {
    Freshness {
        pause_min_ms: crate::extract::millis(PAUSE_MIN),
        pause_max_ms: crate::extract::millis(PAUSE_MAX),
        ..Freshness::default()
    }
}

/// How long to rest between two looks.
#[derive(Debug)]
struct Pace {
    pause: Duration,
    rest: Duration,
}

impl Pace {
    fn new() -> Self {
        Self { pause: PAUSE_MIN, rest: Duration::ZERO }
    }

    /// After a look that took so long. The pause grows while nothing changes, and while the store does not answer.
    fn looked(&mut self, is_changed: bool, took: Duration) {
        self.pause = if is_changed { PAUSE_MIN } else { (self.pause * 3 / 2).min(PAUSE_MAX) };
        self.rest = (took * REST).min(REST_MAX);
    }

    /// A change is near.
    fn hurry(&mut self) {
        self.pause = PAUSE_MIN;
    }

    fn wait(&self) -> Duration {
        self.pause.max(self.rest)
    }
}

/// Looks until no viewer is left.
pub(super) async fn run(hub: Hub) {
    let (mut book, mut pace) = (Book::default(), Pace::new());
    let (mut last, mut spent) = (now(&hub), Duration::ZERO);
    let mut is_due = true;
    while let Some(roots) = hub.roots() {
        book.keep_only(&roots);
        // A new part is looked at at once, so that its viewers need not wait for the others' turn.
        let these = if is_due { roots } else { hub.new_roots() };
        if !these.is_empty() {
            let started = now(&hub);
            let looked = look(&hub, &these, &mut book).await;
            let took = now(&hub).saturating_since(started);
            hub.shared().metrics.looked(took);
            match (looked, is_due) {
                (Some(is_changed), true) => pace.looked(is_changed, took),
                (Some(is_changed), false) => {
                    spent += took * REST;
                    if is_changed {
                        pace.hurry();
                    }
                }
                (None, _) => pace.looked(false, took),
            }
            if is_due {
                (last, spent) = (now(&hub), Duration::ZERO);
            }
            hub.pace_is(pace.wait(), took, book.len());
        }
        let due = last + pace.wait() + spent.min(REST_MAX);
        tokio::select! {
            () = hub.shared().clock.sleep_until(due) => is_due = true,
            () = hub.shared().nudge.notified() => {
                pace.hurry();
                is_due = false;
            }
        }
    }
}

/// Looks at these parts, and tells what has changed; says whether anything has. `None`: the store does not answer, or
/// shows none of them.
async fn look(hub: &Hub, roots: &[Root], book: &mut Book) -> Option<bool> {
    let mut look = Look::default();
    for root in roots {
        let at = now(hub);
        look.take_in(hub, book, root, lines(hub, root).await, at).ok()?;
    }
    if look.shown.is_empty() {
        return None;
    }
    hub.store_answered();
    hub.looked_at(&look.shown);
    Some(look.is_changed)
}

/// What a look has brought.
#[derive(Debug, Default)]
struct Look {
    is_changed: bool,
    shown: Vec<Root>,
}

/// The store does not answer: the other parts need not be asked for.
#[derive(Debug)]
struct NoAnswer;

impl Look {
    /// Takes in what the store has said of one part. A part that it refuses to show holds up no other one.
    fn take_in(
        &mut self,
        hub: &Hub,
        book: &mut Book,
        root: &Root,
        lines: StoreResult<Vec<Line>>,
        at: Moment,
    ) -> Result<(), NoAnswer> {
        match lines {
            Ok(lines) => {
                let changes = book.take_in(root, lines, at);
                self.is_changed |= !changes.is_empty();
                hub.changes(changes);
                self.shown.push(root.clone());
                Ok(())
            }
            Err(e) => {
                tracing::debug!(error = %e, "cannot look at the store for the events");
                hub.store_failed(&e);
                if e.kind == ErrorKind::Unavailable { Err(NoAnswer) } else { Ok(()) }
            }
        }
    }
}

async fn lines(hub: &Hub, root: &Root) -> StoreResult<Vec<Line>> {
    let store = &hub.shared().store;
    let prefix = match root {
        Root::Exact(name) => return store.list(ListScope::Exact(name.clone())).await,
        Root::Prefix(prefix) => prefix,
    };
    let mut lines: Vec<Line> = Vec::new();
    loop {
        let after = lines.last().map(|line| line.name.clone());
        let page = store.list(ListScope::Prefix { prefix: prefix.clone(), after }).await?;
        let is_last = page.len() < LIST_MAX;
        lines.extend(page);
        if is_last {
            return Ok(lines);
        }
        // A store that is at work where it is called never waits, and other tasks want their turn.
        tokio::task::yield_now().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::service::{Options, Service};
    use lockkeeper::{
        StoreError,
        store::{AnyStore, memory::Memory},
    };

    #[test]
    fn the_pause_grows_while_nothing_changes_and_the_looks_take_a_twentieth_at_most() {
        let mut pace = Pace::new();
        let quick = Duration::from_millis(1);
        pace.looked(true, quick);
        assert_eq!(pace.wait(), PAUSE_MIN);
        let mut last = pace.wait();
        while pace.wait() < PAUSE_MAX {
            pace.looked(false, quick);
            assert!(pace.wait() > last || pace.wait() == PAUSE_MAX);
            last = pace.wait();
        }
        let slow = Duration::from_millis(200);
        pace.looked(true, slow);
        let share = slow.as_secs_f64() / (slow + pace.wait()).as_secs_f64();
        assert!((share - 0.05).abs() < 1e-9, "{share}");
    }

    #[tokio::test]
    async fn a_part_that_the_store_refuses_to_show_holds_up_no_other_one() {
        let store = AnyStore::new(Memory::new());
        let hub = Service::new(store, Options::default()).hub.clone();
        let [refused, good] = ["a", "b"].map(|prefix| Root::Prefix(prefix.to_owned()));
        let failed = |kind| Err(StoreError::not_applied("memory", kind, "told so"));
        let (mut look, mut book, at) = (Look::default(), Book::default(), now(&hub));
        let corrupt = failed(ErrorKind::Corrupt);
        assert!(look.take_in(&hub, &mut book, &refused, corrupt, at).is_ok());
        assert!(look.take_in(&hub, &mut book, &good, Ok(Vec::new()), at).is_ok());
        assert!(look.shown.len() == 1 && look.shown[0] == good, "{look:?}");
        let down = failed(ErrorKind::Unavailable);
        assert!(look.take_in(&hub, &mut book, &good, down, at).is_err());
        assert!(!hub.store_is_up());
    }
}
