//! The time between grant and release: the command runs, and the lock is watched.

use crate::{
    child::{Change, Child},
    cli::OnLost,
    duration,
    event::{Event, Voice},
    jeopardy::Jeopardy,
    output::printable,
    signals::Signals,
    suspend::Suspend,
    terminal::Terminal,
};
use lockkeeper::{
    Guard, Loss, Name,
    store::clock::{Clock, Moment},
};
use nix::sys::signal::Signal;
use std::{future::pending, time::Duration};

/// How often the end of our belief in the lock is noted, at most and at least.
const NOTE: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(1));

const UNSUPERVISED: &str = "the supervisor has ended: if lockkeeper is killed too, what the command has \
                            started will go on without the lock";

/// How the time under the lock came to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    /// The command has ended, by itself or by a signal that was passed on.
    Done,
    /// The lock was lost, and the command was ended for it.
    Lost,
}

/// A command that runs under a lock.
#[derive(Debug)]
pub(crate) struct Hold<'a> {
    pub(crate) child: Child,
    pub(crate) guard: &'a Guard,
    pub(crate) signals: &'a mut Signals,
    pub(crate) suspend: &'a mut Suspend,
    pub(crate) terminal: Option<Terminal>,
    pub(crate) voice: Voice,
    pub(crate) on_lost: OnLost,
    pub(crate) kill_after: Duration,
    /// What `--max-hold` says.
    pub(crate) max_hold: Option<Duration>,
    /// Until when the lock was ours at the least, noted before the command was started: a start can take as long
    /// as the file system that the program is on, and so longer than the lock lasts.
    pub(crate) ours_until: Moment,
    /// When the command must have ended, however well the lock stands.
    pub(crate) held_until: Moment,
    /// The command is to have the terminal whenever we have it.
    pub(crate) wants_terminal: bool,
    /// The loss of the lock has been told, and the command goes on without it.
    pub(crate) without: bool,
    /// By when a signal that was passed on is to have ended the command.
    pub(crate) ends: Option<Ends>,
    /// What has been told of renewals that fail.
    pub(crate) jeopardy: Jeopardy,
}

/// A signal that ends a process which does not expect it was passed on to the command's group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ends {
    signal: Signal,
    by: Moment,
}

/// What is left when the command has ended.
#[derive(Debug)]
pub(crate) struct Held {
    /// The command, not reaped yet.
    pub(crate) child: Child,
    /// It ran on without the lock.
    pub(crate) without: bool,
    /// It had the terminal to its end.
    pub(crate) had_terminal: bool,
    /// SIGTERM, SIGINT or SIGQUIT was passed on to it.
    pub(crate) asked_to_end: bool,
}

impl Hold<'_> {
    /// Watches over command and lock until the command has ended, by itself or because of a loss.
    pub(crate) async fn last(&mut self) -> Ending {
        let clock = Clock::system();
        let mut belief = Belief::new(&clock, self.guard, self.ours_until);
        // Once the command has ended by a signal: until when the rest of its group has time.
        let mut rest = None;
        loop {
            tokio::select! {
                biased;
                why = lost(self.guard, self.without) => {
                    if self.lose(why, belief.grace(&clock, self.kill_after)).await {
                        return Ending::Lost;
                    }
                }
                change = changed(&mut self.child, rest) => match change {
                    None => {
                        // What is still there has had its time.
                        self.child.finish(Duration::ZERO).await;
                        return Ending::Done;
                    }
                    Some(Change::Stopped(by)) => self.stopped(by),
                    Some(Change::Unsupervised) => self.voice.warn(UNSUPERVISED),
                    Some(Change::Ended) => match self.ended_by_signal(clock.now()) {
                        Some(by) => rest = Some(by),
                        None => return Ending::Done,
                    },
                },
                signal = self.signals.next() => self.signalled(signal),
                // We follow when the command has stopped.
                () = self.suspend.asked() => self.child.signal(Signal::SIGTSTP),
                () = clock.sleep_until(self.held_until) => {
                    self.lose(Loss::MaxHold, self.kill_after).await;
                    return Ending::Lost;
                }
                () = clock.sleep(belief.pause) => {
                    belief.note(self.guard);
                    self.jeopardy.note(self.guard, self.voice, self.on_lost);
                }
            }
        }
    }

    /// Gives the command back, and takes the terminal from it.
    pub(crate) fn end(self) -> Held {
        let Self { child, terminal, without, ends, .. } = self;
        let had_terminal = terminal.is_some_and(|terminal| terminal.take_back(child.group()));
        // A daemon that has lived on after SIGHUP has reloaded.
        let asked_to_end = ends.is_some_and(|ends| ends.signal != Signal::SIGHUP);
        Held { child, without, had_terminal, asked_to_end }
    }

    /// Ends the command, unless it is to go on, and tells the loss. Says whether it was ended.
    /// Signals first, words second.
    async fn lose(&mut self, why: Loss, grace: Duration) -> bool {
        let ends = self.on_lost == OnLost::Term;
        let fate = if ends { Fate::Ends } else { Fate::GoesOn };
        if ends {
            self.child.ask_to_end(grace);
        }
        tell_lost(self.voice, self.guard.name(), why, self.max_hold, fate);
        if ends {
            self.child.finish(grace).await;
        }
        self.without = true;
        ends
    }

    fn signalled(&mut self, signal: Signal) {
        match signal {
            Signal::SIGCONT => {
                self.suspend.continued();
                self.resume();
            }
            Signal::SIGTERM => {
                self.note_end(signal);
                self.child.pass_on_sigterm(self.kill_after);
            }
            Signal::SIGINT | Signal::SIGHUP | Signal::SIGQUIT => {
                self.note_end(signal);
                self.child.signal(signal);
            }
            signal => self.child.signal(signal),
        }
    }

    /// Notes a signal that may end the command. After SIGTERM no other one gives more time.
    fn note_end(&mut self, signal: Signal) {
        if self.ends.is_none_or(|ends| ends.signal != Signal::SIGTERM) {
            self.ends = Some(Ends { signal, by: Clock::system().now() + self.kill_after });
        }
    }

    /// Until when the rest of the group has time, if a signal has ended the command. A command that
    /// has lived on for longer than kill-after took the signal for something else, as daemons do with
    /// SIGHUP, and has ended by itself. SIGTERM means nothing else.
    fn ended_by_signal(&self, now: Moment) -> Option<Moment> {
        let ends = self.ends?;
        (ends.signal == Signal::SIGTERM || now < ends.by).then_some(ends.by)
    }

    /// The command has stopped: it wants the terminal, or its job is to rest.
    fn stopped(&mut self, by: Signal) {
        let Some(terminal) = &self.terminal else { return };
        let asks = matches!(by, Signal::SIGTTIN | Signal::SIGTTOU);
        let ours = terminal.is_ours();
        self.wants_terminal |= asks;
        if asks && ours {
            self.resume();
        } else if asks || by == Signal::SIGTSTP || ours || terminal.is_with(self.child.group()) {
            terminal.take_back(self.child.group());
            let continued = self.suspend.stop();
            // Who asks in vain for the terminal would only stop again: it waits for SIGCONT.
            if !continued && !asks {
                self.resume();
            }
        }
        // Else somebody has stopped a command in the background, by hand. We go on, and so does
        // the lock: were we to stop, it would expire, and nobody would watch when the command is
        // continued by hand.
    }

    /// Lets a stopped command go on, unless the lock was lost meanwhile: then it is ended, asleep.
    fn resume(&self) {
        if !self.without && !self.guard.is_held() {
            return;
        }
        if let Some(terminal) = &self.terminal
            && self.wants_terminal
            && terminal.is_ours()
        {
            terminal.give(self.child.group());
        }
        self.child.signal(Signal::SIGCONT);
    }
}

