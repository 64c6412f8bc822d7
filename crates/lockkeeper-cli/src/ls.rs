//! `lockkeeper ls`: the locks that are held or waited for.

use crate::{
    cli::Common,
    duration,
    failure::Failure,
    listing::{self, known_age, known_fence},
    output::{Table, note, printable, terminal_width},
    store,
};
use lockkeeper::{Keeper, Line, Mode, Store as _, Ticket};
use std::{io, time::Duration};

pub(crate) const HELP: &str = "\
Examples:
  lockkeeper ls                                   every lock that is held or waited for
  lockkeeper ls orders/                           those whose names begin so
  lockkeeper ls --json | jq -r '.locks[].name'    for programs; docs/schema/listing.json says how";

/// The answer, ready to print.
pub(crate) async fn ls(prefix: &str, common: &Common) -> Result<String, Failure> {
    let keeper = Keeper::connect(&store::url(common.store.as_deref())?).await?;
    let lines = keeper.list(prefix).await?;
    let hidden = keeper.store().blind_spots();
    if common.json {
        return listing::json(&lines, hidden);
    }
    if !common.quiet {
        for line in notes(prefix, lines.is_empty(), hidden) {
            note(&line);
        }
    }
    if lines.is_empty() {
        return Ok(String::new());
    }
    Ok(table(&lines).render(terminal_width(io::stdout())))
}

/// What is said beside the table. An empty listing means "nothing is held" only if it shows all.
fn notes(prefix: &str, empty: bool, hidden: Option<&str>) -> Vec<String> {
    let mut notes = Vec::new();
    match (empty, prefix, hidden) {
        (false, ..) => {}
        (true, "", None) => notes.push("nothing is held and nobody waits".to_owned()),
        (true, "", Some(_)) => notes.push("no lock to show".to_owned()),
        (true, prefix, _) => notes.push(format!("no lock begins with `{}`", printable(prefix))),
    }
    notes.extend(hidden.map(|hidden| format!("this listing does not show {hidden}")));
    notes
}

fn table(lines: &[Line]) -> Table {
    let mut table = Table::new(&["NAME", "STATE", "HOLDER", "HELD", "WAITERS", "FENCE"]);
    for line in lines {
        let (held, fence) = (line.holders().max_by_key(|t| held_at_most(t)), line.holders());
        table.row(vec![
            printable(line.name.as_str()),
            state(line),
            holder(line),
            held.map_or_else(dash, held_words),
            line.waiters().count().to_string(),
            fence.filter_map(known_fence).max().map_or_else(dash, |fence| fence.to_string()),
        ]);
    }
    table
}

pub(crate) fn dash() -> String {
    "-".to_owned()
}

/// How the line is held: "exclusive", "shared by 3", "2 of 4 permits".
pub(crate) fn state(line: &Line) -> String {
    let taken: u32 = line.holders().map(|t| t.mode.weight()).sum();
    match line.holders().next().map(|t| t.mode) {
        None => "waiting".to_owned(),
        Some(Mode::Shared) => format!("shared by {}", line.holders().count()),
        Some(Mode::Permits { of, .. }) => format!("{taken} of {of} permits"),
        Some(mode) => mode.to_string(),
    }
}

/// For how long a ticket can have been held.
fn held_at_most(ticket: &Ticket) -> Duration {
    ticket.granted_ago.unwrap_or(ticket.entered_ago)
}

/// For how long a ticket has been held, or at the most if the store has not noted when it was granted.
pub(crate) fn held_words(ticket: &Ticket) -> String {
    match (ticket.granted_ago, known_age(ticket)) {
        (Some(held), _) => duration::words(held),
        (None, Some(age)) => format!("≤ {}", duration::words(age)),
        (None, None) => dash(),
    }
}

/// The first of the holders, and how many more there are.
pub(crate) fn holder(line: &Line) -> String {
    let Some(first) = line.holders().next() else { return dash() };
    let name = first.owner.as_ref().map_or_else(kept, |owner| printable(&owner.to_string()));
    match line.holders().count() - 1 {
        0 => name,
        more => format!("{name} and {more} more"),
    }
}

