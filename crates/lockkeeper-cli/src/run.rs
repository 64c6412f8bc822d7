//! `lockkeeper run`: take the lock, run the command, release.

use crate::{
    child::Child,
    cli::{Common, OnLost, Run},
    duration,
    event::{self, Event, Voice},
    exit_code,
    failure::Failure,
    hold::{Ending, Fate, Held, Hold, tell_lost},
    output, shim,
    signals::Signals,
    stderr, store,
    suspend::Suspend,
    terminal::{self, Terminal},
    waiting::Waiting,
};
use lockkeeper::{
    Acquire, Error, Guard, Health, Keeper, Mode, Owner,
    clock::{Clock, Moment},
};
use nix::sys::signal::Signal;
use std::{
    io,
    os::unix::process::ExitStatusExt as _,
    path::Path,
    process::{ExitCode, ExitStatus},
    time::{Duration, Instant},
};
use tokio::time::timeout;

/// For how long a release may take. After that the session ends by itself, within its TTL.
const RELEASE_MAX: Duration = Duration::from_secs(5);
/// For how long closing may take: leaving the line, ending the session.
const CLOSE_MAX: Duration = Duration::from_secs(2);
/// For how long we look who holds a lock that we could not have.
const LOOK_MAX: Duration = Duration::from_secs(1);

/// How `run` ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// With this code.
    Code(u8),
    /// As if by this signal.
    Signal(i32),
}

impl End {
    /// As the command ended.
    fn like(status: ExitStatus) -> Self {
        match (status.code(), status.signal()) {
            (Some(code), _) => Self::Code(u8::try_from(code).unwrap_or(u8::MAX)),
            (None, Some(signal)) => Self::Signal(signal),
            (None, None) => Self::Code(exit_code::BUG),
        }
    }

    /// Ends the process so. With Ctrl-C a user means a whole script, and its shell ends it only if
    /// we are really killed by the signal; other signals are told by their code.
    pub(crate) fn exit(self) -> ExitCode {
        match self {
            Self::Code(code) => ExitCode::from(code),
            Self::Signal(signal) => {
                if signal == Signal::SIGINT as i32 {
                    stderr::flush(stderr::EXIT_MAX);
                    shim::die_of(Signal::SIGINT);
                }
                ExitCode::from(exit_code::of_signal(signal))
            }
        }
    }
}

/// What others can tell us by signals.
struct Ears {
    signals: Signals,
    suspend: Suspend,
}

impl Ears {
    /// Before anything else is started: other threads inherit what is held back.
    fn open() -> io::Result<Self> {
        Ok(Self { suspend: Suspend::hold_back()?, signals: Signals::catch()? })
    }

    /// Waits, before there is a command, for a signal that ends us. Asked to stop, we just stop.
    async fn interrupt(&mut self) -> Signal {
        loop {
            tokio::select! {
                signal = self.signals.next_end() => return signal,
                () = self.suspend.asked() => {
                    self.suspend.stop();
                }
            }
        }
    }
}

/// What became of the wish for the lock.
enum Turn {
    Granted(Guard),
    NotAcquired,
    Interrupted(Signal),
}

/// One call of `run`.
struct Job<'a> {
    args: &'a Run,
    url: String,
    mode: Mode,
    lock_delay: Duration,
    voice: Voice,
    /// The wait may be shown as a line that is drawn over and over.
    live: bool,
}

/// Takes the lock, runs the command, releases.
pub(crate) async fn run(args: &Run, common: &Common) -> Result<End, Failure> {
    let mut ears = Ears::open().map_err(Failure::bug)?;
    let voice = Voice { json: common.json, quiet: common.quiet };
    let mode = args.mode()?;
    let url = store::url(common.store.as_deref())?;
    let lock_delay = args.lock_delay(&url)?;
    let job = Job { args, url, mode, lock_delay, voice, live: common.verbose == 0 };
    let keeper = tokio::select! {
        keeper = Keeper::builder().owner(owner(args)).connect(&job.url) => keeper?,
        signal = ears.interrupt() => return Ok(End::Signal(signal as i32)),
    };
    let end = job.under_lock(&keeper, &mut ears).await;
    // What cannot be finished in time ends with the session.
    let _ = timeout(CLOSE_MAX, keeper.close()).await;
    end
}

