//! Measured times, and how they are spread.

use crate::handover::{micros, short};
use serde_json::{Value, json};
use std::{fmt::Write as _, time::Duration};

/// The longest bar, in characters.
const BAR: u64 = 40;

/// The times of one kind of step.
#[derive(Debug)]
pub(super) struct Samples {
    /// Its name in JSON.
    code: &'static str,
    words: &'static str,
    times: Vec<Duration>,
    lasted: Duration,
}

impl Samples {
    pub(super) fn new(code: &'static str, words: &'static str) -> Self {
        Self { code, words, times: Vec::new(), lasted: Duration::ZERO }
    }

    pub(super) fn add(&mut self, time: Duration) {
        self.times.push(time);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.times.is_empty()
    }

    /// All samples are there; they took so long together.
    pub(super) fn lasting(mut self, lasted: Duration) -> Self {
        self.times.sort_unstable();
        self.lasted = lasted;
        self
    }

    /// The time that so many of a hundred samples do not exceed.
    fn percentile(&self, percent: usize) -> Duration {
        let rank = (self.times.len() * percent).div_ceil(100).max(1) - 1;
        self.times.get(rank).copied().unwrap_or_default()
    }

    fn per_second(&self) -> f64 {
        let seconds = self.lasted.as_secs_f64();
        let count = u32::try_from(self.times.len()).unwrap_or(u32::MAX);
        if seconds > 0.0 { f64::from(count) / seconds } else { 0.0 }
    }

    /// How many samples took up to each power of two of microseconds, without the empty ends.
    fn buckets(&self) -> Vec<(u64, u64)> {
        let top = |time: &Duration| micros(*time).max(1).next_power_of_two();
        let (Some(first), Some(last)) = (self.times.first(), self.times.last()) else {
            return Vec::new();
        };
        let mut buckets = vec![(top(first), 0)];
        for time in &self.times {
            while let Some((most, count)) = buckets.last_mut() {
                if *most >= top(time) {
                    *count += 1;
                    break;
                }
                let most = *most * 2;
                buckets.push((most, 0));
            }
        }
        debug_assert_eq!(buckets.last().map(|(most, _)| *most), Some(top(last)), "sorted");
        buckets
    }

    pub(super) fn json(&self) -> Value {
        let buckets = self.buckets();
        let buckets: Vec<_> = buckets
            .iter()
            .map(|(most, count)| json!({ "up_to_us": most, "count": count }))
            .collect();
        json!({
            "what": self.code,
            "count": self.times.len(),
            "per_second": (self.per_second() * 10.0).round() / 10.0,
            "p50_us": micros(self.percentile(50)),
            "p99_us": micros(self.percentile(99)),
            "max_us": micros(self.percentile(100)),
            "histogram": buckets,
        })
    }

    pub(super) fn text(&self) -> String {
        let (p50, p99, most) = (self.percentile(50), self.percentile(99), self.percentile(100));
        let mut text = format!(
            "\n{:<20} {} times, {:.0} a second   p50 {}   p99 {}   max {}\n",
            self.words,
            self.times.len(),
            self.per_second(),
            short(p50),
            short(p99),
            short(most)
        );
        let buckets = self.buckets();
        let highest = buckets.iter().map(|(_, count)| *count).max().unwrap_or(1).max(1);
        for (most, count) in buckets {
            let bar = "█".repeat(usize::try_from((count * BAR).div_ceil(highest)).unwrap_or(0));
            let most = short(Duration::from_micros(most));
            let _ = writeln!(text, "  ≤ {most:>8}  {count:>7} {bar}");
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples(micros: &[u64]) -> Samples {
        let mut samples = Samples::new("a", "a");
        micros.iter().for_each(|micros| samples.add(Duration::from_micros(*micros)));
        samples.lasting(Duration::from_secs(2))
    }

    #[test]
    fn percentiles_are_those_of_the_sorted_times() {
        let all: Vec<u64> = (1..=100).rev().collect();
        let json = samples(&all).json();
        assert_eq!(
            (&json["p50_us"], &json["p99_us"], &json["max_us"]),
            (&json!(50), &json!(99), &json!(100))
        );
        assert_eq!((&json["count"], &json["per_second"]), (&json!(100), &json!(50.0)));
        assert_eq!(samples(&[7]).json()["p99_us"], 7);
    }

    #[test]
    fn the_histogram_has_every_sample_in_a_bucket_that_it_fits() {
        assert_eq!(samples(&[3, 4, 5, 20]).buckets(), [(4, 2), (8, 1), (16, 0), (32, 1)]);
        assert_eq!(samples(&[0]).buckets(), [(1, 1)]);
        let text = samples(&[1000, 1000, 9000]).text();
        let bars = |most: &str| {
            text.lines()
                .find(|line| line.contains(most))
                .map_or(0, |line| line.matches('█').count())
        };
        assert_eq!((bars("≤   1.0 ms"), bars("≤  16.4 ms")), (40, 20), "{text}");
    }
}
