//! Entering a line: one request creates the ticket's node and lists the line behind it.

use super::{
    ATTEMPTS, KIND, Zookeeper,
    client::{Code, Error, NodeKind, Request},
    data::TicketData,
    error::unavailable,
    names::Paths,
    poll::TicketRef,
    queue::Queue,
    shard::LocalTicket,
    watch::Watcher,
};
use crate::{
    error::{Outcome, StoreError},
    model::{
        line::LINE_MAX,
        ticket::{Mode, Place},
    },
    store::{Enter, Entered, Manner, StoreResult, TicketStatus, Wait, common::refusal},
};
use std::time::Duration;

/// After this time a contender that was refused tries again, although no hint came.
const RECHECK: Duration = Duration::from_secs(1);

/// A ticket's node as the answer to its creation tells.
struct Created {
    path: String,
    fence: u64,
    /// The line right behind the creation.
    queue: StoreResult<Queue>,
}

impl Zookeeper {
    pub(super) async fn enter_line(&self, ask: Enter) -> StoreResult<Entered> {
        let Place { session, name, ticket } = &ask.place;
        let session = self.sessions.living(*session, self.now())?;
        let line = self.line(name)?;
        let shard = match session.shard_of(*ticket).or_else(|| session.shard_with_room(&line)) {
            Some(shard) => shard,
            None => self.add_shard(&session, &line).await?,
        };
        let ticket = TicketRef { shard: &shard, name, line: &line, id: *ticket };
        if let Some(local) = ticket.local()
            && let Some(entered) = enter_again(ticket, &ask, &local).await?
        {
            return Ok(entered);
        }
        if session.refuses_enter(ticket.id) {
            return Err(refusal::ticket_closed(KIND));
        }
        if ask.manner == Manner::Contend
            && let Some(busy) = busy(ticket, &ask).await?
        {
            return Ok(busy);
        }
        let data = TicketData {
            kept: shard.terms.ttl + shard.terms.lock_delay,
            owner: session.ask.owner.clone(),
            label: ask.label.clone(),
            ..TicketData::default()
        };
        self.join(ticket, &ask, &data.write()).await
    }

    /// Puts a ticket at the end of the line.
    async fn join(&self, ticket: TicketRef<'_>, ask: &Enter, data: &[u8]) -> StoreResult<Entered> {
        ticket.shard.add(ticket.name, ticket.line, ticket.id);
        let created = self.create(ticket, ask.mode, data).await;
        let Created { path, fence, queue } = created.inspect_err(|e| {
            // After an unknown outcome the ticket stays known, so that its node is looked for.
            if e.outcome == Outcome::NotApplied {
                ticket.forget();
            }
        })?;
        if !ticket.set_node(&path, fence) {
            // The ticket was left meanwhile, by a request that could not see the node yet. If the deletion
            // fails, the next renewal finds the node and deletes it.
            withdraw(ticket, &path).await?;
            return Err(unavailable("the ticket was given up while it came"));
        }
        settle(ticket, ask, &path, queue).await
    }

    /// One round trip, if the line has a node.
    async fn create(&self, ticket: TicketRef<'_>, mode: Mode, data: &[u8]) -> StoreResult<Created> {
        let TicketRef { shard, line, .. } = ticket;
        let (paths, acl) = (&self.config.paths, self.config.acl);
        let path = paths.ticket(line, ticket.id, mode);
        let folder = |path| Request::create(path, b"", NodeKind::Container, acl);
        let enter = [
            Request::create(&path, data, NodeKind::EphemeralSequential, acl),
            Request::children(line),
        ];
        let mut missing = Vec::new();
        for _ in 0..ATTEMPTS {
            let mut answers = shard.zk.ask_all(&[&missing[..], &enter].concat()).await?;
            let list = answers.pop().unwrap_or(Err(Error::Broken));
            match answers.pop().unwrap_or(Err(Error::Broken)) {
                Ok(reply) => {
                    let (path, stat) = reply.created()?;
                    let queue = Queue::read(list).map_err(StoreError::from);
                    return Ok(Created { path, fence: stat.czxid, queue });
                }
                Err(Error::Refused(Code::NO_NODE)) => {}
                Err(e) => return Err(e.into()),
            }
            // The line has no node: it never had one, or the server has removed it because it was empty.
            missing.clear();
            if let Some(Err(Error::Refused(Code::NO_NODE))) = answers.pop() {
                // Nor has the folder above it. With raw names the server removes empty folders too.
                match paths.is_raw() {
                    true => missing.extend(Paths::above(line).map(folder)),
                    false => self.restore_root().await?,
                }
            }
            missing.push(folder(line));
        }
        Err(unavailable("the node of the line cannot be made, or is removed again and again"))
    }
}

