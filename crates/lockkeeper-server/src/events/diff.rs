//! What has changed between two looks at a line: a pure function.

use lockkeeper::{
    Line, Name, Ticket, TicketId,
    store::{clock::Moment, http::wire::EventKind},
};
use std::{collections::HashMap, time::Duration};

/// A line, and when the store was asked for it.
#[derive(Clone, Debug)]
pub(super) struct Seen {
    pub(super) line: Line,
    pub(super) at: Moment,
}

/// One difference.
#[derive(Clone, Debug)]
pub(super) struct Change {
    pub(super) kind: EventKind,
    pub(super) name: Name,
    /// As it stands now, or as it stood when it was last seen.
    pub(super) ticket: Ticket,
    /// How long before the second look it happened, as far as the store tells.
    pub(super) ago: Duration,
    pub(super) waited: Option<Duration>,
    pub(super) held: Option<Duration>,
}

/// Appends what has happened to one line: ends first, then grants, then the rest, so that a hand-over reads as one.
pub(super) fn line(before: Option<&Seen>, after: Option<&Line>, now: Moment, to: &mut Vec<Change>) {
    let (Some(name), old, new) = (
        after.or(before.map(|seen| &seen.line)).map(|line| &line.name),
        before.map_or(&[][..], |seen| &seen.line.tickets),
        after.map_or(&[][..], |line| &line.tickets),
    ) else {
        return;
    };
    if old.len() == new.len() && old.iter().zip(new).all(|(a, b)| a.id == b.id && is_same(a, b)) {
        return;
    }
    let elapsed = before.map_or(Duration::ZERO, |seen| now.saturating_since(seen.at));
    let by_id = |tickets: &'_ [Ticket]| -> HashMap<TicketId, usize> {
        tickets.iter().enumerate().map(|(at, ticket)| (ticket.id, at)).collect()
    };
    let (old_ids, new_ids) = (by_id(old), by_id(new));
    let gone = old.iter().filter(|ticket| !new_ids.contains_key(&ticket.id));
    to.extend(gone.map(|ticket| ended(name, ticket, elapsed)));
    let mut later = Vec::new();
    for ticket in new {
        let was = old_ids.get(&ticket.id).map(|at| &old[*at]);
        match (was, ticket.fence) {
            (None | Some(Ticket { fence: None, .. }), Some(_)) => to.push(granted(name, ticket)),
            (None, None) => later.push(queued(name, ticket)),
            (Some(was), _) if is_changed(was, ticket) => {
                later.push(change(EventKind::Changed, name, ticket));
            }
            _ => {}
        }
        if was.is_some_and(|was| was.label != ticket.label) {
            later.push(change(EventKind::Label, name, ticket));
        }
    }
    to.append(&mut later);
}

fn is_same(a: &Ticket, b: &Ticket) -> bool {
    a.fence == b.fence && a.label == b.label && !is_changed(a, b)
}

/// Apart from its grant and its label. A hold that outlives its session loses its owner.
fn is_changed(a: &Ticket, b: &Ticket) -> bool {
    let fence = a.fence.is_some() && a.fence != b.fence;
    fence || a.mode != b.mode || a.owner.is_some() != b.owner.is_some()
}

fn change(kind: EventKind, name: &Name, ticket: &Ticket) -> Change {
    let (name, ticket) = (name.clone(), ticket.clone());
    Change { kind, name, ticket, ago: Duration::ZERO, waited: None, held: None }
}

fn queued(name: &Name, ticket: &Ticket) -> Change {
    Change { ago: ticket.entered_ago, ..change(EventKind::Queued, name, ticket) }
}

fn granted(name: &Name, ticket: &Ticket) -> Change {
    let ago = ticket.granted_ago;
    let waited = ago.map(|ago| ticket.entered_ago.saturating_sub(ago));
    let ago = ago.unwrap_or_default();
    Change { ago, waited, ..change(EventKind::Granted, name, ticket) }
}

