//! Collecting advice about a server's set-up.

use crate::{clock::Clock, store::Advice};

/// A difference between the server's clock and ours above this is reported, in microseconds.
const SKEW_MICROS: u64 = 30_000_000;

/// The advice found so far.
#[derive(Default)]
pub(in crate::store) struct Findings(pub(in crate::store) Vec<Advice>);

impl Findings {
    /// Adds a piece of advice if the server's set-up is `wrong`.
    pub(in crate::store) fn add_if(
        &mut self,
        wrong: bool,
        what: impl Into<String>,
        consequence: &str,
        remedy: &str,
    ) {
        if wrong {
            let (consequence, remedy) = (consequence.to_owned(), remedy.to_owned());
            self.0.push(Advice { what: what.into(), consequence, remedy });
        }
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
        self.add_if(apart >= SKEW_MICROS, what, consequence, "let both machines keep time (NTP)");
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
