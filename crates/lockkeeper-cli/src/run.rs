//! `lockkeeper run`: take the lock, run the command, release.

use crate::{
    child::{Child, cannot_start},
    cli::{Common, OnLost, Run},
    daily, duration,
    event::{self, Event, Manner, Voice},
    exit_code,
    failure::{self, Failure},
    hold::{self, Ending, Fate, Held, Hold, tell_lost},
    jeopardy::Jeopardy,
    nested::{self, Nesting},
    orphans, output,
    patience::{ANSWER_MIN, Patience, silent},
    shim,
    signals::Signals,
    stderr, store,
    supervisor::{Dismissed, Supervisor},
    suspend::Suspend,
    terminal::{self, Terminal},
    waiting::Waiting,
};
use lockkeeper::{
    Acquire, Error, ErrorKind, Guard, Health, Keeper, Loss, Mode, Owner, Sequencer,
    store::clock::{Clock, Moment},
};
use nix::{sys::signal::Signal, unistd::getpgrp};
use std::{
    convert::Infallible,
    io,
    os::unix::process::ExitStatusExt as _,
    path::Path,
    process::{ExitCode, ExitStatus},
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};
use tokio::{
    task::{JoinHandle, spawn_blocking},
    time::timeout,
};

pub(crate) const HELP: &str = "\
Examples:
  lockkeeper run backup -- backup.sh              wait your turn, then run
  lockkeeper run -n backup -- backup.sh           run only if no other client does
  lockkeeper run backup -c 'dump | gzip >b.gz'    a pipeline, by /bin/sh
  lockkeeper run -w 30 deploy -- make deploy      wait 30 seconds at most
  lockkeeper run -s cache -- reader               together with other -s, apart from the rest
  lockkeeper run --limit 4 gpu -- train.py        four at a time
  lockkeeper run --at-least 50s nightly -- job    once a minute, whichever machine comes first

The command finds in its environment:
  LOCKKEEPER_NAME       the lock
  LOCKKEEPER_FENCE      the number of this grant; it grows with every exclusive grant of the name
  LOCKKEEPER_SEQUENCER  the grant as text, for others to check
  LOCKKEEPER_HELD       the grants of this run and of those around it, for a nested run
  LOCKKEEPER_STORE_URL  the store, without its password
  LOCKKEEPER_STORE      the store, for a lockkeeper that the command runs

Exit codes:
  the command's own, or 128+n when signal n killed it
  64   usage: the flags or the name make no sense, or the run would wait for a lock that the run
       around it holds
  69   the store is unavailable
  70   a fault of lockkeeper
  75   not acquired (-n, -w); -E sets another code
  77   the store refused
  78   configuration: the store's URL, the store, a file of settings or the environment
  79   the lock was lost while the command ran, or --max-hold was over
  126  the command cannot be executed
  127  the command was not found

When the lock is lost (the store was out of reach for too long, or an operator evicted us) the
command's process group gets SIGTERM, and SIGKILL after --kill-after; the store keeps the lock
closed until then. Nothing can end the command while lockkeeper itself is stopped: where that
matters, pass LOCKKEEPER_FENCE to what you write to, and have it refuse smaller numbers than it
has seen.";

/// For how long a store is waited for that is not there when we start, if nothing else is said. Once
/// connected, a wait without `-w` goes on through every outage.
const CONNECT_MAX: Duration = Duration::from_secs(30);
/// After how long we say that we wait for the store.
const OUTAGE_TOLD: Duration = Duration::from_secs(2);
/// For how long a release may take. After that the session ends by itself, within its TTL.
const RELEASE_MAX: Duration = Duration::from_secs(5);
/// For how long closing may take: leaving the line, ending the session.
const CLOSE_MAX: Duration = Duration::from_secs(2);
/// The same when the time that `-w` gives is over.
const CLOSE_LATE_MAX: Duration = Duration::from_millis(500);
/// For how long we look who holds a lock that we could not have.
const LIST_MAX: Duration = Duration::from_millis(500);

