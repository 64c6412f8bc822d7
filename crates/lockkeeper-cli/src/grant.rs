//! The grant that a sequencer names, and what has become of it.

use crate::{
    answer::quoted,
    event::{self, HolderView},
    exit_code,
    failure::Failure,
    listing::known_fence,
};
use lockkeeper::{Keeper, Mode, Sequencer, Store as _, Ticket};
use serde::Serialize;
use std::io::{self, Read as _};

/// The variable in which a command under `run` or `elect` finds its grant.
pub(crate) const VARIABLE: &str = "LOCKKEEPER_SEQUENCER";

/// Far more than the longest sequencer has, in bytes.
const SEQUENCER_MAX: u64 = 8_192;

/// Reads the sequencer that was given: as an argument, by the variable, or with `-` on stdin.
pub(crate) fn sequencer(given: Option<&str>) -> Result<Sequencer, Failure> {
    parse(&text(given)?)
}

/// The text that was given for a sequencer.
pub(crate) fn text(given: Option<&str>) -> Result<String, Failure> {
    let text = match given.filter(|text| !text.is_empty()) {
        Some("-") => {
            let mut text = String::new();
            let read = io::stdin().take(SEQUENCER_MAX).read_to_string(&mut text);
            read.map_err(|e| usage(format!("cannot read a sequencer from stdin: {e}")))?;
            text
        }
        Some(text) => text.to_owned(),
        None => {
            return Err(usage(format!("no sequencer: none was given, and {VARIABLE} is not set")));
        }
    };
    Ok(text.trim().to_owned())
}

/// Reads a sequencer without signature.
pub(crate) fn parse(text: &str) -> Result<Sequencer, Failure> {
    text.parse().map_err(|e| usage(format!("{e}")))
}

/// A text that is no sequencer.
pub(crate) fn usage(what: String) -> Failure {
    Failure::new(exit_code::USAGE, anyhow::Error::msg(what)).hint(
        "a command under lockkeeper run finds its own in LOCKKEEPER_SEQUENCER; \
         lockkeeper run --json says it too",
    )
}

/// Why a grant is not held.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Why {
    /// It was released, has expired or was evicted.
    Lost,
    /// The same, and another client holds the lock under a newer fence.
    NewerFence,
    /// This store has made no such grant, as far as it can tell.
    Never,
    /// It was made by another store.
    OtherStore,
    /// It has no signature, and keys were given.
    Unsigned,
    /// No key that was given has the id which it names.
    UnknownKey,
    /// Its signature is wrong.
    Forged,
}

/// A grant that is not held.
#[derive(Debug)]
pub(crate) struct Over {
    pub(crate) why: Why,
    /// Who holds the lock now.
    pub(crate) holder: Option<Ticket>,
}

impl Over {
    /// Finds out why the grant is not held, as the lock stands now.
    pub(crate) async fn of(keeper: &Keeper, sequencer: &Sequencer) -> Result<Self, Failure> {
        if sequencer.store() != keeper.store().id() {
            return Ok(Self { why: Why::OtherStore, holder: None });
        }
        let line = keeper.get(sequencer.name()).await?;
        let tickets = line.map(|line| line.tickets).unwrap_or_default();
        let why = why(sequencer, &tickets);
        let holder = tickets.into_iter().find(|ticket| ticket.fence.is_some());
        Ok(Self { why, holder })
    }

    /// The number of the grant that holds the lock now.
    pub(crate) fn current_fence(&self) -> Option<u64> {
        self.holder.as_ref().and_then(known_fence)
    }

    pub(crate) fn holder(&self) -> Option<HolderView> {
        self.holder.as_ref().and_then(event::holder)
    }

    /// What has become of the grant, in words.
    pub(crate) fn words(&self, sequencer: &Sequencer) -> String {
        let grant = words(sequencer);
        let mut words = match self.why {
            Why::Lost | Why::NewerFence => {
                format!("{grant} is over: it was released, has expired or was evicted")
            }
            Why::Never => format!("this store never made {grant}"),
            Why::OtherStore => format!("{grant} was made by another store"),
            Why::Unsigned | Why::UnknownKey | Why::Forged => format!("{grant} was not signed"),
        };
        if let Some(holder) = &self.holder {
            words += &format!("; now {}", event::held_words(holder));
            words += &self
                .current_fence()
                .map(|fence| format!(" under fence {fence}"))
                .unwrap_or_default();
        }
        words
    }
}

/// "the grant of `deploy` with fence 17"
pub(crate) fn words(sequencer: &Sequencer) -> String {
    let grant = format!("the grant of {}", quoted(sequencer.name().as_str()));
    match sequencer.fence() {
        0 => grant,
        fence => format!("{grant} with fence {fence}"),
    }
}

/// An exclusive grant has a greater fence than all grants before it. So one that holds the lock now tells the past
/// grants from those that were never made.
fn why(sequencer: &Sequencer, line: &[Ticket]) -> Why {
    let claim = sequencer.claim();
    let own = line.iter().find(|ticket| ticket.id == claim.ticket);
    if let Some(own) = own {
        // The holder has gone and left the lock closed (--at-least), or the sequencer is not as it was made.
        return if own.owner.is_none() { Why::Lost } else { Why::Never };
    }
    let holder = line.iter().find(|ticket| ticket.mode == Mode::Exclusive);
    match holder.and_then(known_fence) {
        Some(fence) if claim.fence == 0 || fence < claim.fence => Why::Never,
        Some(_) => Why::NewerFence,
        None => Why::Lost,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lockkeeper::{Owner, TicketId};

    fn sequencer(fence: u64) -> Sequencer {
        format!("lk1:0000000000000007:x:{fence}:{}:a", TicketId::from_bytes([7; 16]))
            .parse()
            .unwrap()
    }

    fn ticket(id: u8, fence: Option<u64>) -> Ticket {
        let mut ticket = Ticket::new(TicketId::from_bytes([id; 16]), Mode::Exclusive);
        (ticket.fence, ticket.owner) = (fence, Some(Owner::new("ci-7", 4121, "sh")));
        ticket
    }

    #[test]
    fn a_past_grant_is_told_from_one_that_was_never_made() {
        let sequencer = sequencer(5);
        assert_eq!(why(&sequencer, &[]), Why::Lost);
        assert_eq!(why(&sequencer, &[ticket(1, Some(6)), ticket(2, None)]), Why::NewerFence);
        assert_eq!(why(&sequencer, &[ticket(1, Some(4))]), Why::Never);
        assert_eq!(why(&sequencer, &[ticket(1, Some(0))]), Why::Lost, "a store without fences");
        assert_eq!(why(&sequencer, &[ticket(7, None)]), Why::Never, "it waits");
        let mut kept = ticket(7, Some(5));
        kept.owner = None;
        assert_eq!(why(&sequencer, &[kept]), Why::Lost);
    }

    #[test]
    fn the_words_name_the_current_holder_and_its_fence() {
        let over = Over { why: Why::NewerFence, holder: Some(ticket(1, Some(6))) };
        assert_eq!(
            over.words(&sequencer(5)),
            "the grant of `a` with fence 5 is over: it was released, has expired or was evicted; \
             now held by ci-7 (pid 4121) under fence 6"
        );
    }
}
