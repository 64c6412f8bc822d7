//! `lockkeeper cell`: the small value that belongs to a lock.

use crate::{
    answer::{self, quoted},
    cli::{self, Common},
    exit_code,
    failure::Failure,
    grant::{self, Over},
    output::{self, note},
    run::End,
};
use clap::Subcommand;
use lockkeeper::{Name, store::CELL_MAX};
use serde::Serialize;
use std::{
    ffi::OsString,
    fmt::Write as _,
    io::{self, Read as _, Write as _},
    os::unix::ffi::OsStringExt as _,
};

pub(crate) const HELP: &str = "\
Examples:
  lockkeeper cell get import                       what the last holder left
  lockkeeper run import -- sh -c 'import && lockkeeper cell put import \"$(date)\"'";

const GET_HELP: &str = "\
Examples:
  lockkeeper cell get import                       the bytes, as they are
  lockkeeper cell get --json import                with the fence under which they were written

Exit codes:
  0    the value is on stdout
  1    the lock has no value
  69   the store is unavailable
  80   the store has no cells (redlock)";

const PUT_HELP: &str = "\
Examples:
  lockkeeper run import -- sh -c 'import && lockkeeper cell put import \"$(date)\"'
  tar c state | lockkeeper cell put job -          inside run; up to 64 KiB from stdin
  lockkeeper cell put --sequencer \"$TOKEN\" job x   under the grant of another process

Exit codes:
  0    written
  64   usage: no sequencer, one of another lock, a grant that is not exclusive, or too many bytes
  69   the store is unavailable
  79   nothing was written: the grant is not held any more
  80   the store has no cells (redlock)

Whether the grant is held is checked by the store, in one step with the write. So a process that was overtaken
cannot overwrite what its successor has written.";

/// What to do with the cell.
#[derive(Debug, Subcommand)]
pub(crate) enum Cell {
    /// Print the value that belongs to a lock
    #[command(after_long_help = GET_HELP)]
    Get {
        /// The lock
        #[arg(value_parser = cli::name)]
        name: Name,
    },
    /// Write the value that belongs to a lock, under a grant that holds it alone
    #[command(after_long_help = PUT_HELP)]
    Put {
        /// The lock
        #[arg(value_parser = cli::name)]
        name: Name,
        /// The value; - or none reads it from stdin
        value: Option<OsString>,
        /// The grant under which it is written
        #[arg(long, env = grant::VARIABLE, hide_env_values = true)]
        sequencer: Option<String>,
    },
}

#[derive(Debug, Serialize)]
struct CellView<'a> {
    name: &'a str,
    /// The fence of the grant under which it was written; none if the lock has no value.
    fence: Option<u64>,
    /// The value, if it is UTF-8.
    value: Option<&'a str>,
    /// The value in hexadecimal digits.
    value_hex: Option<String>,
}

#[derive(Debug, Serialize)]
struct PutView<'a> {
    name: &'a str,
    fence: u64,
    bytes: usize,
}

/// Reads or writes the cell.
pub(crate) async fn cell(what: &Cell, common: &Common) -> Result<End, Failure> {
    match what {
        Cell::Get { name } => get(name, common).await,
        Cell::Put { name, value, sequencer } => {
            put(name, value.clone(), sequencer.as_deref(), common).await
        }
    }
}

async fn get(name: &Name, common: &Common) -> Result<End, Failure> {
    let cell = answer::connect(common).await?.read(name).await?;
    let (bytes, code) =
        (cell.as_ref().map(|cell| cell.bytes.as_slice()), answer::code(cell.is_some()));
    if common.json {
        let view = CellView {
            name: name.as_str(),
            fence: cell.as_ref().map(|cell| cell.fence),
            value: bytes.and_then(|bytes| std::str::from_utf8(bytes).ok()),
            value_hex: bytes.map(hex),
        };
        return Ok(answer::end(&output::json_answer(view).map_err(Failure::bug)?, code));
    }
    match bytes {
        Some(bytes) => match io::stdout().write_all(bytes).and_then(|()| io::stdout().flush()) {
            Err(e) if e.kind() != io::ErrorKind::BrokenPipe => {
                let error = anyhow::Error::from(e).context("cannot write to stdout");
                return Err(Failure::bug(error));
            }
            _ => {}
        },
        None if common.quiet => {}
        None => note(&format!("{} has no value", quoted(name.as_str()))),
    }
    Ok(End::Code(code))
}

async fn put(
    name: &Name,
    value: Option<OsString>,
    sequencer: Option<&str>,
    common: &Common,
) -> Result<End, Failure> {
    let from_stdin = value.as_ref().is_none_or(|value| value == "-");
    if sequencer == Some("-") && from_stdin {
        return Err(usage("the sequencer and the value cannot both come from stdin".to_owned()));
    }
    let sequencer = grant::sequencer(sequencer)?;
    if sequencer.name() != name {
        let [other, name] = [sequencer.name(), name].map(|name| quoted(name.as_str()));
        return Err(usage(format!("the sequencer is of the lock {other}, not of {name}")));
    }
    let bytes = match value.filter(|_| !from_stdin) {
        Some(value) => value.into_vec(),
        None => from_stdin_bytes()?,
    };
    let len = bytes.len();
    let keeper = answer::connect(common).await?;
    if !keeper.write_under(&sequencer, bytes).await? {
        let over = Over::of(&keeper, &sequencer).await?;
        let what = format!("nothing was written: {}", over.words(&sequencer));
        return Err(Failure::new(exit_code::LOCK_LOST, anyhow::Error::msg(what)));
    }
    let view = PutView { name: name.as_str(), fence: sequencer.fence(), bytes: len };
    answer::give(common, view, "", 0)
}

/// All of stdin; a byte more than fits is enough to be refused.
fn from_stdin_bytes() -> Result<Vec<u8>, Failure> {
    let mut bytes = Vec::new();
    let most = u64::try_from(CELL_MAX).unwrap_or(u64::MAX).saturating_add(1);
    match io::stdin().take(most).read_to_end(&mut bytes) {
        Ok(len) if len > CELL_MAX => Err(usage(format!("a cell has at most {CELL_MAX} bytes"))),
        Ok(_) => Ok(bytes),
        Err(e) => Err(usage(format!("cannot read the value from stdin: {e}"))),
    }
}

fn usage(what: String) -> Failure {
    Failure::new(exit_code::USAGE, anyhow::Error::msg(what)).hint("see lockkeeper cell put --help")
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(2 * bytes.len()), |mut text, byte| {
        // Writing to a text cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_shown_as_two_digits_each() {
        assert_eq!(hex(&[0, 10, 255]), "000aff");
        assert_eq!(hex(b""), "");
    }
}
