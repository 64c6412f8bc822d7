//! The reference store: lines in a map, under one mutex, for as long as the process lives. Read it first:
//! it is the whole contract without a network, and what the other stores do in SQL, Lua or transactions.
//!
//! | idea | here |
//! |---|---|
//! | line | a vector of rows under its name |
//! | session | a deadline on the suspend-aware clock |
//! | hint | a call into the waiting session |
//! | fence | max(last + 1, wall clock in µs), over all names |
//! | round trips | none: every operation is one function under the mutex |
//!
//! `front` reads the head of a line; `settle` removes its dead tickets and grants the admitted ones. Then the
//! operation adds, removes or reports a ticket. Hints are sent when the mutex is free.
//!
//! `memory://NAME` shares its lines with every keeper of that name in the process, until the last one is gone.

mod inspect;

use super::{
    Capabilities, Cell, Claim, Edit, Edited, Enter, Entered, Hints, Holder, LIST_MAX, Leave, Left,
    ListScope, Manner, Open, PollScope, Renewal, STRAY_MAX, Store, StoreId, StoreResult, Terms,
    TicketDigest, TicketStatus, Wait,
};
use crate::{
    clock::{Clock, Moment},
    error::{ErrorKind, StoreError},
    model::{
        line::{Front, LINE_MAX, Line, LineRow, settle},
        name::Name,
        ticket::{Mode, Owner, Place, SessionId, TicketId},
    },
    sync::Mutex,
};
use std::{
    collections::{BTreeMap, HashMap, HashSet},
    convert::Infallible,
    fmt,
    ops::Bound,
    sync::{Arc, MutexGuard, Weak},
};

const KIND: &str = "memory";

/// How many dead sessions one renewal sweeps.
const SWEEP: usize = 4;

/// Lines in memory.
pub struct Memory {
    id: StoreId,
    clock: Clock,
    state: Mutex<State>,
}

impl Memory {
    /// A store of its own.
    #[must_use]
    pub fn new() -> Self {
        Self::with_clock(Clock::system())
    }

    /// A store of its own, on this clock.
    #[must_use]
    pub fn with_clock(clock: Clock) -> Self {
        Self { id: StoreId(rand::random()), clock, state: Mutex::default() }
    }

    /// The store that every caller with this name shares.
    pub fn named(name: &str) -> Arc<Self> {
        static NAMED: Mutex<BTreeMap<String, Weak<Memory>>> = Mutex::new(BTreeMap::new());
        let mut named = NAMED.lock();
        if let Some(store) = named.get(name).and_then(Weak::upgrade) {
            return store;
        }
        let store = Arc::new(Self::new());
        named.retain(|_, s| s.strong_count() > 0);
        named.insert(name.to_owned(), Arc::downgrade(&store));
        store
    }

    /// Runs one operation under the mutex, then gives the hints that it has collected.
    fn with<T>(&self, operation: impl FnOnce(&mut State, Moment) -> T) -> T {
        let (out, news) = {
            let mut state: MutexGuard<'_, State> = self.state.lock();
            state.wall = self.clock.wall_micros();
            let out = operation(&mut state, self.clock.now());
            (out, std::mem::take(&mut state.news))
        };
        for tell in news {
            tell();
        }
        out
    }
}

impl Default for Memory {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Memory({})", self.id)
    }
}

#[derive(Default)]
struct State {
    last_fence: u64,
    wall: u64,
    sessions: HashMap<SessionId, LocalSession>,
    lines: BTreeMap<Name, Vec<Row>>,
    cells: HashMap<Name, Cell>,
    closed: HashMap<(SessionId, TicketId), Moment>,
    news: Vec<Box<dyn FnOnce() + Send>>,
}

/// A session that has not ended.
struct LocalSession {
    terms: Terms,
    owner: Owner,
    expires: Moment,
    evictions: u64,
    tickets: HashMap<TicketId, Name>,
    hints: Option<Arc<dyn Hints>>,
}

impl LocalSession {
    fn dead_at(&self) -> Moment {
        self.expires + self.terms.lock_delay
    }
}

