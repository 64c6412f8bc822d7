//! The one waiting loop: a task per session that has long polls or streams of hints here.
//!
//! The task owns all that waits in its session and is fed by a channel. It asks the store for hints once, however
//! many wait, and polls behind them: at once after a hint, else when the store said that the line can move, else
//! rarely. One poll serves all tickets that are due.

use crate::{problem::Problem, service::Service};
use lockkeeper::{
    ErrorKind, Name, Store as _, StoreError, TicketId, Wait,
    store::{Hints, PollScope, SessionId, StoreResult, TicketStatus, http::wire::Hint},
};
use std::{
    collections::HashMap,
    future::pending,
    pin::Pin,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};
use tokio::{
    sync::{Notify, mpsc, oneshot, watch},
    time::{Instant, sleep_until},
};

/// The first pause between two polls while no hints come, and the longest.
const PAUSE_FIRST: Duration = Duration::from_millis(5);
const PAUSE_MOST: Duration = Duration::from_millis(250);
/// The longest pause after a failure.
const FAILED_MOST: Duration = Duration::from_secs(1);
/// For each ticket that waits at this instance, every ticket's safety poll comes so much more rarely: together
/// they make 200 polls a second at most. Hints and the store's own times are not held up by it.
const SHARE: Duration = Duration::from_millis(5);
/// Without hints polls are all there is, and together they make 1,000 a second at most.
const SHARE_WITHOUT_HINTS: Duration = Duration::from_millis(1);
/// The longest time between two safety polls of a ticket.
const REST_MOST: Duration = Duration::from_secs(30);
/// For how long the hints of a session go on after its last waiter: the next request often follows at once.
const LINGER: Duration = Duration::from_secs(5);
/// How many hints a stream may be behind.
const STREAM_ROOM: usize = 1_024;

/// All that waits at this instance.
#[derive(Debug, Default)]
pub(crate) struct Waiting {
    sessions: Mutex<HashMap<SessionId, mpsc::UnboundedSender<Order>>>,
    /// How many tickets wait.
    tickets: Arc<AtomicUsize>,
}

impl Waiting {
    /// How many tickets wait at this instance.
    pub(crate) fn count(&self) -> usize {
        self.tickets.load(Ordering::Relaxed)
    }
}

/// How a waiting ticket stands.
#[derive(Clone, Debug)]
pub(crate) enum Standing {
    /// In line; and the trouble with the last poll, if it failed.
    Waits(Wait, Option<Problem>),
    /// Granted, with this fence.
    Granted(u64),
    /// In no line.
    Gone,
}

/// A request that waits for a ticket.
pub(crate) struct Waiter {
    standing: watch::Receiver<Standing>,
    _counted: Counted,
}

impl Waiter {
    /// How it ends, or how it stands when the time is over.
    pub(crate) async fn until(mut self, end: Instant) -> Standing {
        let news = self.standing.wait_for(|now| !matches!(now, Standing::Waits(..)));
        // Without news the channel has ended with its task: the last word stands.
        let _ = tokio::time::timeout_at(end, news).await;
        self.standing.borrow().clone()
    }
}

