//! Coming into a line, and how tickets stand in it.

use super::{
    ATTEMPTS, KIND, Zookeeper,
    attend::Found,
    conn::{Answer, Fault, Reply},
    data::Card,
    failure,
    link::unavailable,
    lives::{Held, Life, Watcher},
    names::{Paths, Queue},
    optional, two,
    wire::{Code, Kind, Request},
};
use crate::{
    error::{ErrorKind, Outcome, StoreError},
    model::{
        line::LINE_MAX,
        name::Name,
        ticket::{Place, TicketId},
    },
    store::{Enter, Entered, Manner, StoreResult, TicketStatus, Wait, common::join},
};
use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

/// When one who was not let in looks again although nothing was heard.
const RECHECK: Duration = Duration::from_secs(1);
/// How many requests are sent at once for what can be many.
pub(super) const PORTION: usize = 500;

/// A ticket's node as its creation was answered.
struct Created {
    path: String,
    /// The number of the write that made it.
    fence: u64,
    /// The line right behind it.
    queue: StoreResult<Queue>,
}

impl Zookeeper {
    pub(super) async fn enter_line(&self, ask: Enter) -> StoreResult<Entered> {
        let Place { session, name, ticket } = &ask.place;
        let session = self.lives.living(*session, self.now())?;
        let line = self.line(name)?;
        let life = match session.of(*ticket).or_else(|| session.roomy(&line)) {
            Some(life) => life,
            None => self.another_life(&session, &line).await?,
        };
        if let Some(held) = life.held(name, *ticket)
            && let Some(entered) = self.again(&life, &ask, &line, &held).await?
        {
            return Ok(entered);
        }
        if session.first().state().closed.contains_key(ticket) {
            let what = "the ticket was closed before this request came";
            return Err(StoreError::not_applied(KIND, ErrorKind::TicketClosed, what));
        }
        if ask.manner == Manner::Contend
            && let Some(busy) = self.busy(&life, &ask, &line).await?
        {
            return Ok(busy);
        }
        self.join(&life, &ask, &line).await
    }

    /// The answer for a ticket that has come before; `None` if it is not there. One of which it is not
    /// known whether it may stay is asked what a new one is asked.
    async fn again(
        &self,
        life: &Arc<Life>,
        ask: &Enter,
        line: &str,
        held: &Held,
    ) -> StoreResult<Option<Entered>> {
        let Place { name, ticket, .. } = &ask.place;
        let queue = self.list_with(life, line, held).await?;
        if held.accepted {
            let stand = self.stand(life, name, *ticket, queue, true).await?;
            return Ok(entered(stand));
        }
        let Some(at) = queue.place(*ticket, held.path.as_deref()) else {
            if held.path.is_some() {
                life.forget(*ticket);
            }
            return Ok(None);
        };
        if self.adopt(life, name, held, *ticket, &queue, at).await?.is_none() {
            return Ok(None);
        }
        let path = format!("{line}/{}", queue.0[at].node);
        self.settle(life, ask, &path, Ok(queue)).await.map(Some)
    }

    /// A line as it is for one of its tickets. A creation that was not answered may be on its way through
    /// the servers: one who reads elsewhere must wait for it, or would create the ticket twice.
    pub(super) async fn list_with(
        &self,
        life: &Life,
        line: &str,
        held: &Held,
    ) -> StoreResult<Queue> {
        if held.path.is_some() {
            return self.list(life, line).await;
        }
        let requests = [Request::sync(line), Request::children(line, false)];
        let [sync, list] = two(life.link.ask(&requests).await?);
        sync.map_err(failure)?;
        queue(list)
    }

