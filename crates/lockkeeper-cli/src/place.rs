//! Our place in a line, counted as `show` counts it: behind the holders.
//!
//! A waiter is told how many tickets are ahead of it, holders included. One exclusive holder makes that the
//! place; of readers and permits there may be many, and then the line itself has to be read.

use lockkeeper::{Keeper, Line, Name, Owner};
use std::time::{Duration, Instant};
use tokio::time::timeout;

/// For how long the line is read.
const READ_MAX: Duration = Duration::from_secs(1);

/// How often a line is read: once in a second, and a long one, which is much to read, more rarely.
fn pause(ahead: usize) -> Duration {
    Duration::from_secs(1 + u64::try_from(ahead / 16).unwrap_or(u64::MAX).min(29))
}

/// What is known about our place.
#[derive(Debug, Default)]
pub(crate) struct Places {
    /// How many of the tickets ahead of us hold the lock, when the line was read last.
    holders: Option<usize>,
    read: Option<Instant>,
}

impl Places {
    /// The place of a waiter with so many tickets ahead; none if it is not known.
    pub(crate) fn of(&self, ahead: usize) -> Option<usize> {
        match (ahead, self.holders) {
            (0 | 1, _) => Some(1),
            (_, Some(holders)) => Some((ahead + 1).saturating_sub(holders).max(1)),
            _ => None,
        }
    }

    /// Reads the line, unless it was read a moment ago or the number says enough.
    pub(crate) async fn look(&mut self, keeper: &Keeper, name: &Name, ahead: usize) {
        if ahead <= 1 || self.read.is_some_and(|read| read.elapsed() < pause(ahead)) {
            return;
        }
        if let Ok(Ok(Some(line))) = timeout(READ_MAX, keeper.get(name)).await {
            self.holders = Some(holders(&line, &Owner::this_process(), ahead));
        }
        self.read = Some(Instant::now());
    }
}

/// How many of so many tickets ahead of us hold the lock. The line may have moved since that number was told,
/// so our own ticket counts, if it can be told from others.
fn holders(line: &Line, us: &Owner, ahead: usize) -> usize {
    let is_ours = |owner: &Owner| owner.host == us.host && owner.pid == us.pid;
    let ours = line.waiters().position(|ticket| ticket.owner.as_ref().is_some_and(is_ours));
    ours.map_or_else(|| line.holders().count(), |before| ahead.saturating_sub(before))
}

#[cfg(test)]
mod tests {
    use super::*;
    use lockkeeper::{Mode, Ticket};

    #[test]
    fn the_place_is_counted_behind_the_holders() {
        let us = Owner::new("ci-7", 1, "sh");
        let ticket = |fence, owner: &Owner| {
            let id = "00".repeat(16).parse().unwrap();
            let mut ticket = Ticket::new(id, Mode::Shared);
            (ticket.fence, ticket.owner) = (fence, Some(owner.clone()));
            ticket
        };
        let other = Owner::new("ci-8", 1, "sh");
        let (held, waiting) = (ticket(Some(7), &other), ticket(None, &other));
        let tickets = vec![held.clone(), held, waiting.clone(), ticket(None, &us)];
        let line = Line::new(Name::new("a").unwrap(), 9, tickets);
        assert_eq!(holders(&line, &us, 3), 2);
        assert_eq!(holders(&line, &Owner::new("ci-9", 1, "sh"), 3), 2);
        let known = Places { holders: Some(2), read: None };
        assert_eq!((known.of(3), known.of(2), known.of(1)), (Some(2), Some(1), Some(1)));
        assert_eq!((Places::default().of(1), Places::default().of(2)), (Some(1), None));
    }
}