/// What others see: this process, under the name of the command it runs.
fn owner(args: &Run) -> Owner {
    let command = args.command.first().map(Path::new).and_then(Path::file_name);
    let program = command.unwrap_or_default().to_string_lossy().chars().take(16).collect();
    Owner { program, ..Owner::this_process() }
}

impl Job<'_> {
    async fn under_lock(&self, keeper: &Keeper, ears: &mut Ears) -> Result<End, Failure> {
        match self.turn(keeper, ears).await? {
            Turn::Granted(guard) => self.hold(guard, ears).await,
            Turn::NotAcquired => Ok(End::Code(self.args.conflict_exit_code)),
            Turn::Interrupted(signal) => Ok(End::Signal(signal as i32)),
        }
    }

    fn acquire(&self, keeper: &Keeper) -> Acquire {
        let name = &self.args.name;
        let mut acquire = match self.mode {
            Mode::Shared => keeper.rwlock(name).read(),
            Mode::Permits { weight, of } => keeper.semaphore(name, of).acquire(weight),
            _ => keeper.lock(name),
        };
        acquire = acquire.lock_delay(self.lock_delay);
        if let Some(ttl) = self.args.ttl {
            acquire = acquire.ttl(ttl);
        }
        if let Some(at_least) = self.args.at_least {
            acquire = acquire.at_least(at_least);
        }
        if let (Some(max_hold), OnLost::Ignore) = (self.args.max_hold, self.args.on_lost) {
            acquire = acquire.max_hold(max_hold);
        }
        if let Some(label) = &self.args.label {
            acquire = acquire.label(label.as_str());
        }
        acquire
    }

    /// Waits for the lock, as long as is wanted and nobody interrupts.
    async fn turn(&self, keeper: &Keeper, ears: &mut Ears) -> Result<Turn, Failure> {
        let (name, began) = (self.args.name.as_str(), Instant::now());
        let mut waiting = Waiting::new(name, self.mode, self.voice, self.live);
        let acquire = self.acquire(keeper).on_wait(waiting.ear());
        let acquired = tokio::select! {
            biased;
            acquired = patiently(acquire, self.args) => acquired?,
            signal = ears.interrupt() => return Ok(Turn::Interrupted(signal)),
            () = waiting.show() => None,
        };
        waiting.finish();
        let Some(guard) = acquired else {
            self.not_acquired(keeper, began.elapsed()).await;
            return Ok(Turn::NotAcquired);
        };
        let waited = began.elapsed();
        // On a terminal the line that said so has just gone: the command speaks for itself.
        let words = (waiting.happened() && !waiting.is_live()).then(|| {
            format!("got `{}` after {}", output::printable(name), duration::exact(waited))
        });
        self.voice.tell(&event::granted(&guard, waited), words.as_deref());
        Ok(Turn::Granted(guard))
    }

    async fn not_acquired(&self, keeper: &Keeper, waited: Duration) {
        let name = self.args.name.as_str();
        let line = timeout(LOOK_MAX, keeper.look_at(name)).await;
        let line = line.ok().and_then(Result::ok).flatten();
        let ticket = line.as_ref().and_then(|line| line.holders().next());
        let mut words = format!("`{}` was not acquired", output::printable(name));
        if !self.args.is_impatient() {
            words += &format!(" within {}", duration::exact(waited));
        }
        if let Some(ticket) = ticket {
            words += &format!(": {}", event::held_words(ticket));
        }
        let (waited_ms, holder) = (duration::ms(waited), ticket.and_then(event::holder));
        self.voice.tell(&Event::NotAcquired { name, waited_ms, holder }, Some(&words));
    }

    /// Runs the command under the lock.
    async fn hold(&self, guard: Guard, ears: &mut Ears) -> Result<End, Failure> {
        terminal::stay_awake();
        // What we have said, or wiped from the terminal, comes before what the command says.
        stderr::written(stderr::START_MAX).await;
        let terminal = Terminal::open();
        let front = terminal.as_ref().is_some_and(Terminal::is_for_the_command);
        if let Health::Lost(why) = guard.health() {
            // We were stopped just now, and nothing has been started yet.
            tell_lost(self.voice, guard.name(), why, Fate::NotStarted);
            return Ok(End::Code(exit_code::LOCK_LOST));
        }
        let started = Child::start(&self.args.command, self.environment(&guard), front);
        let mut hold = Hold {
            child: started.map_err(cannot_start)?,
            guard: &guard,
            signals: &mut ears.signals,
            suspend: &mut ears.suspend,
            terminal,
            voice: self.voice,
            on_lost: self.args.on_lost,
            kill_after: self.args.kill_after,
            max_hold: self.max_hold(),
            wants_terminal: front,
            without: false,
        };
        let ending = hold.last().await;
        let Held { mut child, without, had_terminal } = hold.end();
        let lost = match ending {
            Ending::Lost => {
                let _ = timeout(RELEASE_MAX, guard.release()).await;
                true
            }
            Ending::Done => !self.release(guard, &mut child, without).await,
        };
        let status = child.reap().map_err(Failure::bug)?;
        if let Some(signal) = status.signal().filter(|_| had_terminal) {
            terminal::pass_on(signal);
        }
        Ok(if lost { End::Code(exit_code::LOCK_LOST) } else { End::like(status) })
    }

    fn environment(&self, guard: &Guard) -> Vec<(&'static str, String)> {
        vec![
            ("LOCKKEEPER_NAME", guard.name().to_string()),
            ("LOCKKEEPER_FENCE", guard.fence().to_string()),
            ("LOCKKEEPER_SEQUENCER", guard.sequencer().to_string()),
            ("LOCKKEEPER_STORE", store::without_secrets(&self.url)),
        ]
    }

    /// When the command has to be ended. The library's own limit lets go of the lock at once, while
    /// the command would still be ending; so it serves only where the command goes on anyway.
    fn max_hold(&self) -> Moment {
        match (self.args.max_hold, self.args.on_lost) {
            (Some(max_hold), OnLost::Term) => Clock::system().now() + max_hold,
            _ => Moment::NEVER,
        }
    }

    /// Releases after the command has ended. Says whether its work was protected to the end, as
    /// far as anybody wants to know.
    async fn release(&self, guard: Guard, child: &mut Child, without: bool) -> bool {
        let name = self.args.name.clone();
        let released = timeout(RELEASE_MAX, guard.release()).await;
        let trouble = match released {
            Ok(Ok(())) => {
                self.voice.tell(&Event::Released { name: name.as_str() }, None);
                return true;
            }
            Ok(Err(Error::Lost { .. })) if without => return true,
            Ok(Err(Error::Lost { why, .. })) => {
                let ends = self.args.on_lost == OnLost::Term;
                tell_lost(self.voice, &name, why, Fate::Over);
                if ends {
                    // The command is gone, but it may have left others behind.
                    child.end(self.args.kill_after).await;
                }
                return !ends;
            }
            Ok(Err(e)) => format!("{:#}", anyhow::Error::from(e)),
            Err(_) => format!("no answer within {RELEASE_MAX:?}"),
        };
        let name = output::printable(name.as_str());
        self.voice.warn(&format!(
            "`{name}` could not be released and stays closed until it expires: {trouble}"
        ));
        true
    }
}

/// Takes the lock with the patience that was asked for; `None` if that was not enough.
async fn patiently(acquire: Acquire, args: &Run) -> Result<Option<Guard>, Error> {
    let acquire = match args.wait {
        _ if args.is_impatient() => return acquire.try_now().await,
        Some(wait) => acquire.wait(wait),
        None => acquire,
    };
    match acquire.await {
        Ok(guard) => Ok(Some(guard)),
        Err(Error::NotAcquired { .. }) => Ok(None),
        Err(e) => Err(e),
    }
}

fn cannot_start(error: io::Error) -> Failure {
    let error = anyhow::Error::from(error).context("cannot start a process");
    Failure::new(exit_code::CANNOT_EXECUTE, error)
}
