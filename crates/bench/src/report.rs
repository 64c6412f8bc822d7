//! What was measured, for people and for programs.

use crate::machine::Machine;
use serde_json::{Map, Value, json};
use std::fmt;

/// The outcome of one benchmark.
pub(crate) struct Report {
    name: &'static str,
    rows: Vec<Row>,
    targets: Vec<Target>,
    notes: Vec<String>,
}

/// One variant and its figures. A figure's name ends in its unit.
struct Row {
    what: String,
    figures: Vec<(&'static str, f64)>,
}

/// A bound, and how the run did.
struct Target {
    what: String,
    wanted: String,
    value: f64,
    met: bool,
}

impl Report {
    pub(crate) fn new(name: &'static str) -> Self {
        Self { name, rows: Vec::new(), targets: Vec::new(), notes: Vec::new() }
    }

    pub(crate) fn row(&mut self, what: impl Into<String>, figures: &[(&'static str, f64)]) {
        self.rows.push(Row { what: what.into(), figures: figures.to_vec() });
    }

    /// Says how the figures came about.
    pub(crate) fn note(&mut self, note: impl Into<String>) {
        self.notes.push(note.into());
    }

    pub(crate) fn at_least(&mut self, what: impl Into<String>, least: f64, value: f64) {
        let wanted = format!(">= {}", Number(least));
        self.targets.push(Target { what: what.into(), wanted, value, met: value >= least });
    }

    pub(crate) fn below(&mut self, what: impl Into<String>, bound: f64, value: f64) {
        let wanted = format!("< {}", Number(bound));
        self.targets.push(Target { what: what.into(), wanted, value, met: value < bound });
    }

    pub(crate) fn exactly(&mut self, what: impl Into<String>, number: f64, value: f64) {
        let wanted = format!("= {}", Number(number));
        self.targets.push(Target { what: what.into(), wanted, value, met: value == number });
    }

    /// Nothing was measured, for this reason; what could not be measured has missed its targets.
    pub(crate) fn missed(&mut self, why: &str) {
        self.note(format!("not measured: {why}"));
        self.exactly("measured", 1.0, 0.0);
    }

    /// Were all targets met?
    pub(crate) fn met(&self) -> bool {
        self.targets.iter().all(|target| target.met)
    }

    fn json(&self) -> Value {
        let row = |row: &Row| {
            let mut object = Map::new();
            object.insert("what".to_owned(), json!(row.what));
            object
                .extend(row.figures.iter().map(|(name, value)| ((*name).to_owned(), json!(value))));
            Value::Object(object)
        };
        let target = |t: &Target| json!({"what": t.what, "wanted": t.wanted, "value": t.value, "met": t.met});
        json!({
            "name": self.name,
            "rows": self.rows.iter().map(row).collect::<Vec<_>>(),
            "targets": self.targets.iter().map(target).collect::<Vec<_>>(),
            "notes": self.notes,
        })
    }
}

/// Everything as one document.
pub(crate) fn document(machine: &Machine, reports: &[Report]) -> Value {
    json!({
        "machine": machine.json(),
        "benchmarks": reports.iter().map(Report::json).collect::<Vec<_>>(),
        "met": reports.iter().all(Report::met),
    })
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.name)?;
        let width = self.rows.iter().map(|row| row.what.chars().count()).max().unwrap_or(0);
        let mut heading: Vec<&str> = Vec::new();
        for row in &self.rows {
            let names: Vec<&str> = row.figures.iter().map(|(name, _)| *name).collect();
            if names != heading {
                let cells: String = names.iter().map(|name| format!(" {name:>14}")).collect();
                writeln!(f, "  {:width$}{cells}", "")?;
                heading = names;
            }
            let cells = row.figures.iter().map(|(_, value)| format!(" {:>14}", Number(*value)));
            writeln!(f, "  {:width$}{}", row.what, cells.collect::<String>())?;
        }
        for note in &self.notes {
            writeln!(f, "  note: {}", wrapped(note, 92, "\n        "))?;
        }
        for Target { what, wanted, value, met } in &self.targets {
            let verdict = if *met { "met" } else { "MISSED" };
            writeln!(f, "  target: {what} {wanted}: {verdict}, {}", Number(*value))?;
        }
        Ok(())
    }
}

/// The text in lines of about this width.
fn wrapped(text: &str, width: usize, between: &str) -> String {
    let mut lines = vec![String::new()];
    for word in text.split(' ') {
        let line = lines.last_mut().expect("there is always a line");
        if line.is_empty() {
            line.push_str(word);
        } else if line.len() + 1 + word.len() <= width {
            line.push(' ');
            line.push_str(word);
        } else {
            lines.push(word.to_owned());
        }
    }
    lines.join(between)
}

/// A number with as many digits as mean something.
struct Number(f64);

impl fmt::Display for Number {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let digits = match self.0.abs() {
            _ if self.0.fract() == 0.0 => 0,
            x if x >= 1000.0 => 0,
            x if x >= 10.0 => 1,
            x if x >= 0.1 => 2,
            _ => 4,
        };
        f.pad(&format!("{:.digits$}", self.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_show_the_digits_that_mean_something() {
        let shown = [36_213.7, 12.345, 0.834, 0.012, 3.0].map(|x| Number(x).to_string());
        assert_eq!(shown, ["36214", "12.3", "0.83", "0.0120", "3"]);
    }

    #[test]
    fn a_target_is_missed_by_what_could_not_be_measured() {
        let mut report = Report::new("x");
        report.below("a", 1.0, 0.5);
        assert!(report.met());
        report.below("b", 1.0, f64::NAN);
        assert!(!report.met());
        assert!(report.to_string().contains("b < 1: MISSED"));
    }

    #[test]
    fn long_notes_are_wrapped_between_words() {
        assert_eq!(wrapped("one two three", 7, "/"), "one two/three");
        assert_eq!(wrapped("", 7, "/"), "");
    }

    #[test]
    fn the_document_has_the_figures_by_name() {
        let mut report = Report::new("x");
        report.row("floor", &[("pairs_per_s", 2.0)]);
        assert_eq!(report.json()["rows"][0]["pairs_per_s"], 2.0);
    }
}