struct Row {
    id: TicketId,
    /// `None` for a hold that has outlived its ticket ([`Leave::keep`]).
    session: Option<SessionId>,
    mode: Mode,
    fence: Option<u64>,
    entered: Moment,
    granted: Option<Moment>,
    hold_until: Moment,
    note: Vec<u8>,
    note_edit: u64,
    cell_edit: u64,
}

/// What settling needs of a row, and the row's place.
struct Placed {
    at: usize,
    weight: u32,
    granted: bool,
    dead_at: Moment,
}

impl LineRow for Placed {
    fn weight(&self) -> u32 {
        self.weight
    }
    fn granted(&self) -> bool {
        self.granted
    }
    fn dead_at(&self) -> Moment {
        self.dead_at
    }
}

impl State {
    /// A waiting ticket ends at its session's TTL, a granted one after the lock-delay.
    fn dead_at(&self, row: &Row) -> Moment {
        let Some(session) = row.session else { return row.hold_until };
        match self.sessions.get(&session) {
            None => Moment::from_nanos(0),
            Some(local) if row.fence.is_none() => local.expires,
            Some(local) => local.dead_at(),
        }
    }

    fn front(&self, name: &Name, now: Moment) -> Front<Placed> {
        let rows = self.lines.get(name).map(Vec::as_slice).unwrap_or_default();
        let capacity = rows.first().map_or(0, |r| r.mode.capacity());
        let placed = rows.iter().enumerate().map(|(at, row)| {
            let (weight, granted) = (row.mode.weight(), row.fence.is_some());
            Ok::<_, Infallible>(Placed { at, weight, granted, dead_at: self.dead_at(row) })
        });
        settle(placed, capacity, now).unwrap_or_else(|never| match never {})
    }

    /// Brings a line up to date: ends sessions whose time has passed, and grants the admitted. A session that
    /// ends may free other lines, so these are settled too.
    fn settle(&mut self, name: &Name, now: Moment) -> Front<Placed> {
        let mut others = self.remove_dead(name, now);
        while let Some(other) = others.pop() {
            others.extend(self.remove_dead(&other, now));
            if other != *name {
                self.admit(&other, now);
            }
        }
        self.admit(name, now)
    }

    /// Removes the dead tickets of a line, and all other tickets of their sessions. Returns the other lines.
    fn remove_dead(&mut self, name: &Name, now: Moment) -> Vec<Name> {
        let dead = self.front(name, now).dead;
        let Some(rows) = self.lines.get_mut(name).filter(|_| !dead.is_empty()) else {
            return Vec::new();
        };
        let dead: Vec<Row> = dead.iter().rev().map(|placed| rows.remove(placed.at)).collect();
        self.freed(name);
        let over = |session: &LocalSession| session.dead_at() <= now;
        let mut touched = Vec::new();
        for session in dead.iter().filter_map(|row| row.session) {
            if self.sessions.get(&session).is_some_and(over) {
                touched.extend(self.end(session));
            }
        }
        touched
    }

    /// Grants the admitted tickets of a line without dead ones.
    fn admit(&mut self, name: &Name, now: Moment) -> Front<Placed> {
        let mut front = self.front(name, now);
        for placed in front.admitted.iter_mut().filter(|s| !s.granted) {
            let fence = self.next_fence();
            self.grant(name, placed.at, fence, now);
            placed.granted = true;
        }
        if front.next.is_none() && front.admitted.is_empty() {
            self.lines.remove(name);
        }
        front
    }

    /// Ends a session. Returns the lines that it had tickets in.
    fn end(&mut self, session: SessionId) -> HashSet<Name> {
        let Some(local) = self.sessions.remove(&session) else { return HashSet::new() };
        for (ticket, name) in &local.tickets {
            if let Some(rows) = self.lines.get_mut(name) {
                rows.retain(|r| r.id != *ticket);
            }
        }
        local.tickets.into_values().collect()
    }

    fn next_fence(&mut self) -> u64 {
        self.last_fence = (self.last_fence + 1).max(self.wall);
        self.last_fence
    }

    fn grant(&mut self, name: &Name, at: usize, fence: u64, now: Moment) {
        let row = &mut self.lines.get_mut(name).expect("a grant is for a line")[at];
        (row.fence, row.granted) = (Some(fence), Some(now));
        let (ticket, session) = (row.id, row.session);
        if let Some(hints) = self.hints_of(session) {
            self.news.push(Box::new(move || hints.granted(ticket, fence)));
        }
    }