/// Waits for the command's next change; once it has ended by a signal, for the end of the rest of its
/// group, which has time until `rest`: `None`.
async fn changed(child: &mut Child, rest: Option<Moment>) -> Option<Change> {
    match rest {
        None => Some(child.changed().await),
        Some(until) => {
            child.gone_by(until).await;
            None
        }
    }
}

/// Waits for the loss, of which nobody needs to hear twice.
async fn lost(guard: &Guard, told: bool) -> Loss {
    if told { pending().await } else { guard.lost().await }
}

/// Until when the lock is ours at the least. Means nothing if it is lost already, so its loss has to be asked for
/// afterwards.
pub(crate) fn ours_until(guard: &Guard) -> Moment {
    Clock::system().now() + guard.remaining()
}

/// What becomes of the command when the lock is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// It was not started yet: the lock is asked for again.
    NotStarted,
    /// It is ended.
    Ends,
    /// It goes on.
    GoesOn,
    /// It had just ended by itself.
    Over,
}

/// Tells that the lock was lost, and what becomes of the command.
pub(crate) fn tell_lost(
    voice: Voice,
    name: &Name,
    why: Loss,
    max_hold: Option<Duration>,
    fate: Fate,
) {
    let name = name.as_str();
    let reason = match (why, max_hold) {
        (Loss::MaxHold, Some(time)) => format!("--max-hold {} is over", duration::flag(time)),
        _ => why.to_string(),
    };
    let event = Event::Lost { name, why: why.word(), message: reason.clone() };
    let then = match fate {
        Fate::NotStarted => "the command was not started yet, asking again",
        Fate::Ends => "ending the command",
        Fate::GoesOn => "the command goes on without it",
        Fate::Over => "the end of the command was not protected",
    };
    voice.alarm(&event, &format!("lost `{}`: {reason}; {then}", printable(name)));
}

/// Until when the lock was ours for certain.
///
/// The lock-delay is reckoned from that moment, and so is the time in which the command must be
/// gone. It is noted again and again, because a process that was stopped for a while must find out,
/// when it wakes up, how long ago the lock was lost: there may be no time left to ask nicely.
struct Belief {
    until: Moment,
    pause: Duration,
}

impl Belief {
    fn new(clock: &Clock, guard: &Guard, until: Moment) -> Self {
        let mut belief = Self { until, pause: NOTE.0 };
        belief.note(guard);
        let left = belief.until.saturating_since(clock.now());
        belief.pause = (left / 6).clamp(NOTE.0, NOTE.1);
        belief
    }

    fn note(&mut self, guard: &Guard) {
        let until = ours_until(guard);
        // We may have been stopped just now. What is lost stays lost.
        if guard.is_held() {
            self.until = until;
        }
    }

    /// What is left of the time that the command has for its end.
    fn grace(&self, clock: &Clock, kill_after: Duration) -> Duration {
        let late = clock.now().saturating_since(self.until);
        kill_after.saturating_sub(late)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_wakes_up_late_has_less_time_to_ask_nicely() {
        let clock = Clock::movable();
        let (second, kill_after) = (Duration::from_secs(1), Duration::from_secs(5));
        let belief = Belief { until: clock.now() + second, pause: second };
        assert_eq!(belief.grace(&clock, kill_after), kill_after);
        clock.advance(Duration::from_secs(4));
        let left = belief.grace(&clock, kill_after);
        assert!(left <= 2 * second && left > second, "{left:?}");
        clock.advance(Duration::from_secs(60));
        assert_eq!(belief.grace(&clock, kill_after), Duration::ZERO);
    }
}
