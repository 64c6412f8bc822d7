//! The status of tickets, and the comparison of what this handle knows with the nodes that are there.

use super::{
    ATTEMPTS, Zookeeper,
    client::{Request, Stat},
    error::unavailable,
    queue::{Queue, TicketNode},
    shard::{LocalTicket, Shard},
    watch::Looked,
};
use crate::{
    model::{
        name::Name,
        ticket::{SessionId, TicketId},
    },
    store::{PollScope, StoreResult, TicketDigest, TicketStatus, common::join},
};
use std::{collections::HashSet, sync::Arc};

/// How many tickets are polled at once.
const BATCH: usize = 500;

type Statuses = Vec<(Name, TicketId, TicketStatus)>;

impl Zookeeper {
    pub(super) async fn poll_session(
        &self,
        session: SessionId,
        which: PollScope,
    ) -> StoreResult<Statuses> {
        // A session that is over has no tickets.
        let session = self.sessions.living(session, self.now());
        let shards = session.map(|session| session.shards()).unwrap_or_default();
        let (mut statuses, mut shares) = (Vec::new(), vec![Vec::new(); shards.len()]);
        let polls = match which {
            PollScope::All => join::all(shards.iter().map(|shard| self.poll_shard(shard))).await,
            PollScope::These(tickets) => {
                for (name, ticket) in tickets {
                    match shards.iter().position(|shard| shard.has(ticket)) {
                        Some(at) => shares[at].push((name, ticket)),
                        None => statuses.push((name, ticket, TicketStatus::Gone)),
                    }
                }
                let shares = shards.iter().zip(shares);
                let polls = shares.map(|(shard, share)| self.statuses(shard, share));
                join::all(polls.collect::<Vec<_>>()).await
            }
        };
        for poll in polls {
            statuses.extend(poll?);
        }
        Ok(statuses)
    }

    /// All tickets of a shard: one list of its nodes for those that hold, and a list of its line for each
    /// that waits.
    async fn poll_shard(&self, shard: &Arc<Shard>) -> StoreResult<Statuses> {
        let known = shard.nodes();
        let own = shard.zk.ask_one(Request::ephemerals(&self.config.paths.base())).await;
        self.reconcile(shard, &known, &own.and_then(|own| own.names())?).await;
        let (mut statuses, mut open) = (Vec::new(), Vec::new());
        for (ticket, local) in &shard.state().tickets {
            if local.granted && local.path.is_some() {
                let granted = TicketStatus::Granted { fence: local.fence };
                statuses.push((local.name.clone(), *ticket, granted));
            } else {
                open.push((local.name.clone(), *ticket));
            }
        }
        let open = self.statuses(shard, open).await?;
        statuses.extend(open.into_iter().filter(|(_, _, status)| *status != TicketStatus::Gone));
        Ok(statuses)
    }

    async fn statuses(
        &self,
        shard: &Arc<Shard>,
        tickets: Vec<(Name, TicketId)>,
    ) -> StoreResult<Statuses> {
        let mut statuses = Vec::new();
        for some in tickets.chunks(BATCH) {
            let polls = some.iter().map(|(name, id)| self.poll_ticket(shard, name, *id));
            for status in join::all(polls.collect::<Vec<_>>()).await {
                statuses.push(status?);
            }
        }
        Ok(statuses)
    }

    async fn poll_ticket(
        &self,
        shard: &Arc<Shard>,
        name: &Name,
        id: TicketId,
    ) -> StoreResult<(Name, TicketId, TicketStatus)> {
        let line = self.line(name)?;
        let ticket = TicketRef { shard, name, line: &line, id };
        let status = match ticket.local() {
            None => TicketStatus::Gone,
            Some(local) => {
                let list = shard.zk.ask_one(Request::children(&line)).await;
                ticket.status(Queue::read(list)?, local.path.is_some()).await?
            }
        };
        Ok((name.clone(), id, status))
    }

