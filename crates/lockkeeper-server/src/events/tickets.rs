//! What the service knows of the tickets that its events speak of: each step of a ticket is told once, by the request
//! that did it or by the look that found it, whichever comes first.

use super::draft::Draft;
use lockkeeper::{
    Mode, Name, Owner, TicketId,
    store::{clock::Moment, http::wire::EventKind},
};
use std::{
    collections::{HashMap, HashSet, VecDeque},
    sync::Arc,
    time::Duration,
};

/// How many tickets are remembered at most. Of one that was forgotten the events say less.
const LIVE_MAX: usize = 131_072;
/// How often the sessions that are over are taken out.
const SWEEP_EVERY: Duration = Duration::from_secs(10);
/// How many tickets that have ended: a look that was under way may still show them.
const ENDED_MAX: usize = 16_384;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Waiting,
    Granted,
    /// Given back, while the store keeps the lock closed.
    Kept,
}

#[derive(Debug)]
struct Known {
    name: Name,
    stage: Stage,
    mode: Option<Mode>,
    fence: Option<u64>,
    owner: Option<Owner>,
    label: Option<String>,
    entered: Option<Moment>,
    granted: Option<Moment>,
    session: Option<Arc<str>>,
}

#[derive(Debug)]
struct Session {
    /// When it is over unless it is renewed.
    until: Moment,
    life: Duration,
    tickets: HashSet<TicketId>,
}

#[derive(Debug, Default)]
pub(super) struct Tickets {
    live: HashMap<TicketId, Known>,
    ended: HashSet<TicketId>,
    order: VecDeque<TicketId>,
    /// Requests under way that end a ticket. What a look says of its end waits for them.
    ending: HashMap<TicketId, Option<Draft>>,
    sessions: HashMap<Arc<str>, Session>,
    swept: Option<Moment>,
}

impl Tickets {
    /// Fills in what is known of the ticket; nothing if the event was told already.
    pub(super) fn admit(&mut self, mut draft: Draft, now: Moment) -> Option<Draft> {
        if self.ended.contains(&draft.ticket) {
            return None;
        }
        let known = self.live.get(&draft.ticket);
        // A client chooses the ids of its tickets, and can choose one that stands in the line of another lock. What it
        // does with its own ticket says nothing about the other one, and must not show the other's owner and label.
        if known.is_some_and(|known| known.name != draft.name) {
            return None;
        }
        let stage = known.map(|known| known.stage);
        match draft.kind {
            EventKind::Queued if stage.is_some() => return None,
            EventKind::Granted if matches!(stage, Some(Stage::Granted | Stage::Kept)) => {
                return None;
            }
            EventKind::Changed if stage == Some(Stage::Kept) => return None,
            EventKind::Label => {
                let known = self.live.get(&draft.ticket);
                if known.is_some_and(|known| known.label == draft.label) {
                    return None;
                }
            }
            _ if draft.is_end() && !draft.exact => {
                if let Some(waiting) = self.ending.get_mut(&draft.ticket) {
                    *waiting = Some(draft);
                    return None;
                }
            }
            _ => {}
        }
        if draft.is_end() {
            self.end(&mut draft, now);
        } else {
            self.note(&mut draft, now);
        }
        Some(draft)
    }

    fn end(&mut self, draft: &mut Draft, now: Moment) {
        let Some(known) = self.live.remove(&draft.ticket) else {
            return self.close(draft.ticket);
        };
        known.fill_in(draft);
        if draft.held.is_none() {
            draft.held = known.granted.map(|at| now.saturating_since(at));
        }
        if known.stage == Stage::Waiting && draft.waited.is_none() {
            draft.waited = known.entered.map(|at| now.saturating_since(at));
        }
        if draft.kept && known.stage == Stage::Granted {
            self.live.insert(draft.ticket, Known { stage: Stage::Kept, ..known });
            return;
        }
        if let Some(session) = known.session.and_then(|session| self.sessions.get_mut(&session)) {
            session.tickets.remove(&draft.ticket);
        }
        self.close(draft.ticket);
    }

    fn close(&mut self, ticket: TicketId) {
        if self.ended.insert(ticket) {
            self.order.push_back(ticket);
        }
        if self.order.len() > ENDED_MAX {
            let oldest = self.order.pop_front();
            oldest.map(|oldest| self.ended.remove(&oldest));
        }
    }

