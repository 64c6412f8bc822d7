//! `lockkeeper watch`: locks as they change.
//!
//! | file | holds |
//! |---|---|
//! | [`poll`] | asks the store for the whole list, at bounded intervals |
//! | [`changes`] | what differs between two lists (pure) |
//! | [`jsonl`] | JSON Lines, where stdout is no terminal |
//! | [`live`] | the loop of the live view: signals, keys, news, drawing |
//! | [`model`], [`rows`], [`history`], [`keys`] | what the live view knows, and what a key does to it (pure) |
//! | [`view`], [`list`], [`detail`], [`style`] | draws it (pure) |
//! | [`terminal`] | raw mode, the alternate screen, and giving both back |

mod changes;
mod detail;
mod history;
mod jsonl;
mod keys;
mod list;
mod live;
mod model;
mod poll;
mod rows;
mod style;
mod terminal;
mod view;

use crate::{cli::Common, duration, failure::Failure, run::End, store};
use lockkeeper::Keeper;
use poll::Poller;
use std::{
    env,
    io::{self, IsTerminal as _},
    time::Duration,
};

/// What `--interval` is if not said, and its bounds.
const INTERVAL: Duration = Duration::from_millis(500);
const INTERVAL_MIN: Duration = Duration::from_millis(50);
const INTERVAL_MAX: Duration = Duration::from_secs(3600);

/// An outage is told when the store has not answered for so long.
const OUTAGE_TOLD: Duration = Duration::from_secs(2);

/// The arguments of `watch`.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// Only names that begin so
    #[arg(default_value = "", hide_default_value = true)]
    pub(crate) prefix: String,

    /// The pause between two requests to the store; four times as long while nothing changes
    #[arg(long, value_name = "TIME", default_value = "500ms", value_parser = interval)]
    pub(crate) interval: Duration,
}

impl Args {
    /// Those of `ls --watch`.
    pub(crate) fn of(prefix: &str) -> Self {
        Self { prefix: prefix.to_owned(), interval: INTERVAL }
    }
}

/// The examples of `watch --help`.
pub(crate) const HELP: &str = "\
Examples:
  lockkeeper watch                     all locks, live
  lockkeeper watch orders/             locks whose names begin so
  lockkeeper watch --json | jq -c .    one event a line, for programs

Keys of the live view:
  ↑ ↓ PgUp PgDn Home End   move          Enter      open a lock with its whole line
  /                        filter        ← → or s   sort by another column, r reverses
  e, then y                evict         Esc        back; leaves from the list
  ?                        all keys      q, Ctrl-C  leave

Where stdout is no terminal, and with --json, watch writes JSON Lines: a snapshot, then queued,
held, released and withdrawn as they happen. It ends when its reader is gone.";

/// Watches until the user leaves, or the reader is gone.
pub(crate) async fn watch(args: &Args, common: &Common) -> Result<End, Failure> {
    let url = store::url(common.store.as_deref())?;
    if is_live(common) {
        return live::live(&url, args).await;
    }
    let keeper = Keeper::connect(&url).await?;
    jsonl::follow(Poller::new(&keeper, args)).await
}

/// Can a live view be drawn on stdout, and is it wanted?
fn is_live(common: &Common) -> bool {
    let dumb = env::var_os("TERM").is_none_or(|term| term == "dumb");
    !common.json && !dumb && io::stdout().is_terminal()
}

/// Reads the pause between two requests.
fn interval(text: &str) -> Result<Duration, String> {
    match duration::parse(text)? {
        time if time < INTERVAL_MIN => Err(format!("at least {}", duration::flag(INTERVAL_MIN))),
        time if time > INTERVAL_MAX => Err(format!("at most {}", duration::flag(INTERVAL_MAX))),
        time => Ok(time),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_interval_is_bounded() {
        assert_eq!(interval("2"), Ok(Duration::from_secs(2)));
        assert_eq!(interval("1ms"), Err("at least 50ms".into()));
        assert_eq!(interval("2h"), Err("at most 1h".into()));
    }
}