    fn hints_of(&self, session: Option<SessionId>) -> Option<Arc<dyn Hints>> {
        session.and_then(|s| self.sessions.get(&s)?.hints.clone())
    }

    /// Tells contenders that there is room.
    fn freed(&mut self, name: &Name) {
        for hints in self.sessions.values().filter_map(|local| local.hints.clone()) {
            let name = name.clone();
            self.news.push(Box::new(move || hints.freed(&name)));
        }
    }

    fn row(&self, name: &Name, ticket: TicketId) -> Option<(usize, &Row)> {
        self.lines.get(name)?.iter().enumerate().find(|(_, r)| r.id == ticket)
    }

    /// The tickets of a session that are in lines: its own list could have others.
    fn digest(&self, session: SessionId) -> TicketDigest {
        let listed = self.sessions.get(&session).into_iter().flat_map(|local| &local.tickets);
        let is_there = |(ticket, name): &(&TicketId, &Name)| {
            self.row(name, **ticket).is_some_and(|(_, row)| row.session == Some(session))
        };
        listed.filter(is_there).map(|(ticket, _)| *ticket).collect()
    }

    /// The row of a ticket that its session holds now.
    fn held(&mut self, place: &Place, now: Moment) -> Option<&mut Row> {
        self.settle(&place.name, now);
        let rows = self.lines.get_mut(&place.name)?;
        let own = |r: &&mut Row| r.id == place.ticket && r.session == Some(place.session);
        rows.iter_mut().find(own).filter(|r| r.fence.is_some())
    }

    fn wait(&self, name: &Name, ahead: usize, front: &Front<Placed>, now: Moment) -> Wait {
        let rows = self.lines.get(name).map(Vec::as_slice).unwrap_or_default();
        let holder = rows.first().and_then(|row| {
            let owner = self.sessions.get(&row.session?)?.owner.clone();
            let held_for = Some(now.saturating_since(row.granted?));
            Some(Holder { owner, label: row.note.clone(), held_for })
        });
        Wait { ahead, holder, recheck: front.recheck(now) }
    }

    fn status(&mut self, place: &Place, now: Moment) -> TicketStatus {
        let Place { session, name, ticket } = place;
        let front = self.settle(name, now);
        match self.row(name, *ticket).filter(|(_, row)| row.session == Some(*session)) {
            None => TicketStatus::Gone,
            Some((_, Row { fence: Some(fence), .. })) => TicketStatus::Granted { fence: *fence },
            Some((ahead, _)) => TicketStatus::Waiting(self.wait(name, ahead, &front, now)),
        }
    }

    fn enter(&mut self, ask: Enter, now: Moment) -> StoreResult<Entered> {
        let standing = self.status(&ask.place, now);
        let Place { session, name, ticket } = ask.place;
        let front = self.front(&name, now);
        if self.sessions.get(&session).is_none_or(|local| local.expires <= now) {
            return Err(StoreError::session_over(KIND));
        }
        match standing {
            TicketStatus::Granted { fence } => return Ok(Entered::Granted { fence }),
            TicketStatus::Waiting(wait) => return Ok(Entered::Queued(wait)),
            TicketStatus::Gone => {}
        }
        if self.closed.contains_key(&(session, ticket)) {
            let what = "the ticket was closed before this request came";
            return Err(StoreError::not_applied(KIND, ErrorKind::TicketClosed, what));
        }
        let ahead = self.lines.get(&name).map_or(0, Vec::len);
        let capacity = ask.mode.capacity();
        if let Some(line) = self.lines.get(&name).and_then(|l| l.first()).map(|r| r.mode.capacity())
            && line != capacity
        {
            let what = format!("the line has capacity {line}, not {capacity}");
            return Err(StoreError::not_applied(KIND, ErrorKind::Capacity(line), what));
        }
        let fits = ahead == 0 || front.fits(ask.mode.weight());
        if !fits && ask.manner == Manner::Contend {
            return Ok(Entered::Busy(self.wait(&name, ahead, &front, now)));
        }
        if ahead >= LINE_MAX {
            let what = format!("{LINE_MAX} tickets stand in the line already");
            return Err(StoreError::not_applied(KIND, ErrorKind::Full, what));
        }
        let row = Row {
            id: ticket,
            session: Some(session),
            mode: ask.mode,
            fence: None,
            entered: now,
            granted: None,
            hold_until: Moment::NEVER,
            note: ask.label,
            note_edit: 0,
            cell_edit: 0,
        };
        let fence = fits.then(|| self.next_fence());
        let rows = self.lines.entry(name.clone()).or_default();
        rows.push(Row { fence, granted: fence.map(|_| now), ..row });
        let local = self.sessions.get_mut(&session).expect("the session was found above");
        local.tickets.insert(ticket, name.clone());
        Ok(match fence {
            Some(fence) => Entered::Granted { fence },
            None => Entered::Queued(self.wait(&name, ahead, &front, now)),
        })
    }

