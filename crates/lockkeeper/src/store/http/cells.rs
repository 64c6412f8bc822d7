//! Values that can be written only under the lock.

use super::{
    Http, KIND,
    client::{Ask, Retry},
    error,
    leave::edited,
    session::segment,
    wire,
};
use crate::{
    error::{ErrorKind, StoreError},
    model::name::Name,
    store::{Cell, Claim, Edit, Edited, StoreResult},
};
use http::Method;

const BYTES: &str = "application/octet-stream";

fn path(name: &Name) -> String {
    format!("/v1/cells/{}", segment(name.as_str()))
}

impl Http {
    pub(super) async fn read_cell(&self, name: &Name) -> StoreResult<Option<Cell>> {
        let reply = self.client.call(&Ask::get(path(name))).await?;
        if reply.is_success() {
            let fence = reply.header(wire::FENCE).and_then(|fence| fence.parse().ok());
            let what = "the service does not say under which fence the cell was written";
            let fence = fence.ok_or_else(|| StoreError::unknown(KIND, ErrorKind::Corrupt, what))?;
            return Ok(Some(Cell::new(reply.body.to_vec(), fence)));
        }
        match error::kind_of(&reply).as_deref() {
            Some("no_cell") => Ok(None),
            _ => Err(error::refusal(&reply)),
        }
    }

    /// A second copy does the same: the edit has a number.
    pub(super) async fn write_cell(&self, edit: Edit) -> StoreResult<Edited> {
        let method = if edit.bytes.is_some() { Method::PUT } else { Method::DELETE };
        let ask = Ask::new(method, path(&edit.place.name), Retry::Safe)
            .for_session(edit.place.session)
            .header(wire::TICKET, edit.place.ticket.to_string())
            .header(wire::EDIT, edit.edit.to_string());
        let ask = match edit.bytes {
            Some(bytes) => ask.bytes(bytes, BYTES),
            None => ask,
        };
        edited(&self.client.call(&ask).await?)
    }

    /// Sent once: a second copy could undo what was written in between.
    pub(super) async fn put_cell(&self, claim: Claim, bytes: Vec<u8>) -> StoreResult<Edited> {
        let ask = Ask::new(Method::PUT, path(&claim.name), Retry::Never)
            .header(wire::SEQUENCER, self.sequencer(claim))
            .bytes(bytes, BYTES);
        let reply = self.client.call(&ask).await?;
        match error::kind_of(&reply).as_deref() {
            // A grant of other data, or of a mode under which no value is written.
            Some("sequencer") => Ok(Edited::NotHeld),
            _ => edited(&reply),
        }
    }
}
