//! Durations as people write and read them.

use humantime::format_duration;
use lockkeeper::{TIME_MAX, TTL_MIN};
use std::time::Duration;

const MINUTE: u64 = 60;
const HOUR: u64 = 60 * MINUTE;
const DAY: u64 = 24 * HOUR;

/// Reads a plain number of seconds, as flock does, or a duration with a unit.
pub(crate) fn parse(text: &str) -> Result<Duration, String> {
    let plain = text.bytes().all(|b| b.is_ascii_digit() || b == b'.');
    let parsed = if plain {
        text.parse().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok())
    } else {
        humantime::parse_duration(text).ok()
    };
    parsed.ok_or_else(|| "write seconds, as in 30 or 0.5, or a unit, as in 250ms, 30s or 2m".into())
}

/// Reads how long something that the store remembers lasts.
pub(crate) fn bounded(text: &str) -> Result<Duration, String> {
    match parse(text)? {
        time if time > TIME_MAX => Err(format!("at most {}", format_duration(TIME_MAX))),
        time => Ok(time),
    }
}

const NO_HOLD: &str = "more than 0; without --max-hold the lock is held until the command ends";

/// Reads the longest time for which a lock is held.
pub(crate) fn max_hold(text: &str) -> Result<Duration, String> {
    match bounded(text)? {
        Duration::ZERO => Err(NO_HOLD.into()),
        time => Ok(time),
    }
}

/// Reads a time to live.
pub(crate) fn ttl(text: &str) -> Result<Duration, String> {
    match bounded(text)? {
        time if time < TTL_MIN => Err(format!("at least {}", format_duration(TTL_MIN))),
        time => Ok(time),
    }
}

/// A duration as it is written on the command line.
pub(crate) fn flag(duration: Duration) -> String {
    format_duration(duration).to_string().replace(' ', "")
}

/// An age for people: the two largest units, whole seconds.
pub(crate) fn words(duration: Duration) -> String {
    let seconds = duration.as_secs();
    match seconds {
        0..MINUTE => format!("{seconds} s"),
        MINUTE..HOUR => two(seconds, MINUTE, "min", 1, "s"),
        HOUR..DAY => two(seconds, HOUR, "h", MINUTE, "min"),
        _ => two(seconds, DAY, "d", HOUR, "h"),
    }
}

fn two(seconds: u64, large: u64, name: &str, small: u64, small_name: &str) -> String {
    let (whole, rest) = (seconds / large, seconds % large / small);
    match rest {
        0 => format!("{whole} {name}"),
        _ => format!("{whole} {name} {rest} {small_name}"),
    }
}

/// A length of time that may be short.
pub(crate) fn exact(duration: Duration) -> String {
    match duration.as_secs() {
        0..10 => format!("{:.1} s", duration.as_secs_f64()),
        _ => words(duration),
    }
}

/// Milliseconds for machines.
pub(crate) fn ms(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plain_number_is_seconds() {
        assert_eq!(parse("30"), Ok(Duration::from_secs(30)));
        assert_eq!(parse("0.25"), Ok(Duration::from_millis(250)));
        assert_eq!(parse(".5"), Ok(Duration::from_millis(500)));
        assert_eq!(parse("0"), Ok(Duration::ZERO));
    }

    #[test]
    fn a_unit_is_understood() {
        assert_eq!(parse("250ms"), Ok(Duration::from_millis(250)));
        assert_eq!(parse("2m"), Ok(Duration::from_secs(120)));
        assert_eq!(parse("1h 30m"), Ok(Duration::from_secs(5400)));
    }

    #[test]
    fn nonsense_is_refused_with_an_example() {
        for bad in ["", ".", "1.2.3", "-1", "soon", "inf", "NaN", "1e9", "99999999999999999999"] {
            assert!(parse(bad).unwrap_err().contains("250ms"), "{bad}");
        }
    }

    #[test]
    fn times_out_of_bounds_are_refused_with_the_bound() {
        assert_eq!(ttl("0"), Err("at least 100ms".into()));
        assert_eq!(ttl("25h"), Err("at most 1day".into()));
        assert_eq!(bounded("0"), Ok(Duration::ZERO));
        assert_eq!(flag(Duration::from_millis(61_500)), "1m1s500ms");
    }

    #[test]
    fn ages_have_two_units_at_most() {
        let words = |seconds| words(Duration::from_secs(seconds));
        assert_eq!(words(0), "0 s");
        assert_eq!(words(42), "42 s");
        assert_eq!(words(60), "1 min");
        assert_eq!(words(192), "3 min 12 s");
        assert_eq!(words(7500), "2 h 5 min");
        assert_eq!(words(3 * DAY + 4 * HOUR + 59), "3 d 4 h");
    }
}
