//! What came of it: stores × groups.

use crate::{case::Case, fault_store::locked, suite::SLOW};
use std::{collections::BTreeMap, fmt, sync::Mutex, time::Duration};

/// How a case ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Mark {
    /// The promise was kept.
    Passed,
    /// It was not.
    Failed,
    /// The case did not run, for this reason.
    Ignored(String),
}

/// The results of all cases so far. Its `Display` is a table of stores × groups.
#[derive(Debug, Default)]
pub struct Report {
    results: Mutex<Vec<Entry>>,
}

#[derive(Debug)]
struct Entry {
    store: String,
    group: &'static str,
    case: String,
    mark: Mark,
    took: Duration,
}

#[derive(Clone, Copy, Default)]
struct Tally {
    passed: usize,
    failed: usize,
    ignored: usize,
}

impl Tally {
    fn add(&mut self, mark: &Mark) {
        match mark {
            Mark::Passed => self.passed += 1,
            Mark::Failed => self.failed += 1,
            Mark::Ignored(_) => self.ignored += 1,
        }
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { passed, failed, ignored } = self;
        let counts = [(passed, "passed"), (failed, "failed"), (ignored, "ignored")];
        let counts: Vec<String> = counts
            .into_iter()
            .filter(|(count, _)| **count > 0)
            .map(|(count, word)| format!("{count} {word}"))
            .collect();
        // `pad` and not `write_str`: the table gives each column a width.
        f.pad(&counts.join(", "))
    }
}

const COLUMN: usize = 36;

impl Report {
    pub(crate) fn note(&self, store: &str, case: &Case, mark: Mark, took: Duration) {
        let (store, group, case) = (store.to_owned(), case.group, case.name.clone());
        locked(&self.results).push(Entry { store, group, case, mark, took });
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let results = locked(&self.results);
        let mut stores: BTreeMap<&str, Tally> = BTreeMap::new();
        let mut groups: BTreeMap<&str, BTreeMap<&str, Tally>> = BTreeMap::new();
        for entry in results.iter() {
            stores.entry(&entry.store).or_default().add(&entry.mark);
            let row = groups.entry(entry.group).or_default();
            row.entry(&entry.store).or_default().add(&entry.mark);
        }
        write!(f, "{:12}", "")?;
        stores.keys().try_for_each(|store| write!(f, "{store:COLUMN$}"))?;
        writeln!(f)?;
        for (group, row) in groups.iter().chain([(&"all", &stores)]) {
            write!(f, "{group:12}")?;
            for store in stores.keys() {
                write!(f, "{:COLUMN$}", row.get(store).copied().unwrap_or_default())?;
            }
            writeln!(f)?;
        }
        ignored(f, &results)?;
        slow(f, &results)
    }
}

fn ignored(f: &mut fmt::Formatter<'_>, results: &[Entry]) -> fmt::Result {
    let mut reasons: BTreeMap<(&str, &str), usize> = BTreeMap::new();
    for entry in results {
        if let Mark::Ignored(reason) = &entry.mark {
            *reasons.entry((&entry.store, reason)).or_default() += 1;
        }
    }
    for ((store, reason), count) in reasons {
        writeln!(f, "{count} ignored on {store}: {reason}")?;
    }
    Ok(())
}

fn slow(f: &mut fmt::Formatter<'_>, results: &[Entry]) -> fmt::Result {
    let mut slow: Vec<&Entry> = results.iter().filter(|entry| entry.took > SLOW).collect();
    slow.sort_by_key(|entry| std::cmp::Reverse(entry.took));
    for Entry { store, group, case, took, .. } in slow.into_iter().take(10) {
        writeln!(f, "{took:6.1?} {store}::{group}::{case}")?;
    }
    Ok(())
}
