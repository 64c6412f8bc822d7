//! Asking the store: one request for the whole list, then a pause.
//!
//! The pause is `--interval` after a change, and doubles up to four times that while nothing
//! changes. A list that takes long to read is read less often: the store is busy with it for a fifth
//! of the time at most.

use super::{
    Args,
    changes::{self, Change},
};
use lockkeeper::{Keeper, Line, Result};
use std::{
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::sync::{Notify, watch};

/// How much longer the pause is while nothing changes.
const QUIET: u32 = 4;

/// How much longer the pause is than the request before it, at least.
const REST: u32 = 4;

/// Asks the store for all locks whose names begin with a prefix.
#[derive(Debug)]
pub(super) struct Poller {
    pub(super) keeper: Keeper,
    prefix: String,
    interval: Duration,
    pause: Duration,
    seen: Option<Arc<Vec<Line>>>,
}

/// An answer.
#[derive(Clone, Debug)]
pub(super) struct Look {
    pub(super) lines: Arc<Vec<Line>>,
    /// What differs from the look before; none at the first one.
    pub(super) changes: Option<Vec<Change>>,
}

impl Poller {
    pub(super) fn new(keeper: &Keeper, args: &Args) -> Self {
        let (prefix, interval) = (args.prefix.clone(), args.interval);
        Self { keeper: keeper.clone(), prefix, interval, pause: interval, seen: None }
    }

    /// Asks once.
    pub(super) async fn look(&mut self) -> Result<Look> {
        let began = Instant::now();
        let answer = self.keeper.list(&self.prefix).await;
        let mut lines = answer.inspect_err(|_| self.rest(began, true))?;
        // They come sorted; what looks for a name in them relies on it.
        lines.sort_by(|a, b| a.name.as_str().cmp(b.name.as_str()));
        let lines = Arc::new(lines);
        let seen = self.seen.replace(Arc::clone(&lines));
        let changes = seen.map(|seen| changes::between(&seen, &lines));
        self.rest(began, changes.as_ref().is_some_and(Vec::is_empty));
        Ok(Look { lines, changes })
    }

    fn rest(&mut self, began: Instant, quiet: bool) {
        self.pause = pause(self.interval, self.pause, quiet, began.elapsed());
    }

    /// How long to wait before the next look.
    pub(super) fn pause(&self) -> Duration {
        self.pause
    }
}

/// The next pause, after the last one and a request that took so long.
fn pause(interval: Duration, last: Duration, quiet: bool, took: Duration) -> Duration {
    let wanted = if quiet { (last * 2).clamp(interval, interval * QUIET) } else { interval };
    wanted.max(took * REST)
}

/// What is known of the store.
#[derive(Clone, Debug, Default)]
pub(super) struct News {
    /// The last answer, and when it came.
    pub(super) lines: Option<(Arc<Vec<Line>>, Instant)>,
    /// When the first request without an answer was sent.
    pub(super) asked: Option<Instant>,
    /// Why the last request failed.
    pub(super) error: Option<String>,
}

/// Asks for ever, and sends what is known after each answer. `again` cuts a pause short.
pub(super) async fn poll(mut poller: Poller, news: watch::Sender<News>, again: Arc<Notify>) {
    loop {
        // A request is no news: it wakes no receiver.
        news.send_if_modified(|news| {
            news.asked.get_or_insert_with(Instant::now);
            false
        });
        let answer = poller.look().await;
        news.send_modify(|news| match answer {
            Ok(look) => {
                let lines = Some((look.lines, Instant::now()));
                *news = News { lines, asked: None, error: None };
            }
            Err(e) => news.error = Some(crate::failure::chain(&e.into())),
        });
        tokio::select! {
            () = tokio::time::sleep(poller.pause()) => {}
            () = again.notified() => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(n: u64) -> Duration {
        Duration::from_millis(n)
    }

    #[test]
    fn a_quiet_store_is_asked_ever_less_often_up_to_a_bound() {
        let mut last = ms(500);
        let pauses: Vec<u64> = (0..4)
            .map(|_| {
                last = pause(ms(500), last, true, ms(3));
                u64::try_from(last.as_millis()).unwrap()
            })
            .collect();
        assert_eq!(pauses, [1000, 2000, 2000, 2000]);
        assert_eq!(pause(ms(500), last, false, ms(3)), ms(500));
    }

    #[test]
    fn a_list_that_takes_long_is_read_less_often() {
        assert_eq!(pause(ms(500), ms(500), false, ms(900)), ms(3600));
    }
}