    /// Is there no room? A contender must not even for a moment stand in the line then.
    async fn busy(&self, life: &Life, ask: &Enter, line: &str) -> StoreResult<Option<Entered>> {
        let connection = life.link.connect().await?;
        // Somebody listens, so it will be told when the line changes.
        let listens = life.state().sink.is_some();
        let watcher = Watcher::Line(ask.place.name.clone());
        let watch = listens && life.watch(connection, line, watcher);
        let [_, list] =
            two(life.link.ask(&[Request::sync(line), Request::children(line, watch)]).await?);
        let queue = queue(list);
        if watch && queue.as_ref().map_or(true, |queue| queue.0.is_empty()) {
            life.unwatch(line);
        }
        let queue = queue?;
        agree(&queue, ask)?;
        let wait = |ahead| Wait { ahead, holder: None, recheck: RECHECK };
        Ok((!queue.fits(ask.mode)).then(|| Entered::Busy(wait(queue.0.len()))))
    }

    pub(super) async fn list(&self, life: &Life, line: &str) -> StoreResult<Queue> {
        let mut answers = life.link.ask(&[Request::children(line, false)]).await?;
        queue(answers.pop().unwrap_or(Err(Fault::Broken)))
    }

    /// Puts a ticket at the end of the line, and says how it stands there.
    async fn join(&self, life: &Arc<Life>, ask: &Enter, line: &str) -> StoreResult<Entered> {
        let Place { name, ticket, .. } = &ask.place;
        life.begin(name, line, *ticket);
        let created = self.create(life, ask, line).await;
        let Created { path, fence, queue } = created.inspect_err(|e| {
            // What is not there need not be looked for.
            if e.outcome == Outcome::NotApplied {
                life.forget(*ticket);
            }
        })?;
        if !life.placed(name, *ticket, &path, fence) {
            // It was given up meanwhile, by somebody who could not see it yet. If this fails, the next
            // renewal finds a node that nobody knows.
            self.withdraw(life, *ticket, &path).await?;
            return Err(unavailable("the ticket was given up while it came"));
        }
        self.settle(life, ask, &path, queue).await
    }

    /// How a ticket stands that is in the line: whatever fails now, it must not be taken for absent.
    async fn settle(
        &self,
        life: &Arc<Life>,
        ask: &Enter,
        path: &str,
        queue: StoreResult<Queue>,
    ) -> StoreResult<Entered> {
        let Place { name, ticket, .. } = &ask.place;
        let settled = self.settle_in(life, ask, path, queue).await;
        settled.map_err(|e| match life.held(name, *ticket) {
            Some(_) => StoreError { outcome: Outcome::Unknown, ..e },
            None => e,
        })
    }

    /// One that must not stay is taken out again.
    async fn settle_in(
        &self,
        life: &Arc<Life>,
        ask: &Enter,
        path: &str,
        queue: StoreResult<Queue>,
    ) -> StoreResult<Entered> {
        let Place { name, ticket, .. } = &ask.place;
        let queue = queue?;
        let ended = || unavailable("the ticket was ended as soon as it came");
        let Some(at) = queue.place(*ticket, Some(path)) else {
            life.forget(*ticket);
            return Err(ended());
        };
        let full = at >= LINE_MAX;
        let disagrees = agree(&queue, ask);
        let busy = ask.manner == Manner::Contend && at >= queue.admitted();
        if full || disagrees.is_err() || busy {
            self.withdraw(life, *ticket, path).await?;
            disagrees?;
            if full {
                let what = format!("{LINE_MAX} tickets stand in the line already");
                return Err(StoreError::not_applied(KIND, ErrorKind::Full, what));
            }
            return Ok(Entered::Busy(Wait { ahead: at, holder: None, recheck: RECHECK }));
        }
        life.change(*ticket, |held| held.accepted = true);
        let stand = self.stand(life, name, *ticket, queue, true).await?;
        entered(stand).ok_or_else(ended)
    }

