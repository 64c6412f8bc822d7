//! Where events come together: what requests of this instance do, and what the looks at the store find.

use super::{
    diff::Change,
    draft::{self, Draft, time},
    log::{Entry, Log},
    looker,
    root::{Root, Roots, Since},
    tickets::Tickets,
};
use crate::{extract::millis, metrics::Metrics};
use lockkeeper::{
    ErrorKind, Mode, Name, Owner, StoreError, TicketId,
    store::{
        AnyStore, Left, Terms, TicketStatus,
        clock::{Clock, Moment},
        http::wire::{Event, EventKind, Freshness, LockHistory},
    },
};
use std::{
    collections::HashMap,
    fmt,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};
use tokio::sync::{Notify, watch};

/// Cheap to clone.
#[derive(Clone)]
pub(crate) struct Hub(Arc<Shared>);

pub(super) struct Shared {
    pub(super) store: AnyStore,
    pub(super) clock: Clock,
    pub(super) instance: u64,
    pub(super) metrics: Arc<Metrics>,
    /// When this instance has started, by the wall clock.
    started: u64,
    state: Mutex<State>,
    store_is_up: AtomicBool,
    /// The number of the last event.
    head: watch::Sender<u64>,
    /// How many looks have succeeded.
    looks: watch::Sender<u64>,
    /// Wakes the task that looks: a part of the names is new, or a change is near.
    pub(super) nudge: Notify,
}

struct State {
    log: Log,
    tickets: Tickets,
    roots: Roots,
    /// The requests that wait for a change of one lock.
    names: HashMap<Name, (usize, watch::Sender<u64>)>,
    looking: Freshness,
    is_over: bool,
}

/// A ticket as the request that took it knows it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Taken<'a> {
    pub(crate) name: &'a Name,
    pub(crate) ticket: TicketId,
    pub(crate) mode: Mode,
    /// The public half.
    pub(crate) session: &'a str,
    /// Only if the request says it.
    pub(crate) owner: Option<&'a Owner>,
    pub(crate) label: &'a [u8],
}

