//! What `run` has to tell: a line of words for people, or of JSON for programs, always on stderr.

use crate::{duration, output, stderr};
use lockkeeper::{Guard, Holder, Mode, Sequencer, Ticket, Wait};
use serde::Serialize;
use std::time::Duration;

/// Something that happened to the lock.
#[derive(Debug, Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub(crate) enum Event<'a> {
    /// The lock is held, and we stand in line for it.
    Waiting {
        /// The lock.
        name: &'a str,
        /// How many tickets stand before ours, holders included.
        ahead: usize,
        /// Our place in the line behind the holders, as `show` counts it; none if it is not known.
        place: Option<usize>,
        /// Do we stand in line? Else the lock is tried again and again.
        fair: bool,
        /// Who holds it, if the store says so.
        holder: Option<HolderView>,
    },
    /// The store does not answer, and the wait goes on.
    Outage {
        /// The lock.
        name: &'a str,
        /// For how long it has not answered.
        outage_ms: u64,
    },
    /// The store answers again.
    OutageOver {
        /// The lock.
        name: &'a str,
        /// For how long it had not answered.
        outage_ms: u64,
    },
    /// The lock is ours.
    Granted {
        /// The lock.
        name: &'a str,
        /// How.
        mode: ModeView,
        /// The number of the grant; none where the store has none.
        fence: Option<u64>,
        /// The ticket.
        ticket: String,
        /// The grant as text.
        sequencer: String,
        /// How long it took.
        waited_ms: u64,
        /// How long the lock outlives our last sign of life.
        ttl_ms: u64,
        /// For how long the store keeps it closed after that.
        lock_delay_ms: u64,
    },
    /// The run around this one holds the lock, and the command runs under its grant.
    Reentered {
        /// The lock.
        name: &'a str,
        /// How it is held.
        mode: ModeView,
        /// The number of the grant; none where the store has none.
        fence: Option<u64>,
        /// The ticket.
        ticket: String,
        /// The grant as text.
        sequencer: String,
    },
    /// The lock is held, but was not renewed in time: unless the store answers, it will be lost.
    Jeopardy {
        /// The lock.
        name: &'a str,
        /// How long ago the last renewal was sent that the store has answered.
        not_renewed_ms: u64,
        /// When the lock is lost, counted from now.
        lost_in_ms: u64,
    },
    /// The lock was renewed after all.
    JeopardyOver {
        /// The lock.
        name: &'a str,
        /// For how long it was not.
        not_renewed_ms: u64,
    },
    /// The lock could not be had, or not in time.
    NotAcquired {
        /// The lock.
        name: &'a str,
        /// How long it was tried.
        waited_ms: u64,
        /// Who holds it, if that is known.
        holder: Option<HolderView>,
    },
    /// The lock was held, and is no more.
    Lost {
        /// The lock.
        name: &'a str,
        /// In one word.
        why: &'static str,
        /// In a sentence.
        message: String,
    },
    /// The command has ended and the lock is free again.
    Released {
        /// The lock.
        name: &'a str,
    },
}

/// How a lock is taken.
#[derive(Clone, Copy, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ModeView {
    /// By one.
    Exclusive,
    /// By many.
    Shared,
    /// By as many as there are permits.
    Permits,
}

impl From<Mode> for ModeView {
    fn from(mode: Mode) -> Self {
        match mode {
            Mode::Exclusive => Self::Exclusive,
            Mode::Shared => Self::Shared,
            _ => Self::Permits,
        }
    }
}

/// A lock's holder.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct HolderView {
    /// None for a client of another library, as the number of its process.
    host: Option<String>,
    pid: Option<u32>,
    program: String,
    label: Option<String>,
    held_ms: Option<u64>,
}

impl From<&Holder> for HolderView {
    fn from(holder: &Holder) -> Self {
        let owner = &holder.owner;
        let known = !owner.is_unknown();
        Self {
            host: known.then(|| owner.host.clone()),
            pid: known.then_some(owner.pid),
            program: owner.program.clone(),
            label: label(&holder.label),
            held_ms: holder.held_for.map(duration::ms),
        }
    }
}

/// The holder of a granted ticket; none if it has outlived its session.
pub(crate) fn holder(ticket: &Ticket) -> Option<HolderView> {
    as_holder(ticket).as_ref().map(Into::into)
}

