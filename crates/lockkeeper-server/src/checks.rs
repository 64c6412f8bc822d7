//! What requests ask for, within bounds. The store trusts its caller in form, so this is where form is checked.

use crate::{extract::millis, problem::Problem};
use lockkeeper::{
    LABEL_MAX, Mode, Owner, PERMITS_MAX, TIME_MAX, TTL_MIN, Terms,
    store::http::wire::{self, SessionTerms, WAIT_MAX_MS},
};
use std::time::Duration;

/// The longest host and program of an owner, in bytes.
const OWNER_MAX: usize = 64;

pub(crate) fn ttl(ms: Option<u64>, default: Duration) -> Result<Duration, Problem> {
    let ttl = ms.map_or(default, Duration::from_millis);
    within("ttl_ms", ttl, TTL_MIN)
}

pub(crate) fn lock_delay(ms: Option<u64>, default: Duration) -> Result<Duration, Problem> {
    within("lock_delay_ms", ms.map_or(default, Duration::from_millis), Duration::ZERO)
}

pub(crate) fn keep(ms: Option<u64>) -> Result<Option<Duration>, Problem> {
    let time = ms.filter(|ms| *ms > 0).map(Duration::from_millis);
    time.map(|time| within("keep_ms", time, Duration::ZERO)).transpose()
}

pub(crate) fn wait(ms: Option<u64>) -> Result<Duration, Problem> {
    match ms.unwrap_or(0) {
        ms if ms > WAIT_MAX_MS => Err(Problem::option(format!(
            "wait_ms is at most {WAIT_MAX_MS}; to wait longer, ask again with the same ticket"
        ))),
        ms => Ok(Duration::from_millis(ms)),
    }
}

fn within(what: &str, time: Duration, min: Duration) -> Result<Duration, Problem> {
    if time >= min && time <= TIME_MAX {
        return Ok(time);
    }
    let (min, max) = (millis(min), millis(TIME_MAX));
    Err(Problem::option(format!("{what} must be between {min} and {max}, not {}", millis(time))))
}

pub(crate) fn mode(mode: Mode) -> Result<Mode, Problem> {
    match mode {
        Mode::Permits { of, .. } if !(1..=PERMITS_MAX).contains(&of) => {
            Err(Problem::option(format!("a semaphore has 1 to {PERMITS_MAX} permits, not {of}")))
        }
        Mode::Permits { weight, of } if !(1..=of).contains(&weight) => {
            Err(Problem::option(format!("weight must be between 1 and {of}, not {weight}")))
        }
        mode => Ok(mode),
    }
}

/// A label from its text, or from its bytes in base64.
pub(crate) fn label(text: Option<String>, base64: Option<&str>) -> Result<Vec<u8>, Problem> {
    let label = match (text, base64) {
        (_, Some(base64)) => wire::from_base64(base64)
            .ok_or_else(|| Problem::option("label_base64 is not base64 with its padding"))?,
        (text, None) => text.unwrap_or_default().into_bytes(),
    };
    match label.len() {
        len if len > LABEL_MAX => {
            Err(Problem::option(format!("a label has at most {LABEL_MAX} bytes, not {len}")))
        }
        _ => Ok(label),
    }
}

/// A label as answers have it.
pub(crate) fn shown(label: &[u8]) -> wire::Label {
    wire::Label::of(label)
}

/// The owner that a request names, cut to lengths that every store can keep.
pub(crate) fn owner(owner: Option<Owner>) -> Owner {
    let mut owner = owner.unwrap_or_default();
    for text in [&mut owner.host, &mut owner.program] {
        text.retain(|c| !c.is_control());
        text.truncate((0..=OWNER_MAX).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0));
    }
    owner
}

/// Terms as answers have them.
pub(crate) fn terms(terms: &Terms) -> SessionTerms {
    SessionTerms {
        ttl_ms: millis(terms.ttl),
        lock_delay_ms: millis(terms.lock_delay),
        margin_ms: millis(terms.margin),
        renew_after_ms: millis((terms.ttl / 3).min(terms.belief() / 2)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_that_are_no_text_travel_as_base64() {
        for bytes in [&b""[..], b"f", b"fo", b"foo", b"foob", b"fooba", b"foobar", &[0xff, 0, 0x80]]
        {
            let text = wire::to_base64(bytes);
            assert_eq!(label(None, Some(&text)).unwrap(), bytes);
        }
        assert_eq!(wire::to_base64(b"fooba"), "Zm9vYmE=");
        for wrong in ["Zg", "Zg=", "Zh==", "====", "Z===", "Zm9v!mE=", "Zm=v"] {
            assert!(label(None, Some(wrong)).is_err(), "{wrong}");
        }
        let shown = shown(&[0xff]);
        assert_eq!(
            (shown.label.as_str(), shown.label_base64.as_deref()),
            ("\u{fffd}", Some("/w=="))
        );
        assert_eq!(label(Some("x".into()), Some("/w==")).unwrap(), [0xff]);
    }

    #[test]
    fn what_is_out_of_bounds_is_refused_and_said() {
        assert!(ttl(Some(99), TTL_MIN).is_err() && ttl(Some(100), TTL_MIN).is_ok());
        assert!(ttl(Some(u64::MAX), TTL_MIN).is_err());
        assert!(wait(Some(WAIT_MAX_MS)).is_ok() && wait(Some(WAIT_MAX_MS + 1)).is_err());
        assert!(label(Some("x".repeat(LABEL_MAX + 1)), None).is_err());
        let wrong = [(0, 1), (2, 1), (1, 0), (1, PERMITS_MAX + 1)];
        for (weight, of) in wrong {
            assert!(mode(Mode::Permits { weight, of }).is_err(), "{weight} of {of}");
        }
        assert_eq!(owner(Some(Owner::new("é".repeat(40), 1, "a\n"))).host.len(), 64);
    }
}
