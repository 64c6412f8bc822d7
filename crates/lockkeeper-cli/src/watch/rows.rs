//! The rows of the list: what is counted of each lock, sorted and filtered.

use crate::{
    listing::{known_age, known_end},
    ls,
};
use lockkeeper::Line;
use std::{cmp::Ordering, time::Duration};

/// What the list is sorted by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Column {
    Name,
    Holder,
    Held,
    Ends,
    Waiting,
    Longest,
}

/// From left to right.
pub(super) const COLUMNS: [Column; 6] =
    [Column::Name, Column::Holder, Column::Held, Column::Ends, Column::Waiting, Column::Longest];

/// An order of the rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sort {
    pub(super) by: Column,
    /// The other way round than is usual for this column.
    pub(super) reverse: bool,
}

impl Sort {
    /// By the next column, or by the one before.
    pub(super) fn step(&mut self, forwards: bool) {
        let at = COLUMNS.iter().position(|column| *column == self.by).unwrap_or(0);
        let step = if forwards { 1 } else { COLUMNS.len() - 1 };
        *self = Self { by: COLUMNS[(at + step) % COLUMNS.len()], reverse: false };
    }

    /// Does the smallest come first? Names begin with a; of times and lines the longest matter, and of
    /// ends the next.
    pub(super) fn ascends(self) -> bool {
        matches!(self.by, Column::Name | Column::Holder | Column::Ends) != self.reverse
    }
}

/// One lock in figures. Ages are as the store has told them.
#[derive(Clone, Debug)]
pub(super) struct Row {
    /// Where its line stands in the list of all.
    pub(super) index: usize,
    pub(super) waiting: usize,
    /// For how long the oldest of its holders can have held it.
    pub(super) held: Option<Duration>,
    /// When the first of its holders ends unless it is renewed.
    pub(super) ends: Option<Duration>,
    /// For how long the first of its waiters has waited.
    pub(super) longest: Option<Duration>,
}

impl Row {
    pub(super) fn new(index: usize, line: &Line) -> Self {
        let held = line.holders().filter_map(|t| t.granted_ago.or_else(|| known_age(t))).max();
        let ends = line.holders().filter_map(known_end).min();
        let longest = line.waiters().filter_map(known_age).max();
        Self { index, waiting: line.waiters().count(), held, ends, longest }
    }
}

/// The rows that match, in order.
pub(super) fn rows(lines: &[Line], filter: &str, sort: Sort) -> Vec<Row> {
    let filter = filter.to_lowercase();
    let matching = lines.iter().enumerate().filter(|(_, line)| matches(line, &filter));
    let mut rows: Vec<Row> = matching.map(|(index, line)| Row::new(index, line)).collect();
    // The lines come in the order of their names, and sorting is stable.
    if sort.by == Column::Holder {
        rows.sort_by_cached_key(|row| holder_key(&lines[row.index]));
        if sort.reverse {
            rows.reverse();
        }
    } else {
        let (by, reverse) = (sort.by, sort.reverse);
        rows.sort_by(|a, b| if reverse { compare(by, b, a) } else { compare(by, a, b) });
    }
    rows
}

/// Locks without a holder come last.
fn holder_key(line: &Line) -> (bool, String) {
    (line.holders().next().is_none(), ls::holder(line).to_lowercase())
}

/// In the usual direction of the column.
fn compare(by: Column, a: &Row, b: &Row) -> Ordering {
    match by {
        Column::Name | Column::Holder => a.index.cmp(&b.index),
        Column::Held => b.held.cmp(&a.held),
        Column::Ends => a.ends.unwrap_or(Duration::MAX).cmp(&b.ends.unwrap_or(Duration::MAX)),
        Column::Waiting => b.waiting.cmp(&a.waiting).then(b.longest.cmp(&a.longest)),
        Column::Longest => b.longest.cmp(&a.longest),
    }
}

/// Does the name, a label, or an owner's host or program contain this (in lower case)?
fn matches(line: &Line, filter: &str) -> bool {
    let contains = |text: &str| text.to_lowercase().contains(filter);
    filter.is_empty()
        || contains(line.name.as_str())
        || line.tickets.iter().any(|ticket| {
            contains(&String::from_utf8_lossy(&ticket.label))
                || ticket.owner.as_ref().is_some_and(|o| contains(&o.host) || contains(&o.program))
        })
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use lockkeeper::{Mode, Name, Owner, Ticket, TicketId, store::PLAIN_CAPACITY};

    /// A lock that "ci" holds for so many seconds, with so many waiters.
    pub(in crate::watch) fn line(name: &str, held: u64, waiters: u8) -> Line {
        let ticket = |n: u8| {
            let mut ticket = Ticket::new(TicketId::from_bytes([n; 16]), Mode::Exclusive);
            ticket.owner = Some(Owner::new(if n == 0 { "ci" } else { "web" }, 7, "sh"));
            ticket.ends_in = Duration::from_secs(15);
            ticket.entered_ago = Duration::from_secs(5);
            ticket
        };
        let mut tickets: Vec<Ticket> = (0..=waiters).map(ticket).collect();
        tickets[0].fence = Some(41);
        tickets[0].granted_ago = Some(Duration::from_secs(held));
        Line::new(Name::new(name).unwrap(), PLAIN_CAPACITY, tickets)
    }

    fn names(filter: &str, by: Column, reverse: bool) -> String {
        let lines = [line("a", 3, 1), line("b", 9, 0), line("c", 6, 4), line("d", 6, 1)];
        let rows = rows(&lines, filter, Sort { by, reverse });
        rows.iter().map(|row| lines[row.index].name.as_str()).collect()
    }

    #[test]
    fn each_column_sorts_in_its_usual_direction_and_the_other_one() {
        assert_eq!(names("", Column::Name, false), "abcd");
        assert_eq!(names("", Column::Name, true), "dcba");
        assert_eq!(names("", Column::Waiting, false), "cadb");
        assert_eq!(names("", Column::Waiting, true), "badc");
        assert_eq!(names("", Column::Held, false), "bcda");
        assert_eq!(names("", Column::Ends, false), "abcd");
        assert_eq!(names("", Column::Holder, false), "abcd");
        assert_eq!(names("", Column::Longest, false), "acdb");
    }

    #[test]
    fn a_filter_finds_names_owners_and_labels_in_any_case() {
        assert_eq!(names("C", Column::Name, false), "abcd", "all are held by ci");
        assert_eq!(names("WEB", Column::Name, false), "acd");
        assert_eq!(names("D", Column::Name, false), "d");
        assert_eq!(names("nothing", Column::Name, false), "");
    }

    #[test]
    fn all_columns_come_in_turn() {
        let mut sort = Sort { by: Column::Name, reverse: true };
        let mut seen = Vec::new();
        for _ in COLUMNS {
            seen.push(sort.by);
            sort.step(true);
            assert!(!sort.reverse);
        }
        assert_eq!(seen, COLUMNS);
        sort.step(false);
        assert_eq!(sort.by, Column::Longest);
    }
}
