//! Every flag, described once: parsing, help and completions come from here.

use crate::{
    acquire, arguments, bench, complete, doctor, duration, exit_code, failure::Failure, ls, man,
    migrate, output, release, renew, run, run_alone, secrets, show, store, watch,
};
use clap::{
    ArgAction, Args, CommandFactory as _, Parser, Subcommand, ValueEnum, ValueHint,
    error::{ContextKind, ContextValue, ErrorKind},
};
use clap_complete::ArgValueCandidates;
use lockkeeper::{Mode, Name};
use std::{ffi::OsString, io::Write as _, path::PathBuf, time::Duration};

/// How much longer than the command's end the store keeps a lost lock closed, if nobody says more.
const DELAY_MARGIN: Duration = Duration::from_secs(1);

/// Locks for programs, scripts and services, on one machine or on many.
///
/// With no store named, locks live in a file in your state folder and hold for all that you run on
/// this machine. Name a store to share them with others.
#[derive(Debug, Parser)]
#[command(name = "lockkeeper", version, propagate_version = true, max_term_width = 100)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) common: Common,
    #[command(subcommand)]
    pub(crate) verb: Verb,
}

/// What every verb understands.
#[derive(Args, Debug)]
#[command(next_help_heading = "Common options")]
pub(crate) struct Common {
    /// Where the locks live: a URL, as in sqlite:/var/lib/jobs/locks.db, or a name from a file
    ///
    /// Without it: what `store =` in a file of settings says, or else the file `locks.db` in
    /// $XDG_STATE_HOME/lockkeeper or ~/.local/state/lockkeeper.
    #[arg(long, global = true, value_name = "STORE", env = "LOCKKEEPER_STORE")]
    #[arg(hide_env_values = true, add = ArgValueCandidates::new(complete::stores))]
    pub(crate) store: Option<String>,

    /// The store that the settings name, for a verb that [knows its store](Verb::knows_its_store).
    #[arg(skip)]
    pub(crate) settings_store: Option<String>,

    /// The only file of settings to read; an empty name reads none
    ///
    /// Without it: the next `lockkeeper.toml` in this folder or above it, and then
    /// $XDG_CONFIG_HOME/lockkeeper/config.toml or ~/.config/lockkeeper/config.toml.
    #[arg(long, global = true, value_name = "FILE", env = "LOCKKEEPER_CONFIG")]
    #[arg(value_hint = ValueHint::FilePath)]
    pub(crate) config: Option<OsString>,

    /// Speak JSON: an object on stdout, for run and elect one line per event on stderr
    #[arg(long, global = true)]
    pub(crate) json: bool,

    /// Say nothing but errors
    #[arg(short, long, global = true)]
    pub(crate) quiet: bool,

    /// Say what happens below, on stderr; twice for every renewal
    #[arg(short, long, global = true, action = ArgAction::Count, conflicts_with = "quiet")]
    pub(crate) verbose: u8,

    /// When to use colours; NO_COLOR is honoured
    #[arg(long, global = true, value_enum, value_name = "WHEN", default_value_t = Color::Auto)]
    pub(crate) color: Color,
}

