//! What is shown while the lock is not ours yet.
//!
//! On a terminal one line is drawn over and over. Elsewhere one line is said when the wait begins;
//! programs get a line of JSON whenever the place in line or the holder changes. Who need not
//! wait sees nothing.

use crate::{
    event::{self, Event, Manner, Voice},
    output, stderr, terminal,
};
use lockkeeper::{Keeper, Mode, Wait};
use std::{
    env,
    io::{self, IsTerminal as _},
    time::{Duration, Instant},
};
use tokio::sync::watch;

/// How often the line on a terminal is drawn again: its clock shows seconds.
const REDRAW: Duration = Duration::from_secs(1);

/// An outage, or an answer after one, is told when it has lasted so long.
const OUTAGE_TOLD: Duration = Duration::from_secs(2);

/// The last news from the store, and when they came.
type News = Option<(Wait, Instant)>;

/// The wait for one lock, as others see it.
#[derive(Debug)]
pub(crate) struct Waiting<'a> {
    name: &'a str,
    mode: Mode,
    manner: Manner,
    voice: Voice,
    live: bool,
    /// What stands on the terminal.
    drawn: String,
    /// What has been said last.
    said: Option<Wait>,
    news: watch::Sender<News>,
    /// It has been said that the store does not answer.
    outage: bool,
    /// Since when the store answers again.
    answers: Option<Instant>,
}

impl<'a> Waiting<'a> {
    /// A wait that may begin. `live` allows a line that is drawn over and over.
    pub(crate) fn new(name: &'a str, mode: Mode, manner: Manner, voice: Voice, live: bool) -> Self {
        let plain = voice.quiet || voice.json || env::var_os("TERM").is_none_or(|t| t == "dumb");
        let live = live && !plain && io::stderr().is_terminal();
        let (drawn, said, news) = (String::new(), None, watch::Sender::new(None));
        Self { name, mode, manner, voice, live, drawn, said, news, outage: false, answers: None }
    }

    /// What the library is to call with news.
    pub(crate) fn ear(&self) -> impl Fn(&Wait) + Send + Sync + 'static {
        let news = self.news.clone();
        move |wait| {
            news.send_replace(Some((wait.clone(), Instant::now())));
        }
    }

    /// Was there anything to wait for?
    pub(crate) fn happened(&self) -> bool {
        self.news.borrow().is_some()
    }

    /// Is the wait shown as a line that is drawn over and over?
    pub(crate) fn is_live(&self) -> bool {
        self.live
    }

    /// The last that was heard of the line.
    fn last(&self) -> Option<(Wait, Duration)> {
        self.news.borrow().as_ref().map(|(wait, at)| (wait.clone(), at.elapsed()))
    }

    /// Shows the wait, and outages of the store, for as long as it is polled.
    pub(crate) async fn show(&mut self, keeper: &Keeper) {
        let mut news = self.news.subscribe();
        loop {
            // Ours is one of the senders, so the channel does not end.
            let heard = tokio::select! {
                heard = news.changed() => heard.is_ok(),
                () = tokio::time::sleep(REDRAW) => {
                    self.get(keeper.outage());
                    // The last news are old when the store does not answer.
                    self.live && self.happened() && !self.outage
                }
            };
            if heard {
                self.tell();
            }
        }
    }

    /// Says once that the store does not answer, and once that it answers again.
    fn get(&mut self, outage: Option<Duration>) {
        match outage {
            Some(time) => {
                self.answers = None;
                if !self.outage && time >= OUTAGE_TOLD {
                    self.outage = true;
                    self.note("the store does not answer; still waiting");
                }
            }
            // Between two attempts it is not known for a moment whether the outage goes on.
            None => {
                let since = *self.answers.get_or_insert_with(Instant::now);
                if since.elapsed() >= OUTAGE_TOLD {
                    self.end_outage();
                }
            }
        }
    }

    fn end_outage(&mut self) {
        if std::mem::take(&mut self.outage) {
            self.note("the store answers again");
        }
    }

    fn note(&mut self, words: &str) {
        self.wipe();
        self.voice.note(words);
    }

    /// Ends the display. Who has waited is told so, however short it was.
    pub(crate) fn finish(&mut self) {
        self.end_outage();
        if self.live {
            self.wipe();
        } else {
            self.tell();
        }
    }

    fn tell(&mut self) {
        let Some((wait, age)) = self.last() else { return };
        if self.live {
            self.draw(&wait, age);
        } else if self.said.as_ref().is_none_or(|said| self.is_new(said, &wait)) {
            self.say(&wait, age);
            self.said = Some(wait);
        }
    }

    /// People are told once, programs of every change.
    fn is_new(&self, old: &Wait, new: &Wait) -> bool {
        let who = |wait: &Wait| wait.holder.as_ref().map(|h| (h.owner.clone(), h.label.clone()));
        self.voice.json && (old.ahead != new.ahead || who(old) != who(new))
    }

    fn say(&self, wait: &Wait, age: Duration) {
        let holder = wait.holder.as_ref().map(Into::into);
        let fair = self.manner == Manner::Queue;
        let event = Event::Waiting { name: self.name, ahead: wait.ahead, fair, holder };
        let words = event::waiting_words(self.name, self.mode, self.manner, wait, age);
        self.voice.tell(&event, Some(&words));
    }

    fn draw(&mut self, wait: &Wait, age: Duration) {
        // In the background the terminal belongs to somebody else.
        if !terminal::is_foreground(io::stderr()) {
            return;
        }
        let words = event::waiting_words(self.name, self.mode, self.manner, wait, age);
        // The last column stays free: some terminals wrap when it is written to.
        let width =
            output::terminal_width(io::stderr()).map_or(79, |width| width.saturating_sub(1));
        let line = output::cut(&words, width);
        if line != self.drawn {
            overwrite(&line);
            self.drawn = line;
        }
    }

    /// Wipes the line away.
    fn wipe(&mut self) {
        let drawn = std::mem::take(&mut self.drawn);
        if !drawn.is_empty() && terminal::is_foreground(io::stderr()) {
            overwrite("");
        }
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.wipe();
    }
}

/// Writes the current line anew: return, erase, text.
fn overwrite(line: &str) {
    stderr::say(format!("\r\u{1b}[2K{line}"));
}