impl Hub {
    pub(crate) fn new(store: AnyStore, instance: u64, metrics: Arc<Metrics>) -> Self {
        let clock = Clock::system();
        let state = State {
            log: Log::default(),
            tickets: Tickets::default(),
            roots: Roots::default(),
            names: HashMap::new(),
            looking: looker::at_rest(),
            is_over: false,
        };
        Self(Arc::new(Shared {
            store,
            started: clock.wall_micros(),
            clock,
            instance,
            metrics,
            state: Mutex::new(state),
            store_is_up: AtomicBool::new(true),
            head: watch::Sender::new(0),
            looks: watch::Sender::new(0),
            nudge: Notify::new(),
        }))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn shared(&self) -> &Shared {
        &self.0
    }

    // What requests say.

    /// A ticket stands in line.
    pub(crate) fn queued(&self, taken: Taken<'_>) {
        self.tell(self.taken(EventKind::Queued, taken, None));
    }

    /// A ticket is granted.
    pub(crate) fn granted(&self, taken: Taken<'_>, fence: u64) {
        self.tell(self.taken(EventKind::Granted, taken, Some(fence)));
    }

    fn taken(&self, kind: EventKind, taken: Taken<'_>, fence: Option<u64>) -> Draft {
        Draft {
            mode: Some(taken.mode),
            fence,
            owner: taken.owner.cloned(),
            label: Some(draft::label(taken.label)),
            session: Some(taken.session.into()),
            ..Draft::new(kind, taken.name, taken.ticket)
        }
    }

    /// A client was told how a ticket stands in its session. It may ask for any name and any ticket, also for those of
    /// other clients, which are gone as far as its session knows.
    pub(crate) fn told(&self, session: &str, name: &Name, ticket: TicketId, status: &TicketStatus) {
        match status {
            TicketStatus::Granted { fence } => {
                let granted = Draft::new(EventKind::Granted, name, ticket);
                self.tell_if_live(session, Draft { fence: Some(*fence), ..granted });
            }
            TicketStatus::Gone => {
                self.tell_if_live(session, Draft::new(EventKind::Lost, name, ticket));
            }
            TicketStatus::Waiting(_) => {}
        }
    }

    /// A request that ends this ticket is about to be sent to the store.
    pub(crate) fn ending(&self, name: &Name, ticket: TicketId) -> Ending {
        self.state().tickets.ending(ticket);
        Ending { hub: self.clone(), name: name.clone(), ticket }
    }

    /// A held ticket has another label.
    pub(crate) fn label(&self, name: &Name, ticket: TicketId, label: &[u8]) {
        let label = Some(draft::label(label));
        self.tell(Draft { label, ..Draft::new(EventKind::Label, name, ticket) });
    }

    /// A session was opened.
    pub(crate) fn session_opened(&self, session: &str, terms: &Terms) {
        let now = self.0.clock.now();
        let mut state = self.state();
        state.tickets.session_opened(session, terms.ttl + terms.lock_delay, now);
    }

    /// A session was renewed.
    pub(crate) fn session_renewed(&self, session: &str) {
        self.state().tickets.session_renewed(session, self.0.clock.now());
    }

    /// A session was closed, and its tickets with it.
    pub(crate) fn session_closed(&self, session: &str) {
        self.session_over(session, |is_granted| match is_granted {
            true => EventKind::Released,
            false => EventKind::Withdrawn,
        });
    }

    /// The client of a session was told that it is over.
    pub(crate) fn session_lost(&self, session: &str) {
        self.session_over(session, |_| EventKind::Lost);
    }

    fn session_over(&self, session: &str, kind: impl Fn(bool) -> EventKind) {
        let over = self.state().tickets.session_over(session);
        let drafts =
            over.iter().map(|(name, id, is_granted)| Draft::new(kind(*is_granted), name, *id));
        self.tell_all(drafts.collect());
    }

    /// The store has answered a request.
    pub(crate) fn store_answered(&self) {
        self.store_is(true, None);
    }

    /// A request to the store has failed.
    pub(crate) fn store_failed(&self, e: &StoreError) {
        if e.kind == ErrorKind::Unavailable {
            self.store_is(false, Some(e.to_string()));
        }
    }

    fn store_is(&self, is_up: bool, why: Option<String>) {
        // Every answer of the store comes by here.
        let up = &self.0.store_is_up;
        if up.load(Ordering::Relaxed) == is_up || up.swap(is_up, Ordering::Relaxed) == is_up {
            return;
        }
        let mut state = self.state();
        let kind = if is_up { EventKind::StoreUp } else { EventKind::StoreDown };
        let event = self.general(kind, why);
        self.push(&mut state, None, event, self.0.clock.wall_micros());
    }

    /// An event that is about no single lock.
    pub(super) fn general(&self, kind: EventKind, why: Option<String>) -> Event {
        Event {
            kind,
            at: time(self.0.clock.wall_micros()),
            lock: None,
            ticket: None,
            mode: None,
            fence: None,
            owner: None,
            label: None,
            waited_ms: None,
            held_ms: None,
            exact: true,
            why,
        }
    }

    pub(crate) fn store_is_up(&self) -> bool {
        self.0.store_is_up.load(Ordering::Relaxed)
    }

    fn tell(&self, draft: Draft) {
        self.tell_all(vec![draft]);
    }

    fn tell_if_live(&self, session: &str, draft: Draft) {
        let is_live = self.state().tickets.is_live(session, &draft.name, draft.ticket);
        if is_live {
            self.tell(draft);
        }
    }

    fn tell_all(&self, drafts: Vec<Draft>) {
        let (now, wall) = (self.0.clock.now(), self.0.clock.wall_micros());
        let is_near = drafts.iter().any(|draft| draft.exact && draft.is_end());
        let mut state = self.state();
        for draft in drafts {
            if let Some((_, waiting)) = state.names.get(&draft.name) {
                waiting.send_modify(|count| *count += 1);
            }
            let (is_exact, session) = (draft.exact, draft.session.clone());
            let Some(draft) = state.tickets.admit(draft, now) else { continue };
            if is_exact || session.is_some() {
                self.0.metrics.ticket(&draft.name, draft.kind, draft.waited, draft.held);
            }
            let at = wall.saturating_sub(u64::try_from(draft.ago.as_micros()).unwrap_or(0));
            let (name, event) = draft.into_event(wall);
            self.push(&mut state, Some(name), event, at);
        }
        let is_watched = state.looking.looking;
        drop(state);
        if is_near && is_watched {
            self.0.nudge.notify_one();
        }
    }

    fn push(&self, state: &mut State, name: Option<Name>, event: Event, wall_micros: u64) {
        self.0.metrics.event(event.kind);
        state.log.push(name, event, wall_micros);
        self.0.head.send_replace(state.log.head());
    }

    // What the looks say.

    pub(super) fn changes(&self, changes: Vec<Change>) {
        if !changes.is_empty() {
            self.tell_all(changes.into_iter().map(Draft::from).collect());
        }
    }

    /// What to look at now; `None` if no viewer is left, and then the looks end.
    pub(super) fn roots(&self) -> Option<Vec<Root>> {
        let now = self.0.clock.now();
        let mut state = self.state();
        let roots = state.roots.retain_watched(now);
        if roots.is_empty() || state.is_over {
            state.looking = looker::at_rest();
            state.tickets.forget_foreign();
            return None;
        }
        Some(roots)
    }

    pub(super) fn new_roots(&self) -> Vec<Root> {
        self.state().roots.unseen()
    }

    pub(super) fn looked_at(&self, roots: &[Root]) {
        let wall_micros = self.0.clock.wall_micros();
        let mut state = self.state();
        let since = Since { seq: state.log.head(), wall_micros };
        state.roots.looked_at(roots, since);
        drop(state);
        self.0.looks.send_modify(|count| *count += 1);
    }

    pub(super) fn pace_is(&self, pause: Duration, look: Duration, lines: usize) {
        let mut state = self.state();
        state.looking.within_ms = Some(millis(pause + look));
        state.looking.look_ms = Some(millis(look));
        state.looking.lines = Some(lines as u64);
    }

    // What viewers ask.

    /// Watches parts of the names until the answer is dropped.
    pub(crate) fn watch(&self, roots: Vec<Root>) -> Interest {
        let mut state = self.state();
        for root in &roots {
            state.roots.enter(root);
        }
        if !state.looking.looking && !state.is_over {
            state.looking.looking = true;
            tokio::spawn(looker::run(self.clone()));
        }
        drop(state);
        self.0.nudge.notify_one();
        Interest { hub: self.clone(), roots, looks: self.0.looks.subscribe() }
    }

    /// Hears of everything that is said of one lock, until the answer is dropped.
    pub(super) fn listen(&self, name: &Name) -> Listening {
        let mut state = self.state();
        let named = state.names.entry(name.clone());
        let (listeners, sender) = named.or_insert_with(|| (0, watch::Sender::new(0)));
        *listeners += 1;
        let changes = sender.subscribe();
        Listening { hub: self.clone(), name: name.clone(), changes }
    }

    pub(super) fn head(&self) -> watch::Receiver<u64> {
        self.0.head.subscribe()
    }

    pub(super) fn after(&self, seq: u64, most: usize) -> Option<Vec<Arc<Entry>>> {
        self.state().log.after(seq, most)
    }

    /// The last events of a lock.
    pub(crate) fn history(&self, name: &Name, most: usize) -> LockHistory {
        let state = self.state();
        let (events, dropped) = state.log.history(name, most);
        let watched = state.roots.since(&Root::Exact(name.clone()));
        LockHistory {
            lock: name.clone(),
            events: events.iter().map(|entry| entry.event.clone()).collect(),
            since: time(dropped.unwrap_or(self.0.started)),
            watched_since: watched.map(|since| time(since.wall_micros)),
        }
    }

    /// How soon the events tell what other clients do.
    pub(crate) fn freshness(&self) -> Freshness {
        self.state().looking
    }

    /// Sessions that live and were opened here, and tickets that wait and came through here.
    pub(crate) fn sessions_and_waiters(&self) -> (usize, usize) {
        let now = self.0.clock.now();
        let mut state = self.state();
        (state.tickets.sessions(now), state.tickets.waiting())
    }

    /// The instance stops: no more looks.
    pub(crate) fn stop(&self) {
        let mut state = self.state();
        state.is_over = true;
        state.roots.clear();
        drop(state);
        self.0.nudge.notify_one();
    }
}

impl fmt::Debug for Hub {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hub").finish_non_exhaustive()
    }
}

