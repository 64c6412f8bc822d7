//! What was asked for.

use crate::{
    benches::{self, Bench},
    child::Role,
};
use clap::{Parser, Subcommand, ValueEnum};
use std::{path::PathBuf, time::Duration};

/// Benchmarks of lockkeeper beside the bare floors of its stores
#[derive(Parser)]
#[command(name = "bench", args_conflicts_with_subcommands = true)]
pub(crate) struct Args {
    /// Show what can be measured, and stop
    #[arg(long)]
    list: bool,
    /// Measure only this; may be given several times
    #[arg(long, value_name = "NAME", value_parser = benches::find)]
    only: Vec<&'static Bench>,
    /// How long each variant runs, all rounds together
    #[arg(long, value_name = "N", default_value_t = 5.0, value_parser = seconds)]
    seconds: f64,
    /// How many rounds that time is divided into
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
    /// Run everything, children and server too, on one core; or the server apart, on a core of its
    /// own, and everything else together on another one
    #[arg(long, value_enum, num_args = 0..=1, require_equals = true, default_missing_value = "one")]
    pin: Option<Pin>,
    /// Print one JSON document instead of text
    #[arg(long)]
    json: bool,
    /// A smoke run: everything works, the figures mean nothing
    #[arg(long)]
    quick: bool,
    /// Fail if a target is missed
    #[arg(long)]
    check: bool,
    /// Where the files of locks are made; a folder for temporary files if not given
    #[arg(long, value_name = "PATH")]
    folder: Option<PathBuf>,
    #[command(subcommand)]
    role: Option<Roles>,
}

/// Which cores are used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Pin {
    One,
    Apart,
}

#[derive(Subcommand)]
enum Roles {
    /// What this program does when it has started itself as a child
    #[command(hide = true)]
    Child {
        /// The role, as JSON
        role: String,
    },
}

/// What to do.
pub(crate) enum Call {
    /// Show what can be measured.
    List,
    /// Be a child.
    Role(Role),
    /// Measure.
    Measure(Plan),
}

/// How to measure.
pub(crate) struct Plan {
    pub(crate) benches: Vec<&'static Bench>,
    /// How long each variant runs, all rounds together.
    pub(crate) time: Duration,
    pub(crate) rounds: u32,
    /// Which cores everything runs on; `None` leaves that to the system.
    pub(crate) pin: Option<Pin>,
    pub(crate) json: bool,
    pub(crate) quick: bool,
    pub(crate) check: bool,
    pub(crate) folder: PathBuf,
}

impl Args {
    pub(crate) fn call(self) -> Call {
        match self.role {
            Some(Roles::Child { role }) => Call::Role(Role::parse(&role)),
            None if self.list => Call::List,
            None => Call::Measure(self.plan()),
        }
    }

    fn plan(self) -> Plan {
        let all = || benches::ALL.iter().collect();
        let (seconds, rounds) = if self.quick { (0.2, 2) } else { (self.seconds, self.rounds) };
        Plan {
            benches: if self.only.is_empty() { all() } else { self.only },
            time: Duration::from_secs_f64(seconds),
            rounds,
            pin: self.pin,
            json: self.json,
            quick: self.quick,
            check: self.check,
            folder: self.folder.unwrap_or_else(std::env::temp_dir),
        }
    }
}

impl Plan {
    /// How long each variant runs in one round.
    pub(crate) fn round(&self) -> Duration {
        self.time / self.rounds
    }

    /// A number that a smoke run makes smaller.
    pub(crate) fn scaled(&self, full: usize, quick: usize) -> usize {
        if self.quick { quick } else { full }
    }
}

fn seconds(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(n) if (0.1..=3600.0).contains(&n) => Ok(n),
        _ => Err("a number of seconds from 0.1 to 3600".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_arguments_are_consistent() {
        use clap::CommandFactory as _;
        Args::command().debug_assert();
    }

    #[test]
    fn one_core_is_meant_unless_two_are_said() {
        let pin = |words: &[&str]| Args::parse_from(words).pin;
        assert_eq!(pin(&["bench"]), None);
        assert_eq!(pin(&["bench", "--pin"]), Some(Pin::One));
        assert_eq!(pin(&["bench", "--pin=apart"]), Some(Pin::Apart));
    }

    #[test]
    fn a_smoke_run_is_short_and_complete() {
        let Call::Measure(plan) = Args::parse_from(["bench", "--quick"]).call() else {
            panic!("a run without a role measures")
        };
        assert_eq!(plan.benches.len(), benches::ALL.len());
        assert!(plan.time < Duration::from_secs(1));
    }
}
