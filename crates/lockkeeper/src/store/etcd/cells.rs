//! Notes, cells, checks and evictions: what is done to, or under, a ticket that stands in a line.

use super::{
    Etcd, Nature, error, ops,
    proto::{KeyValue, RangeRequest, TxnRequest},
    row::{CellRow, Row},
    sessions::tag,
    standing::Queue,
};
use crate::{
    error::{ErrorKind, StoreError},
    model::{
        name::Name,
        ticket::{Mode, Place, TicketId},
    },
    store::{Cell, Claim, Edit, Edited, StoreResult},
};

/// How often a write begins again because the key was written meanwhile.
const TRIES: usize = 8;

/// A ticket that its session holds.
struct Held {
    key: Vec<u8>,
    created: i64,
    lease: i64,
    mode: Mode,
    fence: u64,
}

impl Etcd {
    async fn queue(&self, name: &Name) -> StoreResult<Queue> {
        let line = self.client.range(ops::all(&self.keys.line(name))).await?;
        Ok(Queue::read(&self.keys, name, line.kvs))
    }

    /// The ticket, if it was granted to its session; the cluster is asked only if this is not known.
    async fn held(&self, place: &Place) -> StoreResult<Option<Held>> {
        let Place { session, name, ticket } = place;
        let known = self.sessions.with(*session, |life| life.tickets.get(ticket).cloned());
        if let Some(known) = known.flatten()
            && let (Some(fence), Some(created)) = (known.fence, known.created)
        {
            let (key, lease, mode) = (known.key, known.lease, known.mode);
            return Ok(Some(Held { key, created, lease, mode, fence }));
        }
        if !self.is_owner(*session).await? {
            return Ok(None);
        }
        let mut queue = self.queue(name).await?;
        let at = queue.own(*ticket, tag(*session)).filter(|at| *at < queue.admitted());
        let Some(own) = at.map(|at| queue.0.swap_remove(at)) else { return Ok(None) };
        let number =
            if self.keys.is_raw() { self.draw(place, &own).await? } else { Some(own.created) };
        let Some(number) = number else { return Ok(None) };
        let fence = self.note_grant(place, own.created, number);
        let (key, created, lease, mode) = (own.key, own.created, own.lease, own.spot.mode);
        Ok(Some(Held { key, created, lease, mode, fence }))
    }

    pub(super) async fn annotate_ticket(&self, edit: Edit) -> StoreResult<Edited> {
        let Place { session, name, ticket } = &edit.place;
        let note = edit.bytes.unwrap_or_default();
        if !self.is_owner(*session).await? {
            return Ok(Edited::NotHeld);
        }
        for _ in 0..TRIES {
            let queue = self.queue(name).await?;
            let at = queue.own(*ticket, tag(*session)).filter(|at| *at < queue.admitted());
            let Some(own) = at.map(|at| &queue.0[at]) else { return Ok(Edited::NotHeld) };
            let known = self.sessions.with(*session, |life| Some(life.tickets.get(ticket)?.edit));
            let last = own.row.as_ref().map_or(known.flatten().unwrap_or(0), |row| row.edit);
            if edit.edit <= last {
                return Ok(Edited::Done);
            }
            let value = match &own.row {
                Some(row) => Row { edit: edit.edit, note: note.clone(), ..row.clone() }.write(),
                None => note.clone(),
            };
            let ask = TxnRequest {
                compare: vec![ops::unchanged(&own.key, own.modified)],
                success: vec![ops::put(&own.key, value, own.lease)],
                failure: Vec::new(),
            };
            if self.client.txn(ask, Nature::Once).await?.succeeded {
                self.sessions.with(*session, |life| {
                    if let Some(known) = life.tickets.get_mut(ticket) {
                        known.edit = edit.edit;
                    }
                });
                return Ok(Edited::Done);
            }
        }
        Err(busy("the ticket"))
    }

    pub(super) async fn read_cell(&self, name: &Name) -> StoreResult<Option<Cell>> {
        let found = self.client.range(ops::one(&self.keys.cell(name))).await?;
        match found.kvs.first() {
            None => Ok(None),
            Some(kv) => CellRow::read(&kv.value).ok_or_else(|| error::nonsense("a cell")),
        }
    }