/// A request under way that ends a ticket. Dropped without an answer, it lets the looks tell what they have found.
#[derive(Debug)]
#[must_use = "say what the store has answered"]
pub(crate) struct Ending {
    hub: Hub,
    name: Name,
    ticket: TicketId,
}

impl Ending {
    /// The store has answered; `kept`: it keeps the lock closed for a while.
    pub(crate) fn left(self, left: Left, kept: bool) {
        let kind = match left {
            Left::Released => EventKind::Released,
            Left::Withdrawn => EventKind::Withdrawn,
            Left::Gone => return,
        };
        self.hub.tell(Draft { kept, ..Draft::new(kind, &self.name, self.ticket) });
    }

    /// The ticket was there, and was ended by force.
    pub(crate) fn evicted(self, fence: Option<u64>) {
        let evicted = Draft::new(EventKind::Evicted, &self.name, self.ticket);
        self.hub.tell(Draft { fence, ..evicted });
    }
}

impl Drop for Ending {
    fn drop(&mut self) {
        let found = self.hub.state().tickets.no_longer_ending(self.ticket);
        if let Some(draft) = found {
            self.hub.tell(draft);
        }
    }
}

/// A viewer's wish that parts of the names are looked at.
#[derive(Debug)]
pub(crate) struct Interest {
    hub: Hub,
    roots: Vec<Root>,
    looks: watch::Receiver<u64>,
}

