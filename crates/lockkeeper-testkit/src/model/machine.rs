//! The store, driven through the same steps.

use super::{
    history::Step,
    reference::{Model, NAMES, Reply, SESSIONS, Shape},
};
use crate::{
    raw_session::RawSession,
    subject::{Dataset, Subject},
    world::line,
};
use lockkeeper::{
    ErrorKind, Mode, Name, Store as _, TicketId,
    store::{AnyStore, Claim, Edit, Edited, Entered, Left, Manner, StoreResult, TicketStatus},
};
use std::collections::HashMap;

/// A ticket as the store knows it.
#[derive(Clone, Debug)]
struct Known {
    raw: RawSession,
    name: usize,
    shape: Shape,
    id: TicketId,
}

pub(super) struct Machine {
    /// Kept, for its data goes with it.
    _site: Dataset,
    store: AnyStore,
    raw_sessions: Vec<RawSession>,
    /// Is the session in each place open?
    open: [bool; SESSIONS],
    tickets: Vec<Known>,
    /// The fence of each grant that stands now.
    fences: HashMap<TicketId, u64>,
    /// The highest fence seen in each line.
    highest: [u64; NAMES],
}

fn word(name: usize) -> String {
    format!("line {name}")
}

fn mode(shape: Shape) -> Mode {
    Mode::of(shape.weight, shape.capacity)
}

impl Machine {
    pub(super) async fn new(subject: &Subject) -> Self {
        let dataset = subject.dataset().await.expect("fresh data");
        let store = dataset.open().await.expect("a handle");
        let mut raw_sessions = Vec::new();
        for _ in 0..SESSIONS {
            raw_sessions.push(RawSession::open(&store).await);
        }
        let (tickets, fences) = Default::default();
        let (open, highest) = ([true; SESSIONS], [0; NAMES]);
        Self { _site: dataset, store, raw_sessions, open, tickets, fences, highest }
    }

    /// Does what the step says, and compares the answer with the reference's.
    pub(super) async fn apply(&mut self, step: &Step, wanted: &Reply) {
        let answer = match *step {
            Step::Open(session) => self.open(session).await,
            Step::Close(session) => {
                self.open[session] = false;
                self.raw_sessions[session].close().await;
                Reply::Done
            }
            Step::Renew(session) => Reply::Told(self.raw_sessions[session].lives().await),
            Step::Enter { session, name, shape, queue } => {
                let raw = self.raw_sessions[session].clone();
                self.tickets.push(Known { raw, name, shape, id: TicketId::random() });
                self.enter(self.tickets.len() - 1, queue).await
            }
            Step::EnterAgain { ticket, queue } => self.enter(ticket, queue).await,
            Step::Leave { ticket, own, stray } => self.leave(ticket, own, stray).await,
            Step::Evict(ticket) => {
                let Known { name, id, .. } = &self.tickets[ticket];
                let name = Name::new(&word(*name)).expect("a good name");
                Reply::Told(self.store.evict(name, *id).await.expect("an answer"))
            }
            Step::Annotate { ticket, edit, note } => {
                let edit = self.edit(ticket, edit, Some(note));
                told(self.store.set_label(edit).await)
            }
            Step::Write { ticket, edit, value } => {
                let edit = self.edit(ticket, edit, value);
                told(self.store.write(edit).await)
            }
        };
        assert_eq!(answer, *wanted, "the answer to {step:?}");
    }

    async fn open(&mut self, session: usize) -> Reply {
        if self.open[session] {
            // A copy of the open that has been answered already.
            let RawSession { session, terms, .. } = self.raw_sessions[session];
            let ask = RawSession::ask(session, terms.ttl, terms.lock_delay);
            assert_eq!(self.store.open(ask).await.expect("an answer"), terms);
        } else {
            self.raw_sessions[session] = RawSession::open(&self.store).await;
            self.open[session] = true;
        }
        Reply::Done
    }

