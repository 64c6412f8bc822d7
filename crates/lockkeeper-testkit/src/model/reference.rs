//! The reference: lines as vectors, and no time.

use lockkeeper::store::PLAIN_CAPACITY;

/// How many sessions there are.
pub(super) const SESSIONS: usize = 3;
/// How many names there are.
pub(super) const NAMES: usize = 2;

/// What a ticket takes of its line, and what the line has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// What it takes.
    pub weight: u32,
    /// What the line has.
    pub capacity: u32,
}

impl Shape {
    /// All of a plain line.
    pub const EXCLUSIVE: Self = Self { weight: PLAIN_CAPACITY, capacity: PLAIN_CAPACITY };
    /// A reader's part of a plain line.
    pub const SHARED: Self = Self { weight: 1, capacity: PLAIN_CAPACITY };
}

/// A ticket in a line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// Which ticket.
    pub ticket: usize,
    /// What it takes.
    pub shape: Shape,
    /// Is it granted?
    pub granted: bool,
    /// The note beside it.
    pub note: u8,
    note_edit: u64,
    cell_edit: u64,
}

/// What a ticket was made with; the ticket may stand in its line or not.
#[derive(Clone, Debug)]
pub struct Ticket {
    /// The session that it belongs to, and which life of that session.
    pub session: (usize, usize),
    /// The line.
    pub name: usize,
    /// What it takes.
    pub shape: Shape,
    /// Was it left as a stray?
    closed: bool,
}

/// What a request is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reply {
    /// Nothing that could be compared.
    Done,
    /// The ticket is granted.
    Granted,
    /// The ticket waits behind so many.
    Queued(usize),
    /// Taken, behind so many.
    Busy(usize),
    /// Refused: the session is over.
    SessionOver,
    /// Refused: the ticket was closed.
    TicketClosed,
    /// Refused: the line has this capacity.
    Capacity(u32),
    /// A leave of a held ticket.
    Released,
    /// A leave of a waiting ticket.
    Withdrawn,
    /// No such ticket.
    Gone,
    /// Something was done, or was not because nothing was held or there.
    Told(bool),
}

/// All that a store has.
#[derive(Clone, Debug, Default)]
pub struct Model {
    /// How often each session was opened, and whether it is open now.
    pub sessions: [(usize, bool); SESSIONS],
    /// Every ticket there ever was.
    pub tickets: Vec<Ticket>,
    /// The lines.
    pub lines: [Vec<Place>; NAMES],
    /// The values of the names.
    pub cells: [Option<u8>; NAMES],
}

impl Model {
    fn lives(&self, session: (usize, usize)) -> bool {
        self.sessions[session.0] == (session.1, true)
    }

    fn position(&self, ticket: usize) -> Option<usize> {
        let line = &self.lines[self.tickets[ticket].name];
        line.iter().position(|place| place.ticket == ticket)
    }

    /// Admission, as it is defined: from the head on, as long as the weights fit.
    fn settle(&mut self, name: usize) {
        let mut taken = 0;
        for place in &mut self.lines[name] {
            taken += u64::from(place.shape.weight);
            if taken > u64::from(place.shape.capacity) {
                break;
            }
            place.granted = true;
        }
    }

    pub(super) fn open(&mut self, session: usize) -> Reply {
        let (lives, open) = &mut self.sessions[session];
        if !*open {
            (*lives, *open) = (*lives + 1, true);
        }
        Reply::Done
    }

    pub(super) fn close(&mut self, session: usize) -> Reply {
        self.sessions[session].1 = false;
        let tickets = &self.tickets;
        for line in &mut self.lines {
            line.retain(|place| tickets[place.ticket].session.0 != session);
        }
        (0..NAMES).for_each(|name| self.settle(name));
        Reply::Done
    }

    pub(super) fn renew(&self, session: usize) -> Reply {
        Reply::Told(self.sessions[session].1)
    }

    pub(super) fn enter_new(
        &mut self,
        session: usize,
        name: usize,
        shape: Shape,
        queue: bool,
    ) -> Reply {
        let session = (session, self.sessions[session].0);
        self.tickets.push(Ticket { session, name, shape, closed: false });
        self.enter(self.tickets.len() - 1, queue)
    }

    pub(super) fn enter(&mut self, ticket: usize, queue: bool) -> Reply {
        let Ticket { session, name, shape, closed } = self.tickets[ticket].clone();
        if !self.lives(session) {
            return Reply::SessionOver;
        }
        let line = &mut self.lines[name];
        if let Some(at) = line.iter().position(|place| place.ticket == ticket) {
            return if line[at].granted { Reply::Granted } else { Reply::Queued(at) };
        }
        if closed {
            return Reply::TicketClosed;
        }
        if let Some(first) = line.first().filter(|p| p.shape.capacity != shape.capacity) {
            return Reply::Capacity(first.shape.capacity);
        }
        let ahead = line.len();
        let (granted, note, note_edit, cell_edit) = (false, 0, 0, 0);
        line.push(Place { ticket, shape, granted, note, note_edit, cell_edit });
        self.settle(name);
        let line = &mut self.lines[name];
        match (line[ahead].granted, queue) {
            (true, _) => Reply::Granted,
            (false, true) => Reply::Queued(ahead),
            (false, false) => {
                line.pop();
                Reply::Busy(ahead)
            }
        }
    }

    /// A leave by the ticket's own session, or by another.
    pub(super) fn leave(&mut self, ticket: usize, own: bool, stray: bool) -> Reply {
        if !own {
            return Reply::Gone;
        }
        self.tickets[ticket].closed |= stray;
        match self.take_out(ticket) {
            Some(place) if place.granted => Reply::Released,
            Some(_) => Reply::Withdrawn,
            None => Reply::Gone,
        }
    }

    pub(super) fn evict(&mut self, ticket: usize) -> Reply {
        Reply::Told(self.take_out(ticket).is_some())
    }

    fn take_out(&mut self, ticket: usize) -> Option<Place> {
        let (at, name) = (self.position(ticket)?, self.tickets[ticket].name);
        let place = self.lines[name].remove(at);
        self.settle(name);
        Some(place)
    }

    fn held(&mut self, ticket: usize) -> Option<&mut Place> {
        let (at, name) = (self.position(ticket)?, self.tickets[ticket].name);
        Some(&mut self.lines[name][at]).filter(|place| place.granted)
    }

    pub(super) fn annotate(&mut self, ticket: usize, edit: u64, note: u8) -> Reply {
        let Some(place) = self.held(ticket) else { return Reply::Told(false) };
        if edit > place.note_edit {
            (place.note_edit, place.note) = (edit, note);
        }
        Reply::Told(true)
    }

    pub(super) fn write(&mut self, ticket: usize, edit: u64, value: Option<u8>) -> Reply {
        let name = self.tickets[ticket].name;
        let held = self.held(ticket).filter(|p| p.shape.weight == p.shape.capacity);
        let Some(place) = held else { return Reply::Told(false) };
        if edit > place.cell_edit {
            place.cell_edit = edit;
            self.cells[name] = value;
        }
        Reply::Told(true)
    }
}