impl Interest {
    /// Is this name in one of the parts?
    pub(super) fn has(&self, name: &Name) -> bool {
        self.roots.iter().any(|root| root.has(name))
    }

    /// Since when nothing is missing in these parts; `None` before the first look at them.
    pub(super) fn since(&self) -> Option<Since> {
        let state = self.hub.state();
        if self.roots.is_empty() {
            return Some(Since { seq: 0, wall_micros: self.hub.0.started });
        }
        let all: Option<Vec<Since>> =
            self.roots.iter().map(|root| state.roots.since(root)).collect();
        all?.into_iter().max_by_key(|since| since.seq)
    }

    /// Resolves after the next look.
    pub(super) async fn next_look(&mut self) {
        if self.looks.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    /// Resolves when nothing is missing any more in these parts.
    pub(super) async fn is_complete(&mut self) {
        while self.since().is_none() {
            self.next_look().await;
        }
    }
}

impl Drop for Interest {
    fn drop(&mut self) {
        let now = self.hub.0.clock.now();
        let mut state = self.hub.state();
        for root in &self.roots {
            state.roots.leave(root, now);
        }
    }
}

/// See [`Hub::listen`].
#[derive(Debug)]
pub(super) struct Listening {
    hub: Hub,
    name: Name,
    changes: watch::Receiver<u64>,
}

impl Listening {
    /// Resolves when something was said of the lock since the last call.
    pub(super) async fn heard(&mut self) {
        if self.changes.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        let mut state = self.hub.state();
        if let Some((listeners, _)) = state.names.get_mut(&self.name) {
            *listeners -= 1;
            if *listeners == 0 {
                state.names.remove(&self.name);
            }
        }
    }
}

/// Now, on the clock that counts suspend.
pub(super) fn now(hub: &Hub) -> Moment {
    hub.0.clock.now()
}
