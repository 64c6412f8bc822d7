//! One name's tickets in order, and what a store does to a line before it answers.

use crate::{
    clock::Moment,
    model::{
        admission::Room,
        name::Name,
        ticket::{Mode, Owner, TicketId},
    },
};
use std::time::Duration;

/// The longest line: one more enter is refused.
pub const LINE_MAX: usize = 100_000;

/// What [`settle`] must know of a ticket. A store implements it for its own row type.
pub trait LineRow {
    /// What the ticket takes of the capacity.
    fn weight(&self) -> u32;
    /// Has it been granted?
    fn granted(&self) -> bool;
    /// When it ends unless its session is renewed: with the TTL while it waits, as nothing was
    /// protected by it yet; after TTL and lock-delay once it is granted.
    fn dead_at(&self) -> Moment;
}

/// The head of a line, brought up to date.
#[derive(Debug)]
pub struct Front<R> {
    /// Tickets whose time has passed. The store removes them and ends their sessions.
    pub dead: Vec<R>,
    /// The live tickets that are admitted. Those not granted yet are to be granted now.
    pub admitted: Vec<R>,
    /// The first live ticket that must wait. All tickets behind it wait too.
    pub next: Option<R>,
    room: Room,
}

impl<R: LineRow> Front<R> {
    /// Would a ticket of this weight be admitted if it came to the end of this line now?
    #[must_use]
    pub fn fits(&self, weight: u32) -> bool {
        self.next.is_none() && { self.room }.admit(weight)
    }

    /// When the line can move without a write: when the first of the admitted tickets expires, or the
    /// first waiting one, which keeps those behind it waiting too.
    #[must_use]
    pub fn moves_at(&self) -> Option<Moment> {
        self.admitted.iter().chain(&self.next).map(LineRow::dead_at).min()
    }

    /// How long a waiter may rest before it looks again.
    #[must_use]
    pub fn recheck(&self, now: Moment) -> Duration {
        let grain = Duration::from_millis(1);
        self.moves_at().map_or(grain, |at| at.saturating_since(now) + grain)
    }
}

/// Walks a line from its head: the dead fall out, the longest prefix that fits is admitted.
///
/// Reads no further than the first live ticket that must wait, so a long line costs no more than a
/// short one. This is the reference that stores with rows of their own (memory, SQLite) run as it is.
///
/// # Errors
/// The first error of `rows`.
pub fn settle<R: LineRow, E>(
    rows: impl IntoIterator<Item = Result<R, E>>,
    capacity: u32,
    now: Moment,
) -> Result<Front<R>, E> {
    let room = Room::of(capacity);
    let mut front = Front { dead: Vec::new(), admitted: Vec::new(), next: None, room };
    for row in rows {
        let row = row?;
        if row.dead_at() <= now {
            front.dead.push(row);
        } else if front.room.admit(row.weight()) {
            front.admitted.push(row);
        } else {
            front.next = Some(row);
            break;
        }
    }
    Ok(front)
}

/// One line as listings show it.
///
/// ```
/// # use lockkeeper::Line;
/// fn summary(line: &Line) -> String {
///     let holders: Vec<String> = line.holders().map(|t| format!("{:?}", t.owner)).collect();
///     format!("{}: {} waits behind {}", line.name, line.waiters().count(), holders.join(", "))
/// }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Line {
    /// Its name.
    pub name: Name,
    /// What its tickets share: the permits of a semaphore, or a fixed large number for a plain lock.
    pub capacity: u32,
    /// Its tickets in order, the granted ones first.
    pub tickets: Vec<Ticket>,
}

impl Line {
    /// A line as a store found it.
    #[must_use]
    pub fn new(name: Name, capacity: u32, tickets: Vec<Ticket>) -> Self {
        Self { name, capacity, tickets }
    }

    /// The tickets that are granted now.
    pub fn holders(&self) -> impl Iterator<Item = &Ticket> {
        self.tickets.iter().filter(|t| t.fence.is_some())
    }

    /// The tickets that wait, in order.
    pub fn waiters(&self) -> impl Iterator<Item = &Ticket> {
        self.tickets.iter().filter(|t| t.fence.is_none())
    }
}