struct Counted(Arc<AtomicUsize>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[derive(Debug)]
enum Order {
    Wait {
        name: Name,
        ticket: TicketId,
        wait: Wait,
        to: oneshot::Sender<watch::Receiver<Standing>>,
    },
    Contend {
        name: Name,
        bell: Arc<Notify>,
    },
    Stream(mpsc::Sender<Hint>),
    Hint(Hint),
}

impl Service {
    /// How many long polls wait at this instance.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.waiting.count()
    }

    /// Waits for a ticket that stands in line.
    pub(crate) async fn waiter(
        &self,
        session: SessionId,
        name: Name,
        ticket: TicketId,
        wait: Wait,
    ) -> Waiter {
        self.waiting.tickets.fetch_add(1, Ordering::Relaxed);
        let counted = Counted(Arc::clone(&self.waiting.tickets));
        let (to, from) = oneshot::channel();
        self.order(session, Order::Wait { name, ticket, wait: wait.clone(), to });
        let standing = match from.await {
            Ok(standing) => standing,
            Err(_) => watch::channel(Standing::Waits(wait, None)).1,
        };
        Waiter { standing, _counted: counted }
    }

    /// A bell that rings when this lock may have come free.
    pub(crate) fn contender(&self, session: SessionId, name: Name) -> Arc<Notify> {
        let bell = Arc::new(Notify::new());
        self.order(session, Order::Contend { name, bell: Arc::clone(&bell) });
        bell
    }

    /// The session's hints, from now on.
    pub(crate) fn hint_stream(&self, session: SessionId) -> mpsc::Receiver<Hint> {
        let (to, from) = mpsc::channel(STREAM_ROOM);
        self.order(session, Order::Stream(to));
        from
    }

    fn order(&self, session: SessionId, order: Order) {
        let mut sessions = self.waiting.sessions.lock().unwrap_or_else(PoisonError::into_inner);
        // A task ends only under this lock, and only if no order is left for it.
        let order = match sessions.get(&session) {
            Some(task) => match task.send(order) {
                Ok(()) => return,
                Err(e) => e.0,
            },
            None => order,
        };
        let (orders, queue) = mpsc::unbounded_channel();
        let _ = orders.send(order);
        let sink = Arc::new(Sink { to: orders.clone(), wants_freed: false.into() });
        sessions.insert(session, orders);
        tokio::spawn(Task::new(self.clone(), session, queue, sink).run());
    }
}

/// Where the store drops its hints.
struct Sink {
    to: mpsc::UnboundedSender<Order>,
    /// Does a request or a stream want to hear of locks that come free? A store may tell all sessions of each.
    wants_freed: AtomicBool,
}

impl Sink {
    fn drop(&self, hint: Hint) {
        let _ = self.to.send(Order::Hint(hint));
    }
}

impl Hints for Sink {
    /// No proof of a grant: a store may tell all sessions of it, and another session may have a ticket of the same id
    /// in another line. A poll of this session's own ticket is.
    fn granted(&self, ticket: TicketId, _: u64) {
        self.drop(Hint::Recheck { ticket: Some(ticket) });
    }
    fn ended(&self, ticket: TicketId) {
        self.drop(Hint::Ended { ticket });
    }
    fn freed(&self, name: &Name) {
        if self.wants_freed.load(Ordering::Relaxed) {
            self.drop(Hint::Freed { lock: name.clone() });
        }
    }
    fn recheck(&self, ticket: Option<TicketId>) {
        self.drop(Hint::Recheck { ticket });
    }
}

/// One ticket that waits.
struct InLine {
    name: Name,
    standing: watch::Sender<Standing>,
    /// When to poll next.
    due: Instant,
    /// The pause after the next poll that brings nothing, while no hints come or the store fails.
    pause: Duration,
}

type Boxed<T> = Pin<Box<dyn Future<Output = T> + Send>>;
type Polled = StoreResult<Vec<(Name, TicketId, TicketStatus)>>;

struct Task {
    service: Service,
    session: SessionId,
    queue: mpsc::UnboundedReceiver<Order>,
    sink: Arc<Sink>,
    waiters: HashMap<TicketId, InLine>,
    contenders: HashMap<Name, Vec<Arc<Notify>>>,
    streams: Vec<mpsc::Sender<Hint>>,
    /// Do the store's hints come?
    listening: bool,
    /// When to ask for them again.
    hints_at: Instant,
    hints_pause: Duration,
    idle_since: Instant,
}

impl Task {
    fn new(
        service: Service,
        session: SessionId,
        queue: mpsc::UnboundedReceiver<Order>,
        sink: Arc<Sink>,
    ) -> Self {
        let now = Instant::now();
        Self {
            service,
            session,
            queue,
            sink,
            waiters: HashMap::new(),
            contenders: HashMap::new(),
            streams: Vec::new(),
            listening: false,
            hints_at: now,
            hints_pause: PAUSE_FIRST,
            idle_since: now,
        }
    }

