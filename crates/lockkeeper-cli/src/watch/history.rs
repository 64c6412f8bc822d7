//! The waits of the last minutes, for the charts.

use lockkeeper::{Line, Name};
use std::{
    collections::{HashMap, VecDeque},
    time::{Duration, Instant},
};

/// How much time the charts show.
pub(super) const SHOWN: Duration = Duration::from_secs(300);

/// The time is cut into so many slots.
const SLOTS: u64 = 100;

/// What is drawn: how many wait, and for how long the first of them has waited, in seconds.
pub(super) type Sample = [u64; 2];

/// The waits of one lock, or of all.
#[derive(Debug, Default)]
struct Track {
    points: VecDeque<Point>,
}

#[derive(Debug)]
struct Point {
    slot: u64,
    most: Sample,
    /// What holds on until the next point.
    last: Sample,
}

impl Track {
    fn record(&mut self, slot: u64, sample: Sample) {
        match self.points.back_mut() {
            Some(point) if point.slot == slot => {
                for (most, new) in point.most.iter_mut().zip(sample) {
                    *most = new.max(*most);
                }
                point.last = sample;
            }
            Some(point) if point.last == sample => {}
            _ => self.points.push_back(Point { slot, most: sample, last: sample }),
        }
        // The last point before what is shown says how it begins.
        while self.points.get(1).is_some_and(|point| point.slot + SLOTS <= slot) {
            self.points.pop_front();
        }
    }

    fn is_empty(&self) -> bool {
        self.points.iter().all(|point| point.most == Sample::default())
    }

    /// So many columns that end with this slot; none where nothing is known yet.
    fn columns(&self, end: u64, count: usize) -> Vec<Option<Sample>> {
        let count = u64::try_from(count).unwrap_or(SLOTS).max(1);
        let slot_of = |column: u64| (end + 1 + column * SLOTS / count).saturating_sub(SLOTS);
        let column = |n| self.most(slot_of(n), slot_of(n + 1).max(slot_of(n) + 1));
        (0..count).map(column).collect()
    }

    /// The most in the slots from `start` on, up to and without `end`.
    fn most(&self, start: u64, end: u64) -> Option<Sample> {
        let before = self.points.iter().rev().find(|point| point.slot < start);
        let within = self.points.iter().filter(|point| (start..end).contains(&point.slot));
        let known = before.map(|point| point.last).into_iter().chain(within.map(|p| p.most));
        known.reduce(|a, b| [a[0].max(b[0]), a[1].max(b[1])])
    }
}

/// The waits of all locks.
#[derive(Debug)]
pub(super) struct History {
    began: Instant,
    all: Track,
    locks: HashMap<Name, Track>,
}

impl History {
    pub(super) fn new(now: Instant) -> Self {
        Self { began: now, all: Track::default(), locks: HashMap::new() }
    }

    /// Slots are counted so that there is room for what was before the first.
    fn slot(&self, now: Instant) -> u64 {
        let slot_ms = SHOWN.as_millis() / u128::from(SLOTS);
        let passed = now.saturating_duration_since(self.began).as_millis() / slot_ms;
        SLOTS + u64::try_from(passed).unwrap_or(u64::MAX - SLOTS)
    }

    /// Notes how the lines stand now.
    pub(super) fn record(&mut self, now: Instant, lines: &[Line]) {
        let slot = self.slot(now);
        let waits: HashMap<&Name, Sample> =
            lines.iter().map(|line| (&line.name, sample(line))).filter(|(_, s)| s[0] > 0).collect();
        let all = waits.values().fold(Sample::default(), |a, b| [a[0] + b[0], a[1].max(b[1])]);
        self.all.record(slot, all);
        for name in waits.keys().copied() {
            if !self.locks.contains_key(name) {
                self.locks.insert(name.clone(), Track::default());
            }
        }
        self.locks.retain(|name, track| {
            track.record(slot, waits.get(name).copied().unwrap_or_default());
            !track.is_empty()
        });
    }

    /// The waits of all locks, in so many columns.
    pub(super) fn all(&self, now: Instant, columns: usize) -> Vec<Option<Sample>> {
        self.all.columns(self.slot(now), columns)
    }

    /// The waits of one lock; of one without waiters all that is known is that there were none.
    pub(super) fn of(&self, name: &Name, now: Instant, columns: usize) -> Vec<Option<Sample>> {
        let slot = self.slot(now);
        match self.locks.get(name) {
            Some(track) => track.columns(slot, columns),
            None => vec![None; columns],
        }
    }
}

fn sample(line: &Line) -> Sample {
    let waiting = line.waiters().count();
    let longest = line.waiters().map(|ticket| ticket.entered_ago.as_secs()).max();
    [u64::try_from(waiting).unwrap_or(u64::MAX), longest.unwrap_or(0)]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::watch::rows::tests::line;

    #[test]
    fn a_chart_ends_with_now_and_keeps_the_highest_of_each_column() {
        let began = Instant::now();
        let at = |seconds| began + Duration::from_secs(seconds);
        let mut history = History::new(began);
        history.record(at(0), &[line("a", 1, 4)]);
        history.record(at(1), &[line("a", 1, 2)]);
        history.record(at(299), &[line("a", 1, 1), line("b", 1, 8)]);
        let waiting = |now, columns| -> Vec<Option<u64>> {
            history.all(at(now), columns).iter().map(|s| s.map(|s| s[0])).collect()
        };
        assert_eq!(waiting(299, 5), [Some(4), Some(2), Some(2), Some(2), Some(9)]);
        assert_eq!(waiting(0, 3), [None, None, Some(4)]);
        assert_eq!(waiting(900, 2), [Some(9), Some(9)]);
    }

    #[test]
    fn a_lock_without_waiters_is_forgotten_when_its_last_wait_is_out_of_sight() {
        let began = Instant::now();
        let mut history = History::new(began);
        history.record(began, &[line("a", 1, 4), line("b", 1, 0)]);
        assert_eq!(history.locks.len(), 1);
        for minute in 1..20 {
            history.record(began + Duration::from_secs(60 * minute), &[]);
        }
        assert!(history.locks.is_empty());
        assert!(history.all.points.len() < 10, "{:?}", history.all.points);
    }

    #[test]
    fn a_chart_may_be_wider_than_what_is_known() {
        let mut history = History::new(Instant::now());
        let now = history.began;
        history.record(now, &[line("a", 1, 4)]);
        assert_eq!(history.all(now, 250).len(), 250);
        assert_eq!(history.all(now, 250).last(), Some(&Some([4, 5])));
    }
}
