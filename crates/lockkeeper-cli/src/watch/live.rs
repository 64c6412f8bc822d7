//! The live view: one loop over signals, keys, news of the store, and time.

use super::{
    Args,
    keys::{self, Action},
    model::{Eviction, Model},
    poll::{self, News, Poller},
    style::Theme,
    terminal::{self, Screen},
    view,
};
use crate::{
    exit_code,
    failure::{self, Failure},
    run::End,
    signals::Signals,
    stderr, store,
    suspend::Suspend,
};
use anstream::{AutoStream, ColorChoice};
use lockkeeper::{Keeper, Store as _};
use nix::sys::signal::Signal;
use ratatui::crossterm::{
    event::{self, Event, KeyEvent, KeyEventKind},
    style::force_color_output,
};
use std::{
    io::{self, IsTerminal as _},
    panic,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};
use tokio::{
    sync::{Notify, mpsc, watch},
    time::{MissedTickBehavior, interval},
};

/// How often the ages are drawn anew.
const TICK: Duration = Duration::from_secs(1);

/// How many keys can wait to be taken in.
const KEYS_MAX: usize = 64;

/// Connects, takes the terminal, and shows the locks until the user leaves.
pub(super) async fn live(url: &str, args: &Args) -> Result<End, Failure> {
    let mut ears = Ears::open().map_err(Failure::bug)?;
    let keeper = tokio::select! {
        keeper = Keeper::connect(url) => keeper?,
        end = ears.end() => return Ok(end),
    };
    if io::stderr().is_terminal() {
        stderr::mute_log(true);
    }
    give_back_on_panic();
    let shown = Live::start(url, args, &keeper);
    let end = match shown {
        Ok(mut live) => live.run(&mut ears).await,
        Err(e) => Err(e),
    };
    stderr::mute_log(false);
    end.map_err(|e| Failure::bug(anyhow::Error::new(e).context("cannot use the terminal")))
}

/// A panic in any thread gives the terminal back before it is reported.
fn give_back_on_panic() {
    let report = panic::take_hook();
    panic::set_hook(Box::new(move |what| {
        terminal::give_back();
        stderr::mute_log(false);
        report(what);
    }));
}

/// The signals, and the wish that we stop.
struct Ears {
    suspend: Suspend,
    signals: Signals,
}

impl Ears {
    fn open() -> io::Result<Self> {
        Ok(Self { suspend: Suspend::hold_back()?, signals: Signals::catch()? })
    }

    /// Waits for a signal that ends us, and stops with the job meanwhile.
    async fn end(&mut self) -> End {
        loop {
            tokio::select! {
                signal = self.signals.next_end() => return End::Signal(signal as i32),
                () = self.suspend.asked() => {
                    self.suspend.stop();
                }
            }
        }
    }
}

/// The live view.
struct Live {
    model: Model,
    theme: Theme,
    screen: Screen,
    keeper: Keeper,
    keys: mpsc::Receiver<KeyEvent>,
    news: watch::Receiver<News>,
    /// Wakes the task that asks the store.
    again: Arc<Notify>,
    evict: mpsc::UnboundedSender<(Eviction, Result<bool, String>)>,
    evicted: mpsc::UnboundedReceiver<(Eviction, Result<bool, String>)>,
}

impl Live {
    fn start(url: &str, args: &Args, keeper: &Keeper) -> io::Result<Self> {
        let hidden = keeper.store().blind_spots().map(str::to_owned);
        let address = store::without_secrets(url);
        let model = Model::new(address, args.prefix.clone(), hidden, Instant::now());
        let colors = AutoStream::choice(&io::stdout()) != ColorChoice::Never;
        force_color_output(colors);
        let (sender, news) = watch::channel(News::default());
        let again = Arc::new(Notify::new());
        tokio::spawn(poll::poll(Poller::new(keeper, args), sender, Arc::clone(&again)));
        let (evict, evicted) = mpsc::unbounded_channel();
        let screen = Screen::enter()?;
        let keys = read_keys()?;
        let (theme, keeper) = (Theme::new(colors), keeper.clone());
        Ok(Self { model, theme, screen, keeper, keys, news, again, evict, evicted })
    }