    fn leave(&mut self, ask: &Leave, now: Moment) -> Left {
        let Place { session, name, ticket } = &ask.place;
        if ask.stray {
            self.closed.insert((*session, *ticket), now + STRAY_MAX);
        }
        let own = |r: &Row| r.id == *ticket && r.session == Some(*session);
        let Some(rows) = self.lines.get_mut(name) else { return Left::Gone };
        let Some(at) = rows.iter().position(own) else { return Left::Gone };
        let left = if rows[at].fence.is_some() { Left::Released } else { Left::Withdrawn };
        match ask.keep.filter(|_| left == Left::Released) {
            Some(keep) => (rows[at].session, rows[at].hold_until) = (None, now + keep),
            None => drop(rows.remove(at)),
        }
        if let Some(local) = self.sessions.get_mut(session) {
            local.tickets.remove(ticket);
        }
        if self.settle(name, now).next.is_none() {
            self.freed(name);
        }
        left
    }

    fn sweep(&mut self, now: Moment) {
        self.closed.retain(|_, until| *until > now);
        let dead = self.sessions.iter().filter(|(_, local)| local.dead_at() <= now);
        let dead: Vec<SessionId> = dead.map(|(id, _)| *id).take(SWEEP).collect();
        for session in dead {
            for name in self.end(session) {
                self.settle(&name, now);
            }
        }
    }
}