/// A ticket that is gone has left, unless its time was over. A store that does not know a ticket's end says zero.
fn ended(name: &Name, ticket: &Ticket, elapsed: Duration) -> Change {
    let is_over = !ticket.ends_in.is_zero() && ticket.ends_in <= elapsed;
    let kind = match ticket.fence {
        _ if is_over => EventKind::Expired,
        Some(_) => EventKind::Released,
        None => EventKind::Withdrawn,
    };
    let held = ticket.granted_ago.map(|ago| ago.saturating_add(elapsed));
    let waited = match ticket.fence {
        None => Some(ticket.entered_ago.saturating_add(elapsed)),
        Some(_) => None,
    };
    Change { held, waited, ..change(kind, name, ticket) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lockkeeper::{Mode, Owner};
    use proptest::{collection::btree_map, prelude::*};
    use std::collections::BTreeMap;

    type Model = BTreeMap<TicketId, (Option<u64>, Vec<u8>, bool)>;

    fn name() -> Name {
        Name::new("jobs/nightly").unwrap()
    }

    fn ticket(id: u8, fence: Option<u64>, label: u8, owned: bool, ends_ms: u64) -> Ticket {
        let mut ticket = Ticket::new(TicketId::from_bytes([id; 16]), Mode::Exclusive);
        ticket.fence = fence;
        ticket.label = vec![label];
        ticket.owner = owned.then(|| Owner::new("ci-7", 1, "deploy"));
        ticket.ends_in = Duration::from_millis(ends_ms);
        ticket
    }

    /// Tickets as a line has them: the granted ones first, each id once.
    fn line_of(tickets: &BTreeMap<u8, (bool, u8, bool, u64)>) -> Option<Line> {
        let made = tickets.iter().map(|(&id, &(granted, label, owned, ends))| {
            ticket(id, granted.then_some(u64::from(id) + 100), label, owned, ends)
        });
        let (mut tickets, waiting): (Vec<_>, Vec<_>) = made.partition(|t| t.fence.is_some());
        tickets.extend(waiting);
        let capacity = tickets.first()?.mode.capacity();
        Some(Line::new(name(), capacity, tickets))
    }

    fn model(line: Option<&Line>) -> Model {
        let tickets = line.into_iter().flat_map(|line| &line.tickets);
        tickets.map(|t| (t.id, (t.fence, t.label.clone(), t.owner.is_some()))).collect()
    }

    /// A viewer that follows the events.
    fn follow(mut seen: Model, changes: &[Change]) -> Model {
        for Change { kind, ticket, .. } in changes {
            match kind {
                EventKind::Released | EventKind::Withdrawn | EventKind::Expired => {
                    assert!(seen.remove(&ticket.id).is_some(), "an unknown ticket has ended");
                }
                EventKind::Queued => {
                    assert!(!seen.contains_key(&ticket.id), "a known ticket is queued");
                    let (label, owned) = (ticket.label.clone(), ticket.owner.is_some());
                    seen.insert(ticket.id, (None, label, owned));
                }
                EventKind::Granted | EventKind::Changed => {
                    let (label, owned) = (ticket.label.clone(), ticket.owner.is_some());
                    seen.insert(ticket.id, (ticket.fence, label, owned));
                }
                EventKind::Label => seen.get_mut(&ticket.id).unwrap().1.clone_from(&ticket.label),
                other => panic!("two looks never show {other:?}"),
            }
        }
        seen
    }

    fn differences(before: Option<&Line>, after: Option<&Line>, elapsed_ms: u64) -> Vec<Change> {
        let seen = before.map(|line| Seen { line: line.clone(), at: Moment::from_millis(1_000) });
        let mut changes = Vec::new();
        line(seen.as_ref(), after, Moment::from_millis(1_000 + elapsed_ms), &mut changes);
        changes
    }

    proptest! {
        #[test]
        fn a_viewer_that_follows_the_changes_arrives_at_the_second_look(
            before in btree_map(0u8..12, (any::<bool>(), 0u8..3, any::<bool>(), 0u64..20), 0..8),
            after in btree_map(0u8..12, (any::<bool>(), 0u8..3, any::<bool>(), 0u64..20), 0..8),
            elapsed in 0u64..20,
        ) {
            let (old, new) = (line_of(&before), line_of(&after));
            let changes = differences(old.as_ref(), new.as_ref(), elapsed);
            prop_assert_eq!(follow(model(old.as_ref()), &changes), model(new.as_ref()));
            prop_assert!(differences(new.as_ref(), new.as_ref(), elapsed).is_empty());
        }

        #[test]
        fn ends_are_told_before_grants(
            before in btree_map(0u8..8, (any::<bool>(), Just(0u8), Just(true), 0u64..20), 0..8),
            after in btree_map(0u8..8, (any::<bool>(), Just(0u8), Just(true), 0u64..20), 0..8),
        ) {
            let changes = differences(line_of(&before).as_ref(), line_of(&after).as_ref(), 5);
            let rank = |kind| match kind {
                EventKind::Released | EventKind::Withdrawn | EventKind::Expired => 0,
                EventKind::Granted => 1,
                _ => 2,
            };
            prop_assert!(changes.is_sorted_by_key(|change| rank(change.kind)));
        }
    }

    #[test]
    fn a_ticket_that_is_gone_has_expired_only_if_its_time_was_over() {
        let kind = |fence, ends_ms, elapsed_ms| {
            let line = Line::new(name(), 1, vec![ticket(1, fence, 0, true, ends_ms)]);
            differences(Some(&line), None, elapsed_ms)[0].kind
        };
        assert_eq!(kind(Some(7), 500, 499), EventKind::Released);
        assert_eq!(kind(Some(7), 500, 500), EventKind::Expired);
        assert_eq!(kind(None, 500, 499), EventKind::Withdrawn);
        assert_eq!(kind(Some(7), 0, 499), EventKind::Released, "its end is not known");
    }
}