/// When to use colours.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum Color {
    /// On a terminal.
    Auto,
    /// Everywhere.
    Always,
    /// Nowhere.
    Never,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// Take the lock, run a command, release
    ///
    /// The command is executed directly, without a shell. Stdin, stdout and stderr belong to it;
    /// lockkeeper itself speaks on stderr only. Signals are passed on to the command.
    #[command(after_long_help = run::HELP, args_override_self = true)]
    Run(Box<Run>),

    /// Take the lock for a script, and write a ticket file to renew and release it by
    ///
    /// The lock stays held when lockkeeper has ended: until it is released, or not renewed within its TTL.
    #[command(after_long_help = acquire::HELP, args_override_self = true)]
    Acquire(Box<acquire::Acquire>),

    /// Renew the lock of a ticket file
    #[command(after_long_help = renew::HELP)]
    Renew(renew::Renew),

    /// Release the lock of a ticket file, and remove the file
    #[command(after_long_help = release::HELP)]
    Release(release::Release),

    /// List the locks that are held or waited for
    #[command(after_long_help = ls::HELP)]
    Ls {
        /// Only names that begin so
        #[arg(add = ArgValueCandidates::new(complete::locks))]
        #[arg(default_value = "", hide_default_value = true)]
        prefix: String,

        /// The same as the verb watch
        #[arg(long)]
        watch: bool,
    },

    /// Watch locks: a live view on a terminal, JSON Lines elsewhere
    #[command(after_long_help = watch::HELP)]
    Watch(watch::Args),

    /// Show one lock: who holds it, who waits for it, since when
    #[command(after_long_help = show::HELP)]
    Show {
        /// The lock
        #[arg(value_parser = name, add = ArgValueCandidates::new(complete::locks))]
        name: Name,
    },

    /// Make or update the tables and functions in a database, or print them for a DBA
    ///
    /// A program does that itself when it connects, unless its URL says create=false.
    #[command(after_long_help = migrate::HELP)]
    Migrate {
        /// Only print the statements
        #[arg(long)]
        print: bool,
    },

    /// Look whether a store, as it is set up, is one to trust locks to
    #[command(after_long_help = doctor::HELP)]
    Doctor(doctor::Doctor),

    /// Measure a store for a few seconds: rough figures
    #[command(after_long_help = bench::HELP)]
    Bench(bench::Bench),

    Check(crate::check::Check),
    Held(crate::held::Held),
    Evict(crate::evict::Evict),

    /// Read or write the small value that belongs to a lock
    #[command(subcommand, after_long_help = crate::cell::HELP)]
    Cell(crate::cell::Cell),
    Elect(Box<crate::elect::Elect>),
    Serve(Box<crate::serve::Serve>),

    /// Draw tokens for the programs and people that use the service
    #[command(subcommand, after_long_help = crate::token::HELP)]
    Token(crate::token::Token),

    /// Print a completion script for a shell
    ///
    /// It completes verbs and flags, and the names of stores and locks where the store answers quickly.
    #[command(after_long_help = complete::HELP)]
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },

    /// Print a page of the manual, or write all of them into a folder
    #[command(after_long_help = man::HELP)]
    Man {
        /// The verb that the page is about; without it, the command
        #[arg(conflicts_with = "into")]
        page: Option<String>,

        /// Write all pages into this folder
        #[arg(long, value_name = "FOLDER", value_hint = ValueHint::DirPath)]
        into: Option<PathBuf>,
    },
}

impl Verb {
    /// Does the verb speak to a store?
    pub(crate) fn has_a_store(&self) -> bool {
        !matches!(self, Self::Completions { .. } | Self::Man { .. } | Self::Token(_))
    }

    /// The verb's `--ttl`, if it has one: what is not said there can be set in a file.
    pub(crate) fn ttl(&mut self) -> Option<&mut Option<Duration>> {
        match self {
            Self::Run(run) => Some(&mut run.ttl),
            Self::Elect(elect) => Some(&mut elect.ttl),
            Self::Acquire(acquire) => Some(&mut acquire.ttl),
            _ => None,
        }
    }

    /// The store that the verb was given without a flag, if it was.
    pub(crate) fn take_store(&mut self) -> Option<String> {
        match self {
            Self::Doctor(doctor) => doctor.store.take(),
            Self::Bench(bench) => bench.store.take(),
            _ => None,
        }
    }

    /// Does the verb know its store unless a flag or the environment names another one?
    pub(crate) fn knows_its_store(&self) -> bool {
        matches!(self, Self::Renew(_) | Self::Release(_))
    }
}

/// The flags of `run`. Those that flock(1) has mean what they mean there.
#[derive(Args, Debug)]
pub(crate) struct Run {
    /// The lock: any text without control characters
    #[arg(value_parser = name, add = ArgValueCandidates::new(complete::locks))]
    pub(crate) name: Name,

    /// The command and its arguments
    #[arg(required_unless_present = "script", trailing_var_arg = true, value_name = "COMMAND")]
    command: Vec<OsString>,