    async fn run(mut self) {
        let mut hints: Option<Boxed<StoreError>> = None;
        let mut poll: Option<Boxed<Polled>> = None;
        let mut polled = Vec::new();
        loop {
            let now = Instant::now();
            if self.is_idle() {
                if now - self.idle_since >= LINGER && self.is_over() {
                    return;
                }
            } else {
                self.idle_since = now;
            }
            if hints.is_none() && now >= self.hints_at {
                hints = Some(self.ask_for_hints());
            }
            if poll.is_none() {
                polled = self.due(now);
                poll = (!polled.is_empty()).then(|| self.poll(polled.clone()));
            }
            let next = self.next(poll.is_some(), hints.is_some());
            tokio::select! {
                Some(order) = self.queue.recv() => self.take(order),
                e = maybe(&mut hints) => {
                    hints = None;
                    self.hints_broke(&e);
                }
                answer = maybe(&mut poll) => {
                    poll = None;
                    self.answered(&polled, answer);
                }
                () = sleep_until(next) => {}
            }
        }
    }

    fn is_idle(&mut self) -> bool {
        self.streams.retain(|stream| !stream.is_closed());
        self.waiters.retain(|_, waiter| waiter.standing.receiver_count() > 0);
        self.contenders.retain(|_, bells| {
            bells.retain(|bell| Arc::strong_count(bell) > 1);
            !bells.is_empty()
        });
        let wants_freed = !self.streams.is_empty() || !self.contenders.is_empty();
        self.sink.wants_freed.store(wants_freed, Ordering::Relaxed);
        !wants_freed && self.waiters.is_empty()
    }

    /// Ends the task, unless an order has come meanwhile.
    fn is_over(&mut self) -> bool {
        let mut sessions =
            self.service.waiting.sessions.lock().unwrap_or_else(PoisonError::into_inner);
        let is_over = self.queue.is_empty();
        if is_over {
            sessions.remove(&self.session);
        }
        is_over
    }

    fn ask_for_hints(&self) -> Boxed<StoreError> {
        let (store, session) = (self.service.store.clone(), self.session);
        let sink = Arc::clone(&self.sink);
        Box::pin(async move { store.hints(session, sink).await })
    }

    fn hints_broke(&mut self, e: &StoreError) {
        tracing::debug!(error = %e, "the store's hints broke off");
        self.listening = false;
        // Without hints a client must poll often: it learns that from the end of its stream.
        self.streams.clear();
        let now = Instant::now();
        self.waiters.values_mut().for_each(|waiter| waiter.due = now);
        self.hints_at = now + self.hints_pause;
        self.hints_pause = (self.hints_pause * 2).min(FAILED_MOST);
    }

    fn take(&mut self, order: Order) {
        match order {
            Order::Wait { name, ticket, wait, to } => self.add(name, ticket, wait, to),
            Order::Contend { name, bell } => {
                bell.notify_one();
                self.contenders.entry(name).or_default().push(bell);
            }
            Order::Stream(stream) => {
                if self.listening {
                    let _ = stream.try_send(Hint::Recheck { ticket: None });
                }
                self.streams.push(stream);
            }
            Order::Hint(hint) => self.hinted(&hint),
        }
    }

    /// A hint may have come between the ticket's enter and now: it is polled at once. A ticket of the same id that
    /// waits in another line here is not waited for.
    fn add(
        &mut self,
        name: Name,
        ticket: TicketId,
        wait: Wait,
        to: oneshot::Sender<watch::Receiver<Standing>>,
    ) {
        if self.waiters.get(&ticket).is_some_and(|waiter| waiter.name != name) {
            return;
        }
        let waiter = self.waiters.entry(ticket).or_insert_with(|| InLine {
            name,
            standing: watch::Sender::new(Standing::Waits(wait, None)),
            due: Instant::now(),
            pause: PAUSE_FIRST,
        });
        let _ = to.send(waiter.standing.subscribe());
    }