    fn note(&mut self, draft: &mut Draft, now: Moment) {
        let is_grant = draft.kind == EventKind::Granted;
        if let Some(known) = self.live.get_mut(&draft.ticket) {
            if is_grant {
                known.stage = Stage::Granted;
                known.granted = Some(before(now, draft.ago));
                let waited = known.entered.map(|at| now.saturating_since(at));
                draft.waited = draft.waited.or(waited);
            }
            known.fence = draft.fence.or(known.fence);
            if draft.label.is_some() {
                known.label.clone_from(&draft.label);
            }
            return known.fill_in(draft);
        }
        if !is_grant && draft.kind != EventKind::Queued {
            return;
        }
        if is_grant && draft.exact {
            draft.waited = draft.waited.or(Some(Duration::ZERO));
        }
        self.make_room();
        if let Some(session) = draft.session.as_ref().and_then(|id| self.sessions.get_mut(id)) {
            session.tickets.insert(draft.ticket);
        }
        let stage = if is_grant { Stage::Granted } else { Stage::Waiting };
        let at = before(now, draft.ago);
        let waited = draft.waited.unwrap_or_default();
        let known = Known {
            name: draft.name.clone(),
            stage,
            mode: draft.mode,
            fence: draft.fence,
            owner: draft.owner.clone(),
            label: draft.label.clone(),
            entered: Some(before(at, waited)),
            granted: is_grant.then_some(at),
            session: draft.session.clone(),
        };
        self.live.insert(draft.ticket, known);
    }

    /// Forgets some ticket if there are too many. Only what later events say of it gets poorer.
    fn make_room(&mut self) {
        if self.live.len() >= LIVE_MAX
            && let Some(some) = self.live.keys().next().copied()
        {
            self.live.remove(&some);
        }
    }

    /// A request that ends this ticket is sent to the store.
    pub(super) fn ending(&mut self, ticket: TicketId) {
        self.ending.entry(ticket).or_default();
    }

    /// That request was answered, or given up. What a look said meanwhile is to be told if the request says nothing.
    pub(super) fn no_longer_ending(&mut self, ticket: TicketId) -> Option<Draft> {
        self.ending.remove(&ticket).flatten()
    }

    /// Does this session's ticket wait for this lock, or hold it? For a client that was told otherwise.
    pub(super) fn is_live(&self, session: &str, name: &Name, ticket: TicketId) -> bool {
        let known = self.live.get(&ticket).filter(|known| {
            known.name == *name && known.session.as_deref().is_some_and(|its| its == session)
        });
        let stage = known.map(|known| known.stage);
        matches!(stage, Some(Stage::Waiting | Stage::Granted)) && !self.ending.contains_key(&ticket)
    }

    /// How many tickets wait that went through this instance.
    pub(super) fn waiting(&self) -> usize {
        let ours = self.live.values().filter(|known| known.session.is_some());
        ours.filter(|known| known.stage == Stage::Waiting).count()
    }

    pub(super) fn session_opened(&mut self, session: &str, life: Duration, now: Moment) {
        // Without this, the sessions of clients that only open them would pile up.
        if self.swept.is_none_or(|at| now.saturating_since(at) >= SWEEP_EVERY) {
            self.swept = Some(now);
            self.sweep(now);
        }
        let session = self.sessions.entry(session.into()).or_insert_with(|| Session {
            until: now,
            life,
            tickets: HashSet::new(),
        });
        session.until = now + life;
    }

    pub(super) fn session_renewed(&mut self, session: &str, now: Moment) {
        if let Some(session) = self.sessions.get_mut(session) {
            session.until = now + session.life;
        }
    }

    /// The session is over. Its tickets, so that their ends can be told.
    pub(super) fn session_over(&mut self, session: &str) -> Vec<(Name, TicketId, bool)> {
        let Some(session) = self.sessions.remove(session) else { return Vec::new() };
        let known = session.tickets.into_iter().filter_map(|id| Some((id, self.live.get(&id)?)));
        known.map(|(id, known)| (known.name.clone(), id, known.stage == Stage::Granted)).collect()
    }

    /// How many sessions live that were opened here, as far as their renewals came through here.
    pub(super) fn sessions(&mut self, now: Moment) -> usize {
        self.sweep(now);
        self.sessions.len()
    }

    /// Takes out the sessions that are over, with their tickets.
    fn sweep(&mut self, now: Moment) {
        let live = &mut self.live;
        self.sessions.retain(|_, session| {
            let is_over = session.until < now;
            if is_over {
                session.tickets.iter().for_each(|ticket| drop(live.remove(ticket)));
            }
            !is_over
        });
    }

    /// The looks have ended: what only they have shown is not followed any more.
    pub(super) fn forget_foreign(&mut self) {
        self.live.retain(|_, known| known.session.is_some());
    }
}

impl Known {
    fn fill_in(&self, draft: &mut Draft) {
        draft.mode = draft.mode.or(self.mode);
        draft.fence = draft.fence.or(self.fence);
        if draft.owner.is_none() {
            draft.owner.clone_from(&self.owner);
        }
        if draft.label.is_none() {
            draft.label.clone_from(&self.label);
        }
    }
}

