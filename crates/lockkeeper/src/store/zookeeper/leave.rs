//! Leaving a line, and ending other clients' tickets.

use super::{
    Zookeeper,
    client::{Request, if_there},
    error::outside_session,
    poll::TicketRef,
    queue::Queue,
    shard::LocalTicket,
};
use crate::{
    error::{ErrorKind, StoreError},
    model::{
        name::Name,
        ticket::{Place, TicketId},
    },
    store::{Leave, Left, STRAY_MAX, StoreResult},
};

impl Zookeeper {
    pub(super) async fn leave_line(&self, ask: Leave) -> StoreResult<Left> {
        let Place { session, name, ticket } = &ask.place;
        // After its deadline nothing is sent for a session: it would cut the lock-delay short.
        let Ok(session) = self.sessions.living(*session, self.now()) else { return Ok(Left::Gone) };
        if ask.stray {
            session.refuse_enter(*ticket, self.now() + STRAY_MAX);
        }
        let Some(shard) = session.shard_of(*ticket) else { return Ok(Left::Gone) };
        let line = self.line(name)?;
        let ticket = TicketRef { shard: &shard, name, line: &line, id: *ticket };
        let Some(local) = ticket.local() else { return Ok(Left::Gone) };
        shard.update(ticket.id, |local| local.leaving = true);
        match delete(ticket, &local).await {
            Ok(left) => {
                ticket.forget();
                Ok(left)
            }
            Err(e) if e.kind == ErrorKind::SessionOver => Ok(Left::Gone),
            Err(e) => Err(e),
        }
    }

    /// Ends a ticket of any client.
    pub(super) async fn evict_ticket(&self, name: &Name, ticket: TicketId) -> StoreResult<bool> {
        let line = self.line(name)?;
        let queue = self.read_line(&line).await?;
        let Some(at) = queue.position(ticket) else { return Ok(false) };
        self.common.delete(&queue.path(&line, at)).await.map_err(outside_session)
    }
}

/// Deletes the ticket's node. Whether the ticket was granted follows from a list in front of the deletion,
/// unless it is known: a grant never ends before its node.
async fn delete(ticket: TicketRef<'_>, local: &LocalTicket) -> StoreResult<Left> {
    let zk = &ticket.shard.zk;
    if let (Some(path), true) = (&local.path, local.granted) {
        return Ok(if zk.delete(path).await? { Left::Released } else { Left::Gone });
    }
    let (queue, deleted) = match &local.path {
        Some(path) => {
            let requests = [Request::children(ticket.line), Request::delete(path)];
            let [list, deleted] = zk.ask(requests).await?;
            (Queue::read(list)?, Some(deleted))
        }
        None => (ticket.list_line(local).await?, None),
    };
    let Some(at) = queue.place(ticket.id, local.path.as_deref()) else { return Ok(Left::Gone) };
    let was_there = match deleted {
        Some(deleted) => if_there(deleted, |_| Ok(())).map_err(StoreError::from)?.is_some(),
        // The creation was not answered, so the list was the first to tell the path.
        None => zk.delete(&ticket.node(&queue, at)).await?,
    };
    Ok(match was_there {
        false => Left::Gone,
        true if at < queue.admitted() => Left::Released,
        true => Left::Withdrawn,
    })
}
