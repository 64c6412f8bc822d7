//! Following lines as they change.

use crate::{
    api::keeper::Keeper,
    error::Result,
    model::{line::Line, ticket::TicketId},
    store::ListScope,
};
use std::time::Duration;

/// How often a watch looks, at most and at least.
const EVERY_MIN: Duration = Duration::from_millis(50);
const EVERY_MAX: Duration = Duration::from_millis(500);

/// Follows lines. It looks from time to time, more often while things change.
#[derive(Debug)]
#[must_use = "a watch does nothing until its next() is awaited"]
pub struct Watch {
    keeper: Keeper,
    which: ListScope,
    seen: Option<Vec<Glimpse>>,
    /// Before the next look; none before the first.
    pause: Duration,
}

/// What makes a difference between two looks at a line. Ages always differ.
type Glimpse = (crate::Name, u32, Vec<(TicketId, Option<u64>, Vec<u8>)>);

impl Watch {
    pub(crate) fn prefix(keeper: &Keeper, prefix: &str) -> Self {
        Self::of(keeper, ListScope::Prefix { prefix: prefix.to_owned(), after: None })
    }

    pub(crate) fn of(keeper: &Keeper, which: ListScope) -> Self {
        Self { keeper: keeper.clone(), which, seen: None, pause: Duration::ZERO }
    }

    /// All lines watched: at first as they are, then whenever they have changed.
    ///
    /// # Errors
    /// The store's error; the next call goes on.
    ///
    /// # Cancel safety
    /// A change that was not returned is returned by the next call.
    pub async fn next(&mut self) -> Result<Vec<Line>> {
        loop {
            self.keeper.inner.clock.sleep(self.pause).await;
            self.pause = (self.pause * 2).clamp(EVERY_MIN, EVERY_MAX);
            let lines = self.look().await?;
            let seen: Vec<Glimpse> = lines.iter().map(glimpse).collect();
            if self.seen.as_ref() != Some(&seen) {
                self.seen = Some(seen);
                self.pause = EVERY_MIN;
                return Ok(lines);
            }
        }
    }

    async fn look(&self) -> Result<Vec<Line>> {
        match &self.which {
            ListScope::Exact(name) => Ok(self.keeper.get(name).await?.into_iter().collect()),
            ListScope::Prefix { prefix, .. } => self.keeper.list(prefix).await,
        }
    }
}

fn glimpse(line: &Line) -> Glimpse {
    let tickets = line.tickets.iter().map(|t| (t.id, t.fence, t.label.clone())).collect();
    (line.name.clone(), line.capacity, tickets)
}