    /// Check and write are one transaction: the ticket's key must be the one that it was and
    /// belong to its lease, and what is in
    /// the cell must be older, by fence and edit.
    pub(super) async fn write_cell(&self, edit: Edit) -> StoreResult<Edited> {
        let held = self.held(&edit.place).await?;
        let exclusive = |held: &Held| held.mode.weight() == held.mode.capacity();
        let Some(held) = held.filter(exclusive) else { return Ok(Edited::NotHeld) };
        let cell = self.keys.cell(&edit.place.name);
        let value = CellRow::write(held.fence, edit.edit, edit.bytes.as_deref());
        // That a value was taken away is remembered for as long as an older write may come.
        let lease = if edit.bytes.is_some() { 0 } else { held.lease };
        let put = ops::put(&cell, value, lease);
        let is_held =
            vec![ops::leased(&held.key, held.lease), ops::created(&held.key, held.created)];
        let and = |compare| [is_held.clone(), vec![compare]].concat();
        let keys_only = |key: &[u8]| RangeRequest { keys_only: true, ..ops::one(key) };
        let first = TxnRequest {
            compare: and(ops::absent(&cell)),
            success: vec![put.clone()],
            failure: vec![ops::range(keys_only(&held.key))],
        };
        let ask = TxnRequest {
            compare: and(ops::below(&cell, CellRow::stamp(held.fence, edit.edit))),
            success: vec![put],
            failure: vec![ops::txn(first)],
        };
        let answer = self.client.txn(ask, Nature::Repeatable).await?;
        if answer.succeeded {
            return Ok(Edited::Done);
        }
        let first = ops::Answers::of(answer).txn()?;
        if first.succeeded {
            return Ok(Edited::Done);
        }
        // Still held, so it is this very write, or a later one, that is in the cell.
        let key = ops::Answers::of(first).range()?.kvs.pop();
        let is_it = |kv: &KeyValue| (kv.lease, kv.create_revision) == (held.lease, held.created);
        let is_held = key.as_ref().is_some_and(is_it);
        Ok(if is_held { Edited::Done } else { Edited::NotHeld })
    }

    pub(super) async fn check_claim(&self, claim: Claim) -> StoreResult<bool> {
        let Ok(fence) = i64::try_from(claim.fence) else { return Ok(false) };
        let line = ops::all(&self.keys.line(&claim.name));
        let ahead = RangeRequest { max_create_revision: fence, ..line };
        let (line, number) = if self.keys.is_raw() {
            let number = ops::key_of(&self.keys.number(&claim.name, claim.ticket));
            let (_, mut found) = self.read_all(vec![ahead, number]).await?;
            let number = found.pop().and_then(|number| Some(number.kvs.first()?.mod_revision));
            (found.pop().ok_or_else(|| error::nonsense("a line"))?, number)
        } else {
            (self.client.range(ahead).await?, None)
        };
        let queue = Queue::read(&self.keys, &claim.name, line.kvs);
        let at = queue.0.iter().position(|s| s.ticket == claim.ticket && !s.is_kept());
        Ok(at.is_some_and(|at| {
            let own = &queue.0[at];
            let number = if self.keys.is_raw() { number } else { Some(own.created) };
            number == Some(fence) && own.spot.mode == claim.mode && at < queue.admitted()
        }))
    }

    pub(super) async fn evict_ticket(&self, name: &Name, ticket: TicketId) -> StoreResult<bool> {
        self.good(name)?;
        for _ in 0..TRIES {
            let queue = self.queue(name).await?;
            let Some(own) = queue.0.iter().find(|s| s.ticket == ticket) else {
                return Ok(false);
            };
            let mut success = vec![ops::delete(&own.key)];
            if self.keys.is_raw() {
                success.push(ops::delete(&self.keys.number(name, ticket)));
            }
            let deletes = success.len();
            let tell = own.spot.session.filter(|_| !own.is_kept()).map(|session| {
                let text = ticket.to_string().into_bytes();
                ops::put(&self.keys.evicted(session), text, session)
            });
            success.extend(tell);
            let compare = vec![ops::unchanged(&own.key, own.modified)];
            let mut ask = TxnRequest { compare, success, failure: Vec::new() };
            let answer = match self.client.txn(ask.clone(), Nature::Once).await {
                // The session is ending by itself; there is nobody to tell.
                Err(e) if error::lease_gone(&e) => {
                    ask.success.truncate(deletes);
                    self.client.txn(ask, Nature::Once).await?
                }
                answer => answer?,
            };
            if answer.succeeded {
                return Ok(true);
            }
        }
        Err(busy("the ticket"))
    }
}

fn busy(what: &str) -> StoreError {
    let what = format!("{what} is written by others again and again");
    StoreError::not_applied(super::KIND, ErrorKind::Unavailable, what)
}