    /// Run this text by /bin/sh instead of a command
    #[arg(short = 'c', long = "command", value_name = "STRING", conflicts_with = "command")]
    #[arg(allow_hyphen_values = true)]
    script: Option<OsString>,

    /// Do not wait: end with code 75 if the lock is held
    #[arg(short, long, help_heading = "Waiting", conflicts_with = "wait")]
    pub(crate) nonblock: bool,

    /// Wait at most so long, in seconds or as 250ms, 30s, 2m; then end with code 75
    #[arg(short, long, help_heading = "Waiting", value_name = "TIME")]
    #[arg(value_parser = duration::parse, allow_hyphen_values = true)]
    pub(crate) wait: Option<Duration>,

    /// Try again and again instead of standing in line; a waiting line is not overtaken
    #[arg(long, help_heading = "Waiting")]
    pub(crate) unfair: bool,

    /// If a lockkeeper run around this one holds the lock, run the command under it
    ///
    /// Without it such a run, which would wait for itself, ends with code 64 at once.
    #[arg(long, help_heading = "Waiting", conflicts_with_all = ["at_least", "max_hold"])]
    pub(crate) reentrant: bool,

    /// The code to end with when the lock was not acquired
    #[arg(short = 'E', long, help_heading = "Waiting", value_name = "CODE")]
    #[arg(default_value_t = exit_code::NOT_ACQUIRED, allow_hyphen_values = true)]
    pub(crate) conflict_exit_code: u8,

    /// Together with others who say -s
    #[arg(short, long, help_heading = "Sharing")]
    pub(crate) shared: bool,

    /// Alone (the default)
    #[arg(short = 'x', long, help_heading = "Sharing", conflicts_with_all = ["shared", "limit"])]
    pub(crate) exclusive: bool,

    /// Together with others, as long as no more than so many permits are taken
    #[arg(long, help_heading = "Sharing", value_name = "N", conflicts_with = "shared")]
    #[arg(allow_hyphen_values = true)]
    pub(crate) limit: Option<u32>,

    /// How many of these permits to take [default: 1]
    #[arg(long, help_heading = "Sharing", value_name = "N", requires = "limit")]
    #[arg(allow_hyphen_values = true)]
    pub(crate) permits: Option<u32>,

    /// How long the lock outlives the last sign of life of its holder [default: 15s]
    #[arg(long, help_heading = "Holding", value_name = "TIME")]
    #[arg(value_parser = duration::ttl, allow_hyphen_values = true)]
    pub(crate) ttl: Option<Duration>,

    /// Keep the lock closed for so long from its grant on, also when the command ends earlier; not
    /// kept if lockkeeper is killed or the lock is lost
    #[arg(long, help_heading = "Holding", value_name = "TIME")]
    #[arg(value_parser = duration::bounded, allow_hyphen_values = true)]
    pub(crate) at_least: Option<Duration>,

    /// End the command and let go of the lock after so long (code 79)
    #[arg(long, help_heading = "Holding", value_name = "TIME")]
    #[arg(value_parser = duration::max_hold, allow_hyphen_values = true)]
    pub(crate) max_hold: Option<Duration>,

    /// What others read beside the lock
    #[arg(long, help_heading = "Holding", value_name = "TEXT")]
    pub(crate) label: Option<String>,

    /// What becomes of the command when the lock is lost
    #[arg(long, help_heading = "Losing the lock", value_enum, value_name = "WHAT")]
    #[arg(default_value_t = OnLost::Term)]
    pub(crate) on_lost: OnLost,

    /// How long the command has between SIGTERM and SIGKILL
    #[arg(long, help_heading = "Losing the lock", value_name = "TIME", default_value = "5s")]
    #[arg(value_parser = duration::bounded, allow_hyphen_values = true)]
    pub(crate) kill_after: Duration,

    /// How long the store keeps a lost lock closed [default: --kill-after and one second]
    #[arg(long, help_heading = "Losing the lock", value_name = "TIME")]
    #[arg(value_parser = duration::bounded, allow_hyphen_values = true)]
    pub(crate) lock_delay: Option<Duration>,