    /// Compares the tickets that were known before the question with all nodes of the shard. A ticket whose
    /// node is missing was ended by others. A node without a ticket is that of a late copy of a creation,
    /// and is deleted. Says which tickets have nodes.
    pub(super) async fn reconcile(
        &self,
        shard: &Shard,
        known: &[(TicketId, String)],
        there: &[String],
    ) -> TicketDigest {
        let tickets = there.iter().filter_map(|path| TicketNode::at(path)).map(|node| node.id);
        let tickets = tickets.collect();
        let there: HashSet<&str> = there.iter().map(String::as_str).collect();
        let strays: Vec<Request> = {
            let mut state = shard.state();
            for (ticket, path) in known.iter().filter(|(_, path)| !there.contains(path.as_str())) {
                let is_same =
                    |local: &&LocalTicket| local.path.as_ref() == Some(path) && !local.leaving;
                if state.tickets.get(ticket).filter(is_same).is_some() {
                    shard.forget_in(&mut state, *ticket);
                    state.version += 1;
                }
            }
            let is_stray =
                |path: &&&str| match TicketNode::at(path).map(|node| state.tickets.get(&node.id)) {
                    None => false,
                    Some(None) => true,
                    // If the creation was not answered yet, this may be its node.
                    Some(Some(local)) => local.path.as_ref().is_some_and(|own| own != **path),
                };
            there.iter().filter(is_stray).map(|path| Request::delete(path)).collect()
        };
        if strays.is_empty() {
            return tickets;
        }
        // If a deletion fails, the next renewal finds the node again. Most strays have just been left.
        let deleted = shard.zk.ask_all(&strays).await.unwrap_or_default();
        if deleted.iter().any(Result::is_ok) {
            shard.state().version += 1;
        }
        tickets
    }
}

/// A ticket of ours in its line.
#[derive(Clone, Copy)]
pub(super) struct TicketRef<'a> {
    pub(super) shard: &'a Arc<Shard>,
    pub(super) name: &'a Name,
    /// The path of the line.
    pub(super) line: &'a str,
    pub(super) id: TicketId,
}

impl TicketRef<'_> {
    /// What this handle knows of the ticket.
    pub(super) fn local(self) -> Option<LocalTicket> {
        self.shard.ticket(self.name, self.id)
    }

    pub(super) fn forget(self) {
        self.shard.forget(self.id);
    }

    pub(super) fn set_node(self, path: &str, fence: u64) -> bool {
        self.shard.set_node(self.name, self.id, path, fence)
    }

    /// The path of a node in the line.
    pub(super) fn node(self, queue: &Queue, at: usize) -> String {
        queue.path(self.line, at)
    }

    /// The line as this ticket needs it. A creation that was not answered may still be on its way through
    /// the servers. The list has to wait for it, or the ticket would be created twice.
    pub(super) async fn list_line(self, local: &LocalTicket) -> StoreResult<Queue> {
        let (zk, list) = (&self.shard.zk, Request::children(self.line));
        if local.path.is_some() {
            return Ok(Queue::read(zk.ask_one(list).await)?);
        }
        let [sync, list] = zk.ask([Request::sync(self.line), list]).await?;
        sync?;
        Ok(Queue::read(list)?)
    }

    /// The ticket's status in this line. A ticket that waits gets watches, so that the core is told when to
    /// look again. `node_known` says whether the ticket's node was known before the line was listed.
    pub(super) async fn status(
        self,
        mut queue: Queue,
        mut node_known: bool,
    ) -> StoreResult<TicketStatus> {
        for _ in 0..ATTEMPTS {
            let Some(local) = self.local() else { return Ok(TicketStatus::Gone) };
            let Some(at) = queue.place(self.id, local.path.as_deref()) else {
                // Otherwise the node may have been created after the line was listed.
                if node_known {
                    self.forget();
                }
                return Ok(TicketStatus::Gone);
            };
            let Some(fence) = self.adopt(&local, &queue, at).await? else {
                return Ok(TicketStatus::Gone);
            };
            if at < queue.admitted() {
                self.shard.set_granted(self.id);
                return Ok(TicketStatus::Granted { fence });
            }
            match self.watch(&queue, at).await? {
                Looked::Status(status) => return Ok(status),
                Looked::Moved(moved) => (queue, node_known) = (moved, true),
            }
        }
        Err(unavailable("the line moves faster than it can be read"))
    }

    /// The fence of the ticket's node in this line. If the creation was not answered, the node is adopted,
    /// provided that it belongs to this very ZooKeeper session.
    pub(super) async fn adopt(
        self,
        local: &LocalTicket,
        queue: &Queue,
        at: usize,
    ) -> StoreResult<Option<u64>> {
        if local.path.is_some() {
            return Ok(Some(local.fence));
        }
        let (zk, path) = (&self.shard.zk, self.node(queue, at));
        let is_own = |stat: &Stat| stat.owner == zk.id();
        match zk.stat(&path).await?.filter(is_own) {
            Some(stat) if self.set_node(&path, stat.czxid) => Ok(Some(stat.czxid)),
            _ => {
                self.forget();
                Ok(None)
            }
        }
    }
}