    fn hinted(&mut self, hint: &Hint) {
        let now = Instant::now();
        match hint {
            Hint::Granted { ticket, .. }
            | Hint::Ended { ticket }
            | Hint::Recheck { ticket: Some(ticket) } => {
                if let Some(waiter) = self.waiters.get_mut(ticket) {
                    waiter.due = now;
                }
            }
            Hint::Freed { lock } => {
                self.contenders.get(lock).into_iter().flatten().for_each(|bell| bell.notify_one());
            }
            Hint::Recheck { ticket: None } => {
                self.listening = true;
                self.hints_pause = PAUSE_FIRST;
                self.waiters.values_mut().for_each(|waiter| waiter.due = now);
                self.contenders.values().flatten().for_each(|bell| bell.notify_one());
            }
        }
        // A stream that cannot keep up ends; its client asks again, and polls.
        self.streams.retain(|stream| stream.try_send(hint.clone()).is_ok());
    }

    /// The tickets to poll now.
    fn due(&mut self, now: Instant) -> Vec<(Name, TicketId)> {
        let due = self.waiters.iter().filter(|(_, waiter)| waiter.due <= now);
        due.map(|(ticket, waiter)| (waiter.name.clone(), *ticket)).collect()
    }

    fn poll(&mut self, tickets: Vec<(Name, TicketId)>) -> Boxed<Polled> {
        for (_, ticket) in &tickets {
            if let Some(waiter) = self.waiters.get_mut(ticket) {
                // A hint that comes while the poll is under way sets it anew.
                waiter.due = Instant::now() + REST_MOST;
            }
        }
        let (store, session) = (self.service.store.clone(), self.session);
        Box::pin(async move { store.poll(session, PollScope::These(tickets)).await })
    }

    fn answered(&mut self, asked: &[(Name, TicketId)], answer: Polled) {
        match answer {
            Ok(all) => all.into_iter().for_each(|(_, ticket, status)| self.stands(ticket, status)),
            Err(e) if e.kind == ErrorKind::SessionOver => {
                asked.iter().for_each(|(_, ticket)| self.stands(*ticket, TicketStatus::Gone));
            }
            Err(e) => {
                // Even if the poll was not applied, the ticket stood in line before it.
                let (now, problem) = (Instant::now(), Problem::from(e).unknown());
                for (_, ticket) in asked {
                    let Some(waiter) = self.waiters.get_mut(ticket) else { continue };
                    waiter.due = waiter.due.min(now + waiter.pause);
                    waiter.pause = (waiter.pause * 2).min(FAILED_MOST);
                    waiter.standing.send_modify(|standing| {
                        if let Standing::Waits(_, trouble) = standing {
                            *trouble = Some(problem.clone());
                        }
                    });
                }
            }
        }
    }

    fn stands(&mut self, ticket: TicketId, status: TicketStatus) {
        let end = match status {
            TicketStatus::Granted { fence } => Standing::Granted(fence),
            TicketStatus::Gone => Standing::Gone,
            TicketStatus::Waiting(wait) => return self.rest(ticket, wait),
        };
        if let Some(waiter) = self.waiters.remove(&ticket) {
            waiter.standing.send_replace(end);
        }
    }

    /// When to poll a waiting ticket again.
    fn rest(&mut self, ticket: TicketId, wait: Wait) {
        let waiting = u32::try_from(self.service.waiting.count()).unwrap_or(u32::MAX);
        let Some(waiter) = self.waiters.get_mut(&ticket) else { return };
        let most = if self.listening {
            waiter.pause = PAUSE_FIRST;
            near(wait.ahead).max(SHARE.saturating_mul(waiting))
        } else {
            let pause = waiter.pause;
            waiter.pause = (pause * 2).min(PAUSE_MOST);
            pause.max(SHARE_WITHOUT_HINTS.saturating_mul(waiting))
        };
        let pause = most.min(REST_MOST).min(wait.recheck).max(Duration::from_millis(1));
        waiter.due = waiter.due.min(Instant::now() + pause);
        waiter.standing.send_replace(Standing::Waits(wait, None));
    }

    /// When something is to be done without news.
    fn next(&self, is_polling: bool, has_hints: bool) -> Instant {
        let due = self.waiters.values().map(|waiter| waiter.due).filter(|_| !is_polling).min();
        let hints = Some(self.hints_at).filter(|_| !has_hints);
        // Also notices requests that have gone away.
        let look = Instant::now() + LINGER;
        due.into_iter().chain(hints).chain([look]).min().unwrap_or(look)
    }
}