    /// When the lock was lost: ask for it again, and start the command anew. Only `elect` sets it.
    #[arg(skip)]
    pub(crate) stands_again: bool,
}

/// What becomes of the command when the lock is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum OnLost {
    /// SIGTERM to its process group, then SIGKILL
    Term,
    /// It goes on without the lock
    Ignore,
}

impl Run {
    /// The program to run, and its arguments.
    pub(crate) fn argv(&self) -> Vec<OsString> {
        match &self.script {
            Some(script) => vec!["/bin/sh".into(), "-c".into(), script.clone()],
            None => self.command.clone(),
        }
    }

    /// How the lock is to be taken.
    pub(crate) fn mode(&self) -> Result<Mode, Failure> {
        mode(self.shared, self.limit, self.permits)
    }

    /// For how long the store is to keep a lost lock closed: for longer than the command may take
    /// to end.
    pub(crate) fn lock_delay(&self, url: &str) -> Result<Duration, Failure> {
        let kill_after = self.kill_after;
        let Some(delay) = self.lock_delay.or_else(|| store::lock_delay(url)) else {
            return Ok(kill_after.saturating_add(DELAY_MARGIN));
        };
        if self.on_lost == OnLost::Term && delay <= kill_after {
            let (delay, kill_after) = (duration::flag(delay), duration::flag(kill_after));
            return Err(Failure::usage(format!(
                "a lock-delay of {delay} is too short for --kill-after {kill_after}: the next \
                 holder could start before this command is gone"
            )));
        }
        Ok(delay)
    }

    /// How long the command has between SIGTERM and SIGKILL where the store keeps a lost lock closed
    /// for so long: it must be gone before that is over.
    pub(crate) fn kill_after(&self, lock_delay: Duration) -> Duration {
        if self.on_lost == OnLost::Ignore || lock_delay > self.kill_after {
            return self.kill_after;
        }
        lock_delay.saturating_sub(DELAY_MARGIN).max(lock_delay / 2).min(self.kill_after)
    }

    /// Is one attempt all that is wanted?
    pub(crate) fn is_impatient(&self) -> bool {
        self.nonblock || self.wait.is_some_and(|wait| wait.is_zero())
    }
}

/// How the lock is to be taken by these flags.
pub(crate) fn mode(
    shared: bool,
    limit: Option<u32>,
    permits: Option<u32>,
) -> Result<Mode, Failure> {
    match (shared, limit, permits.unwrap_or(1)) {
        (true, ..) => Ok(Mode::Shared),
        (_, None, _) => Ok(Mode::Exclusive),
        (_, Some(of), weight) if (1..=of).contains(&weight) => Ok(Mode::Permits { weight, of }),
        (_, Some(0), _) => Err(Failure::usage("--limit must be at least 1".to_owned())),
        (_, Some(of), weight) => {
            let what = format!("--permits {weight} must be between 1 and --limit {of}");
            Err(Failure::usage(what))
        }
    }
}

/// The command line, or the code to end with: help and version are no errors.
pub(crate) fn parse() -> Result<Cli, u8> {
    let words = arguments::words();
    let parsed = run_alone::parse(words).map_or_else(|| Cli::try_parse_from(words), Ok);
    let parsed = if may_lack_a_name(&parsed, words) && is_name_forgotten(words) {
        Err(Cli::command().error(ErrorKind::MissingRequiredArgument, NAME_FIRST))
    } else {
        parsed
    };
    parsed.map_err(|mut e| {
        if e.kind() == ErrorKind::UnknownArgument {
            // To write `--` before a misspelt flag would make it the name of a lock.
            e.remove(ContextKind::Suggested);
        }
        if e.use_stderr() && wants_json(words) {
            let what = anyhow::Error::msg(first_paragraph(&e.render().to_string()));
            let failure = Failure::new(exit_code::USAGE, what).hint("see lockkeeper --help");
            return failure.report(true);
        }
        let text = e.render().ansi().to_string();
        if e.use_stderr() {
            output::styled(&text.replacen("error:", "lockkeeper:", 1));
            exit_code::USAGE
        } else {
            let _ = write!(anstream::stdout(), "{text}");
            0
        }
    })
}

