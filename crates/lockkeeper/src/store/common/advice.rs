//! Collecting advice about a server's set-up.

use crate::{
    clock::Clock,
    store::{Advice, Severity},
};
#[cfg(any(feature = "mysql", feature = "postgres"))]
use std::collections::HashMap;

/// A difference between the server's clock and ours above this is reported, in microseconds.
const SKEW_MICROS: u64 = 30_000_000;

/// What a server says about itself: settings and figures by their names.
#[cfg(any(feature = "mysql", feature = "postgres"))]
#[derive(Default)]
pub(in crate::store) struct Facts(HashMap<String, String>);

#[cfg(any(feature = "mysql", feature = "postgres"))]
impl Facts {
    /// What the server says of `name`; empty if it does not know it.
    pub(in crate::store) fn get(&self, name: &str) -> &str {
        self.0.get(name).map_or("", String::as_str)
    }

    pub(in crate::store) fn is_on(&self, name: &str) -> bool {
        matches!(self.get(name), "on" | "ON" | "1")
    }

    pub(in crate::store) fn number(&self, name: &str) -> i64 {
        self.get(name).parse().unwrap_or(0)
    }
}

#[cfg(any(feature = "mysql", feature = "postgres"))]
impl Extend<(String, String)> for Facts {
    fn extend<T: IntoIterator<Item = (String, String)>>(&mut self, facts: T) {
        self.0.extend(facts);
    }
}

#[cfg(any(feature = "mysql", feature = "postgres"))]
impl FromIterator<(String, String)> for Facts {
    fn from_iter<T: IntoIterator<Item = (String, String)>>(facts: T) -> Self {
        Self(facts.into_iter().collect())
    }
}

/// The advice found so far.
#[derive(Default)]
pub(in crate::store) struct Findings(pub(in crate::store) Vec<Advice>);

impl Findings {
    /// Adds a piece of advice if the server's set-up is `wrong`.
    pub(in crate::store) fn add_if(
        &mut self,
        wrong: bool,
        code: &'static str,
        severity: Severity,
        what: impl Into<String>,
        consequence: &str,
        remedy: &str,
    ) {
        if wrong {
            self.0.push(Advice::new(code, severity, what, consequence, remedy));
        }
    }

    /// The advice, with what several servers have in common said once.
    #[cfg(feature = "redis")]
    pub(in crate::store) fn without_repeats(self) -> Vec<Advice> {
        let mut all: Vec<Advice> = Vec::new();
        for advice in self.0 {
            if !all.contains(&advice) {
                all.push(advice);
            }
        }
        all
    }

    /// Compares the server's wall clock with ours: it is a floor for fences.
    pub(in crate::store) fn compare_clocks(
        &mut self,
        server_micros: i64,
        clock: &Clock,
        consequence: &str,
    ) {
        let apart = clock.wall_micros().abs_diff(server_micros.cast_unsigned());
        let what = format!("the server's clock and ours are {} seconds apart", apart / 1_000_000);
        self.add_if(
            apart >= SKEW_MICROS,
            "clock-skew",
            Severity::Durability,
            what,
            consequence,
            "let both machines keep time (NTP)",
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_clocks_that_are_far_apart_are_reported() {
        let clock = Clock::movable();
        let ours = i64::try_from(clock.wall_micros()).unwrap();
        let report = |server| {
            let mut findings = Findings::default();
            findings.compare_clocks(server, &clock, "fences may fall back");
            findings.0.len()
        };
        assert_eq!(report(ours + 1_000_000), 0);
        assert_eq!(report(ours + 60_000_000), 1);
        assert_eq!(report(ours - 60_000_000), 1);
    }
}
