//! What belongs to a held ticket: its label, and the cell of its name.
//!
//! The data of a ticket's node has the numbers of its last edits, and changes with each of them. So the
//! version that was read guards the write: a late copy of an older edit finds another version, and a
//! ticket that is gone has none.

use super::{
    ATTEMPTS, KIND, Zookeeper,
    client::{Code, Error, NodeKind, Reply, Request, if_there},
    data::{TicketData, read_cell, write_cell},
    error::{outside_session, unavailable},
    poll::TicketRef,
    queue::TicketNode,
    shard::Shard,
};
use crate::{
    error::{ErrorKind, StoreError},
    model::{
        name::Name,
        ticket::{Mode, Place},
    },
    store::{Cell, Claim, Edit, Edited, StoreResult, TicketStatus},
};
use std::sync::Arc;

/// A held ticket.
struct Held {
    shard: Arc<Shard>,
    path: String,
    fence: u64,
    mode: Mode,
}

impl Zookeeper {
    /// The ticket, if its session holds it.
    async fn held(&self, place: &Place) -> StoreResult<Option<Held>> {
        let Place { session, name, ticket } = place;
        let Ok(session) = self.sessions.living(*session, self.now()) else { return Ok(None) };
        let Some(shard) = session.shard_of(*ticket) else { return Ok(None) };
        let line = self.line(name)?;
        let ticket = TicketRef { shard: &shard, name, line: &line, id: *ticket };
        let Some(mut local) = ticket.local() else { return Ok(None) };
        if !local.granted {
            let queue = ticket.list_line(&local).await?;
            let status = ticket.status(queue, local.path.is_some()).await?;
            match ticket.local() {
                Some(now) if matches!(status, TicketStatus::Granted { .. }) => local = now,
                _ => return Ok(None),
            }
        }
        let Some(path) = local.path else { return Ok(None) };
        let node = TicketNode::at(&path);
        Ok(node.map(|node| Held { shard, path, fence: local.fence, mode: node.mode }))
    }

    pub(super) async fn edit_label(&self, edit: Edit) -> StoreResult<Edited> {
        let Some(Held { shard, path, .. }) = self.held(&edit.place).await? else {
            return Ok(Edited::NotHeld);
        };
        let label = edit.bytes.unwrap_or_default();
        for _ in 0..ATTEMPTS {
            let Some((data, stat)) = shard.zk.data(&path).await? else {
                return Ok(Edited::NotHeld);
            };
            let data = TicketData::read(&data);
            if data.label_edit >= edit.edit {
                return Ok(Edited::Done);
            }
            let data = TicketData { label_edit: edit.edit, label: label.clone(), ..data };
            match shard.zk.ask_one(Request::set(&path, &data.write(), stat.version)).await {
                Ok(_) => return Ok(Edited::Done),
                Err(Error::Refused(Code::BAD_VERSION | Code::NO_NODE)) => {}
                Err(e) => return Err(e.into()),
            }
        }
        Err(unavailable("the ticket changes faster than it can be read"))
    }

    pub(super) async fn edit_cell(&self, edit: Edit) -> StoreResult<Edited> {
        let held = self.held(&edit.place).await?;
        let is_exclusive = |held: &Held| held.mode.weight() == held.mode.capacity();
        let Some(Held { shard, path, fence, .. }) = held.filter(is_exclusive) else {
            return Ok(Edited::NotHeld);
        };
        let cell = self.config.paths.cell(&edit.place.name);
        let value = edit.bytes.as_ref().map(|bytes| write_cell(fence, bytes));
        for _ in 0..ATTEMPTS {
            let [ticket, old] = shard.zk.ask([Request::data(&path), Request::data(&cell)]).await?;
            let Some((data, stat)) = if_there(ticket, Reply::data)? else {
                return Ok(Edited::NotHeld);
            };
            let data = TicketData::read(&data);
            if data.cell_edit >= edit.edit {
                return Ok(Edited::Done);
            }
            let old_version = if_there(old, Reply::data)?.map(|(_, stat)| stat.version);
            let data = TicketData { cell_edit: edit.edit, ..data };
            let mut parts = vec![Request::set(&path, &data.write(), stat.version)];
            parts.extend(self.change(&cell, value.as_deref(), old_version));
            let written = shard.zk.ask_one(Request::multi(&parts)).await;
            match written.and_then(|reply| reply.multi()) {
                Ok(()) => return Ok(Edited::Done),
                Err(Error::Refused(Code::NO_NODE)) => self.restore_root().await?,
                Err(Error::Refused(Code::BAD_VERSION | Code::NODE_EXISTS)) => {}
                Err(e) => return Err(e.into()),
            }
        }
        Err(unavailable("the cell changes faster than it can be read"))
    }

    /// Writes the cell under a grant of any client. The write is one with the proof that the ticket's node is there,
    /// and guarded by the version of the cell that was read.
    pub(super) async fn put_cell(&self, claim: &Claim, bytes: &[u8]) -> StoreResult<Edited> {
        let cell = self.config.paths.cell(&claim.name);
        let value = write_cell(claim.fence, bytes);
        for _ in 0..ATTEMPTS {
            let Some(ticket) = self.claimed(claim).await? else { return Ok(Edited::NotHeld) };
            let [_, old] = self.read_two([Request::sync(&cell), Request::data(&cell)]).await?;
            let version = if_there(old, Reply::data)?.map(|(_, stat)| stat.version);
            let mut parts = vec![Request::check(&ticket)];
            parts.extend(self.change(&cell, Some(&value), version));
            let written = self.common.ask_one(Request::multi(&parts)).await;
            match written.and_then(|reply| reply.multi()) {
                Ok(()) => return Ok(Edited::Done),
                // The ticket is gone, or the root.
                Err(Error::Refused(Code::NO_NODE)) => self.restore_root().await?,
                Err(Error::Refused(Code::BAD_VERSION | Code::NODE_EXISTS)) => {}
                Err(e) => return Err(outside_session(e)),
            }
        }
        Err(unavailable("the cell changes faster than it can be read"))
    }

    /// The request that gives a cell this value, if it has this version now.
    fn change(&self, cell: &str, value: Option<&[u8]>, version: Option<i32>) -> Option<Request> {
        match (value, version) {
            (Some(value), Some(version)) => Some(Request::set(cell, value, version)),
            (Some(value), None) => {
                Some(Request::create(cell, value, NodeKind::Persistent, self.config.acl))
            }
            (None, Some(version)) => Some(Request::delete_version(cell, version)),
            (None, None) => None,
        }
    }

    pub(super) async fn read_cell(&self, name: &Name) -> StoreResult<Option<Cell>> {
        let cell = self.config.paths.cell(name);
        let [_, data] = self.read_two([Request::sync(&cell), Request::data(&cell)]).await?;
        let Some((data, _)) = if_there(data, Reply::data)? else { return Ok(None) };
        match read_cell(&data) {
            Some(cell) => Ok(Some(cell)),
            None => {
                let what = format!("{cell} is no cell of ours");
                Err(StoreError::not_applied(KIND, ErrorKind::Corrupt, what))
            }
        }
    }
}
