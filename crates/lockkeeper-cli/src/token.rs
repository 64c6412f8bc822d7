//! `lockkeeper token`: tokens for the service.

use crate::{answer, cli::Common, duration, exit_code, failure::Failure, output::note, run::End};
use anyhow::Context as _;
use clap::{Subcommand, ValueHint};
use lockkeeper_server::NewToken;
use serde::Serialize;
use std::{
    fs::{File, OpenOptions},
    io::{self, Read as _, Seek as _, SeekFrom, Write as _},
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

pub(crate) const HELP: &str = "\
Examples:
  lockkeeper token new ci --scope 'lock:jobs/*' --into tokens
  lockkeeper serve --tokens tokens";

const NEW_HELP: &str = "\
Examples:
  lockkeeper token new ci --scope 'lock:jobs/*' --into tokens >ci.token
                                                   the token into one file, its line into the service's
  lockkeeper token new ops --scope admin --scope lock
                                                   the token, and below it the line
  lockkeeper token new temp --scope read --valid 30d

Scopes:
  read     look: listings, events, checks, values
  lock     take locks and write values, and look
  admin    evict, see the metrics, and look
  Each is for all names, or for some: lock:jobs/*, read:nightly. Write %20 for a blank in a name.

Exit codes:
  0    the token is on stdout
  64   usage: a name or a scope that makes no sense
  73   the file cannot be written

The file has a hash of the token and not the token, which is shown this once. With --json: token and line.";

/// What to do with tokens.
#[derive(Debug, Subcommand)]
pub(crate) enum Token {
    /// Draw a token for a program or a person that uses the service
    #[command(after_long_help = NEW_HELP)]
    New {
        /// The principal: letters, digits and . _ @ -
        name: String,
        /// What it may do: read, lock or admin, alone or with names, as in lock:jobs/*; can be repeated
        #[arg(long = "scope", value_name = "SCOPE", required = true)]
        scopes: Vec<String>,
        /// For how long the token is good, as in 30d; without it, until its line is removed
        #[arg(long, value_name = "TIME", value_parser = duration::parse)]
        valid: Option<Duration>,
        /// Append the line to this file instead of printing it
        #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
        into: Option<PathBuf>,
    },
}

#[derive(Serialize)]
struct View<'a> {
    name: &'a str,
    token: &'a str,
    line: &'a str,
}

/// Draws a token.
pub(crate) fn token(what: &Token, common: &Common) -> Result<End, Failure> {
    let Token::New { name, scopes, valid, into } = what;
    let until = match valid {
        None => None,
        Some(valid) => {
            let until = SystemTime::now().checked_add(*valid);
            Some(until.ok_or_else(|| Failure::usage("--valid is too long".to_owned()))?)
        }
    };
    let drawn = NewToken::draw(name, scopes, until).map_err(|e| Failure::usage(e.to_owned()))?;
    let NewToken { token, line, .. } = &drawn;
    let words = match into {
        None => format!("{token}\n{line}"),
        Some(path) => {
            append(path, line)
                .with_context(|| format!("cannot write {}", path.display()))
                .map_err(|e| Failure::new(exit_code::CANNOT_CREATE, e))?;
            token.clone()
        }
    };
    if !common.quiet && !common.json {
        note(match into {
            None => {
                "the token is shown this once; the second line is for the service's file (--tokens)"
            }
            Some(_) => {
                "the token is shown this once; a service that runs takes the new line up by itself"
            }
        });
    }
    // With -q too: the token is all that the verb is for.
    let text = if common.json {
        crate::output::json_answer(View { name, token, line }).map_err(Failure::bug)?
    } else {
        format!("{words}\n")
    };
    Ok(answer::end(&text, 0))
}

/// Appends a line to the file, which is made for this user alone if it is not there.
fn append(path: &Path, line: &str) -> io::Result<()> {
    let mut file =
        OpenOptions::new().read(true).append(true).create(true).mode(0o600).open(path)?;
    let gap = if ends_in_mid_line(&mut file)? { "\n" } else { "" };
    file.write_all(format!("{gap}{line}\n").as_bytes())
}

fn ends_in_mid_line(file: &mut File) -> io::Result<bool> {
    if file.metadata()?.len() == 0 {
        return Ok(false);
    }
    let mut last = [0];
    file.seek(SeekFrom::End(-1))?;
    file.read_exact(&mut last)?;
    Ok(last != *b"\n")
}