/// Is the lock's name what stands behind `--`? To find out whether it was forgotten takes another parsing.
fn may_lack_a_name(parsed: &Result<Cli, clap::Error>, words: &[OsString]) -> bool {
    let behind = words.iter().skip_while(|word| *word != "--").nth(1);
    match parsed.as_ref().map(|cli| &cli.verb) {
        Ok(Verb::Run(run)) => behind.is_some_and(|first| first == run.name.as_str()),
        _ => true,
    }
}

/// Was JSON asked for on a command line that makes no sense?
fn wants_json(words: &[OsString]) -> bool {
    words.iter().take_while(|word| *word != "--").any(|word| word == "--json")
}

/// What is wrong, without usage and hints.
fn first_paragraph(error: &str) -> String {
    let lines = error.lines().take_while(|line| !line.is_empty());
    let text = lines.map(str::trim).collect::<Vec<_>>().join(" ");
    text.trim_start_matches("error: ").to_owned()
}

const NAME_FIRST: &str =
    "the command needs a lock: its name stands first, as in: lockkeeper run NAME -- COMMAND";

/// Was the lock's name forgotten, as in `run -- echo hi`? The command would be taken for the name, and its
/// first argument for the command. Only a name that begins with a dash needs to stand behind `--`.
fn is_name_forgotten(words: &[OsString]) -> bool {
    let (before, behind) = words.split_at(words.iter().take_while(|word| *word != "--").count());
    let Some((_dashes, behind)) = behind.split_first() else { return false };
    if behind.first().is_some_and(|next| next.as_encoded_bytes().starts_with(b"-")) {
        return false;
    }
    let Err(e) = Cli::try_parse_from(before) else { return false };
    let Some(ContextValue::Strings(missing)) = e.get(ContextKind::InvalidArg) else { return false };
    let lacks = |what| missing.iter().any(|argument| argument.starts_with(what));
    lacks("<NAME>") && lacks("<COMMAND>")
}