    /// Makes the node and lists the line behind it: one round trip, if the line has a node.
    async fn create(&self, life: &Life, ask: &Enter, line: &str) -> StoreResult<Created> {
        let (paths, rights) = (&self.plan.paths, self.plan.rights);
        let terms = life.terms;
        let card = Card {
            kept: terms.ttl + terms.lock_delay,
            owner: life.ask.owner.clone(),
            note: ask.label.clone(),
            ..Card::default()
        };
        let asked = paths.ticket(line, ask.place.ticket, ask.mode);
        let ticket = [
            Request::create(&asked, &card.write(), Kind::Ticket, rights),
            Request::children(line, false),
        ];
        let mut requests = ticket.to_vec();
        for _ in 0..ATTEMPTS {
            let mut answers = life.link.ask(&requests).await?;
            let list = answers.pop().unwrap_or(Err(Fault::Broken));
            match answers.pop().unwrap_or(Err(Fault::Broken)) {
                Ok(reply) => {
                    let (path, stat) = reply.created().map_err(failure)?;
                    return Ok(Created { path, fence: stat.czxid, queue: queue(list) });
                }
                Err(Fault::Refused(Code::NO_NODE)) => {}
                Err(fault) => return Err(failure(fault)),
            }
            // The line has no node, never had one or not any more; with raw names it may be a deep one,
            // and the server removes the folders above it too once they are empty.
            let folder = |path| Request::create(path, b"", Kind::Container, rights);
            let made = answers.pop();
            requests.clear();
            if matches!(made, Some(Err(Fault::Refused(Code::NO_NODE)))) {
                if paths.is_raw() {
                    requests.extend(Paths::above(line).map(folder));
                } else {
                    self.restore_root().await?;
                }
            }
            requests.push(folder(line));
            requests.extend_from_slice(&ticket);
        }
        Err(unavailable("the node of the line cannot be made, or is removed again and again"))
    }

    /// Takes out a ticket that has just come and must not stay.
    async fn withdraw(&self, life: &Life, ticket: TicketId, path: &str) -> StoreResult<()> {
        let mut answers = life.link.ask(&[Request::delete(path, -1)]).await?;
        optional(answers.pop().unwrap_or(Err(Fault::Broken)))?;
        life.forget(ticket);
        Ok(())
    }

    /// How tickets of one session stand; each line is listed once.
    pub(super) async fn stands(
        &self,
        life: &Arc<Life>,
        tickets: Vec<(Name, TicketId)>,
    ) -> StoreResult<Vec<(Name, TicketId, TicketStatus)>> {
        // What is known before the lines are listed: only of that a list can say that it is gone.
        let known = tickets.iter().map(|(name, ticket)| life.held(name, *ticket));
        let known: Vec<_> = known.map(|held| held.map(|held| held.path.is_some())).collect();
        let mut lines: Vec<(Name, String)> = Vec::new();
        let mut listed = HashSet::new();
        for ((name, _), _) in tickets.iter().zip(&known).filter(|(_, known)| known.is_some()) {
            if listed.insert(name) {
                lines.push((name.clone(), self.line(name)?));
            }
        }
        let mut queues = HashMap::new();
        for some in lines.chunks(PORTION) {
            let requests: Vec<Request> =
                some.iter().map(|(_, line)| Request::children(line, false)).collect();
            let answers = life.link.ask(&requests).await?;
            for ((name, _), list) in some.iter().zip(answers) {
                queues.insert(name.clone(), queue(list)?);
            }
        }
        let (all, mut stands): (Vec<_>, _) = (tickets.into_iter().zip(known).collect(), Vec::new());
        for some in all.chunks(PORTION) {
            let looks = some.iter().map(|((name, ticket), known)| {
                self.stand_among(life, name, *ticket, queues.get(name), *known)
            });
            stands.extend(join::all(looks.collect::<Vec<_>>()).await);
        }
        stands.into_iter().collect()
    }

    async fn stand_among(
        &self,
        life: &Arc<Life>,
        name: &Name,
        ticket: TicketId,
        queue: Option<&Queue>,
        known: Option<bool>,
    ) -> StoreResult<(Name, TicketId, TicketStatus)> {
        let stand = match (queue, known) {
            (Some(queue), Some(placed)) => {
                self.stand(life, name, ticket, queue.clone(), placed).await?
            }
            _ => TicketStatus::Gone,
        };
        Ok((name.clone(), ticket, stand))
    }

