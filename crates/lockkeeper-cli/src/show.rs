//! `lockkeeper show`: one lock, with everybody who holds it or waits for it.

use crate::{
    cli::Common,
    duration,
    event::{label, ordinal},
    failure::Failure,
    listing,
    ls::{self, dash},
    output::{Table, printable, terminal_width},
    store,
};
use lockkeeper::{Keeper, Line, Name, Ticket};
use std::{io, time::Duration};

pub(crate) const HELP: &str = "\
Examples:
  lockkeeper show backup                          who holds it, and the whole line
  lockkeeper show --json backup                   for programs; docs/schema/listing.json says how";

/// The answer, ready to print.
pub(crate) async fn show(name: &Name, common: &Common) -> Result<String, Failure> {
    let keeper = Keeper::connect(&store::url(common.store.as_deref())?).await?;
    let line = keeper.get(name).await?.filter(|line| !line.tickets.is_empty());
    if common.json {
        return listing::json(line.as_slice(), None);
    }
    Ok(match line {
        Some(line) => table(&line).render(terminal_width(io::stdout())),
        None => format!("nobody holds `{}`, and nobody waits for it\n", printable(name.as_str())),
    })
}

fn table(line: &Line) -> Table {
    let header =
        ["PLACE", "MODE", "OWNER", "PROGRAM", "SINCE", "ENDS IN", "FENCE", "LABEL", "TICKET"];
    let mut table = Table::new(&header);
    for ticket in line.holders() {
        table.row(row("holds".to_owned(), ticket));
    }
    for (i, ticket) in line.waiters().enumerate() {
        table.row(row(format!("{} in line", ordinal(i + 1)), ticket));
    }
    table
}

fn row(place: String, ticket: &Ticket) -> Vec<String> {
    let owner = ticket.owner.as_ref();
    let waited = || listing::known_age(ticket).map_or_else(dash, duration::words);
    let since = if ticket.fence.is_none() { waited() } else { ls::held_words(ticket) };
    let program = owner.map(|owner| printable(&owner.program)).filter(|name| !name.is_empty());
    vec![
        place,
        ticket.mode.to_string(),
        owner.map_or_else(ls::kept, |owner| printable(&owner.to_string())),
        program.unwrap_or_else(dash),
        since,
        ends_words(ticket),
        listing::known_fence(ticket).map_or_else(dash, |fence| fence.to_string()),
        label(&ticket.label).map_or_else(dash, |label| printable(&label)),
        ticket.id.to_string(),
    ]
}

fn ends_words(ticket: &Ticket) -> String {
    match listing::known_end(ticket) {
        Some(Duration::MAX) => "never".to_owned(),
        end => end.map_or_else(dash, duration::words),
    }
}