/// Reads a lock's name. A store's URL here is a slip, and its password would be shown to all.
pub(crate) fn name(text: &str) -> Result<Name, String> {
    if secrets::is_secret(text) {
        return Err("a lock's name is no URL with a password; name the store with --store".into());
    }
    Name::new(text).map_err(|e| e.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(line: &str) -> Result<Run, clap::Error> {
        let words = ["lockkeeper", "run"].into_iter().chain(line.split(' '));
        Cli::try_parse_from(words).map(|cli| match cli.verb {
            Verb::Run(run) => *run,
            other => panic!("not run: {other:?}"),
        })
    }

    fn delay(line: &str) -> Option<Duration> {
        run(line).unwrap().lock_delay("sqlite:a?lock_delay=3s").ok()
    }

    #[test]
    fn the_flags_make_sense_to_clap() {
        Cli::command().debug_assert();
    }

    #[test]
    fn every_verb_has_examples_in_its_long_help() {
        for verb in Cli::command().get_subcommands() {
            let help = verb.get_after_long_help().or(verb.get_after_help());
            let name = verb.get_name();
            let help = help.map(ToString::to_string).unwrap_or_default();
            let mut lines = help.lines().skip_while(|line| *line != "Examples:");
            let is_example = |line: &str| line.contains("lockkeeper ") && line.contains(name);
            assert!(lines.any(is_example), "{name} needs `Examples:` behind its long help");
        }
    }

    #[test]
    fn the_command_begins_with_or_without_dashes() {
        for line in ["-n a -- ls -n -w", "a -n ls -n -w", "-n a ls -n -w"] {
            let run = run(line).unwrap();
            assert!(run.nonblock && run.wait.is_none(), "{line}");
            assert_eq!(run.command, ["ls", "-n", "-w"], "{line}");
        }
        assert_eq!(run("a -- -x").unwrap().command, ["-x"]);
    }

    #[test]
    fn a_text_for_the_shell_stands_in_place_of_a_command() {
        for line in ["-c ls a", "a -c ls", "-n a --command ls"] {
            assert_eq!(run(line).unwrap().argv(), ["/bin/sh", "-c", "ls"], "{line}");
        }
        assert_eq!(run("a -- -c ls").unwrap().argv(), ["-c", "ls"]);
        assert_eq!(run("a sh -c ls").unwrap().argv(), ["sh", "-c", "ls"]);
        assert!(run("a -c ls -- ls").is_err() && run("a -c ls l").is_err() && run("a -c").is_err());
    }

    #[test]
    fn what_is_misspelt_is_never_run() {
        for line in ["a", "a --", "a --tll 3s ls", "-n -w 3 a ls", "-s -x a ls", "-E 256 a ls"] {
            assert!(run(line).is_err(), "{line}");
        }
        for line in ["--permits 2 a ls", "-s --limit 3 a ls", "-x --limit 3 a ls", "-w soon a ls"] {
            assert!(run(line).is_err(), "{line}");
        }
    }

    #[test]
    fn the_mode_follows_from_the_flags() {
        let mode = |line| run(line).unwrap().mode().ok();
        assert_eq!(mode("a ls"), Some(Mode::Exclusive));
        assert_eq!(mode("-s a ls"), Some(Mode::Shared));
        assert_eq!(mode("--limit 4 a ls"), Some(Mode::Permits { weight: 1, of: 4 }));
        assert_eq!(mode("--limit 4 --permits 4 a ls"), Some(Mode::Permits { weight: 4, of: 4 }));
        assert_eq!(mode("--limit 4 --permits 5 a ls"), None);
        assert_eq!(mode("--limit 4 --permits 0 a ls"), None);
        assert_eq!(mode("--limit 0 a ls"), None);
    }

    #[test]
    fn the_command_is_gone_before_a_shorter_lock_delay_is_over() {
        let seconds = Duration::from_secs;
        let kill_after = |line: &str, granted| run(line).unwrap().kill_after(seconds(granted));
        assert_eq!(kill_after("a ls", 6), seconds(5));
        assert_eq!(kill_after("a ls", 5), seconds(4));
        assert_eq!(kill_after("--kill-after 30s a ls", 25), seconds(24));
        assert_eq!(kill_after("a ls", 1), Duration::from_millis(500));
        assert_eq!(kill_after("a ls", 0), Duration::ZERO);
        assert_eq!(kill_after("--on-lost ignore a ls", 0), seconds(5));
    }

    #[test]
    fn a_forgotten_name_is_told_from_a_forgotten_command() {
        let forgotten = |line: &str| {
            let words = ["lockkeeper"].into_iter().chain(line.split(' '));
            is_name_forgotten(&words.map(OsString::from).collect::<Vec<_>>())
        };
        assert!(forgotten("run -- echo") && forgotten("run -w 3 --"));
        assert!(!forgotten("run a --") && !forgotten("run a") && !forgotten("show --"));
    }

    #[test]
    fn a_name_may_begin_with_a_dash_behind_two() {
        let run = run("-n -- -x ls -l").unwrap();
        assert_eq!((run.name.as_str(), run.nonblock), ("-x", true));
        assert_eq!(run.command, ["ls", "-l"]);
    }

    #[test]
    fn the_lock_delay_outlasts_the_command() {
        let plain = run("a ls").unwrap().lock_delay("sqlite:a").ok();
        assert_eq!(plain, Some(Duration::from_secs(6)));
        assert_eq!(delay("--lock-delay 6s a ls"), Some(Duration::from_secs(6)));
        assert_eq!(delay("--lock-delay 5s a ls"), None);
        assert_eq!(delay("a ls"), None, "the URL's 3s are not enough for 5s");
        assert_eq!(delay("--kill-after 2s a ls"), Some(Duration::from_secs(3)));
        assert_eq!(delay("--on-lost ignore a ls"), Some(Duration::from_secs(3)));
    }
}
