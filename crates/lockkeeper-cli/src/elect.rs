//! `lockkeeper elect`: runs a command only while this process leads, and says who does.
//!
//! A leader is the holder of the lock of this name, so all that runs a command under it is `run`'s.

use crate::{
    answer::{self, quoted},
    cli::{self, Common},
    duration,
    event::{Voice, label},
    failure::Failure,
    listing::OwnerView,
    output::{self, printable},
    run::{self, End},
};
use clap::{Args, Command, FromArgMatches as _};
use lockkeeper::{Error, Leader, Name};
use serde::Serialize;
use std::{
    ffi::OsString,
    io::{self, Write as _},
    mem,
    time::Duration,
};

const HELP: &str = "\
Examples:
  lockkeeper elect scheduler -- scheduler --serve  run it here only while this process leads
  lockkeeper elect --once scheduler -- job         do not stand again after a loss
  lockkeeper elect --print scheduler               who leads now
  lockkeeper elect --observe --json scheduler      each change of the leader, as JSON Lines

The candidates stand in the line of the lock of this name and lead in the order in which they came. The command
starts when this process becomes the leader. When the leadership is lost the command is ended, as by run, and
the process stands again, at the end of the line; when it leads again the command is started anew. It ends with
the command: when that ends by itself, with whatever code, or by a signal that was passed on.

Exit codes:
  the command's own, or 128+n when signal n killed it or ended the wait
  0    --print: there is a leader
  1    --print: there is none
  79   the leadership was lost, with --once or after a signal to end
  and those of run: 64, 69, 70, 77, 78, 80, 126, 127";

/// Run a command only while this process is the leader, or say who leads
#[derive(Args, Debug)]
#[command(after_long_help = HELP)]
pub(crate) struct Elect {
    /// The election: the lock of this name
    #[arg(value_parser = cli::name)]
    name: Name,

    /// The command and its arguments
    #[arg(trailing_var_arg = true, value_name = "COMMAND")]
    #[arg(required_unless_present_any = ["print", "observe"])]
    #[arg(conflicts_with_all = ["print", "observe"])]
    command: Vec<OsString>,

    /// Only say who leads now
    #[arg(long, conflicts_with_all = ["observe", "once"])]
    print: bool,

    /// Say who leads, now and whenever that changes
    #[arg(long, conflicts_with = "once")]
    observe: bool,

    /// When the leadership is lost, end (code 79) instead of standing again
    #[arg(long)]
    once: bool,

    /// What others read beside the leader
    #[arg(long, value_name = "TEXT")]
    label: Option<String>,

    /// How long the leadership outlives the last sign of life of the leader [default: 15s]
    #[arg(long, value_name = "TIME", value_parser = duration::ttl, allow_hyphen_values = true)]
    pub(crate) ttl: Option<Duration>,

    /// How long the command has between SIGTERM and SIGKILL
    #[arg(long, value_name = "TIME", default_value = "5s")]
    #[arg(value_parser = duration::bounded, allow_hyphen_values = true)]
    kill_after: Duration,

    /// How long the store keeps a lost leadership closed [default: --kill-after and one second]
    #[arg(long, value_name = "TIME")]
    #[arg(value_parser = duration::bounded, allow_hyphen_values = true)]
    lock_delay: Option<Duration>,
}

/// What the command line asks for.
pub(crate) async fn elect(args: &Elect, common: &Common) -> Result<End, Failure> {
    if args.print {
        return print(&args.name, common).await;
    }
    if args.observe {
        return observe(&args.name, common).await;
    }
    run::run(&args.as_run()?, common).await
}

impl Elect {
    /// The same as arguments of `run`, whose defaults hold for all that is not said here.
    fn as_run(&self) -> Result<cli::Run, Failure> {
        let words = ["run".into(), "--".into(), self.name.as_str().into()];
        let words = words.into_iter().chain(self.command.iter().cloned());
        let matches = cli::Run::augment_args(Command::new("run")).try_get_matches_from(words);
        let run = matches.and_then(|matches| cli::Run::from_arg_matches(&matches));
        let mut run = run.map_err(Failure::bug)?;
        run.stands_again = !self.once;
        run.label.clone_from(&self.label);
        (run.ttl, run.lock_delay, run.kill_after) = (self.ttl, self.lock_delay, self.kill_after);
        Ok(run)
    }
}

#[derive(Debug, Serialize)]
struct ElectionView<'a> {
    name: &'a str,
    /// None while there is no leader.
    leader: Option<LeaderView>,
}

