//! What the last looks have shown, and what a new one changes.

use super::{
    diff::{self, Change, Seen},
    root::Root,
};
use lockkeeper::{Line, Name, store::clock::Moment};
use std::{
    collections::BTreeMap,
    ops::Bound::{Included, Unbounded},
};

#[derive(Debug, Default)]
pub(super) struct Book {
    /// Of these parts all lines are known.
    known: Vec<Root>,
    lines: BTreeMap<Name, Seen>,
}

impl Book {
    /// Takes in all lines of one part, and tells what has changed since they were last seen. What is seen for the
    /// first time, because its part was not looked at before, is no change.
    pub(super) fn take_in(
        &mut self,
        root: &Root,
        mut found: Vec<Line>,
        now: Moment,
    ) -> Vec<Change> {
        found.sort_by(|a, b| a.name.cmp(&b.name));
        let is_known = self.known.iter().any(|known| known.covers(root));
        let known = std::mem::take(&mut self.known);
        let is_new = |name: &Name| !is_known && !known.iter().any(|known| known.has(name));
        let (mut changes, mut gone, mut fresh) = (Vec::new(), Vec::new(), Vec::new());
        let mut found = found.into_iter().peekable();
        for (name, seen) in self.part_mut(root) {
            while let Some(line) = found.next_if(|line| line.name < *name) {
                fresh.push(line);
            }
            if let Some(line) = found.next_if(|line| line.name == *name) {
                diff::line(Some(seen), Some(&line), now, &mut changes);
                *seen = Seen { line, at: now };
            } else {
                diff::line(Some(seen), None, now, &mut changes);
                gone.push(name.clone());
            }
        }
        for name in gone {
            self.lines.remove(&name);
        }
        for line in fresh.into_iter().chain(found) {
            if !is_new(&line.name) {
                diff::line(None, Some(&line), now, &mut changes);
            }
            self.lines.insert(line.name.clone(), Seen { line, at: now });
        }
        self.known = known;
        if !is_known {
            self.known.push(root.clone());
        }
        changes
    }

    /// Forgets all but these parts.
    pub(super) fn keep_only(&mut self, roots: &[Root]) {
        if self.known == roots {
            return;
        }
        self.known.retain(|known| roots.iter().any(|root| root.covers(known)));
        let known = &self.known;
        self.lines.retain(|name, _| known.iter().any(|known| known.has(name)));
    }

    pub(super) fn len(&self) -> usize {
        self.lines.len()
    }

    fn part_mut<'a>(
        &'a mut self,
        root: &'a Root,
    ) -> impl Iterator<Item = (&'a Name, &'a mut Seen)> {
        let from = match root {
            Root::Exact(name) => Included(name.clone()),
            // The empty prefix is no name, and comes before all of them.
            Root::Prefix(prefix) => Name::new(prefix).map_or(Unbounded, Included),
        };
        self.lines.range_mut((from, Unbounded)).take_while(|(name, _)| root.has(name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lockkeeper::{Mode, Ticket, TicketId, store::http::wire::EventKind};

    fn prefix(text: &str) -> Root {
        Root::Prefix(text.to_owned())
    }

    fn lines(names: &[&str]) -> Vec<Line> {
        let line = |name: &&str| {
            let ticket = Ticket::new(TicketId::from_bytes([1; 16]), Mode::Exclusive);
            Line::new(Name::new(name).unwrap(), 1, vec![ticket])
        };
        names.iter().map(line).collect()
    }

    fn told(changes: &[Change]) -> Vec<(EventKind, &str)> {
        changes.iter().map(|change| (change.kind, change.name.as_str())).collect()
    }

    #[test]
    fn the_first_look_at_a_part_is_no_change() {
        let (mut book, now) = (Book::default(), Moment::from_millis(1));
        assert!(book.take_in(&prefix("b/"), lines(&["b/1", "b/2"]), now).is_empty());
        let changes = book.take_in(&prefix("b/"), lines(&["b/0", "b/2"]), now);
        assert_eq!(told(&changes), [(EventKind::Withdrawn, "b/1"), (EventKind::Queued, "b/0")]);
        let changes = book.take_in(&prefix(""), lines(&["a", "b/0", "b/3", "c"]), now);
        assert_eq!(told(&changes), [(EventKind::Withdrawn, "b/2"), (EventKind::Queued, "b/3")]);
        assert_eq!(book.len(), 4);
        let changes = book.take_in(&prefix(""), lines(&["c", "a"]), now);
        assert_eq!(changes.len(), 2, "an order that is not by bytes is put right");
    }

    #[test]
    fn a_part_that_no_viewer_watches_any_more_is_forgotten() {
        let (mut book, now) = (Book::default(), Moment::from_millis(1));
        let name = Root::Exact(Name::new("a").unwrap());
        book.take_in(&prefix("b/"), lines(&["b/1"]), now);
        book.take_in(&name, lines(&["a"]), now);
        book.keep_only(std::slice::from_ref(&name));
        assert_eq!(book.len(), 1);
        assert!(book.take_in(&prefix("b/"), lines(&["b/7"]), now).is_empty(), "first seen again");
        assert_eq!(told(&book.take_in(&name, vec![], now)), [(EventKind::Withdrawn, "a")]);
    }
}
