//! What belongs to a held ticket: its note, and the cell of its name.
//!
//! The node of a ticket carries the numbers of its last edits and changes with each of them. So the
//! version that was read guards the write: a late copy of an older edit finds another version, and
//! a ticket that is gone has none.

use super::{
    ATTEMPTS, Zookeeper,
    conn::Fault,
    data::{Card, read_cell, write_cell},
    failure,
    link::unavailable,
    lives::Life,
    names::Spot,
    optional, two,
    wire::{Code, Kind, Request},
};
use crate::{
    error::ErrorKind,
    model::{
        name::Name,
        ticket::{Mode, Place},
    },
    store::{Cell, Edit, Edited, StoreResult, TicketStatus},
};
use std::sync::Arc;

/// A held ticket.
struct Grant {
    life: Arc<Life>,
    path: String,
    fence: u64,
    mode: Mode,
}

impl Zookeeper {
    /// The ticket, if its session holds it.
    async fn grant(&self, place: &Place) -> StoreResult<Option<Grant>> {
        let Place { session, name, ticket } = place;
        let Ok(session) = self.lives.living(*session, self.now()) else { return Ok(None) };
        let Some(life) = session.of(*ticket) else { return Ok(None) };
        let Some(mut held) = life.held(name, *ticket) else { return Ok(None) };
        if !held.granted {
            let queue = self.list_with(&life, &self.line(name)?, &held).await?;
            let placed = held.path.is_some();
            let stand = self.stand(&life, name, *ticket, queue, placed).await?;
            match life.held(name, *ticket) {
                Some(now) if matches!(stand, TicketStatus::Granted { .. }) => held = now,
                _ => return Ok(None),
            }
        }
        let Some(path) = held.path else { return Ok(None) };
        let Some(spot) = path.rsplit('/').next().and_then(Spot::read) else { return Ok(None) };
        Ok(Some(Grant { life, path, fence: held.fence, mode: spot.mode }))
    }

    pub(super) async fn edit_note(&self, edit: Edit) -> StoreResult<Edited> {
        let Some(Grant { life, path, .. }) = self.grant(&edit.place).await? else {
            return Ok(Edited::NotHeld);
        };
        let note = edit.bytes.unwrap_or_default();
        for _ in 0..ATTEMPTS {
            let Some((card, version)) = card(&life, &path).await? else {
                return Ok(Edited::NotHeld);
            };
            if card.note_edit >= edit.edit {
                return Ok(Edited::Done);
            }
            let card = Card { note_edit: edit.edit, note: note.clone(), ..card };
            let mut answers = life.link.ask(&[Request::set(&path, &card.write(), version)]).await?;
            match answers.pop().unwrap_or(Err(Fault::Broken)) {
                Ok(_) => return Ok(Edited::Done),
                Err(Fault::Refused(Code::BAD_VERSION | Code::NO_NODE)) => {}
                Err(fault) => return Err(failure(fault)),
            }
        }
        Err(unavailable("the ticket changes faster than it can be read"))
    }

    pub(super) async fn edit_cell(&self, edit: Edit) -> StoreResult<Edited> {
        let grant = self.grant(&edit.place).await?;
        let whole = |grant: &Grant| grant.mode.weight() == grant.mode.capacity();
        let Some(Grant { life, path, fence, .. }) = grant.filter(whole) else {
            return Ok(Edited::NotHeld);
        };
        let cell = self.plan.paths.cell(&edit.place.name);
        let value = edit.bytes.as_ref().map(|bytes| write_cell(fence, bytes));
        for _ in 0..ATTEMPTS {
            let requests = [Request::data(&path, false), Request::data(&cell, false)];
            let [ticket, old] = two(life.link.ask(&requests).await?).map(optional);
            let Some(ticket) = ticket? else { return Ok(Edited::NotHeld) };
            let (data, stat) = ticket.data().map_err(failure)?;
            let card = Card::read(&data);
            if card.cell_edit >= edit.edit {
                return Ok(Edited::Done);
            }
            let old = old?.map(|reply| reply.data().map_err(failure)).transpose()?;
            let version = old.map(|(_, stat)| stat.version);
            let card = Card { cell_edit: edit.edit, ..card };
            let mut parts = vec![Request::set(&path, &card.write(), stat.version)];
            parts.extend(match (&value, version) {
                (Some(value), Some(version)) => Some(Request::set(&cell, value, version)),
                (Some(value), None) => {
                    Some(Request::create(&cell, value, Kind::Persistent, self.plan.rights))
                }
                (None, Some(version)) => Some(Request::delete(&cell, version)),
                (None, None) => None,
            });
            let mut answers = life.link.ask(&[Request::all_or_nothing(&parts)]).await?;
            let answer = answers.pop().unwrap_or(Err(Fault::Broken));
            match answer.and_then(|reply| reply.multi()) {
                Ok(()) => return Ok(Edited::Done),
                Err(Fault::Refused(Code::NO_NODE)) => self.restore_root().await?,
                Err(Fault::Refused(Code::BAD_VERSION | Code::NODE_EXISTS)) => {}
                Err(fault) => return Err(failure(fault)),
            }
        }
        Err(unavailable("the cell changes faster than it can be read"))
    }

    pub(super) async fn read_cell(&self, name: &Name) -> StoreResult<Option<Cell>> {
        let cell = self.plan.paths.cell(name);
        let requests = [Request::sync(&cell), Request::data(&cell, false)];
        let [_, data] = two(self.read_all(&requests).await?);
        let Some(reply) = optional(data)? else { return Ok(None) };
        let (data, _) = reply.data().map_err(failure)?;
        match read_cell(&data) {
            Some(cell) => Ok(Some(cell)),
            None => {
                let what = format!("{cell} is no cell of ours");
                Err(crate::StoreError::not_applied(super::KIND, ErrorKind::Corrupt, what))
            }
        }
    }
}

async fn card(life: &Life, path: &str) -> StoreResult<Option<(Card, i32)>> {
    let mut answers = life.link.ask(&[Request::data(path, false)]).await?;
    let reply = optional(answers.pop().unwrap_or(Err(Fault::Broken)))?;
    let Some(reply) = reply else { return Ok(None) };
    let (data, stat) = reply.data().map_err(failure)?;
    Ok(Some((Card::read(&data), stat.version)))
}
