//! Counters and histograms, and how Prometheus reads them.

use std::{
    collections::BTreeMap,
    fmt::{self, Write as _},
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

/// Labels and their values, in the order of the family's names.
type Values = Vec<String>;

/// A family of counters that differ in their labels.
#[derive(Debug)]
pub(super) struct Counters {
    name: &'static str,
    help: &'static str,
    labels: &'static [&'static str],
    counts: Mutex<BTreeMap<Values, u64>>,
}

impl Counters {
    pub(super) const fn new(
        name: &'static str,
        help: &'static str,
        labels: &'static [&'static str],
    ) -> Self {
        Self { name, help, labels, counts: Mutex::new(BTreeMap::new()) }
    }

    pub(super) fn add(&self, values: &[&str]) {
        add(&mut lock(&self.counts), values, || 0, |count| *count += 1);
    }

    /// The same, for labels whose values a client chooses: at most so many of them, and one for all others.
    pub(super) fn add_bounded(&self, value: &str, most: usize) {
        let mut counts = lock(&self.counts);
        let is_known = counts.contains_key(std::slice::from_ref(&value.to_owned()));
        let value = if is_known || counts.len() < most { value } else { "(others)" };
        add(&mut counts, &[value], || 0, |count| *count += 1);
    }
}

impl fmt::Display for Counters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let counts = lock(&self.counts);
        if counts.is_empty() {
            return Ok(());
        }
        head(f, self.name, self.help, "counter")?;
        for (values, count) in &*counts {
            writeln!(f, "{}{} {count}", self.name, Labels(self.labels, values, None))?;
        }
        Ok(())
    }
}

/// A family of histograms of times.
#[derive(Debug)]
pub(super) struct Histograms {
    name: &'static str,
    help: &'static str,
    labels: &'static [&'static str],
    /// Upper bounds in seconds, ascending.
    bounds: &'static [f64],
    figures: Mutex<BTreeMap<Values, Histogram>>,
}

#[derive(Debug)]
struct Histogram {
    /// One for each bound, and one for what is longer.
    counts: Vec<u64>,
    sum: Duration,
}

impl Histograms {
    pub(super) const fn new(
        name: &'static str,
        help: &'static str,
        labels: &'static [&'static str],
        bounds: &'static [f64],
    ) -> Self {
        Self { name, help, labels, bounds, figures: Mutex::new(BTreeMap::new()) }
    }

    pub(super) fn note(&self, values: &[&str], time: Duration) {
        let seconds = time.as_secs_f64();
        let bucket = self.bounds.iter().take_while(|bound| seconds > **bound).count();
        let fresh = || Histogram { counts: vec![0; self.bounds.len() + 1], sum: Duration::ZERO };
        add(&mut lock(&self.figures), values, fresh, |histogram| {
            histogram.counts[bucket] += 1;
            histogram.sum = histogram.sum.saturating_add(time);
        });
    }
}

impl fmt::Display for Histograms {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let figures = lock(&self.figures);
        if figures.is_empty() {
            return Ok(());
        }
        head(f, self.name, self.help, "histogram")?;
        for (values, Histogram { counts, sum }) in &*figures {
            let mut total = 0;
            for (at, count) in counts.iter().enumerate() {
                total += count;
                let bound = self.bounds.get(at).map_or("+Inf".to_owned(), f64::to_string);
                let labels = Labels(self.labels, values, Some(("le", &bound)));
                writeln!(f, "{}_bucket{labels} {total}", self.name)?;
            }
            let labels = Labels(self.labels, values, None);
            writeln!(f, "{}_sum{labels} {}", self.name, sum.as_secs_f64())?;
            writeln!(f, "{}_count{labels} {total}", self.name)?;
        }
        Ok(())
    }
}

/// One figure that goes up and down.
pub(super) fn gauge(to: &mut String, name: &str, help: &str, value: impl fmt::Display) {
    let _ = head(to, name, help, "gauge");
    let _ = writeln!(to, "{name} {value}");
}

/// A gauge that is always 1 and says something in its labels.
pub(super) fn info(to: &mut String, name: &str, help: &str, labels: &[(&str, &str)]) {
    let _ = head(to, name, help, "gauge");
    let names: Vec<&str> = labels.iter().map(|(name, _)| *name).collect();
    let values: Values = labels.iter().map(|(_, value)| (*value).to_owned()).collect();
    let _ = writeln!(to, "{name}{} 1", Labels(&names, &values, None));
}

fn head(f: &mut impl fmt::Write, name: &str, help: &str, kind: &str) -> fmt::Result {
    writeln!(f, "# HELP {name} {help}\n# TYPE {name} {kind}")
}

struct Labels<'a>(&'a [&'a str], &'a [String], Option<(&'a str, &'a str)>);

impl fmt::Display for Labels<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(names, values, last) = self;
        let named = names.iter().copied().zip(values.iter().map(String::as_str)).chain(*last);
        let mut before = '{';
        for (name, value) in named {
            let value = value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
            write!(f, "{before}{name}=\"{value}\"")?;
            before = ',';
        }
        if before == ',' { f.write_char('}') } else { Ok(()) }
    }
}

fn add<T>(
    to: &mut BTreeMap<Values, T>,
    values: &[&str],
    fresh: impl FnOnce() -> T,
    change: impl FnOnce(&mut T),
) {
    let values: Values = values.iter().map(|value| (*value).to_owned()).collect();
    change(to.entry(values).or_insert_with(fresh));
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_counter_reads_as_prometheus_wants_it() {
        let counters = Counters::new("things_total", "Things.", &["kind"]);
        assert_eq!(counters.to_string(), "");
        counters.add(&["a\"b\\c\n"]);
        counters.add(&["a\"b\\c\n"]);
        let text = "# HELP things_total Things.\n# TYPE things_total counter\n\
                    things_total{kind=\"a\\\"b\\\\c\\n\"} 2\n";
        assert_eq!(counters.to_string(), text);
    }

    #[test]
    fn labels_that_clients_choose_are_bounded() {
        let counters = Counters::new("x", "x", &["lock"]);
        for at in 0..9 {
            counters.add_bounded(&format!("lock-{}", at % 6), 3);
        }
        let text = counters.to_string();
        assert!(text.contains("x{lock=\"lock-0\"} 2\n"), "{text}");
        assert!(text.contains("x{lock=\"(others)\"} 3\n"), "{text}");
        assert!(!text.contains("lock-3"), "{text}");
    }

    #[test]
    fn the_buckets_of_a_histogram_add_up() {
        let times = Histograms::new("t_seconds", "T.", &["outcome"], &[0.01, 1.0]);
        for ms in [10, 500, 5_000] {
            times.note(&["ok"], Duration::from_millis(ms));
        }
        let text = times.to_string();
        let lines: Vec<&str> = text.lines().skip(2).collect();
        assert_eq!(
            lines,
            [
                "t_seconds_bucket{outcome=\"ok\",le=\"0.01\"} 1",
                "t_seconds_bucket{outcome=\"ok\",le=\"1\"} 2",
                "t_seconds_bucket{outcome=\"ok\",le=\"+Inf\"} 3",
                "t_seconds_sum{outcome=\"ok\"} 5.51",
                "t_seconds_count{outcome=\"ok\"} 3",
            ]
        );
    }
}