/// What stands in the place of an owner who has gone and left the lock closed (`--at-least`).
pub(crate) fn kept() -> String {
    "kept closed".to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use lockkeeper::{Name, Owner, TicketId, store::PLAIN_CAPACITY};

    fn ticket(mode: Mode, fence: Option<u64>, host: &str) -> Ticket {
        let mut ticket = Ticket::new(TicketId::random(), mode);
        ticket.fence = fence;
        ticket.owner = (!host.is_empty()).then(|| Owner::new(host, 7, "sh"));
        ticket.entered_ago = Duration::from_secs(50);
        ticket.granted_ago = fence.map(|_| Duration::from_secs(42));
        ticket.ends_in = Duration::from_secs(9);
        ticket
    }

    fn row(capacity: u32, tickets: Vec<Ticket>) -> String {
        let line = Line::new(Name::new("a\u{202e}b").unwrap(), capacity, tickets);
        let text = anstream::adapter::strip_str(&table(&[line]).render(None)).to_string();
        text.lines().nth(1).unwrap().split("  ").filter(|cell| !cell.is_empty()).fold(
            String::new(),
            |all, cell| {
                if all.is_empty() { cell.trim().into() } else { all + "|" + cell.trim() }
            },
        )
    }

    #[test]
    fn a_row_says_who_holds_how() {
        let exclusive = vec![
            ticket(Mode::Exclusive, Some(5), "ci\u{1b}"),
            ticket(Mode::Exclusive, None, "web"),
        ];
        let row_of = |capacity, tickets| row(capacity, tickets);
        assert_eq!(
            row_of(PLAIN_CAPACITY, exclusive),
            "a\\u{202e}b|exclusive|ci\\u{1b} (pid 7)|42 s|1|5"
        );
        let shared = vec![ticket(Mode::Shared, Some(5), "a"), ticket(Mode::Shared, Some(6), "b")];
        assert_eq!(
            row_of(PLAIN_CAPACITY, shared),
            "a\\u{202e}b|shared by 2|a (pid 7) and 1 more|42 s|0|6"
        );
        let permits = vec![ticket(Mode::Permits { weight: 2, of: 4 }, Some(9), "")];
        assert_eq!(row_of(4, permits), "a\\u{202e}b|2 of 4 permits|kept closed|42 s|0|9");
        let mut unknown = ticket(Mode::Exclusive, Some(5), "a");
        unknown.granted_ago = None;
        assert_eq!(
            row_of(PLAIN_CAPACITY, vec![unknown]),
            "a\\u{202e}b|exclusive|a (pid 7)|≤ 50 s|0|5"
        );
        let mut foreign = ticket(Mode::Exclusive, Some(0), "");
        (foreign.owner, foreign.granted_ago) = (Some(Owner::default()), None);
        foreign.entered_ago = Duration::ZERO;
        assert_eq!(
            row_of(PLAIN_CAPACITY, vec![foreign]),
            "a\\u{202e}b|exclusive|another client|-|0|-"
        );
        let waiting = vec![ticket(Mode::Exclusive, None, "web")];
        assert_eq!(row_of(PLAIN_CAPACITY, waiting), "a\\u{202e}b|waiting|-|-|1|-");
    }

    #[test]
    fn an_empty_listing_says_nothing_of_what_it_cannot_see() {
        assert_eq!(notes("", true, None), ["nothing is held and nobody waits"]);
        assert_eq!(notes("nope", true, None), ["no lock begins with `nope`"]);
        let blind = notes("", true, Some("locks of other libraries"));
        let hidden = "this listing does not show locks of other libraries";
        assert_eq!(blind, ["no lock to show", hidden]);
        assert_eq!(notes("", false, Some("locks of other libraries")), [hidden]);
        assert!(notes("", false, None).is_empty());
    }
}