/// How `run` ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// With this code.
    Code(u8),
    /// As if by this signal.
    Signal(i32),
    /// The lock was lost, and the command was ended for it. No signal has asked us to end.
    Lost,
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
            Self::Lost => ExitCode::from(exit_code::LOCK_LOST),
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

/// How often `-n` asks if the lock is lost each time before the command can be started.
const ASK_MAX: u32 = 3;

/// What became of the wish for the lock.
enum Turn {
    /// With the time until which it is ours at the least.
    Granted(Guard, Moment),
    /// It was granted and lost before the command was started, or its session was.
    Lost(Loss),
    NotAcquired,
    Interrupted(Signal),
}

/// One call of `run`.
struct Job<'a> {
    args: &'a Run,
    /// The store as it was named, if it was.
    said: Option<&'a str>,
    url: String,
    mode: Mode,
    lock_delay: Duration,
    voice: Voice,
    /// The wait may be shown as a line that is drawn over and over.
    live: bool,
    /// Since when we wait, for the store and for the lock.
    began: Instant,
    /// The lock was held: the time that `-w` gives does not count any more.
    held: AtomicBool,
    /// The supervisor of the first command. It is started while the store is asked, so that no grant waits for it.
    supervisor: Mutex<Option<JoinHandle<io::Result<Supervisor>>>>,
    /// Those of commands that have ended.
    dismissed: Mutex<Vec<Dismissed>>,
}

/// Takes the lock, runs the command, releases.
pub(crate) async fn run(args: &Run, common: &Common) -> Result<End, Failure> {
    let mut ears = Ears::open().map_err(Failure::bug)?;
    orphans::adopt().map_err(Failure::bug)?;
    let voice = Voice { json: common.json, quiet: common.quiet };
    let mode = args.mode()?;
    let said = common.store.as_deref();
    let url = store::url(said)?;
    let (lock_delay, live, began) = (args.lock_delay(&url)?, common.verbose == 0, Instant::now());
    let held = AtomicBool::new(false);
    // A run that may become its command must have no child.
    let supervisor = Mutex::new((!args.reentrant).then(|| spawn_blocking(Supervisor::start)));
    let dismissed = Mutex::default();
    let job =
        Job { args, said, url, mode, lock_delay, voice, live, began, held, supervisor, dismissed };
    // A store that is only just starting is waited for, as a lock is.
    let patience =
        if args.is_impatient() { Duration::ZERO } else { args.wait.unwrap_or(CONNECT_MAX) };
    let builder = Keeper::builder().identity(owner(args)).connect_wait(patience);
    let keeper = tokio::select! {
        keeper = builder.connect(&job.url) => keeper?,
        never = job.tell_outage(patience) => match never {},
        // The library lets the first attempt end by itself, and a silent server takes seconds for it.
        () = job.patience().over(began, ANSWER_MIN) => return Err(silent(began)),
        signal = ears.interrupt() => return Ok(End::Signal(signal as i32)),
    };
    let nesting = tokio::select! {
        nesting = job.nesting(&keeper) => nesting,
        () = job.patience().over(began, ANSWER_MIN) => Nesting::Apart,
        signal = ears.interrupt() => return Ok(End::Signal(signal as i32)),
    };
    let end = match &nesting {
        Nesting::Apart => job.under_lock(&keeper, &mut ears).await,
        Nesting::Under(_) => Ok(End::Code(0)),
        Nesting::Waits(held) => Err(nested::waits_for_itself(held, mode, args.reentrant)),
    };
    // What cannot be finished in time ends with the session.
    let _ = timeout(job.close_max(&keeper), keeper.close()).await;
    match nesting {
        Nesting::Under(held) => tokio::select! {
            biased;
            // What came while we closed would be forgotten by the exec.
            signal = ears.interrupt() => Ok(End::Signal(signal as i32)),
            () = tokio::task::yield_now() => Ok(End::Code(job.run_under(&held))),
        },
        _ => end,
    }
}

/// What others see: this process, under the name of the command it runs.
fn owner(args: &Run) -> Owner {
    let command = args.argv();
    let command = command.first().map(Path::new).and_then(Path::file_name);
    let program = command.unwrap_or_default().to_string_lossy().chars().take(16).collect();
    let mut owner = Owner::this_process();
    owner.program = program;
    owner
}