fn as_holder(ticket: &Ticket) -> Option<Holder> {
    let owner = ticket.owner.clone()?;
    Some(Holder::new(owner, ticket.label.clone(), ticket.granted_ago))
}

/// How a granted ticket is held, in words.
pub(crate) fn held_words(ticket: &Ticket) -> String {
    match as_holder(ticket) {
        Some(holder) => held_by(&holder, Duration::ZERO),
        None if ticket.ends_in == Duration::MAX => "kept closed".to_owned(),
        None => format!("kept closed for another {}", duration::words(ticket.ends_in)),
    }
}

/// A ticket's label as text; none if it is empty.
pub(crate) fn label(label: &[u8]) -> Option<String> {
    (!label.is_empty()).then(|| String::from_utf8_lossy(label).into_owned())
}

/// The number of this grant. A store without fences says 0, which must never be passed on: a
/// resource that compares numbers would take it for one.
pub(crate) fn fence(guard: &Guard) -> Option<u64> {
    Some(guard.fence()).filter(|fence| *fence != 0)
}

/// The grant in this guard.
pub(crate) fn granted<'a>(guard: &'a Guard, waited: Duration) -> Event<'a> {
    Event::Granted {
        name: guard.name().as_str(),
        mode: guard.mode().into(),
        fence: fence(guard),
        ticket: guard.ticket().to_string(),
        sequencer: guard.sequencer().to_string(),
        waited_ms: duration::ms(waited),
        ttl_ms: duration::ms(guard.terms().ttl),
        lock_delay_ms: duration::ms(guard.terms().lock_delay),
    }
}

impl<'a> Event<'a> {
    /// The command runs under this grant of the run around this one.
    pub(crate) fn reentered(held: &'a Sequencer) -> Self {
        Self::Reentered {
            name: held.name().as_str(),
            mode: held.mode().into(),
            fence: Some(held.fence()).filter(|fence| *fence != 0),
            ticket: held.claim().ticket.to_string(),
            sequencer: held.to_string(),
        }
    }
}

/// How the lock is waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Manner {
    /// In line.
    Queue,
    /// By asking again and again, because that was wanted.
    Contend,
    /// By asking again and again, because the store can do no better.
    NoLine,
}

/// How a ticket stands, as it is shown.
#[derive(Clone, Debug)]
pub(crate) struct Standing {
    pub(crate) wait: Wait,
    /// The place in the line behind the holders, as `show` counts it; none if it is not known.
    pub(crate) place: Option<usize>,
    /// How long ago the store said so.
    pub(crate) age: Duration,
    /// For how long the store has not answered.
    pub(crate) outage: Option<Duration>,
}

/// Where a ticket stands, in words: "waiting for `deploy` · 3rd in line · held by …".
pub(crate) fn waiting_words(name: &str, manner: Manner, standing: &Standing) -> String {
    let Standing { wait, place, age, outage } = standing;
    let mut words = format!("waiting for `{}`", output::printable(name));
    match (manner, place) {
        (Manner::Contend, _) => words += " · asking again and again",
        (Manner::NoLine, _) => words += " · asking again and again, as this store keeps no line",
        (_, Some(place)) => words += &format!(" · {} in line", ordinal(*place)),
        (_, None) => words += &format!(" · {} ahead", wait.ahead),
    }
    if let Some(outage) = outage {
        // Who holds it now, and for how long, is not known meanwhile.
        words += " · ";
        words += &outage_words(*outage);
    } else if let Some(holder) = &wait.holder {
        words += " · ";
        words += &held_by(holder, *age);
    }
    words
}

/// "the store has not answered for 17 s"
pub(crate) fn outage_words(outage: Duration) -> String {
    format!("the store has not answered for {}", duration::words(outage))
}

/// "held by ci-7 (pid 4121) for 42 s"; without the time if that is not known.
fn held_by(holder: &Holder, age: Duration) -> String {
    let owner = output::printable(&holder.owner.to_string());
    let mut words = format!("held by {owner}");
    let label = label(&holder.label);
    if let Some(label) = &label {
        words += &format!(", {}", output::printable(label));
    }
    if let Some(held) = holder.held_for {
        let comma = if label.is_some() { "," } else { "" };
        words += &format!("{comma} for {}", duration::words(held + age));
    }
    words
}