    /// How a ticket stands in this line. One that waits will be told when it should look again. `placed`
    /// says whether its node was known when the line was listed.
    pub(super) async fn stand(
        &self,
        life: &Arc<Life>,
        name: &Name,
        ticket: TicketId,
        mut queue: Queue,
        mut placed: bool,
    ) -> StoreResult<TicketStatus> {
        for _ in 0..ATTEMPTS {
            let Some(held) = life.held(name, ticket) else { return Ok(TicketStatus::Gone) };
            let Some(at) = queue.place(ticket, held.path.as_deref()) else {
                // One whose creation was under way may have come since.
                if placed {
                    life.forget(ticket);
                }
                return Ok(TicketStatus::Gone);
            };
            let Some(fence) = self.adopt(life, name, &held, ticket, &queue, at).await? else {
                return Ok(TicketStatus::Gone);
            };
            if at < queue.admitted() {
                life.granted(ticket);
                return Ok(TicketStatus::Granted { fence });
            }
            match self.attend(life, name, ticket, &queue, at).await? {
                Found::LineRow(stand) => return Ok(stand),
                Found::Moved(moved) => (queue, placed) = (moved, true),
            }
        }
        Err(unavailable("the line moves faster than it can be read"))
    }

    /// The number of a ticket's node. One whose creation was not answered is looked at first: it must
    /// belong to this very session.
    async fn adopt(
        &self,
        life: &Life,
        name: &Name,
        held: &Held,
        ticket: TicketId,
        queue: &Queue,
        at: usize,
    ) -> StoreResult<Option<u64>> {
        if held.path.is_some() {
            return Ok(Some(held.fence));
        }
        let path = format!("{}/{}", self.line(name)?, queue.0[at].node);
        let mut answers = life.link.ask(&[Request::exists(&path)]).await?;
        let answer = optional(answers.pop().unwrap_or(Err(Fault::Broken)))?;
        let stat = answer.map(|reply| reply.stat().map_err(failure)).transpose()?;
        match stat.filter(|stat| stat.owner == life.link.number()) {
            Some(stat) if life.placed(name, ticket, &path, stat.czxid) => Ok(Some(stat.czxid)),
            _ => {
                life.forget(ticket);
                Ok(None)
            }
        }
    }

    /// How long ago that was on the server's wall clock, if it agrees with ours. For people only.
    pub(super) fn ago(&self, ms: u64) -> Duration {
        Duration::from_millis((self.clock.wall_micros() / 1_000).saturating_sub(ms))
    }
}

/// The answer to an enter; `None` if the ticket is not there.
fn entered(stand: TicketStatus) -> Option<Entered> {
    match stand {
        TicketStatus::Granted { fence } => Some(Entered::Granted { fence }),
        TicketStatus::Waiting(wait) => Some(Entered::Queued(wait)),
        TicketStatus::Gone => None,
    }
}

/// Data that is not there or that we must not read is no trouble.
pub(super) fn readable(answer: Answer) -> StoreResult<Option<Reply>> {
    match answer {
        Err(Fault::Refused(Code::NO_AUTH)) => Ok(None),
        answer => optional(answer),
    }
}

/// A line that is not there is empty.
pub(super) fn queue(list: Answer) -> StoreResult<Queue> {
    match optional(list)? {
        None => Ok(Queue::default()),
        Some(reply) => Ok(Queue::of(&reply.names().map_err(failure)?)),
    }
}

/// Capacity is the line's as long as somebody stands in it.
fn agree(queue: &Queue, ask: &Enter) -> StoreResult<()> {
    let (line, asked) = (queue.capacity(), ask.mode.capacity());
    if queue.0.is_empty() || line == asked {
        return Ok(());
    }
    let what = format!("the line has capacity {line}, not {asked}");
    Err(StoreError::not_applied(KIND, ErrorKind::Capacity(line), what))
}
