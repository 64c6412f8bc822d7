//! JSON Lines: a snapshot first, then one event a line.

use super::{
    OUTAGE_TOLD,
    changes::{Change, What},
    poll::{Look, Poller},
};
use crate::{
    duration::ms,
    failure::{self, Failure},
    listing::{Listing, TicketView},
    output,
    run::End,
};
use lockkeeper::Store as _;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use serde::Serialize;
use std::{
    io::{self, Write as _},
    os::fd::AsFd,
    time::{Duration, Instant},
};

/// How often it is checked that the reader is still there.
const READER_CHECK: Duration = Duration::from_secs(1);

#[derive(Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
enum Event<'a> {
    Snapshot(Listing<'a>),
    /// The store does not answer.
    Outage {
        unanswered_ms: u64,
        /// Why, if the store or the way to it says so.
        message: Option<String>,
    },
    /// The store answers again.
    Answers {
        unanswered_ms: u64,
    },
}

#[derive(Serialize)]
struct ChangeView<'a> {
    event: What,
    name: &'a str,
    limit: Option<u32>,
    #[serde(flatten)]
    ticket: TicketView,
}

/// Writes events until the reader is gone.
pub(super) async fn follow(mut poller: Poller) -> Result<End, Failure> {
    let first = poller.look().await?;
    let hidden = poller.keeper.store().blind_spots();
    let listing = Listing::new(&first.lines, hidden);
    let mut told = line(Event::Snapshot(listing));
    let mut outage = Outage::default();
    loop {
        if !write(&told)? || !pause(poller.pause()).await {
            return Ok(End::Code(0));
        }
        told = outage.look(&mut poller).await;
    }
}

/// What is known of an outage.
#[derive(Default)]
struct Outage {
    /// When the first request without an answer was sent.
    since: Option<Instant>,
    told: bool,
    error: Option<String>,
}

impl Outage {
    /// Asks once, and says what is new, as lines. Returns without an answer when it is time to tell of an
    /// outage; the request is then repeated.
    async fn look(&mut self, poller: &mut Poller) -> String {
        let since = *self.since.get_or_insert_with(Instant::now);
        let patience = match self.told {
            true => Duration::MAX,
            false => OUTAGE_TOLD.saturating_sub(since.elapsed()),
        };
        match tokio::time::timeout(patience, poller.look()).await {
            Ok(Ok(look)) => self.answered(since) + &changes(&look),
            Ok(Err(e)) => {
                self.error = Some(failure::chain(&e.into()));
                self.unanswered(since)
            }
            Err(_) => self.unanswered(since),
        }
    }

    fn answered(&mut self, since: Instant) -> String {
        let outage = std::mem::take(self);
        let unanswered_ms = ms(since.elapsed());
        if outage.told { line(Event::Answers { unanswered_ms }) } else { String::new() }
    }

    fn unanswered(&mut self, since: Instant) -> String {
        if self.told || since.elapsed() < OUTAGE_TOLD {
            return String::new();
        }
        self.told = true;
        line(Event::Outage { unanswered_ms: ms(since.elapsed()), message: self.error.clone() })
    }
}

fn changes(look: &Look) -> String {
    look.changes.iter().flatten().map(|change| line(view(change))).collect()
}

fn view(change: &Change) -> ChangeView<'_> {
    let (event, name, limit) = (change.what, change.name.as_str(), change.limit);
    ChangeView { event, name, limit, ticket: (&change.ticket).into() }
}

fn line(event: impl Serialize) -> String {
    output::stamped_line(event)
}

/// Writes and flushes; says whether the reader is still there.
fn write(text: &str) -> Result<bool, Failure> {
    let mut stdout = io::stdout();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Ok(()) => Ok(true),
        Err(e) if e.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        Err(e) => Err(Failure::bug(anyhow::Error::new(e).context("cannot write to stdout"))),
    }
}

/// Waits; says whether the reader is still there afterwards.
async fn pause(time: Duration) -> bool {
    let end = Instant::now() + time;
    loop {
        let rest = end.saturating_duration_since(Instant::now());
        tokio::time::sleep(rest.min(READER_CHECK)).await;
        if is_closed(io::stdout()) {
            return false;
        }
        if rest <= READER_CHECK {
            return true;
        }
    }
}

/// Has the reader of this pipe gone? Nothing has to be written to find out.
fn is_closed(pipe: impl AsFd) -> bool {
    let mut asked = [PollFd::new(pipe.as_fd(), PollFlags::empty())];
    let found = poll(&mut asked, PollTimeout::ZERO).is_ok_and(|n| n > 0);
    found && asked[0].revents().is_some_and(|events| events.contains(PollFlags::POLLERR))
}

#[cfg(test)]
mod tests {
    use super::*;
    use lockkeeper::{Mode, Name, Ticket, TicketId};

    #[test]
    fn an_event_is_flat_json_with_version_and_time() {
        let ticket = Ticket::new(TicketId::from_bytes([1; 16]), Mode::Exclusive);
        let name = Name::new("a").unwrap();
        let change = Change { what: What::Queued, name, limit: Some(4), ticket };
        let json: serde_json::Value = serde_json::from_str(&line(view(&change))).unwrap();
        assert_eq!((&json["version"], &json["event"]), (&1.into(), &"queued".into()));
        assert_eq!((&json["name"], &json["limit"]), (&"a".into(), &4.into()));
        assert_eq!(json["ticket"], "01".repeat(16));
        assert!(json["at"].as_str().unwrap().ends_with('Z') && json["fence"].is_null());
    }

    #[test]
    fn a_pipe_without_a_reader_is_noticed() {
        let (reader, writer) = io::pipe().unwrap();
        assert!(!is_closed(&writer));
        drop(reader);
        assert!(is_closed(&writer));
    }
}