impl Store for Memory {
    fn scheme(&self) -> &'static str {
        KIND
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            renewal_shows_tickets: true,
            waiters_end_at_ttl: true,
            ..Capabilities::LINES
        }
    }

    fn id(&self) -> StoreId {
        self.id
    }

    async fn open(&self, ask: Open) -> StoreResult<Terms> {
        let terms = Terms::new(ask.ttl, ask.lock_delay);
        Ok(self.with(|state, now| {
            let local = state.sessions.entry(ask.session).or_insert_with(|| LocalSession {
                terms,
                owner: ask.owner,
                expires: now + ask.ttl,
                evictions: 0,
                tickets: HashMap::new(),
                hints: None,
            });
            local.terms
        }))
    }

    async fn renew(&self, session: SessionId) -> StoreResult<Renewal> {
        Ok(self.with(|state, now| {
            state.sweep(now);
            match state.sessions.get_mut(&session) {
                Some(local) if local.expires > now => {
                    local.expires = now + local.terms.ttl;
                    let version = local.evictions;
                    Renewal::Renewed { version, tickets: Some(state.digest(session)) }
                }
                _ => Renewal::Lost,
            }
        }))
    }

    async fn close(&self, session: SessionId) -> StoreResult<()> {
        self.with(|state, now| {
            for name in state.end(session) {
                if state.settle(&name, now).next.is_none() {
                    state.freed(&name);
                }
            }
        });
        Ok(())
    }

    async fn enter(&self, ask: Enter) -> StoreResult<Entered> {
        self.with(|state, now| state.enter(ask, now))
    }

    async fn poll(
        &self,
        session: SessionId,
        which: PollScope,
    ) -> StoreResult<Vec<(Name, TicketId, TicketStatus)>> {
        Ok(self.with(|state, now| {
            let tickets = match which {
                PollScope::These(tickets) => tickets,
                PollScope::All => {
                    let local = state.sessions.get(&session);
                    let all = local.into_iter().flat_map(|local| &local.tickets);
                    all.map(|(ticket, name)| (name.clone(), *ticket)).collect()
                }
            };
            let status = |(name, ticket)| {
                let place = Place { session, name, ticket };
                let status = state.status(&place, now);
                (place.name, ticket, status)
            };
            tickets.into_iter().map(status).collect()
        }))
    }

    async fn hints(&self, session: SessionId, to: Arc<dyn Hints>) -> StoreError {
        self.with(|state, _| {
            if let Some(local) = state.sessions.get_mut(&session) {
                local.hints = Some(Arc::clone(&to));
            }
        });
        to.recheck(None);
        std::future::pending().await
    }

    async fn leave(&self, ask: Leave) -> StoreResult<Left> {
        Ok(self.with(|state, now| state.leave(&ask, now)))
    }

    fn leave_now(&self, ask: &Leave) -> bool {
        self.with(|state, now| state.leave(ask, now));
        true
    }

    async fn set_label(&self, edit: Edit) -> StoreResult<Edited> {
        Ok(self.with(|state, now| {
            let Some(row) = state.held(&edit.place, now) else { return Edited::NotHeld };
            if edit.edit > row.note_edit {
                (row.note_edit, row.note) = (edit.edit, edit.bytes.unwrap_or_default());
            }
            Edited::Done
        }))
    }

    async fn list(&self, which: ListScope) -> StoreResult<Vec<Line>> {
        Ok(self.with(|state, now| match which {
            ListScope::Exact(name) => state.shown_line(&name, now).into_iter().collect(),
            ListScope::Prefix { prefix, after } => {
                let from = match &after {
                    Some(name) if name.as_str() >= prefix.as_str() => {
                        Bound::Excluded(name.as_str())
                    }
                    _ => Bound::Included(prefix.as_str()),
                };
                let names = state.lines.range::<str, _>((from, Bound::Unbounded)).map(|(n, _)| n);
                let within = names.take_while(|n| n.as_str().starts_with(&prefix));
                within.filter_map(|n| state.shown_line(n, now)).take(LIST_MAX).collect()
            }
        }))
    }

    async fn check(&self, claim: Claim) -> StoreResult<bool> {
        Ok(self.with(|state, now| state.is_held(&claim, now)))
    }

    async fn read(&self, name: Name) -> StoreResult<Option<Cell>> {
        Ok(self.with(|state, _| state.cells.get(&name).cloned()))
    }

    async fn write(&self, edit: Edit) -> StoreResult<Edited> {
        Ok(self.with(|state, now| {
            let held = state.held(&edit.place, now);
            let Some(row) = held.filter(|r| r.mode.weight() == r.mode.capacity()) else {
                return Edited::NotHeld;
            };
            if edit.edit <= row.cell_edit {
                return Edited::Done;
            }
            row.cell_edit = edit.edit;
            let fence = row.fence.expect("a held row is granted");
            match edit.bytes {
                Some(bytes) => state.cells.insert(edit.place.name, Cell { bytes, fence }),
                None => state.cells.remove(&edit.place.name),
            };
            Edited::Done
        }))
    }

    async fn write_under(&self, claim: Claim, bytes: Vec<u8>) -> StoreResult<Edited> {
        Ok(self.with(|state, now| {
            if !state.is_held(&claim, now) {
                return Edited::NotHeld;
            }
            state.cells.insert(claim.name, Cell { bytes, fence: claim.fence });
            Edited::Done
        }))
    }

    async fn evict(&self, name: Name, ticket: TicketId) -> StoreResult<bool> {
        Ok(self.with(|state, now| {
            state.settle(&name, now);
            let Some((at, row)) = state.row(&name, ticket) else { return false };
            let session = row.session;
            state.lines.get_mut(&name).expect("the row is in it").remove(at);
            if let Some(local) = session.and_then(|s| state.sessions.get_mut(&s)) {
                local.evictions += 1;
                local.tickets.remove(&ticket);
            }
            if let Some(hints) = state.hints_of(session) {
                state.news.push(Box::new(move || hints.ended(ticket)));
            }
            if state.settle(&name, now).next.is_none() {
                state.freed(&name);
            }
            true
        }))
    }
}
