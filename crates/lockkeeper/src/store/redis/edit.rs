//! What belongs to a held ticket: its label and the cell of its name. An edit is one script, which checks the
//! ownership and writes; a read is one command.

use super::{
    Redis,
    exec::{Call, explained},
    reply::hex,
    scripts::SCRIPTS,
};
use crate::{
    model::{name::Name, ticket::Place},
    store::{Cell, Claim, Edit, Edited, StoreResult},
};

impl Redis {
    /// Edits the `note` of a ticket, which is its label, or the `cell` of its name.
    pub(super) async fn edit(&self, what: &str, edit: &Edit) -> StoreResult<Edited> {
        let Place { session, name, ticket } = &edit.place;
        let keys = self.keys(name);
        let of_name = [keys.tickets(name), keys.cell(name)];
        let mut call =
            Call::new(&SCRIPTS.edit, &[&keys.ends, &keys.sessions, &of_name[0], &of_name[1]]);
        call.arg(ticket.to_string()).arg(hex(*session)).arg(what).arg(edit.edit);
        call.arg(u8::from(edit.bytes.is_some())).arg(edit.bytes.as_deref().unwrap_or_default());
        match self.run::<i64>(keys, Some(name), &call).await? {
            1 => Ok(Edited::Done),
            _ => Ok(Edited::NotHeld),
        }
    }

    pub(super) async fn put_cell(&self, claim: &Claim, bytes: &[u8]) -> StoreResult<Edited> {
        let (keys, name) = (self.keys(&claim.name), &claim.name);
        let of_name = [keys.tickets(name), keys.cell(name)];
        let mut call =
            Call::new(&SCRIPTS.put, &[&keys.ends, &keys.sessions, &of_name[0], &of_name[1]]);
        call.arg(claim.ticket.to_string()).arg(claim.fence);
        call.arg(claim.mode.weight()).arg(claim.mode.capacity()).arg(bytes);
        match self.run::<i64>(keys, Some(name), &call).await? {
            1 => Ok(Edited::Done),
            _ => Ok(Edited::NotHeld),
        }
    }

    pub(super) async fn read_cell(&self, name: &Name) -> StoreResult<Option<Cell>> {
        let (mut get, cell) = (redis::cmd("HMGET"), self.keys(name).cell(name));
        let reply = self.connection.query(get.arg(&cell).arg("v").arg("f")).await;
        let (bytes, fence): (Option<Vec<u8>>, Option<u64>) = match reply {
            Err(e) => return Err(explained(&self.connection, e, [(cell, "hash")]).await),
            Ok(reply) => reply,
        };
        Ok(bytes.zip(fence).map(|(bytes, fence)| Cell { bytes, fence }))
    }
}
