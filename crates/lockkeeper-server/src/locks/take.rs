//! `POST /v1/locks/{name}`: takes a lock, in a session of its own or in one that the client has opened.

use super::{
    ask::{Ask, Opening},
    withdraw::Withdrawal,
};
use crate::{
    checks,
    events::Taken,
    extract::{Answer, Caller, Json, LockName},
    principal::{Principal, Scope},
    problem::Problem,
    service::Service,
    session_id::{self, Secret, Session},
    standing,
    waiting::Standing,
};
use axum::extract::State;
use http::{HeaderMap, StatusCode};
use lockkeeper::{
    ErrorKind, Outcome, Owner, Sequencer, Store as _, StoreError, TIME_MAX, Terms, TicketId, Wait,
    store::{
        Claim, Enter, Entered, Manner, Open, Place, Renewal, StoreResult,
        http::wire::{LockTaken, TakeLock},
    },
};
use std::{sync::Arc, time::Duration};
use tokio::{
    sync::Notify,
    time::{Instant, sleep, timeout_at},
};

/// The first pause between two attempts while the lock is taken, and the longest.
const PAUSE_FIRST: Duration = Duration::from_millis(50);
const PAUSE_MOST: Duration = Duration::from_secs(1);

pub(super) async fn take(
    State(service): State<Service>,
    Caller(principal): Caller,
    LockName(name): LockName,
    headers: HeaderMap,
    Json(ask): Json<TakeLock>,
) -> Result<Answer<LockTaken>, Problem> {
    let began = Instant::now();
    principal.require(Scope::Lock, &name)?;
    let joined = session_id::in_headers(&headers, &principal)?;
    let mut ask = Ask::read(&service, name, ask, joined.is_some())?;
    let (session, opened) = match joined {
        Some(session) => {
            service.seen(session.id)?;
            service.joined(session.id);
            (session, None)
        }
        None => {
            let opening = ask.opening.take().ok_or_else(no_session)?;
            let (session, opened) = open(&service, &principal, ask.ticket, opening).await?;
            (session, Some(opened))
        }
    };
    let place = Place { session: session.id, name: ask.name.clone(), ticket: ask.ticket };
    let withdrawal = Withdrawal::new(
        &service,
        &session,
        place,
        ask.is_private,
        ask.is_repeatable,
        ask.withdraws,
    );
    let mut stay = Stay { service: &service, ask, session, opened, withdrawal, began };
    let end = tokio::select! {
        biased;
        end = stay.run() => end,
        () = service.stopped() => {
            stay.withdrawal.is_unknown();
            return Err(Problem::stopping());
        }
    };
    stay.answer(end).await
}

fn no_session() -> Problem {
    Problem::new("fault", "the request has no session").not_applied()
}

/// The session that the request has opened for its ticket.
struct Opened {
    secret: Secret,
    terms: Terms,
    owner: Owner,
}

async fn open(
    service: &Service,
    principal: &Principal,
    ticket: TicketId,
    Opening { secret, ttl, lock_delay, owner }: Opening,
) -> Result<(Session, Opened), Problem> {
    let session = secret.session(principal);
    let open = Open { session: session.id, ttl, lock_delay, owner: owner.clone() };
    let terms = service.open(open, &session, Some(ticket)).await?;
    Ok((session, Opened { secret, terms, owner }))
}

/// How the stay in the line ended, as far as this request sees it.
enum End {
    Granted(u64),
    Queued(Wait),
    Busy(Wait),
}

/// One request, from its enter to its answer.
struct Stay<'a> {
    service: &'a Service,
    ask: Ask,
    session: Session,
    opened: Option<Opened>,
    withdrawal: Withdrawal,
    began: Instant,
}

