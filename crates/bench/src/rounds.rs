//! Interleaved rounds.

use crate::stats::median;
use anyhow::Result;

/// What each variant did in each round.
pub(crate) struct Rounds<T>(Vec<Vec<T>>);

impl<T> Rounds<T> {
    /// Measures every variant once in each round; every second round in reverse, so that none
    /// always comes first.
    pub(crate) fn run<V>(
        rounds: u32,
        variants: &[V],
        mut measure: impl FnMut(&V) -> Result<T>,
    ) -> Result<Self> {
        let mut figures: Vec<Vec<T>> = variants.iter().map(|_| Vec::new()).collect();
        for round in 0..rounds {
            let mut order: Vec<usize> = (0..variants.len()).collect();
            if round % 2 == 1 {
                order.reverse();
            }
            for variant in order {
                figures[variant].push(measure(&variants[variant])?);
            }
        }
        Ok(Self(figures))
    }

    /// All rounds of one variant.
    pub(crate) fn of(&self, variant: usize) -> &[T] {
        &self.0[variant]
    }

    /// A figure of the middle round of a variant.
    pub(crate) fn median(&self, variant: usize, figure: impl Fn(&T) -> f64) -> f64 {
        median(&self.of(variant).iter().map(figure).collect::<Vec<_>>())
    }

    /// The middle of the ratios between two variants in the same round.
    pub(crate) fn ratio(&self, variant: usize, to: usize, figure: impl Fn(&T) -> f64) -> f64 {
        let pairs = self.of(variant).iter().zip(self.of(to));
        median(&pairs.map(|(a, b)| figure(a) / figure(b)).collect::<Vec<_>>())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_compare_within_a_round() {
        // The machine gets slower from round to round; the ratio stays.
        let rounds = Rounds(vec![vec![64.0, 16.0, 4.0], vec![32.0, 8.0, 2.0]]);
        assert_eq!(rounds.ratio(1, 0, |x| *x), 0.5);
        assert_eq!(rounds.median(1, |x| *x), 8.0);
    }

    #[test]
    fn the_order_turns_with_every_round() {
        let mut seen = Vec::new();
        Rounds::run(2, &["a", "b"], |v| {
            seen.push(*v);
            Ok(0.0)
        })
        .unwrap();
        assert_eq!(seen, ["a", "b", "b", "a"]);
    }
}