    async fn run(&mut self, ears: &mut Ears) -> io::Result<End> {
        let mut tick = interval(TICK);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let written = self.screen.written();
        let mut drawn = false;
        loop {
            if !drawn && self.screen.is_ready() {
                self.draw()?;
                drawn = true;
            }
            if written.is_broken() {
                return Ok(End::Code(exit_code::BUG));
            }
            tokio::select! {
                signal = ears.signals.next() => match signal {
                    Signal::SIGWINCH | Signal::SIGCONT => self.screen.enter_again()?,
                    signal => return Ok(End::Signal(signal as i32)),
                },
                () = ears.suspend.asked() => self.stop(ears)?,
                key = self.keys.recv() => {
                    if let Some(end) = self.press(key, ears)? {
                        return Ok(end);
                    }
                }
                heard = self.news.changed() => {
                    if heard.is_err() {
                        return Ok(End::Code(exit_code::BUG));
                    }
                    let news = self.news.borrow_and_update().clone();
                    self.model.hear(news, Instant::now());
                }
                Some((eviction, done)) = self.evicted.recv() => {
                    self.model.evicted(&eviction, done);
                    self.again.notify_one();
                }
                _ = tick.tick() => {}
                () = written.notified(), if !drawn => continue,
            }
            drawn = false;
        }
    }

    fn draw(&mut self) -> io::Result<()> {
        let asked = self.news.borrow().asked;
        self.model.tick(Instant::now(), asked);
        let (model, theme) = (&mut self.model, self.theme);
        self.screen.draw(|frame| view::draw(frame, model, theme))
    }

    /// Does what a key means; no key at all means that there is no terminal any more.
    fn press(&mut self, key: Option<KeyEvent>, ears: &mut Ears) -> io::Result<Option<End>> {
        let Some(key) = key else { return Ok(Some(End::Code(exit_code::BUG))) };
        match keys::press(&mut self.model, key) {
            None => {}
            Some(Action::Leave) => return Ok(Some(End::Code(0))),
            Some(Action::Interrupt) => return Ok(Some(End::Signal(Signal::SIGINT as i32))),
            Some(Action::Suspend) => self.stop(ears)?,
            Some(Action::Redraw) => self.screen.enter_again()?,
            Some(Action::Look) => self.again.notify_one(),
            Some(Action::Evict(eviction)) => self.begin_eviction(eviction),
        }
        Ok(None)
    }

    /// Gives the terminal to the shell until we are continued.
    fn stop(&mut self, ears: &mut Ears) -> io::Result<()> {
        self.screen.leave();
        ears.suspend.stop();
        self.screen.enter_again()
    }

    fn begin_eviction(&mut self, eviction: Eviction) {
        let (keeper, done) = (self.keeper.clone(), self.evict.clone());
        self.model.note(format!("evicting {} …", eviction.who), false);
        tokio::spawn(async move {
            let answer = keeper.evict(eviction.name.clone(), eviction.ticket).await;
            let answer = answer.map_err(|e| failure::chain(&e.into()));
            let _ = done.send((eviction, answer));
        });
    }
}

/// Reads keys on a thread of its own, which ends with the process.
fn read_keys() -> io::Result<mpsc::Receiver<KeyEvent>> {
    let (sender, keys) = mpsc::channel(KEYS_MAX);
    let read = move || {
        while let Ok(event) = event::read() {
            let Event::Key(key) = event else { continue };
            if key.kind != KeyEventKind::Release && sender.blocking_send(key).is_err() {
                break;
            }
        }
    };
    thread::Builder::new().name("keys".into()).spawn(read)?;
    Ok(keys)
}