impl Stay<'_> {
    async fn run(&mut self) -> Result<End, Problem> {
        let Some(Opened { terms, .. }) = self.opened else { return self.stand().await };
        let (service, session) = (self.service.clone(), self.session.clone());
        // An earlier copy of the request may have opened the session some time ago.
        let first = if self.ask.is_repeatable { terms.ttl / 10 } else { terms.ttl / 3 };
        let end = tokio::select! {
            biased;
            end = self.stand() => end?,
            over = keep_alive(&service, &session, &terms, first) => return Err(over),
        };
        // The client counts the TTL from its answer on, and an earlier request may have opened the session.
        let is_fresh = self.ask.is_private && self.began.elapsed() <= terms.margin;
        if matches!(end, End::Granted(_)) && !is_fresh {
            self.renew().await?;
        }
        Ok(end)
    }

    /// Renews the session of a ticket that is granted.
    async fn renew(&mut self) -> Result<(), Problem> {
        let Err(e) = self.service.renew(&self.session).await else { return Ok(()) };
        if e.kind() == "session_over" {
            self.withdrawal.is_in_no_line();
            return Err(e);
        }
        self.withdrawal.is_unknown();
        Err(e.unknown())
    }

    /// Enters the line, and waits there or tries again until the time is over.
    async fn stand(&mut self) -> Result<End, Problem> {
        let until = self.began + self.ask.wait;
        let (mut pause, mut busy, mut bell) = (PAUSE_FIRST, None, None);
        loop {
            let wait = match self.enter().await {
                Ok(Entered::Granted { fence }) => {
                    self.withdrawal.entered();
                    return Ok(End::Granted(fence));
                }
                Ok(Entered::Queued(wait)) => {
                    self.withdrawal.entered();
                    self.service.hub.queued(self.told());
                    return self.wait_in_line(wait, until).await;
                }
                Ok(Entered::Busy(wait)) => wait,
                // The store fears a late copy of the last attempt.
                Err(e) if e.kind == ErrorKind::TicketClosed && busy.is_some() => {
                    match (self.ask.is_repeatable, busy.take()) {
                        (true, Some(wait)) => return Ok(End::Busy(wait)),
                        _ => self.withdrawal.take_another(),
                    }
                    continue;
                }
                Err(e) => return Err(self.failed(e)),
            };
            let now = Instant::now();
            if now >= until {
                return Ok(End::Busy(wait));
            }
            let rest = pause.min(wait.recheck).min(until - now);
            pause = (pause * 2).min(PAUSE_MOST);
            busy = Some(wait);
            self.rings(&mut bell, rest).await;
        }
    }

    /// Waits for the bell of a contender, or for so long.
    async fn rings(&self, bell: &mut Option<Arc<Notify>>, rest: Duration) {
        if self.ask.manner == Manner::Queue {
            return sleep(rest).await;
        }
        let name = || self.ask.name.clone();
        let bell = bell.get_or_insert_with(|| self.service.contender(self.session.id, name()));
        let _ = timeout_at(Instant::now() + rest, bell.notified()).await;
    }

    async fn enter(&self) -> StoreResult<Entered> {
        let Ask { name, mode, manner, label, .. } = &self.ask;
        let (session, ticket) = (self.session.id, self.withdrawal.ticket());
        let place = Place { session, name: name.clone(), ticket };
        let ask = Enter { place, mode: *mode, manner: *manner, label: label.clone() };
        self.service.store.enter(ask).await
    }

    async fn wait_in_line(&mut self, wait: Wait, until: Instant) -> Result<End, Problem> {
        if Instant::now() >= until {
            return Ok(End::Queued(wait));
        }
        let (name, ticket) = (self.ask.name.clone(), self.withdrawal.ticket());
        let waiter = self.service.waiter(self.session.id, name, ticket, wait).await;
        match waiter.until(until).await {
            Standing::Granted(fence) => Ok(End::Granted(fence)),
            Standing::Waits(wait, None) => Ok(End::Queued(wait)),
            Standing::Waits(_, Some(trouble)) => {
                self.withdrawal.is_unknown();
                Err(trouble)
            }
            Standing::Gone => {
                self.withdrawal.is_in_no_line();
                let what =
                    "the ticket was evicted, or its session is over; ask again with another one";
                Err(Problem::new("gone", what).not_applied())
            }
        }
    }

    fn failed(&mut self, e: StoreError) -> Problem {
        match e.outcome {
            Outcome::NotApplied => self.withdrawal.is_in_no_line(),
            Outcome::Unknown => self.withdrawal.is_unknown(),
        }
        if e.kind == ErrorKind::SessionOver {
            self.service.lost(&self.session);
        }
        self.service.hub.store_failed(&e);
        e.into()
    }

    async fn answer(mut self, end: Result<End, Problem>) -> Result<Answer<LockTaken>, Problem> {
        let answer = match end? {
            End::Granted(fence) => {
                let sequencer = self.sequencer(fence).await?;
                self.taken(StatusCode::OK, Some((fence, sequencer)), None)
            }
            End::Queued(wait) => self.taken(StatusCode::ACCEPTED, None, Some(&wait)),
            End::Busy(wait) => {
                self.withdrawal.is_in_no_line();
                let what = "the lock is taken; ask again, or wait for it with wait_ms";
                let problem = Problem::new("busy", what).not_applied();
                return Err(problem.with_waiting(standing::waiting(&wait)));
            }
        };
        self.withdrawal.is_answered();
        Ok(answer)
    }

    /// The sequencer of the grant. None is signed for another mode than the ticket's: a store tells a ticket that
    /// stands already how it stands, and does not look at the mode that is asked for.
    async fn sequencer(&mut self, fence: u64) -> Result<Option<String>, Problem> {
        let (store, options) = (&self.service.store, &self.service.options);
        let (name, ticket) = (self.ask.name.clone(), self.withdrawal.ticket());
        let claim = Claim { name, ticket, mode: self.ask.mode, fence };
        if options.security.signs() && self.ask.is_repeatable {
            let is_held = store.check(claim.clone()).await.map_err(|e| {
                self.withdrawal.is_unknown();
                Problem::from(e).unknown()
            })?;
            if !is_held {
                return Ok(None);
            }
        }
        let sequencer = Sequencer::of(store.id(), claim);
        Ok(Some(options.security.write_sequencer(&sequencer, self.ends_in())))
    }

    fn taken(
        &self,
        status: StatusCode,
        granted: Option<(u64, Option<String>)>,
        wait: Option<&Wait>,
    ) -> Answer<LockTaken> {
        let (name, ticket) = (self.ask.name.clone(), self.withdrawal.ticket());
        let (fence, sequencer) = granted.unzip();
        if let Some(fence) = fence {
            self.service.hub.granted(self.told(), fence);
        }
        let opened = self.opened.as_ref();
        Answer(
            status,
            LockTaken {
                lock: name,
                ticket,
                session: self.session.public.clone(),
                secret: opened.map(|opened| opened.secret.clone().into_text()),
                held: fence.is_some(),
                fence: fence.map(Into::into),
                sequencer: sequencer.flatten(),
                waiting: wait.map(standing::waiting),
                terms: opened.map(|opened| checks::terms(&opened.terms)),
            },
        )
    }

    /// For how long the session lives without a renewal.
    fn ends_in(&self) -> Duration {
        let own = self.opened.as_ref().map(|opened| opened.terms);
        let terms = own.or_else(|| self.service.terms(self.session.id));
        terms.map_or(TIME_MAX, |terms| terms.ttl + terms.lock_delay)
    }

    fn told(&self) -> Taken<'_> {
        Taken {
            name: &self.ask.name,
            ticket: self.withdrawal.ticket(),
            mode: self.ask.mode,
            session: &self.session.public,
            owner: self.opened.as_ref().map(|opened| &opened.owner),
            label: &self.ask.label,
        }
    }
}

/// Renews the session while its client waits: the open connection stands for a client that does not know its session
/// yet. Returns when the session is over.
async fn keep_alive(
    service: &Service,
    session: &Session,
    terms: &Terms,
    first: Duration,
) -> Problem {
    let mut pause = first;
    loop {
        sleep(pause).await;
        pause = match service.store.renew(session.id).await {
            Ok(Renewal::Renewed { .. }) => {
                service.hub.session_renewed(&session.public);
                terms.ttl / 3
            }
            Ok(Renewal::Lost) => {
                service.lost(session);
                return StoreError::session_over(service.store.scheme()).into();
            }
            Err(_) => terms.ttl / 24,
        };
    }
}
