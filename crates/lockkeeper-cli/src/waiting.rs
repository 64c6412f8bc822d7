//! What is shown while the lock is not ours yet.
//!
//! On a terminal one line is drawn over and over. Elsewhere one line is said when the wait begins;
//! programs get a line of JSON whenever the place in line or the holder changes. Who need not
//! wait sees nothing.

use crate::{
    duration,
    event::{self, Event, Manner, Standing, Voice},
    output,
    place::Places,
    stderr, terminal,
};
use lockkeeper::{Keeper, Name, Wait};
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
    name: &'a Name,
    manner: Manner,
    voice: Voice,
    live: bool,
    /// What stands on the terminal.
    drawn: String,
    /// What has been said last.
    said: Option<Standing>,
    news: watch::Sender<News>,
    places: Places,
    /// Since when the store does not answer, if that was told.
    outage: Option<Instant>,
    /// Since when the store answers again.
    answers: Option<Instant>,
}

impl<'a> Waiting<'a> {
    /// A wait that may begin. `live` allows a line that is drawn over and over.
    pub(crate) fn new(name: &'a Name, manner: Manner, voice: Voice, live: bool) -> Self {
        let plain = voice.quiet || voice.json || env::var_os("TERM").is_none_or(|t| t == "dumb");
        let live = live && !plain && io::stderr().is_terminal();
        Self {
            name,
            manner,
            voice,
            live,
            drawn: String::new(),
            said: None,
            news: watch::Sender::new(None),
            places: Places::default(),
            outage: None,
            answers: None,
        }
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

    /// The last that was heard of the line, and whether the store still answers.
    fn last(&self) -> Option<Standing> {
        let (wait, at) = self.news.borrow().clone()?;
        let place = self.places.of(wait.ahead);
        let outage = self.outage.map(|since| since.elapsed());
        Some(Standing { wait, place, age: at.elapsed(), outage })
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
                    self.live && self.happened()
                }
            };
            if heard {
                self.locate(keeper).await;
                self.tell();
            }
        }
    }

    /// Finds out our place in the line, if it will be told.
    async fn locate(&mut self, keeper: &Keeper) {
        let told_once = self.said.is_some() && !self.voice.json;
        if self.voice.quiet || self.manner != Manner::Queue || told_once || self.outage.is_some() {
            return;
        }
        let ahead = self.news.borrow().as_ref().map(|(wait, _)| wait.ahead);
        if let Some(ahead) = ahead {
            self.places.look(keeper, self.name, ahead).await;
        }
    }

    /// Says once that the store does not answer, and once that it answers again.
    fn get(&mut self, outage: Option<Duration>) {
        match outage {
            Some(time) => {
                self.answers = None;
                if self.outage.is_none() && time >= OUTAGE_TOLD {
                    self.outage =
                        Some(Instant::now().checked_sub(time).unwrap_or_else(Instant::now));
                    let event =
                        Event::Outage { name: self.name.as_str(), outage_ms: duration::ms(time) };
                    self.tell_outage(
                        &event,
                        &format!("{}; still waiting", event::outage_words(time)),
                    );
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
        let Some(since) = self.outage.take() else { return };
        let end = self.answers.unwrap_or_else(Instant::now);
        let time = end.saturating_duration_since(since);
        let event = Event::OutageOver { name: self.name.as_str(), outage_ms: duration::ms(time) };
        let words = format!("the store answers again after {}", duration::words(time));
        self.tell_outage(&event, &words);
    }

    /// The line on a terminal shows it by itself.
    fn tell_outage(&self, event: &Event<'_>, words: &str) {
        if !self.live || !self.happened() {
            self.voice.tell(event, Some(words));
        }
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
        let Some(standing) = self.last() else { return };
        if self.live {
            self.draw(&standing);
        } else if self.said.as_ref().is_none_or(|said| self.is_new(said, &standing)) {
            self.say(&standing);
            self.said = Some(standing);
        }
    }

    /// People are told once, programs of every change.
    fn is_new(&self, old: &Standing, new: &Standing) -> bool {
        let who = |standing: &Standing| {
            let holder = standing.wait.holder.as_ref();
            holder.map(|h| (h.owner.clone(), h.label.clone()))
        };
        let place = |standing: &Standing| (standing.wait.ahead, standing.place);
        self.voice.json && (place(old) != place(new) || who(old) != who(new))
    }

    fn say(&self, standing: &Standing) {
        let Standing { wait, place, .. } = standing;
        let fair = self.manner == Manner::Queue;
        let event = Event::Waiting {
            name: self.name.as_str(),
            ahead: wait.ahead,
            place: place.filter(|_| fair),
            fair,
            holder: wait.holder.as_ref().map(Into::into),
        };
        self.voice.tell(&event, Some(&self.words(standing)));
    }

    fn words(&self, standing: &Standing) -> String {
        event::waiting_words(self.name.as_str(), self.manner, standing)
    }

    fn draw(&mut self, standing: &Standing) {
        // In the background the terminal belongs to somebody else.
        if !terminal::is_foreground(io::stderr()) {
            return;
        }
        let words = self.words(standing);
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