fn before(now: Moment, by: Duration) -> Moment {
    let nanos = u64::try_from(by.as_nanos()).unwrap_or(u64::MAX);
    Moment::from_nanos(now.as_nanos().saturating_sub(nanos))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn draft(kind: EventKind, exact: bool) -> Draft {
        let name = Name::new("a").unwrap();
        Draft { exact, ..Draft::new(kind, &name, TicketId::from_bytes([7; 16])) }
    }

    fn at(ms: u64) -> Moment {
        Moment::from_millis(ms)
    }

    #[test]
    fn each_step_is_told_once_by_the_request_or_by_the_look() {
        for first in [true, false] {
            let mut tickets = Tickets::default();
            for (kind, ms) in
                [(EventKind::Queued, 10), (EventKind::Granted, 30), (EventKind::Released, 100)]
            {
                let told = tickets.admit(draft(kind, first), at(ms)).unwrap();
                assert!(tickets.admit(draft(kind, !first), at(ms + 1)).is_none(), "{kind:?} again");
                match kind {
                    EventKind::Granted => assert_eq!(told.waited, Some(Duration::from_millis(20))),
                    EventKind::Released => assert_eq!(told.held, Some(Duration::from_millis(70))),
                    _ => {}
                }
            }
            let late = tickets.admit(draft(EventKind::Granted, false), at(200));
            assert!(late.is_none(), "an old look shows a ticket that has ended");
        }
    }

    #[test]
    fn a_look_does_not_say_released_while_a_request_evicts() {
        let mut tickets = Tickets::default();
        let id = draft(EventKind::Queued, true).ticket;
        tickets.admit(draft(EventKind::Granted, true), at(1)).unwrap();
        tickets.ending(id);
        assert!(tickets.admit(draft(EventKind::Released, false), at(2)).is_none());
        assert!(tickets.admit(draft(EventKind::Evicted, true), at(3)).is_some());
        assert!(tickets.no_longer_ending(id).is_some());
        let told = tickets.admit(draft(EventKind::Released, false), at(4));
        assert!(told.is_none(), "the request has told it");
    }

    #[test]
    fn the_end_of_a_session_ends_its_tickets() {
        let mut tickets = Tickets::default();
        tickets.session_opened("public", Duration::from_secs(1), at(0));
        let with_session = |kind| Draft { session: Some("public".into()), ..draft(kind, true) };
        tickets.admit(with_session(EventKind::Granted), at(1)).unwrap();
        assert_eq!((tickets.sessions(at(999)), tickets.waiting()), (1, 0));
        let over = tickets.session_over("public");
        assert_eq!(over.len(), 1);
        assert!(over[0].2, "it was granted");
        assert_eq!(tickets.sessions(at(999)), 0);
    }

    #[test]
    fn a_session_that_is_not_renewed_is_not_counted_for_ever() {
        let mut tickets = Tickets::default();
        tickets.session_opened("public", Duration::from_secs(1), at(0));
        tickets.session_renewed("public", at(900));
        assert_eq!((tickets.sessions(at(1_500)), tickets.sessions(at(2_000))), (1, 0));
    }

    #[test]
    fn sessions_that_are_over_go_while_others_are_opened() {
        let mut tickets = Tickets::default();
        for second in 0..=100 {
            tickets.session_opened(
                &format!("public-{second}"),
                Duration::from_secs(1),
                at(second * 1000),
            );
        }
        let left = tickets.sessions.len();
        assert!(left <= 12, "{left} sessions are left of 101, of which 2 live");
    }

    #[test]
    fn a_client_says_nothing_about_tickets_that_are_not_its_own() {
        let mut tickets = Tickets::default();
        let session = Some("public".into());
        let granted = Draft { session, ..draft(EventKind::Granted, true) };
        let [name, other] = [granted.name.clone(), Name::new("b").unwrap()];
        let id = granted.ticket;
        tickets.admit(granted, at(1)).unwrap();
        assert!(tickets.is_live("public", &name, id));
        assert!(!tickets.is_live("public", &other, id) && !tickets.is_live("else", &name, id));
        for kind in [EventKind::Queued, EventKind::Granted, EventKind::Label, EventKind::Released] {
            let theirs = Draft { name: other.clone(), ..draft(kind, true) };
            assert!(tickets.admit(theirs, at(2)).is_none(), "{kind:?} of a ticket of the same id");
        }
        assert!(tickets.admit(draft(EventKind::Released, true), at(3)).is_some());
    }

    #[test]
    fn a_lock_that_is_kept_closed_ends_later() {
        let mut tickets = Tickets::default();
        tickets.admit(draft(EventKind::Granted, true), at(1)).unwrap();
        let release = Draft { kept: true, ..draft(EventKind::Released, true) };
        assert!(tickets.admit(release, at(2)).is_some());
        assert!(tickets.admit(draft(EventKind::Changed, false), at(3)).is_none());
        assert!(tickets.admit(draft(EventKind::Expired, false), at(4)).is_some());
    }
}
