//! Which part of the names viewers watch.

use lockkeeper::{Name, store::clock::Moment};
use std::{collections::BTreeMap, time::Duration};

/// For how long a part is looked at after its last viewer has left, so that a viewer that connects again misses
/// nothing.
pub(super) const LINGER: Duration = Duration::from_secs(15);

/// A part of the names.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Root {
    /// All names that begin so.
    Prefix(String),
    /// This one.
    Exact(Name),
}

impl Root {
    pub(super) fn has(&self, name: &Name) -> bool {
        match self {
            Self::Prefix(prefix) => name.as_str().starts_with(prefix.as_str()),
            Self::Exact(exact) => exact == name,
        }
    }

    pub(super) fn covers(&self, other: &Self) -> bool {
        match (self, other) {
            (_, Self::Exact(name)) => self.has(name),
            (Self::Prefix(short), Self::Prefix(long)) => long.starts_with(short.as_str()),
            (Self::Exact(_), Self::Prefix(_)) => false,
        }
    }
}

/// From when on the looks at a part are without a gap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Since {
    /// Every later event has a greater number.
    pub(super) seq: u64,
    /// By the wall clock.
    pub(super) wall_micros: u64,
}

#[derive(Debug, Default)]
struct Watched {
    viewers: usize,
    /// When the part is given up, after its last viewer has left.
    until: Option<Moment>,
    since: Option<Since>,
}

/// The parts that are watched.
#[derive(Debug, Default)]
pub(super) struct Roots(BTreeMap<Root, Watched>);

impl Roots {
    pub(super) fn enter(&mut self, root: &Root) {
        let since = self.since(root);
        let watched = self.0.entry(root.clone()).or_default();
        watched.viewers += 1;
        watched.until = None;
        watched.since = watched.since.or(since);
    }

    pub(super) fn leave(&mut self, root: &Root, now: Moment) {
        if let Some(watched) = self.0.get_mut(root) {
            watched.viewers = watched.viewers.saturating_sub(1);
            watched.until = (watched.viewers == 0).then(|| now + LINGER);
        }
    }

    /// Since when the looks at this part are without a gap; `None` before the first one.
    pub(super) fn since(&self, root: &Root) -> Option<Since> {
        let covering = self.0.iter().filter(|(known, _)| known.covers(root));
        covering.filter_map(|(_, watched)| watched.since).min_by_key(|since| since.seq)
    }

    /// Gives up the parts that no viewer watches any more, and says which looks show all others: no part twice.
    pub(super) fn retain_watched(&mut self, now: Moment) -> Vec<Root> {
        self.0.retain(|_, watched| watched.until.is_none_or(|until| until > now));
        self.smallest(|_| true)
    }

    /// The parts that no look has shown yet.
    pub(super) fn unseen(&self) -> Vec<Root> {
        self.smallest(|watched| watched.since.is_none())
    }

    /// Prefixes stand before names, and a prefix right before those that it covers.
    fn smallest(&self, wanted: impl Fn(&Watched) -> bool) -> Vec<Root> {
        let mut prefixes: Vec<Root> = Vec::new();
        let mut names = Vec::new();
        for (root, _) in self.0.iter().filter(|(_, watched)| wanted(watched)) {
            match root {
                Root::Prefix(_) if prefixes.last().is_some_and(|last| last.covers(root)) => {}
                Root::Prefix(_) => prefixes.push(root.clone()),
                Root::Exact(_) if prefixes.iter().any(|prefix| prefix.covers(root)) => {}
                Root::Exact(_) => names.push(root.clone()),
            }
        }
        prefixes.append(&mut names);
        prefixes
    }

    /// A look has shown these parts.
    pub(super) fn looked_at(&mut self, shown: &[Root], since: Since) {
        for (root, watched) in &mut self.0 {
            if watched.since.is_none() && shown.iter().any(|one| one.covers(root)) {
                watched.since = Some(since);
            }
        }
    }

    pub(super) fn clear(&mut self) {
        self.0.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prefix(text: &str) -> Root {
        Root::Prefix(text.to_owned())
    }

    fn exact(text: &str) -> Root {
        Root::Exact(Name::new(text).unwrap())
    }

    const FIRST: Since = Since { seq: 7, wall_micros: 7 };

    #[test]
    fn no_part_is_looked_at_twice_and_none_that_no_viewer_watches() {
        let (mut roots, now) = (Roots::default(), Moment::from_millis(1));
        for root in [prefix("jobs/"), prefix("jobs/a"), prefix("job"), exact("jobs/a"), exact("z")]
        {
            roots.enter(&root);
        }
        assert_eq!(roots.retain_watched(now), [prefix("job"), exact("z")]);
        roots.leave(&prefix("job"), now);
        assert_eq!(roots.retain_watched(now), [prefix("job"), exact("z")], "it lingers");
        assert_eq!(roots.retain_watched(now + LINGER), [prefix("jobs/"), exact("z")]);
    }

    #[test]
    fn a_part_inside_a_watched_one_is_shown_already() {
        let mut roots = Roots::default();
        roots.enter(&prefix("jobs/"));
        assert_eq!(roots.since(&exact("jobs/a")), None);
        roots.looked_at(&[prefix("jobs/")], FIRST);
        roots.enter(&exact("jobs/a"));
        assert_eq!(roots.since(&exact("jobs/a")), Some(FIRST));
        roots.enter(&prefix(""));
        assert_eq!(roots.unseen(), [prefix("")]);
        roots.looked_at(&[prefix("")], Since { seq: 9, wall_micros: 9 });
        assert_eq!(roots.since(&exact("jobs/a")), Some(FIRST));
        assert_eq!(roots.since(&exact("other")).map(|since| since.seq), Some(9));
        assert!(roots.unseen().is_empty());
    }
}
