//! Labels and cells: what is written under a held ticket.

use super::{
    Etcd,
    client::{KeyValue, Retry, TxnRequest, malformed, txn},
    error,
    local_session::{LocalTicket, public_id},
    row::{CellRow, Row},
};
use crate::{
    model::{
        name::Name,
        ticket::{Mode, Place},
    },
    store::{Cell, Claim, Edit, Edited, StoreResult},
};

/// How often a write begins again because the key was written meanwhile.
const TRIES: usize = 8;

/// A ticket that its session holds.
struct Held {
    key: Vec<u8>,
    created: i64,
    mode: Mode,
    fence: u64,
}

impl Etcd {
    /// The ticket, if it is granted to its session. The cluster is asked only if this handle has not seen
    /// the grant.
    async fn held(&self, place: &Place) -> StoreResult<Option<Held>> {
        let Place { session, name, ticket } = place;
        let known = self.sessions.ticket(*session, *ticket);
        if let Some(LocalTicket { fence: Some(fence), created: Some(created), key, mode, .. }) =
            known
        {
            return Ok(Some(Held { key, created, mode, fence }));
        }
        if !self.is_owner(*session).await? {
            return Ok(None);
        }
        let line = self.read_line(name).await?;
        let Some(own) = line.granted(*ticket, public_id(*session)) else { return Ok(None) };
        let fence = self.assign_fence(place, own).await?;
        Ok(fence.map(|fence| Held {
            key: own.key.clone(),
            created: own.created,
            mode: own.parsed.mode,
            fence,
        }))
    }

    pub(super) async fn edit_label(&self, edit: Edit) -> StoreResult<Edited> {
        let Place { session, name, ticket } = &edit.place;
        let label = edit.bytes.unwrap_or_default();
        if !self.is_owner(*session).await? {
            return Ok(Edited::NotHeld);
        }
        for _ in 0..TRIES {
            let line = self.read_line(name).await?;
            let Some(own) = line.granted(*ticket, public_id(*session)) else {
                return Ok(Edited::NotHeld);
            };
            let known = self.sessions.with_ticket(*session, *ticket, |known| known.edit);
            let last = own.row.as_ref().map_or(known.unwrap_or(0), |row| row.edit);
            if edit.edit <= last {
                return Ok(Edited::Done);
            }
            let value = match &own.row {
                Some(row) => Row { edit: edit.edit, label: label.clone(), ..row.clone() }.write(),
                None => label.clone(),
            };
            let request = TxnRequest {
                compare: vec![txn::unchanged(&own.key, own.modified)],
                success: vec![txn::put(&own.key, value, own.lease)],
                failure: Vec::new(),
            };
            if self.client.txn(request, Retry::Never).await?.succeeded {
                self.sessions.with_ticket(*session, *ticket, |known| known.edit = edit.edit);
                return Ok(Edited::Done);
            }
        }
        Err(error::contended())
    }

    /// Writes the cell under a grant of any client. Check and write are one transaction, which also makes sure that
    /// the cell was not written since it was read. The number of the holder's last edit stays in the cell: the
    /// holder's next write is a later one all the same.
    pub(super) async fn put_cell(&self, claim: &Claim, bytes: &[u8]) -> StoreResult<Edited> {
        let cell = self.keys.cell(&claim.name);
        for _ in 0..TRIES {
            let Some(own) = self.claimed(claim).await? else { return Ok(Edited::NotHeld) };
            let old = self.client.range(txn::one(&cell)).await?.kvs.pop();
            let edit = old.as_ref().map_or(0, |kv| CellRow::edit_under(&kv.value, claim.fence));
            let as_read = match &old {
                Some(kv) => txn::unchanged(&cell, kv.mod_revision),
                None => txn::absent(&cell),
            };
            let value = CellRow::write(claim.fence, edit, Some(bytes));
            let request = TxnRequest {
                compare: vec![
                    txn::leased(&own.key, own.lease),
                    txn::created(&own.key, own.created),
                    as_read,
                ],
                success: vec![txn::put(&cell, value, 0)],
                failure: Vec::new(),
            };
            if self.client.txn(request, Retry::Never).await?.succeeded {
                return Ok(Edited::Done);
            }
        }
        Err(error::contended())
    }

    pub(super) async fn read_cell(&self, name: &Name) -> StoreResult<Option<Cell>> {
        let found = self.client.range(txn::one(&self.keys.cell(name))).await?;
        match found.kvs.first() {
            None => Ok(None),
            Some(kv) => CellRow::read(&kv.value).ok_or_else(|| malformed("a cell")),
        }
    }

    /// Check and write are one transaction: the ticket's key must be the one that was granted and belong to
    /// its lease, and the value in the cell must be older, by fence and edit.
    pub(super) async fn write_cell(&self, edit: Edit) -> StoreResult<Edited> {
        let held = self.held(&edit.place).await?;
        let exclusive = |held: &Held| held.mode.weight() == held.mode.capacity();
        let Some(held) = held.filter(exclusive) else { return Ok(Edited::NotHeld) };
        let cell = self.keys.cell(&edit.place.name);
        let value = CellRow::write(held.fence, edit.edit, edit.bytes.as_deref());
        // That a value was taken away is remembered for as long as an older write may come.
        let own = public_id(edit.place.session);
        let lease = if edit.bytes.is_some() { 0 } else { own };
        let put = txn::put(&cell, value, lease);
        let is_held = vec![txn::leased(&held.key, own), txn::created(&held.key, held.created)];
        let and = |compare| [is_held.clone(), vec![compare]].concat();
        let first_write = TxnRequest {
            compare: and(txn::absent(&cell)),
            success: vec![put.clone()],
            failure: vec![txn::range(txn::key_of(&held.key))],
        };
        let request = TxnRequest {
            compare: and(txn::below(&cell, CellRow::stamp(held.fence, edit.edit))),
            success: vec![put],
            failure: vec![txn::txn(first_write)],
        };
        let mut answer = self.client.txn(request, Retry::Safe).await?;
        if answer.succeeded {
            return Ok(Edited::Done);
        }
        let mut first_write = answer.txn()?;
        if first_write.succeeded {
            return Ok(Edited::Done);
        }
        // If the ticket is held, this write or a later one is in the cell already.
        let key = first_write.range()?.kvs.pop();
        let is_it = |kv: &KeyValue| (kv.lease, kv.create_revision) == (own, held.created);
        Ok(if key.as_ref().is_some_and(is_it) { Edited::Done } else { Edited::NotHeld })
    }
}
