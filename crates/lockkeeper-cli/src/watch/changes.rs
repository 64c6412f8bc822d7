//! What differs between two lists of locks.

use lockkeeper::{Line, Name, Ticket, TicketId, store::PLAIN_CAPACITY};
use std::collections::HashMap;

/// What happened to a ticket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum What {
    /// It held the lock, and is gone.
    Released,
    /// It waited, and is gone.
    Withdrawn,
    /// It holds the lock now.
    Held,
    /// It waits in line now.
    Queued,
    /// Its label is another one.
    Relabelled,
}

/// One ticket that is not as it was.
#[derive(Clone, Debug)]
pub(super) struct Change {
    pub(super) what: What,
    pub(super) name: Name,
    /// The permits of a semaphore; none for a plain lock.
    pub(super) limit: Option<u32>,
    /// As it is now; if it is gone, as it was seen last.
    pub(super) ticket: Ticket,
}

/// All changes, by names; of one lock first those that make room, then those that take it.
pub(super) fn between(old: &[Line], new: &[Line]) -> Vec<Change> {
    let before: HashMap<&Name, &Line> = old.iter().map(|line| (&line.name, line)).collect();
    let after: HashMap<&Name, &Line> = new.iter().map(|line| (&line.name, line)).collect();
    let mut changes = Vec::new();
    for line in old.iter().filter(|line| !after.contains_key(&line.name)) {
        of_line(line, &line.tickets, &[], &mut changes);
    }
    for line in new {
        let was = before.get(&line.name).map_or(&[][..], |line| line.tickets.as_slice());
        of_line(line, was, &line.tickets, &mut changes);
    }
    changes.sort_by(|a, b| a.name.cmp(&b.name));
    changes
}

fn of_line(line: &Line, old: &[Ticket], new: &[Ticket], changes: &mut Vec<Change>) {
    let same =
        |(a, b): (&Ticket, &Ticket)| a.id == b.id && a.fence == b.fence && a.label == b.label;
    if old.len() == new.len() && old.iter().zip(new).all(same) {
        return;
    }
    let limit = (line.capacity != PLAIN_CAPACITY).then_some(line.capacity);
    let mut add = |what, ticket: &Ticket| {
        changes.push(Change { what, name: line.name.clone(), limit, ticket: ticket.clone() });
    };
    let (before, after) = (by_id(old), by_id(new));
    for ticket in old.iter().filter(|ticket| !after.contains_key(&ticket.id)) {
        add(if ticket.fence.is_some() { What::Released } else { What::Withdrawn }, ticket);
    }
    for ticket in new {
        let was = before.get(&ticket.id);
        match (ticket.fence, was) {
            (None, None) => add(What::Queued, ticket),
            (None, Some(was)) if was.fence.is_some() => add(What::Queued, ticket),
            (Some(fence), was) if was.and_then(|was| was.fence) != Some(fence) => {
                add(What::Held, ticket);
            }
            (_, Some(was)) if was.label != ticket.label => add(What::Relabelled, ticket),
            _ => {}
        }
    }
}

fn by_id(tickets: &[Ticket]) -> HashMap<TicketId, &Ticket> {
    tickets.iter().map(|ticket| (ticket.id, ticket)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use lockkeeper::Mode;

    fn ticket(id: u8, fence: Option<u64>) -> Ticket {
        let mut ticket = Ticket::new(TicketId::from_bytes([id; 16]), Mode::Exclusive);
        ticket.fence = fence;
        ticket
    }

    fn line(name: &str, tickets: &[Ticket]) -> Line {
        Line::new(Name::new(name).unwrap(), PLAIN_CAPACITY, tickets.to_vec())
    }

    fn told(old: &[Line], new: &[Line]) -> Vec<(String, What, u8)> {
        let told = |c: &Change| (c.name.to_string(), c.what, c.ticket.id.to_bytes()[0]);
        between(old, new).iter().map(told).collect()
    }

    #[test]
    fn a_hand_over_is_a_release_and_then_a_grant() {
        let old = [line("a", &[ticket(1, Some(7)), ticket(2, None)])];
        let new = [line("a", &[ticket(2, Some(8)), ticket(3, None)])];
        let a = || "a".to_owned();
        assert_eq!(
            told(&old, &new),
            [(a(), What::Released, 1), (a(), What::Held, 2), (a(), What::Queued, 3)]
        );
        assert!(told(&new, &new).is_empty());
    }

    #[test]
    fn locks_that_come_and_go_are_told_in_the_order_of_their_names() {
        let old = [line("b", &[ticket(1, Some(1)), ticket(2, None)])];
        let new = [line("a", &[ticket(3, Some(2))])];
        let expected = [
            ("a".to_owned(), What::Held, 3),
            ("b".to_owned(), What::Released, 1),
            ("b".to_owned(), What::Withdrawn, 2),
        ];
        assert_eq!(told(&old, &new), expected);
    }

    #[test]
    fn ages_are_no_change_and_labels_are() {
        let (mut older, mut labelled) = (ticket(1, Some(1)), ticket(1, Some(1)));
        older.entered_ago = std::time::Duration::from_secs(9);
        labelled.label = b"x".to_vec();
        let old = [line("a", &[ticket(1, Some(1))])];
        assert!(told(&old, &[line("a", &[older])]).is_empty());
        assert_eq!(told(&old, &[line("a", &[labelled])]), [("a".to_owned(), What::Relabelled, 1)]);
    }
}