/// How long a ticket with so many before it rests at most, although hints come: hints may be lost.
fn near(ahead: usize) -> Duration {
    let far = u64::try_from(ahead / 16).unwrap_or(u64::MAX);
    Duration::from_secs(far.saturating_add(1)).min(REST_MOST)
}

/// The future's result, if there is one; for ever pending if not.
async fn maybe<T>(future: &mut Option<Boxed<T>>) -> T {
    match future {
        Some(future) => future.await,
        None => pending().await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Options;
    use axum::response::IntoResponse as _;
    use http_body_util::BodyExt as _;
    use lockkeeper::{
        Mode, Owner,
        store::{AnyStore, Enter, Entered, Leave, Manner, Open, Place, memory::Memory},
    };

    #[tokio::test]
    async fn a_ticket_whose_last_poll_failed_may_stand_in_line() {
        let service = Service::new(AnyStore::new(Memory::new()), Options::default());
        let (orders, queue) = mpsc::unbounded_channel();
        let sink = Arc::new(Sink { to: orders, wants_freed: false.into() });
        let mut task = Task::new(service, SessionId::random(), queue, sink);
        let (name, ticket): (Name, _) = ("a".parse().unwrap(), TicketId::random());
        let (to, from) = oneshot::channel();
        task.add(name.clone(), ticket, Wait::new(1, Duration::ZERO), to);
        let e = StoreError::not_applied("memory", ErrorKind::Unavailable, "it restarts");
        task.answered(&[(name, ticket)], Err(e));
        let standing = from.await.unwrap().borrow().clone();
        let Standing::Waits(_, Some(trouble)) = standing else { panic!("{standing:?}") };
        let body = trouble.into_response().into_body().collect().await.unwrap().to_bytes();
        let told: serde_json::Value = serde_json::from_slice(&body).unwrap();
        assert_eq!((&told["kind"], &told["outcome"]), (&"unavailable".into(), &"unknown".into()));
    }

    #[tokio::test]
    async fn a_hint_of_a_grant_does_not_prove_it() {
        let service = Service::new(AnyStore::new(Memory::new()), Options::default());
        let enter = async || {
            let session = SessionId::random();
            let (ttl, lock_delay) = (Duration::from_secs(60), Duration::ZERO);
            let open = Open { session, ttl, lock_delay, owner: Owner::default() };
            service.store.open(open).await.unwrap();
            let place = Place { session, name: "a".parse().unwrap(), ticket: TicketId::random() };
            let (mode, manner, label) = (Mode::Exclusive, Manner::Queue, Vec::new());
            let ask = Enter { place: place.clone(), mode, manner, label };
            (place, service.store.enter(ask).await.unwrap())
        };
        let (held, granted) = enter().await;
        let (place, queued) = enter().await;
        let (Entered::Granted { fence }, Entered::Queued(wait)) = (granted, queued) else {
            panic!("one holds, one waits")
        };
        let (session, ticket) = (place.session, place.ticket);
        let waiter = service.waiter(session, place.name, ticket, wait).await;
        let mut stream = service.hint_stream(session);
        let to = service.waiting.sessions.lock().unwrap()[&session].clone();
        Sink { to, wants_freed: false.into() }.granted(ticket, 4_711);
        let patience = Duration::from_secs(20);
        let told = async {
            loop {
                match stream.recv().await {
                    Some(Hint::Recheck { ticket: Some(of) }) => break of,
                    Some(Hint::Recheck { ticket: None }) => {}
                    other => panic!("{other:?}"),
                }
            }
        };
        assert_eq!(tokio::time::timeout(patience, told).await.unwrap(), ticket);
        assert!(matches!(*waiter.standing.borrow(), Standing::Waits(..)));
        let leave = Leave { place: held, keep: None, stray: false };
        service.store.leave(leave).await.unwrap();
        let standing = waiter.until(Instant::now() + patience).await;
        assert!(matches!(standing, Standing::Granted(own) if own > fence && own != 4_711));
    }
}
