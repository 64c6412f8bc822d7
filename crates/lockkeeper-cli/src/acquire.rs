//! `lockkeeper acquire`: take the lock for a script, write a ticket file, and end.

use crate::{
    cli::{self, Common},
    duration,
    event::{self, Event, Manner, Voice},
    exit_code,
    failure::Failure,
    output,
    patience::{ANSWER_MIN, Patience, silent},
    run::End,
    signals::Signals,
    store,
    ticket::{self, CONNECT_MAX, Held, RELEASE_MAX},
    ticket_file::{Contents, Draft, TicketFile},
    waiting::Waiting,
};
use anyhow::anyhow;
use clap::Args;
use lockkeeper::{Detached, Error, ErrorKind, Guard, Keeper, Mode, Name, Owner, Sequencer};
use nix::unistd::getppid;
use std::{
    fs,
    path::PathBuf,
    time::{Duration, Instant},
};
use tokio::time::timeout;

/// How long the lock lasts without a renewal, if nothing else is said.
const TTL: Duration = Duration::from_secs(60);
/// For how long we look who holds a lock that we could not have.
const LIST_MAX: Duration = Duration::from_secs(1);

pub(crate) const HELP: &str = "\
Examples:
  ticket=$XDG_RUNTIME_DIR/deploy.ticket
  grant=$(lockkeeper acquire deploy --file \"$ticket\" -w 30) || exit
  trap 'lockkeeper release \"$ticket\"' EXIT
  eval \"$grant\"                        sets LOCKKEEPER_FENCE and the others below
  ./step-one --fence \"$LOCKKEEPER_FENCE\"
  lockkeeper renew \"$ticket\" || exit   within the TTL, before every further step
  ./step-two --fence \"$LOCKKEEPER_FENCE\"

On stdout, for eval (with --json as an object):
  LOCKKEEPER_TICKET_FILE  the file
  LOCKKEEPER_NAME         the lock
  LOCKKEEPER_FENCE        the number of this grant; not there if the store has none
  LOCKKEEPER_SEQUENCER    the grant as text, for others to check
  LOCKKEEPER_RENEW_BY     until when the lock is held unless it is renewed, as date +%s has it

The file has a secret with which the lock can be renewed and released, and mode 0600. No process
ends your script when the lock is lost: renew it in time, end when that fails, and pass the fence
to what you write to. lockkeeper run does the first two for you.

Exit codes:
  64  usage           69  the store is unavailable      77  the store refused
  73  the file cannot be written, or is there and its lock is still held; no lock was taken
  75  not acquired (-n, -w); -E sets another code       78  configuration";

/// The flags of `acquire`. Those that `run` has mean what they mean there.
#[derive(Args, Debug)]
pub(crate) struct Acquire {
    /// The lock: any text without control characters
    #[arg(value_parser = cli::name)]
    name: Name,

    /// Where to write the ticket
    #[arg(long, value_name = "PATH", value_hint = clap::ValueHint::FilePath)]
    file: PathBuf,

    /// Do not wait: end with code 75 if the lock is held
    #[arg(short, long, help_heading = "Waiting", conflicts_with = "wait")]
    nonblock: bool,

    /// Wait at most so long, in seconds or as 250ms, 30s, 2m; then end with code 75
    #[arg(short, long, help_heading = "Waiting", value_name = "TIME")]
    #[arg(value_parser = duration::parse, allow_hyphen_values = true)]
    wait: Option<Duration>,

    /// Try again and again instead of standing in line; a waiting line is not overtaken
    #[arg(long, help_heading = "Waiting")]
    unfair: bool,

    /// The code to end with when the lock was not acquired
    #[arg(short = 'E', long, help_heading = "Waiting", value_name = "CODE")]
    #[arg(default_value_t = exit_code::NOT_ACQUIRED, allow_hyphen_values = true)]
    conflict_exit_code: u8,

    /// Together with others who say -s
    #[arg(short, long, help_heading = "Sharing")]
    shared: bool,

    /// Alone (the default)
    #[arg(short = 'x', long, help_heading = "Sharing", conflicts_with_all = ["shared", "limit"])]
    exclusive: bool,

    /// Together with others, as long as no more than so many permits are taken
    #[arg(long, help_heading = "Sharing", value_name = "N", conflicts_with = "shared")]
    #[arg(allow_hyphen_values = true)]
    limit: Option<u32>,

    /// How many of these permits to take [default: 1]
    #[arg(long, help_heading = "Sharing", value_name = "N", requires = "limit")]
    #[arg(allow_hyphen_values = true)]
    permits: Option<u32>,

    /// How long the lock lasts from its grant and from each renewal on [default: 60s]
    #[arg(long, help_heading = "Holding", value_name = "TIME")]
    #[arg(value_parser = duration::ttl, allow_hyphen_values = true)]
    pub(crate) ttl: Option<Duration>,

    /// How long the store keeps the lock closed after that
    #[arg(long, help_heading = "Holding", value_name = "TIME")]
    #[arg(value_parser = duration::bounded, allow_hyphen_values = true)]
    lock_delay: Option<Duration>,

    /// What others read beside the lock
    #[arg(long, help_heading = "Holding", value_name = "TEXT")]
    label: Option<String>,
}

/// Takes the lock and writes the ticket file.
pub(crate) async fn acquire(args: &Acquire, common: &Common) -> Result<End, Failure> {
    let mut signals = Signals::catch().map_err(Failure::bug)?;
    let voice = Voice { json: common.json, quiet: common.quiet };
    let (url, began) = (store::url(common.store.as_deref())?, Instant::now());
    let path = std::path::absolute(&args.file).map_err(Failure::bug)?;
    let patience =
        if args.is_impatient() { Duration::ZERO } else { args.wait.unwrap_or(CONNECT_MAX) };
    let builder = Keeper::builder().identity(script()).connect_wait(patience);
    let job = Job { args, mode: args.mode()?, voice, url, path, began };
    let keeper = tokio::select! {
        keeper = builder.connect(&job.url) => keeper?,
        // The library lets the first attempt end by itself, and a silent server takes seconds for it.
        () = job.patience().over(began, ANSWER_MIN) => return Err(silent(began)),
        signal = signals.next_end() => return Ok(End::Signal(signal as i32)),
    };
    let end = tokio::select! {
        biased;
        end = job.work(&keeper) => end,
        // The wait is withdrawn below.
        signal = signals.next_end() => Ok(End::Signal(signal as i32)),
    };
    ticket::close(&keeper).await;
    end
}

/// What others see as the holder: the script that has called us, for we are about to end.
fn script() -> Owner {
    let (mut owner, parent) = (Owner::this_process(), getppid());
    if let (Ok(pid), Ok(name)) =
        (u32::try_from(parent.as_raw()), fs::read_to_string(format!("/proc/{parent}/comm")))
    {
        (owner.pid, owner.program) = (pid, name.trim_end().to_owned());
    }
    owner
}

impl Acquire {
    fn mode(&self) -> Result<Mode, Failure> {
        cli::mode(self.shared, self.limit, self.permits)
            .map_err(|e| e.hint("see lockkeeper acquire --help"))
    }

    fn is_impatient(&self) -> bool {
        self.nonblock || self.wait.is_some_and(|wait| wait.is_zero())
    }
}

/// One call of `acquire`.
struct Job<'a> {
    args: &'a Acquire,
    mode: Mode,
    voice: Voice,
    url: String,
    /// Of the ticket file.
    path: PathBuf,
    began: Instant,
}

