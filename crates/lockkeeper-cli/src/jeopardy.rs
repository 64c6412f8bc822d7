//! A lock that is held and not renewed in time: told once when that begins, and once when it is over.

use crate::{
    cli::OnLost,
    duration,
    event::{Event, Voice},
    output::printable,
};
use lockkeeper::{Guard, Health};
use std::time::Duration;

/// How much later than planned a renewal is told to be overdue.
const OVERDUE: Duration = Duration::from_secs(1);

/// What has been told of renewals that fail.
#[derive(Debug, Default)]
pub(crate) struct Jeopardy {
    /// The last look found the renewal overdue. The first look after this process was stopped does so too.
    seen: bool,
    told: bool,
    /// The longest time without a renewal that was seen.
    longest: Duration,
}

impl Jeopardy {
    /// Looks how the lock stands.
    pub(crate) fn note(&mut self, guard: &Guard, voice: Voice, on_lost: OnLost) {
        if !guard.is_held() {
            // The loss is told by itself.
            return;
        }
        let terms = guard.terms();
        let name = guard.name().as_str();
        let (left, belief) = (guard.remaining(), terms.belief());
        let not_renewed = belief.saturating_sub(left);
        let overdue = not_renewed > terms.ttl / 3 + OVERDUE;
        if overdue && self.seen && !self.told {
            self.told = true;
            let (not_renewed_ms, lost_in_ms) = (duration::ms(not_renewed), duration::ms(left));
            let event = Event::Jeopardy { name, not_renewed_ms, lost_in_ms };
            voice.tell(&event, Some(&begun(name, not_renewed, belief, on_lost)));
        }
        if self.told && !overdue && guard.health() == Health::Held {
            let event = Event::JeopardyOver { name, not_renewed_ms: duration::ms(self.longest) };
            let longest = duration::words(self.longest);
            let words = format!("`{}` renewed again after {longest}", printable(name));
            voice.tell(&event, Some(&words));
            *self = Self::default();
        }
        self.seen = overdue;
        self.longest = if overdue { not_renewed } else { self.longest };
    }
}

/// "`deploy` not renewed for 6 s; stops at 14 s"
fn begun(name: &str, not_renewed: Duration, belief: Duration, on_lost: OnLost) -> String {
    let end = match on_lost {
        OnLost::Term => "stops",
        OnLost::Ignore => "lost",
    };
    let (not_renewed, belief) = (duration::words(not_renewed), duration::words(belief));
    format!("`{}` not renewed for {not_renewed}; {end} at {belief}", printable(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_comes_of_it_is_told_with_both_times() {
        let (six, fourteen) = (Duration::from_secs(6), Duration::from_secs(14));
        let words = |on_lost| begun("a\n", six, fourteen, on_lost);
        assert_eq!(words(OnLost::Term), "`a\\u{a}` not renewed for 6 s; stops at 14 s");
        assert_eq!(words(OnLost::Ignore), "`a\\u{a}` not renewed for 6 s; lost at 14 s");
    }
}