/// 1st, 2nd, 3rd, 4th …
pub(crate) fn ordinal(n: usize) -> String {
    let suffix = match (n % 100, n % 10) {
        (11..=13, _) => "th",
        (_, 1) => "st",
        (_, 2) => "nd",
        (_, 3) => "rd",
        _ => "th",
    };
    format!("{n}{suffix}")
}

/// How much `run` says, and in which form.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Voice {
    /// One line of JSON for each event.
    pub(crate) json: bool,
    /// Nothing but errors.
    pub(crate) quiet: bool,
}

impl Voice {
    /// Tells an event: to programs always, to people in these words, if there are any.
    pub(crate) fn tell(self, event: &Event<'_>, words: Option<&str>) {
        match (self.quiet, self.json, words) {
            (true, ..) => {}
            (_, true, _) => output::json_line(event),
            (_, _, Some(words)) => output::note(words),
            _ => {}
        }
    }

    /// Tells an event that is also an error: it is told to the quiet, too.
    pub(crate) fn alarm(self, event: &Event<'_>, words: &str) {
        if self.json { output::json_line(event) } else { output::error(words) }
    }

    /// Says something that is no error, unless we are to be quiet.
    pub(crate) fn note(self, words: &str) {
        match (self.quiet, self.json) {
            (true, _) => {}
            (_, true) => stderr::say(output::json_warning(words)),
            _ => output::note(words),
        }
    }

    /// Says that something did not go as it should, and is not the end of it.
    pub(crate) fn warn(self, words: &str) {
        if self.json {
            stderr::say(output::json_warning(words));
        } else {
            output::error(words);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lockkeeper::Owner;

    fn wait(ahead: usize, label: &str) -> Wait {
        let owner = Owner::new("ci-7", 4121, "sh");
        let mut wait = Wait::new(ahead, Duration::ZERO);
        wait.holder = Some(Holder::new(owner, label, Some(Duration::from_secs(40))));
        wait
    }

    #[test]
    fn a_wait_is_told_with_place_holder_and_time() {
        let age = Duration::from_secs(2);
        let standing = |wait, place| Standing { wait, place, age, outage: None };
        let queued = |name, standing: &Standing| waiting_words(name, Manner::Queue, standing);
        assert_eq!(
            queued("deploy", &standing(wait(3, ""), Some(3))),
            "waiting for `deploy` · 3rd in line · held by ci-7 (pid 4121) for 42 s"
        );
        assert_eq!(
            queued("gpu", &standing(wait(4, "night\n"), None)),
            "waiting for `gpu` · 4 ahead · held by ci-7 (pid 4121), night\\u{a}, for 42 s"
        );
        let mut long = standing(wait(1, "night"), Some(1));
        long.wait.holder.as_mut().unwrap().held_for = None;
        let words = queued("a", &long);
        assert_eq!(words, "waiting for `a` · 1st in line · held by ci-7 (pid 4121), night");
        long.wait.holder.as_mut().unwrap().owner = Owner::default();
        let words = queued("a", &long);
        assert_eq!(words, "waiting for `a` · 1st in line · held by another client, night");
        let words = waiting_words("a", Manner::NoLine, &long);
        assert!(words.starts_with("waiting for `a` · asking again and again, as this"), "{words}");
        long.outage = Some(Duration::from_secs(17));
        let words = queued("a", &long);
        assert_eq!(words, "waiting for `a` · 1st in line · the store has not answered for 17 s");
        let unknown = standing(Wait::new(0, Duration::ZERO), Some(1));
        assert_eq!(queued("a", &unknown), "waiting for `a` · 1st in line");
    }

    #[test]
    fn ordinals_are_english() {
        let words: Vec<String> = [1, 2, 3, 4, 11, 12, 13, 21, 112].map(ordinal).to_vec();
        assert_eq!(words, ["1st", "2nd", "3rd", "4th", "11th", "12th", "13th", "21st", "112th"]);
    }

    #[test]
    fn an_event_is_flat_json() {
        let event = Event::Waiting {
            name: "a",
            ahead: 1,
            place: Some(1),
            fair: true,
            holder: Some((&wait(1, "x").holder.unwrap()).into()),
        };
        let json = serde_json::to_value(&event).unwrap();
        assert_eq!(json["event"], "waiting");
        assert_eq!(json["holder"]["held_ms"], 40_000);
        assert_eq!(json["holder"]["label"], "x");
    }
}