#[derive(Debug, Serialize)]
struct LeaderView {
    /// The number of its term; none where the store has none.
    fence: Option<u64>,
    ticket: String,
    /// None for a leadership that is kept closed after its end.
    owner: Option<OwnerView>,
    label: Option<String>,
}

impl From<&Leader> for LeaderView {
    fn from(leader: &Leader) -> Self {
        Self {
            fence: fence(leader),
            ticket: leader.ticket.to_string(),
            owner: leader.owner.as_ref().map(Into::into),
            label: label(&leader.label),
        }
    }
}

fn fence(leader: &Leader) -> Option<u64> {
    Some(leader.fence).filter(|fence| *fence != 0)
}

/// "ci-7 (pid 4121) leads `scheduler` under fence 17: blue"
fn words(name: &Name, leader: Option<&Leader>) -> String {
    let name = quoted(name.as_str());
    let Some(leader) = leader else { return format!("no process leads {name}") };
    let mut words = match &leader.owner {
        Some(owner) => format!("{} leads {name}", printable(&owner.to_string())),
        None => format!("no process leads {name}, which is kept closed"),
    };
    if let Some(fence) = fence(leader) {
        words += &format!(" under fence {fence}");
    }
    if let Some(label) = label(&leader.label) {
        words += &format!(": {}", printable(&label));
    }
    words
}

async fn print(name: &Name, common: &Common) -> Result<End, Failure> {
    let leader = answer::connect(common).await?.election(name).leader().await?;
    let leads = leader.as_ref().is_some_and(|leader| leader.owner.is_some());
    let view = ElectionView { name: name.as_str(), leader: leader.as_ref().map(Into::into) };
    answer::give(common, view, &words(name, leader.as_ref()), answer::code(leads))
}

/// Says each change until the reader has gone, or a signal ends us.
async fn observe(name: &Name, common: &Common) -> Result<End, Failure> {
    let keeper = answer::connect(common).await?;
    let mut leaders = keeper.election(name).observe();
    let voice = Voice { json: common.json, quiet: common.quiet };
    let mut answers = true;
    loop {
        let leader = match leaders.next().await {
            Ok(leader) => leader,
            Err(Error::Store(e)) if e.is_transient() => {
                if mem::take(&mut answers) {
                    voice.note("the store does not answer; still watching");
                }
                continue;
            }
            Err(e) => return Err(e.into()),
        };
        if !mem::replace(&mut answers, true) {
            voice.note("the store answers again");
        }
        let line = match common.json {
            true => output::stamped_line(ElectionView {
                name: name.as_str(),
                leader: leader.as_ref().map(Into::into),
            }),
            false => format!("{} {}\n", output::ago(Duration::ZERO), words(name, leader.as_ref())),
        };
        match io::stdout().write_all(line.as_bytes()).and_then(|()| io::stdout().flush()) {
            Ok(()) => {}
            Err(e) if e.kind() == io::ErrorKind::BrokenPipe => return Ok(End::Code(0)),
            Err(e) => {
                return Err(Failure::bug(anyhow::Error::from(e).context("cannot write to stdout")));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::{Cli, Verb};
    use clap::Parser as _;

    fn elect(line: &str) -> Result<Elect, clap::Error> {
        let words = ["lockkeeper", "elect"].into_iter().chain(line.split(' '));
        Cli::try_parse_from(words).map(|cli| match cli.verb {
            Verb::Elect(elect) => *elect,
            verb => panic!("{verb:?}"),
        })
    }

    #[test]
    fn a_candidate_runs_its_command_as_run_does() {
        let run =
            elect("--ttl 3s --kill-after 1s --label x a -- -ls -l").unwrap().as_run().unwrap();
        assert_eq!((run.name.as_str(), run.argv()), ("a", vec!["-ls".into(), "-l".into()]));
        let second = Duration::from_secs(1);
        assert_eq!((run.ttl, run.kill_after), (Some(3 * second), second));
        assert_eq!(run.label.as_deref(), Some("x"));
        let run = elect("-- -a ls").unwrap().as_run().unwrap();
        assert_eq!((run.name.as_str(), run.wait, run.nonblock), ("-a", None, false));
    }

    #[test]
    fn either_a_command_or_a_question() {
        assert!(elect("a --print").is_ok() && elect("--observe a").is_ok());
        for line in
            ["a", "--print a ls", "--observe a ls", "--print --observe a", "--once --print a"]
        {
            assert!(elect(line).is_err(), "{line}");
        }
    }
}