/// The answer for a ticket that has entered before; `None` if it is not in the line. If its first enter was
/// not answered, the line's capacity and length are checked again.
async fn enter_again(
    ticket: TicketRef<'_>,
    ask: &Enter,
    local: &LocalTicket,
) -> StoreResult<Option<Entered>> {
    let queue = ticket.list_line(local).await?;
    if local.accepted {
        return Ok(entered(ticket.status(queue, true).await?));
    }
    let Some(at) = queue.place(ticket.id, local.path.as_deref()) else {
        if local.path.is_some() {
            ticket.forget();
        }
        return Ok(None);
    };
    if ticket.adopt(local, &queue, at).await?.is_none() {
        return Ok(None);
    }
    let path = ticket.node(&queue, at);
    settle(ticket, ask, &path, Ok(queue)).await.map(Some)
}

/// Whether a contender has to be refused. It looks first, because it must not be in a full line even for a
/// moment.
async fn busy(ticket: TicketRef<'_>, ask: &Enter) -> StoreResult<Option<Entered>> {
    let TicketRef { shard, line, name, .. } = ticket;
    let connection = shard.zk.connect().await?;
    let watches = &shard.watches;
    let watch =
        watches.has_listener() && watches.add(connection, line, Watcher::Line(name.clone()));
    let requests = [Request::sync(line), Request::children(line).watching(watch)];
    let [_, list] = shard.zk.ask(requests).await?;
    let queue = Queue::read(list);
    if watch && queue.as_ref().map_or(true, |queue| queue.0.is_empty()) {
        watches.drop_path(line);
    }
    let queue = queue?;
    check_capacity(&queue, ask)?;
    Ok((!queue.fits(ask.mode)).then(|| refused(queue.0.len())))
}

fn refused(ahead: usize) -> Entered {
    Entered::Busy(Wait { ahead, holder: None, recheck: RECHECK })
}

/// The answer for a ticket whose node is in the line, or takes it out again. A failure is *unknown* as long
/// as the node may be there.
async fn settle(
    ticket: TicketRef<'_>,
    ask: &Enter,
    path: &str,
    queue: StoreResult<Queue>,
) -> StoreResult<Entered> {
    let settled = try_settle(ticket, ask, path, queue).await;
    settled.map_err(|e| match ticket.local() {
        Some(_) => StoreError { outcome: Outcome::Unknown, ..e },
        None => e,
    })
}

async fn try_settle(
    ticket: TicketRef<'_>,
    ask: &Enter,
    path: &str,
    queue: StoreResult<Queue>,
) -> StoreResult<Entered> {
    let queue = queue?;
    let ended = || unavailable("the ticket was ended as soon as it came");
    let Some(at) = queue.place(ticket.id, Some(path)) else {
        ticket.forget();
        return Err(ended());
    };
    let is_full = at >= LINE_MAX;
    let capacity = check_capacity(&queue, ask);
    let is_busy = ask.manner == Manner::Contend && at >= queue.admitted();
    if is_full || capacity.is_err() || is_busy {
        withdraw(ticket, path).await?;
        capacity?;
        if is_full {
            return Err(refusal::line_full(KIND));
        }
        return Ok(refused(at));
    }
    ticket.shard.update(ticket.id, |local| local.accepted = true);
    entered(ticket.status(queue, true).await?).ok_or_else(ended)
}

/// Takes out a ticket that has just entered.
async fn withdraw(ticket: TicketRef<'_>, path: &str) -> StoreResult<()> {
    ticket.shard.zk.delete(path).await?;
    ticket.forget();
    Ok(())
}

/// The answer to an enter; `None` if the ticket is not in the line.
fn entered(status: TicketStatus) -> Option<Entered> {
    match status {
        TicketStatus::Granted { fence } => Some(Entered::Granted { fence }),
        TicketStatus::Waiting(wait) => Some(Entered::Queued(wait)),
        TicketStatus::Gone => None,
    }
}

/// A line keeps its capacity until its last ticket has left.
fn check_capacity(queue: &Queue, ask: &Enter) -> StoreResult<()> {
    match queue.capacity() {
        line if queue.0.is_empty() || line == ask.mode.capacity() => Ok(()),
        line => Err(refusal::capacity(KIND, line)),
    }
}