impl Job<'_> {
    /// Says that the store is waited for, if that takes a while. Never ends.
    async fn tell_outage(&self, patience: Duration) -> Infallible {
        tokio::time::sleep(OUTAGE_TOLD).await;
        if !patience.is_zero() {
            let patience = duration::flag(patience);
            self.voice
                .note(&format!("no answer from the store yet; waiting for it up to {patience}"));
        }
        std::future::pending().await
    }

    fn patience(&self) -> Patience {
        Patience { impatient: self.args.is_impatient(), wait: self.args.wait }
    }

    /// For how long closing may take.
    fn close_max(&self, keeper: &Keeper) -> Duration {
        let limit = self.patience().limit();
        let over = limit.is_some_and(|limit| limit <= self.began.elapsed());
        let held = self.held.load(Ordering::Relaxed);
        let late = !held && (over || limit.is_some() && keeper.outage().is_some());
        if late { CLOSE_LATE_MAX } else { CLOSE_MAX }
    }

    /// What is to be done about the locks that are held around this run. With `-n` nothing would wait.
    async fn nesting(&self, keeper: &Keeper) -> Nesting {
        let (name, reentrant) = (&self.args.name, self.args.reentrant);
        match nested::look(keeper, nested::inherited(), name, self.mode, reentrant).await {
            Nesting::Waits(_) if self.args.is_impatient() => Nesting::Apart,
            nesting => nesting,
        }
    }

    /// Becomes the command, under a grant of the run around this one: in its process group, so that it ends
    /// with all that this has started when the lock is lost.
    fn run_under(&self, held: &Sequencer) -> u8 {
        let (name, fence) = (held.name(), Some(held.fence()).filter(|fence| *fence != 0));
        self.voice.tell(&Event::reentered(held), None);
        let mut variables = vec![
            ("LOCKKEEPER_NAME", Some(name.to_string())),
            ("LOCKKEEPER_FENCE", fence.map(|fence| fence.to_string())),
            ("LOCKKEEPER_SEQUENCER", Some(held.to_string())),
        ];
        variables.extend(store::for_the_command(&self.url, self.said));
        stderr::flush(stderr::START_MAX);
        shim::become_command_of(&self.args.argv(), variables)
    }

    async fn under_lock(&self, keeper: &Keeper, ears: &mut Ears) -> Result<End, Failure> {
        let (mut asked, mut began) = (0, self.began);
        loop {
            asked += 1;
            let why = match self.turn(keeper, ears, began).await? {
                Turn::Granted(guard, ours_until) => {
                    let _look = daily::look(keeper, &self.url, self.voice);
                    match self.hold(guard, ours_until, ears).await? {
                        End::Lost if self.args.stands_again => {
                            // As the first process we could see no end behind that of one we keep.
                            self.dismissed().clear();
                            (asked, began) = (0, Instant::now());
                            continue;
                        }
                        end => return Ok(end),
                    }
                }
                Turn::NotAcquired => return Ok(End::Code(self.args.conflict_exit_code)),
                Turn::Interrupted(signal) => return Ok(End::Signal(signal as i32)),
                Turn::Lost(why) => why,
            };
            if self.args.is_impatient() && asked == ASK_MAX {
                let name = output::printable(self.args.name.as_str());
                let what = format!(
                    "`{name}` was lost {asked} times before the command was started: {why}"
                );
                return Err(Failure::new(exit_code::UNAVAILABLE, anyhow::Error::msg(what)));
            }
            // Nothing has run, so nothing is at risk.
            tell_lost(self.voice, &self.args.name, why, None, Fate::NotStarted);
        }
    }

    fn manner(&self, keeper: &Keeper) -> Manner {
        match (self.args.unfair, keeper.capabilities().fair) {
            (true, _) => Manner::Contend,
            (_, true) => Manner::Queue,
            (_, false) => Manner::NoLine,
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
    async fn turn(
        &self,
        keeper: &Keeper,
        ears: &mut Ears,
        began: Instant,
    ) -> Result<Turn, Failure> {
        let (name, manner) = (self.args.name.as_str(), self.manner(keeper));
        let mut waiting = Waiting::new(&self.args.name, manner, self.voice, self.live);
        let mut acquire = self.acquire(keeper).on_wait(waiting.ear());
        if manner != Manner::Queue {
            acquire = acquire.unfair();
        }
        let acquired = tokio::select! {
            biased;
            acquired = self.patiently(acquire) => match acquired {
                Err(Error::Lost { why, .. }) => return Ok(Turn::Lost(why)),
                acquired => acquired?,
            },
            signal = ears.interrupt() => return Ok(Turn::Interrupted(signal)),
            () = self.patience().wait_is_over(began) => return Err(silent(began)),
            () = waiting.show(keeper) => None,
        };
        waiting.finish();
        let Some(guard) = acquired else {
            self.not_acquired(keeper, self.began.elapsed()).await;
            return Ok(Turn::NotAcquired);
        };
        let waited = began.elapsed();
        // On a terminal the line that said so has just gone: the command speaks for itself.
        let words = (waiting.happened() && !waiting.is_live()).then(|| {
            format!("got `{}` after {}", output::printable(name), duration::exact(waited))
        });
        self.voice.tell(&event::granted(&guard, waited), words.as_deref());
        // What we have said, or wiped from the terminal, comes before what the command says.
        stderr::written(stderr::START_MAX).await;
        let ours_until = hold::ours_until(&guard);
        Ok(match guard.health() {
            // We were stopped just now.
            Health::Lost(why) => Turn::Lost(why),
            _ => Turn::Granted(guard, ours_until),
        })
    }

    /// Takes the lock with the patience that was asked for; `None` if that was not enough.
    async fn patiently(&self, acquire: Acquire) -> Result<Option<Guard>, Error> {
        let acquired = match self.args.wait {
            _ if self.args.is_impatient() => acquire.try_now().await,
            Some(wait) => acquire.wait(wait.saturating_sub(self.began.elapsed())).await.map(Some),
            None => acquire.await.map(Some),
        };
        match acquired {
            Err(Error::NotAcquired { .. }) => Ok(None),
            // It was taken, and the store has heard a late copy of our question.
            Err(Error::Store(e)) if e.kind == ErrorKind::TicketClosed => Ok(None),
            acquired => acquired,
        }
    }

    async fn not_acquired(&self, keeper: &Keeper, waited: Duration) {
        let name = self.args.name.as_str();
        let line = timeout(LIST_MAX, keeper.get(name)).await;
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
    async fn hold(
        &self,
        guard: Guard,
        ours_until: Moment,
        ears: &mut Ears,
    ) -> Result<End, Failure> {
        self.held.store(true, Ordering::Relaxed);
        terminal::stay_awake();
        let terminal = Terminal::open();
        let front = terminal.as_ref().is_some_and(Terminal::is_for_the_command);
        let kill_after = self.kill_after(&guard);
        let shown = terminal.as_ref().filter(|_| front);
        let environment = self.environment(&guard);
        let early = self.supervisor.lock().unwrap_or_else(PoisonError::into_inner).take();
        let started = match Supervisor::early_or_new(early).await {
            Ok(supervisor) => {
                Child::start(&self.args.argv(), environment, shown, supervisor, kill_after)
            }
            Err(e) => Err(cannot_start(e)),
        };
        let child = match started {
            Ok(child) => child,
            Err(failure) => {
                // The process may have given it to its own group before the exec failed.
                if let Some(terminal) = shown {
                    terminal.give(getpgrp());
                }
                self.give_back(guard).await;
                return Err(failure);
            }
        };
        let mut hold = Hold {
            child,
            guard: &guard,
            signals: &mut ears.signals,
            suspend: &mut ears.suspend,
            terminal,
            voice: self.voice,
            on_lost: self.args.on_lost,
            kill_after,
            max_hold: self.args.max_hold,
            ours_until,
            held_until: self.held_until(),
            wants_terminal: front,
            without: false,
            ends: None,
            jeopardy: Jeopardy::default(),
        };
        let ending = hold.last().await;
        let Held { mut child, without, had_terminal, asked_to_end } = hold.end();
        let lost = match ending {
            Ending::Lost => {
                let _ = timeout(RELEASE_MAX, guard.release()).await;
                true
            }
            Ending::Done => !self.release(guard, &mut child, kill_after, without).await,
        };
        let (status, dismissed) = child.reap().map_err(Failure::bug)?;
        self.dismissed().push(dismissed);
        if let Some(signal) = status.signal().filter(|_| had_terminal) {
            terminal::pass_on(signal);
        }
        Ok(match (lost, ending) {
            (false, _) => End::like(status),
            (true, Ending::Lost) if !asked_to_end => End::Lost,
            // It has ended by itself or as it was asked to, and its end was not protected.
            (true, _) => End::Code(exit_code::LOCK_LOST),
        })
    }

    fn dismissed(&self) -> MutexGuard<'_, Vec<Dismissed>> {
        self.dismissed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The time between SIGTERM and SIGKILL. Warns if the store keeps a lost lock closed for less
    /// time than it was asked to.
    fn kill_after(&self, guard: &Guard) -> Duration {
        let (wanted, asked) = (self.args.kill_after, self.lock_delay);
        let granted = guard.terms().lock_delay;
        let kill_after = self.args.kill_after(granted);
        if kill_after < wanted || self.args.lock_delay.is_some() && granted < asked {
            let [granted, asked, left, wanted] =
                [granted, asked, kill_after, wanted].map(duration::flag);
            let mut words =
                format!("this store keeps a lost lock closed for {granted}, not for {asked}");
            if left != wanted {
                words += &format!(": --kill-after is {left} instead of {wanted}");
            }
            self.voice.warn(&words);
        }
        kill_after
    }

    fn environment(&self, guard: &Guard) -> Vec<(&'static str, Option<String>)> {
        let mut variables = vec![
            ("LOCKKEEPER_NAME", Some(guard.name().to_string())),
            ("LOCKKEEPER_FENCE", event::fence(guard).map(|fence| fence.to_string())),
            ("LOCKKEEPER_SEQUENCER", Some(guard.sequencer().to_string())),
            (nested::VARIABLE, Some(nested::for_the_command(guard))),
        ];
        variables.extend(store::for_the_command(&self.url, self.said));
        variables
    }

    /// When the command has to be ended. The library's own limit lets go of the lock at once, while
    /// the command would still be ending; so it serves only where the command goes on anyway.
    fn held_until(&self) -> Moment {
        match (self.args.max_hold, self.args.on_lost) {
            (Some(max_hold), OnLost::Term) => Clock::system().now() + max_hold,
            _ => Moment::NEVER,
        }
    }

    /// Releases after the command has ended. Says whether its work was protected to the end, as
    /// far as anybody wants to know.
    async fn release(
        &self,
        guard: Guard,
        child: &mut Child,
        kill_after: Duration,
        without: bool,
    ) -> bool {
        match self.give_back(guard).await {
            Some(why) if !without => {
                let ends = self.args.on_lost == OnLost::Term;
                tell_lost(self.voice, &self.args.name, why, None, Fate::Over);
                if ends {
                    // The command is gone, but it may have left others behind.
                    child.end(kill_after).await;
                }
                !ends
            }
            _ => true,
        }
    }

    /// Releases, and says how the lock was lost if it was.
    async fn give_back(&self, guard: Guard) -> Option<Loss> {
        let name = self.args.name.as_str();
        let trouble = match timeout(RELEASE_MAX, guard.release()).await {
            Ok(Ok(())) => {
                self.voice.tell(&Event::Released { name }, None);
                return None;
            }
            Ok(Err(Error::Lost { why, .. })) => return Some(why),
            Ok(Err(e)) => output::printable(&failure::chain(&e.into())),
            Err(_) => format!("no answer within {RELEASE_MAX:?}"),
        };
        let name = output::printable(name);
        self.voice.warn(&format!(
            "`{name}` could not be released and stays closed until it expires: {trouble}"
        ));
        None
    }
}