impl Job<'_> {
    fn patience(&self) -> Patience {
        Patience { impatient: self.args.is_impatient(), wait: self.args.wait }
    }

    async fn work(&self, keeper: &Keeper) -> Result<End, Failure> {
        let stale = tokio::select! {
            stale = self.stale(keeper) => stale?,
            () = self.patience().over(self.began, ANSWER_MIN) => return Err(silent(self.began)),
        };
        let draft = Draft::beside(&self.path)?;
        let Some(guard) = self.wait(keeper).await? else {
            self.not_acquired(keeper).await;
            return Ok(End::Code(self.args.conflict_exit_code));
        };
        let waited = self.began.elapsed();
        self.warn_of_terms(&guard);
        let (held, terms) = (Held::of(&guard), guard.terms());
        let detached = guard.detach().await?;
        if let Err(failure) = draft.publish(&Contents::new(&detached, &self.url), stale.as_ref()) {
            give_back(keeper, &detached).await;
            return Err(failure);
        }
        let granted = ticket::Granted { detached: &detached, terms, held, path: &self.path };
        let text = match self.voice.json {
            true => granted.json(waited).map_err(Failure::bug)?,
            false => granted.shell(),
        };
        Ok(End::Code(output::answer(&text)))
    }

    /// A ticket file that is in the way and whose lock is held no more. It stays so, unless another process
    /// replaces it.
    async fn stale(&self, keeper: &Keeper) -> Result<Option<TicketFile>, Failure> {
        let in_the_way = |why: String| {
            let shown = output::printable(&self.path.display().to_string());
            Failure::new(exit_code::CANNOT_CREATE, anyhow!("{shown} is there already: {why}"))
        };
        let found = TicketFile::open(&self.path);
        let found = found.map_err(|_| in_the_way("it is not a ticket file of yours".to_owned()))?;
        let Some(file) = found else { return Ok(None) };
        let name = output::printable(&file.contents.name);
        let sequencer: Sequencer = file.contents.sequencer.parse()?;
        let here = lockkeeper::Store::id(keeper.store());
        if sequencer.store() != here {
            let other = output::printable(&file.contents.store_url);
            return Err(in_the_way(format!("it is for `{name}` in another store, {other}")));
        }
        if keeper.check(&sequencer).await? {
            let failure = in_the_way(format!("with it `{name}` is held"));
            return Err(failure.hint("lockkeeper release PATH releases that lock first"));
        }
        Ok(Some(file))
    }

    /// Waits for the lock with the patience that was asked for; `None` if that was not enough.
    async fn wait(&self, keeper: &Keeper) -> Result<Option<Guard>, Failure> {
        let name = &self.args.name;
        let manner = match (self.args.unfair, keeper.capabilities().fair) {
            (true, _) => Manner::Contend,
            (_, true) => Manner::Queue,
            (_, false) => Manner::NoLine,
        };
        let mut waiting = Waiting::new(name, manner, self.voice, true);
        let mut acquire = match self.mode {
            Mode::Shared => keeper.rwlock(name).read(),
            Mode::Permits { weight, of } => keeper.semaphore(name, of).acquire(weight),
            _ => keeper.lock(name),
        };
        acquire = acquire.lease(self.args.ttl.unwrap_or(TTL)).on_wait(waiting.ear());
        if let Some(lock_delay) = self.args.lock_delay {
            acquire = acquire.lock_delay(lock_delay);
        }
        if let Some(label) = &self.args.label {
            acquire = acquire.label(label.as_str());
        }
        if manner != Manner::Queue {
            acquire = acquire.unfair();
        }
        let patiently = async {
            match self.args.wait {
                _ if self.args.is_impatient() => acquire.try_now().await,
                Some(wait) => {
                    acquire.wait(wait.saturating_sub(self.began.elapsed())).await.map(Some)
                }
                None => acquire.await.map(Some),
            }
        };
        let acquired = tokio::select! {
            biased;
            acquired = patiently => acquired,
            () = self.patience().wait_is_over(self.began) => return Err(silent(self.began)),
            () = waiting.show(keeper) => Ok(None),
        };
        waiting.finish();
        match acquired {
            Err(Error::NotAcquired { .. }) => Ok(None),
            // It was taken, and the store has heard a late copy of our question.
            Err(Error::Store(e)) if e.kind == ErrorKind::TicketClosed => Ok(None),
            acquired => Ok(acquired?),
        }
    }

    async fn not_acquired(&self, keeper: &Keeper) {
        let name = self.args.name.as_str();
        let line = timeout(LIST_MAX, keeper.get(name)).await;
        let line = line.ok().and_then(Result::ok).flatten();
        let ticket = line.as_ref().and_then(|line| line.holders().next());
        let mut words = format!("`{}` was not acquired", output::printable(name));
        if let Some(ticket) = ticket {
            words += &format!(": {}", event::held_words(ticket));
        }
        let waited_ms = duration::ms(self.began.elapsed());
        let holder = ticket.and_then(event::holder);
        self.voice.tell(&Event::NotAcquired { name, waited_ms, holder }, Some(&words));
    }

    /// A store may grant less than was asked for; the script has to renew that much earlier.
    fn warn_of_terms(&self, guard: &Guard) {
        let (granted, asked) = (guard.terms().ttl, self.args.ttl.unwrap_or(TTL));
        if granted < asked {
            let [granted, asked] = [granted, asked].map(duration::flag);
            self.voice.warn(&format!("this store grants a TTL of {granted}, not of {asked}"));
        }
    }
}

/// The ticket could not be written, so no process could renew or release the lock.
async fn give_back(keeper: &Keeper, detached: &Detached) {
    let released = timeout(RELEASE_MAX, async { keeper.attach(detached).await?.release().await });
    if !matches!(released.await, Ok(Ok(()))) {
        let (name, ttl) = (output::printable(detached.name().as_str()), detached.terms().ttl);
        let ttl = duration::flag(ttl);
        output::warning(&format!("`{name}` could not be released: it stays closed for {ttl}"));
    }
}
