//! The project's own commands, run as `cargo xtask COMMAND`.

mod browser;
mod dist;
mod picture;
mod programs;
mod schemathesis;
mod stores;
mod test;
mod tidy;
mod workspace;

use std::env;
use std::process::ExitCode;

use anyhow::Result;

const USAGE: &str = "\
usage: cargo xtask COMMAND

commands
  test [ARGS...]         install missing servers, then run every test;
                         ARGS go to the test programs
  test --newest [ARGS...]
                         the same on the newest version of every server, from roots
                         of Debian's next release (root only)
  stores up [NAME...]    start servers to try things out with; without NAME, all of them
  stores down            stop them
  stores list            show what runs, and where
  bench [ARGS...]        run the benchmarks with ARGS
  browser                test the console in chromium against the service
  browser --pictures     take the console's pictures in docs/img anew
  dist                   build what is installed into target/dist: the command, man
                         pages, completions, documents
  picture                turn a terminal's screen into an SVG:
                         tmux capture-pane -e -p | cargo xtask picture > docs/img/x.svg
  schemathesis [ARGS...] try requests made from /openapi.json, sensible and not, on a service;
                         ARGS go to schemathesis (--max-examples 500)
  tidy                   check the rules of this repository that no compiler knows
  help                   show this text

environment
  LOCKKEEPER_REQUIRE     the stores whose absence is a failure: names, or `all`
  LOCKKEEPER_SERVERS     `newest` is what --newest does
  LOCKKEEPER_ROOTS       the folder of those roots; /var/cache/lockkeeper/roots if not set
";

/// What a shell expects of a command that was called the wrong way.
const MISUSE: u8 = 2;

fn main() -> ExitCode {
    let words: Vec<String> = env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    run(&words).unwrap_or_else(|error| {
        eprintln!("xtask: {error:#}");
        ExitCode::FAILURE
    })
}

fn run(words: &[&str]) -> Result<ExitCode> {
    match words {
        ["test", "--newest", args @ ..] => test::run_newest(args),
        ["test", args @ ..] => test::run(args),
        ["stores", "up", names @ ..] => stores::up(names),
        ["stores", "down"] => stores::down(),
        ["stores", "list"] => stores::list(),
        ["bench", args @ ..] => {
            workspace::cargo(&[&["run", "--release", "--package", "bench", "--"], args].concat())
        }
        ["browser"] => browser::test(),
        ["browser", "--pictures"] => browser::pictures(),
        ["dist"] => dist::run(),
        ["picture"] => picture::run(),
        ["schemathesis", args @ ..] => schemathesis::run(args),
        ["tidy"] => tidy::run(),
        [] | ["help" | "--help" | "-h"] => {
            print!("{USAGE}");
            Ok(ExitCode::SUCCESS)
        }
        unknown => {
            eprint!("xtask: no such command: {}\n\n{USAGE}", unknown.join(" "));
            Ok(ExitCode::from(MISUSE))
        }
    }
}
