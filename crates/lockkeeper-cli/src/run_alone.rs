//! Reading the command line of `run` without describing all other verbs.
//!
//! To describe them all takes half a millisecond, a tenth of a short run. For all that is no `run`, help and mistakes
//! included, they are described all the same.

use crate::cli::{Cli, Common, Run, Verb};
use clap::{Args as _, Command, FromArgMatches as _};
use std::ffi::OsString;

/// A command line of `run` that makes sense.
pub(crate) fn parse(words: &[OsString]) -> Option<Cli> {
    let run = Run::augment_args(Command::new("run")).args_override_self(true);
    let all = Common::augment_args(Command::new("lockkeeper")).subcommand(run);
    let found = all.try_get_matches_from(words).ok()?;
    let run = Run::from_arg_matches(found.subcommand_matches("run")?).ok()?;
    let common = Common::from_arg_matches(&found).ok()?;
    Some(Cli { common, verb: Verb::Run(Box::new(run)) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser as _;

    #[test]
    fn run_is_read_alone_as_it_is_among_all_verbs() {
        for line in [
            "run a ls",
            "--json run -n -w 3 a -- ls run",
            "run -v --store s -E 3 -v a -c ls -q",
            "--store run run --label run run -- run",
            "run --limit 4 --limit 5 --permits 2 -- -x -x",
            "run --store a --store b a ls",
            "run",
            "run a",
            "run --help",
            "run --version",
            "run -s -x a ls",
            "help run",
            "--version run a ls",
            "ls run",
            "--store run ls",
            "elect run ls",
            "--colour never run a ls",
            "",
        ] {
            let words = ["lockkeeper"].into_iter().chain(line.split(' ').filter(|w| !w.is_empty()));
            let words: Vec<OsString> = words.map(OsString::from).collect();
            let alone = parse(&words).map(|cli| format!("{cli:?}"));
            let all = Cli::try_parse_from(&words).ok();
            let run = all.filter(|cli| matches!(cli.verb, Verb::Run(_)));
            assert_eq!(alone, run.map(|cli| format!("{cli:?}")), "{line}");
        }
    }
}