    async fn enter(&self, ticket: usize, queue: bool) -> Reply {
        let Known { raw, name, shape, id } = &self.tickets[ticket];
        let manner = if queue { Manner::Queue } else { Manner::Contend };
        match raw.enter(&word(*name), *id, mode(*shape), manner).await {
            Ok(Entered::Granted { .. }) => Reply::Granted,
            Ok(Entered::Queued(wait)) => Reply::Queued(wait.ahead),
            Ok(Entered::Busy(wait)) => Reply::Busy(wait.ahead),
            Err(e) => match e.kind {
                ErrorKind::SessionOver => Reply::SessionOver,
                ErrorKind::TicketClosed => Reply::TicketClosed,
                ErrorKind::Capacity(line) => Reply::Capacity(line),
                other => panic!("{other:?}: {e}"),
            },
        }
    }

    async fn leave(&self, ticket: usize, own: bool, stray: bool) -> Reply {
        let Known { raw, name, id, .. } = &self.tickets[ticket];
        let stranger = || {
            let other = |h: &&RawSession| h.session != raw.session;
            self.raw_sessions.iter().find(other).expect("there are several sessions")
        };
        let raw = if own { raw } else { stranger() };
        match raw.leave_as(&word(*name), *id, None, stray).await {
            Left::Released => Reply::Released,
            Left::Withdrawn => Reply::Withdrawn,
            Left::Gone => Reply::Gone,
        }
    }

    fn edit(&self, ticket: usize, edit: u64, byte: Option<u8>) -> Edit {
        let Known { raw, name, id, .. } = &self.tickets[ticket];
        let bytes = byte.map(|byte| vec![byte]);
        Edit { place: raw.place(&word(*name), *id), edit, bytes }
    }

    /// Everything that can be seen must be as the reference has it.
    pub(super) async fn compare(&mut self, model: &Model) {
        for name in 0..NAMES {
            self.compare_line(model, name).await;
            let cell = self.store.read(Name::new(&word(name)).expect("a good name")).await;
            let value = cell.expect("an answer").map(|cell| cell.bytes);
            assert_eq!(value, model.cells[name].map(|byte| vec![byte]), "the value of a name");
        }
        for (session, raw) in self.raw_sessions.iter().enumerate() {
            let all = raw.all().await;
            let life = (session, model.sessions[session].0);
            let places = model.lines.iter().flatten();
            let own = places.filter(|place| model.tickets[place.ticket].session == life);
            assert_eq!(all.len(), own.count(), "the tickets of session {session}: {all:?}");
        }
    }

    async fn compare_line(&mut self, model: &Model, name: usize) {
        let shown = line(&self.store, &word(name)).await;
        let shown = shown.map(|line| line.tickets).unwrap_or_default();
        let seen: Vec<_> = shown.iter().map(|t| (t.id, t.mode, t.fence.is_some())).collect();
        let places = model.lines[name].iter();
        let wanted: Vec<_> =
            places.map(|p| (self.tickets[p.ticket].id, mode(p.shape), p.granted)).collect();
        assert_eq!(seen, wanted, "the tickets of line {name}");
        for (ticket, place) in shown.iter().zip(&model.lines[name]) {
            if place.note != 0 {
                assert_eq!(ticket.label, [place.note], "the note of a ticket");
            }
        }
        let standing: Vec<TicketId> = shown.iter().map(|ticket| ticket.id).collect();
        let here = |known: &Known| known.name == name && !standing.contains(&known.id);
        for gone in self.tickets.iter().filter(|known| here(known)) {
            self.fences.remove(&gone.id);
        }
        for (ticket, place) in shown.iter().zip(&model.lines[name]) {
            let Some(fence) = ticket.fence else { continue };
            match self.fences.insert(ticket.id, fence) {
                Some(before) => assert_eq!(fence, before, "the same grant, another fence"),
                None => {
                    assert!(fence > self.highest[name], "{fence} after {}", self.highest[name]);
                    self.highest[name] = fence;
                }
            }
            self.confirm(place.ticket, fence).await;
        }
    }

    /// Poll and check must say what the line shows.
    async fn confirm(&self, ticket: usize, fence: u64) {
        let Known { raw, name, shape, id } = &self.tickets[ticket];
        let name = word(*name);
        assert_eq!(raw.stand(&name, *id).await, TicketStatus::Granted { fence });
        let name = Name::new(&name).expect("a good name");
        assert!(raw.check(&Claim { name, ticket: *id, mode: mode(*shape), fence }).await);
    }
}

fn told(edited: StoreResult<Edited>) -> Reply {
    Reply::Told(edited.expect("an answer") == Edited::Done)
}