/// One ticket as listings show it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Ticket {
    /// Its id.
    pub id: TicketId,
    /// What it takes.
    pub mode: Mode,
    /// The number of its grant; `None` while it waits.
    pub fence: Option<u64>,
    /// The process that took it; `None` for a hold that has outlived its session (`at_least`). A client
    /// of another library is [unknown](Owner::is_unknown); its ticket's label is never its token.
    pub owner: Option<Owner>,
    /// Its label, or what a candidate proclaims.
    #[cfg_attr(feature = "serde", serde(serialize_with = "crate::model::serde::label"))]
    pub label: Vec<u8>,
    /// How long ago it entered the line; zero for another library's ticket if that is not known.
    #[cfg_attr(
        feature = "serde",
        serde(rename = "entered_ago_ms", serialize_with = "crate::model::serde::millis")
    )]
    pub entered_ago: Duration,
    /// How long ago it was granted; `None` while it waits, and if the store has not noted it. Then
    /// `entered_ago` is the most that it can be.
    #[cfg_attr(
        feature = "serde",
        serde(rename = "granted_ago_ms", serialize_with = "crate::model::serde::millis_if")
    )]
    pub granted_ago: Option<Duration>,
    /// When it ends unless its session is renewed: lock-delay included, if it is granted or the store
    /// makes no difference ([`waiters_end_at_ttl`](crate::Capabilities::waiters_end_at_ttl)). Of another
    /// library's ticket: zero if that is not known, [`Duration::MAX`] if it never ends by itself.
    #[cfg_attr(
        feature = "serde",
        serde(rename = "ends_in_ms", serialize_with = "crate::model::serde::millis")
    )]
    pub ends_in: Duration,
}

impl Ticket {
    /// A waiting ticket of which nothing else is known: what a store fills in.
    #[must_use]
    pub fn new(id: TicketId, mode: Mode) -> Self {
        Self {
            id,
            mode,
            fence: None,
            owner: None,
            label: Vec::new(),
            entered_ago: Duration::ZERO,
            granted_ago: None,
            ends_in: Duration::ZERO,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{admission::admitted, ticket::PLAIN_CAPACITY};
    use proptest::{collection::vec, prelude::*};
    use std::convert::Infallible;

    #[derive(Clone, Debug, PartialEq)]
    struct Row {
        weight: u32,
        granted: bool,
        dead_at: Moment,
    }

    impl LineRow for Row {
        fn weight(&self) -> u32 {
            self.weight
        }
        fn granted(&self) -> bool {
            self.granted
        }
        fn dead_at(&self) -> Moment {
            self.dead_at
        }
    }

    fn row(weight: u32, dead_at_ms: u64) -> Row {
        Row { weight, granted: false, dead_at: Moment::from_millis(dead_at_ms) }
    }

    fn front(rows: &[Row], capacity: u32, now_ms: u64) -> Front<Row> {
        let rows = rows.iter().cloned().map(Ok::<_, Infallible>);
        settle(rows, capacity, Moment::from_millis(now_ms)).unwrap()
    }

    #[test]
    fn the_dead_make_room_for_the_next() {
        let line = [row(PLAIN_CAPACITY, 5), row(PLAIN_CAPACITY, 20), row(PLAIN_CAPACITY, 30)];
        let f = front(&line, PLAIN_CAPACITY, 10);
        assert_eq!((f.dead.len(), f.admitted.len()), (1, 1));
        assert_eq!(f.next, Some(line[2].clone()));
        assert_eq!(f.recheck(Moment::from_millis(10)), Duration::from_millis(11));
    }

    #[test]
    fn a_newcomer_fits_only_behind_a_line_without_waiters() {
        assert!(front(&[], 4, 0).fits(4));
        assert!(front(&[row(2, 9)], 4, 0).fits(2));
        assert!(!front(&[row(2, 9)], 4, 0).fits(3));
        assert!(!front(&[row(2, 9), row(3, 9)], 4, 0).fits(1));
    }

    proptest! {
        #[test]
        fn settling_is_admission_over_the_living(
            rows in vec((1u32..=5, 0u64..20), 0..30), capacity in 1u32..=8, now in 0u64..20,
        ) {
            let rows: Vec<Row> = rows.into_iter().map(|(w, d)| row(w, d)).collect();
            let f = front(&rows, capacity, now);
            let living = || rows.iter().filter(|r| r.dead_at > Moment::from_millis(now));
            let n = admitted(living().map(|r| r.weight), capacity);
            prop_assert_eq!(&f.admitted, &living().take(n).cloned().collect::<Vec<_>>());
            prop_assert_eq!(f.next.as_ref(), living().nth(n));
        }
    }
}
