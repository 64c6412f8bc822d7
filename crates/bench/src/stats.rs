//! Medians and percentiles.

use lockkeeper::store::clock::Moment;

/// The value below which so many percent of the sample lie; `NaN` for an empty sample.
pub(crate) fn percentile(sample: &[f64], percent: usize) -> f64 {
    let mut sorted = sample.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    let rank = (sorted.len() * percent).div_ceil(100).max(1) - 1;
    sorted.get(rank).copied().unwrap_or(f64::NAN)
}

/// The middle of the sample; between the two that are there if their number is even, since the lower one
/// alone would always say too little.
pub(crate) fn median(sample: &[f64]) -> f64 {
    let mirrored: Vec<f64> = sample.iter().map(|x| -x).collect();
    f64::midpoint(percentile(sample, 50), -percentile(&mirrored, 50))
}

/// The largest value; `NaN` for an empty sample.
pub(crate) fn max(sample: &[f64]) -> f64 {
    percentile(sample, 100)
}

/// Nanoseconds as milliseconds.
#[expect(clippy::cast_precision_loss, reason = "times here are far below 2^53 ns")]
pub(crate) fn millis(nanos: u64) -> f64 {
    nanos as f64 / 1e6
}

/// From one moment to another, in milliseconds.
pub(crate) fn millis_between(from: Moment, to: Moment) -> f64 {
    millis(to.as_nanos().saturating_sub(from.as_nanos()))
}

/// A count as a figure.
#[expect(clippy::cast_precision_loss, reason = "counts here are far below 2^53")]
pub(crate) fn figure(count: u64) -> f64 {
    count as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_values_of_the_sample() {
        let sample = [5.0, 1.0, 4.0, 2.0, 3.0];
        assert_eq!(median(&sample), 3.0);
        assert_eq!(percentile(&sample, 1), 1.0);
        assert_eq!(percentile(&sample, 99), 5.0);
        assert_eq!(max(&sample), 5.0);
        assert!(median(&[]).is_nan());
    }

    #[test]
    fn the_middle_of_an_even_sample_lies_between_two() {
        assert_eq!(median(&[1.0, 9.0, 2.0, 3.0]), 2.5);
    }
}
